"""The report: everything a reader expects is in it, nothing outside it is needed, and names are only names."""

from __future__ import annotations

import base64
import html as html_module
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clom.data import catalog
from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.experiments.analysis.finished_run import read_run
from clom.experiments.analysis.ood_scores import score_run
from clom.experiments.config import parse_overrides, resolve
from clom.experiments.run import execute, read_config
from clom.experiments.run_folder import signature
from clom.experiments.task_result import read_results
from clom.methods.families.base import Blocks
from clom.methods.families.masked import MaskedMethod
from clom.methods.registry import PAPER_METHODS
from clom.ood.rejection import HeldOutScores
from clom.reporting.paper.numbers import PAPER_NAMES, Number, all_systems, reported
from clom.reporting.report import examples
from clom.reporting.report.page import write_report
from clom.reporting.report.sections import percent, points, without_folders
from clom.testing.simulated_device import simulated_device

TINY: dict[str, Any] = {
    "data.train_per_class": 8,
    "data.test_per_class": 5,
    "data.classes_per_task": None,
    "data.sizes": [2, 3, 2],
    "net.channels": [8, 8, 12],
    "net.hidden": 24,
}
OPEN: dict[str, Any] = {"attention.sparsity_first": 0.0, "attention.sparsity_rest": 0.0}  # so few units all stay
SECTIONS = ["what", "accuracy", "tasks", "known", "calibration", "capacity", "examples"]


def make_run(folder: Path, method: str, rename: bool = False) -> Path:
    settings = TINY | ({"learning.plan.epochs": 1} | OPEN if method == "hat" else {"plan.epochs": 1})
    config = resolve("digits-5t", method, "smoke", 0, settings)
    stream = config.data.stream(None, 0)
    if rename:
        names = [("<b>0</b>", "$1 & 1"), ('"2"', "3", "4"), ("5", "6")]
        tasks = [Task(task.name, new, task.train, task.validation) for task, new in zip(stream, names, strict=True)]
        stream = Stream(stream.name, tasks, stream.tests)
    execute(config, stream, folder)
    return folder


@pytest.fixture(scope="module")
def hat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "hat", "hat", rename=True)


@pytest.fixture(scope="module")
def finetune(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "finetune", "finetune")


class Page(HTMLParser):
    """A page as its reader's program takes it apart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]


def page_of(tmp_path: Path, *folders: Path) -> Page:
    return Page(write_report(folders, tmp_path / "page.html").path)


def check_self_contained(page: Page) -> None:
    assert "http:" not in page.html
    assert "https:" not in page.html
    assert "@import" not in page.html
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert page.all("script") == [{}], "one, in the page itself"
    assert set(re.findall(r"url\((.)", page.html)) <= {"#"}
    ids = page.ids
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert str(attributes.get("src", "data:")).startswith("data:image/png;base64,") or "src" not in attributes
        for name in ("href", "xlink:href"):
            if name in attributes:
                assert str(attributes[name])[0] == "#"
                assert str(attributes[name])[1:] in ids


def test_one_run(tmp_path: Path, hat: Path) -> None:
    page = page_of(tmp_path, hat)
    check_self_contained(page)
    assert [f"run-1-{name}" in page.ids for name in SECTIONS] == [True] * len(SECTIONS)
    assert "paper" in page.ids
    assert len(page.all("h1")) == 1
    assert all(page.all(landmark) for landmark in ("header", "nav", "main", "article", "footer"))
    summary = json.loads((hat / "summary.json").read_text())
    for figure in ("til", "cil", "task_detection", "auc_maxlogit"):
        assert percent(summary[figure]) in page.text
    assert "Nothing was forgotten." in page.text
    assert all(f"{layer} " in page.text for layer in ("conv1", "conv2", "conv3", "fc"))
    assert all(way in page.text for way in ("memory", "scale", "none"))
    assert "attention:" in page.text  # all settings
    assert "The paper has no such experiment" in page.text


def test_the_contents_name_every_part(tmp_path: Path, hat: Path, finetune: Path) -> None:
    for folders in ([hat], [hat, finetune]):
        html = page_of(tmp_path, *folders).html
        contents = html[html.index("<nav") : html.index("</nav>")]
        assert html.count("<nav") == 1, "one list, which stays in view"
        wanted = [f"run-{run}-{name}" for run in range(1, len(folders) + 1) for name in SECTIONS] + ["paper"]
        assert [f'href="#{name}"' in contents for name in wanted] == [True] * len(wanted)
        assert 'href="#overview"' in contents or len(folders) == 1
    style = html[html.index("<style>") : html.index("</style>")]
    assert re.search(r"nav \{[^}]*position: sticky", style)


def test_commands_can_be_copied(tmp_path: Path, hat: Path) -> None:
    page = page_of(tmp_path, hat)
    commands = [re.sub(r"<.*?>", "", code) for code in re.findall(r'class="command"><small>.*?</code>', page.html)]
    again = next(command for command in commands if "clom run" in command)
    words = shlex.split(html_module.unescape(again.partition("clom ")[2]))
    assert words[:8] == ["run", "digits-5t", "--method", "hat", "--budget", "smoke", "--seed", "0"]
    given = parse_overrides([words[place + 1] for place, word in enumerate(words) if word == "--set"])
    assert resolve("digits-5t", "hat", "smoke", 0, given) == read_config(hat)
    assert "clom scores hat" in page.text
    assert ".command" in page.html[page.html.index("<script>") :]


@pytest.mark.filterwarnings("ignore:The run in")
def test_a_network_that_grew(tmp_path: Path, hat: Path) -> None:
    assert "Units were appended" not in page_of(tmp_path, hat).text
    copy = tmp_path / "grown"
    shutil.copytree(hat, copy)
    results = read_results(copy / "metrics.jsonl")
    assert results[0].units == {"conv1": 8, "conv2": 8, "conv3": 12, "fc": 24}
    results[-1] = replace(results[-1], units=results[-1].units | {"conv1": 30})
    (copy / "metrics.jsonl").write_text("".join(result.to_line() for result in results))
    (copy / signature.NAME).unlink()  # as in runs of earlier versions
    assert "Units were appended before later tasks: conv1 from 8 to 30." in page_of(tmp_path, copy).text


def test_what_a_page_must_offer_everyone(tmp_path: Path, hat: Path) -> None:
    page = page_of(tmp_path, hat)
    assert page.all("html") == [{"lang": "en"}]
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("svg")) == 1 + 3 + 1  # accuracy, scores of each task, capacity
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in page.all("svg"))
    assert all("scope" in heading for heading in page.all("th"))
    style = "".join(page.words)
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    fixed = set(re.findall(r"(?:fill|stroke): (#\w+)", page.html))
    assert fixed == set(), "colours that do not follow the page"


def test_names_are_only_names(tmp_path: Path, hat: Path) -> None:
    page = page_of(tmp_path, hat)
    assert "<b>0" not in page.html
    assert "&lt;b&gt;0&lt;/b&gt;" in page.html
    assert "<b>0</b>" in page.text
    assert "$1 & 1" in page.text
    assert "Image of <b>0</b>" in " ".join(str(image["alt"]) for image in page.all("img"))


def test_nothing_tells_where_it_was_made(tmp_path: Path, hat: Path) -> None:
    html = page_of(tmp_path, hat).html
    assert str(tmp_path) not in html
    assert str(hat) not in html
    assert str(Path.home()) not in html
    settings = {"a": "/home/me/sets/x.npz", "b": ["C:\\data\\y", 1], "c": "a/b", "d": None}
    assert without_folders(settings) == {"a": "x.npz", "b": ["y", 1], "c": "a/b", "d": None}


def test_a_method_without_gates_and_calibration(tmp_path: Path, finetune: Path) -> None:
    page = page_of(tmp_path, finetune)
    check_self_contained(page)
    assert "reserves no units" in page.text
    assert "there is no calibration" in page.text
    assert len(page.all("svg")) == 1 + 3


def test_several_runs(tmp_path: Path, hat: Path, finetune: Path) -> None:
    copy = tmp_path / "again"
    shutil.copytree(hat, copy)
    page = page_of(tmp_path, hat, finetune, copy, hat)
    check_self_contained(page)
    assert len(page.all("article")) == 3  # a run that is named twice is shown once
    assert len(page.all("h1")) == 1
    assert "3 runs compared" in page.text
    for name in ("smoke, seed 0 (hat)", "smoke, seed 0 (again)", "digits-5t, Fine-tuning, smoke, seed 0"):
        assert f'aria-label="Parts of digits-5t, HAT, {name}"' in page.html or name in page.text
    assert 'aria-label="CIL of every run over all tasks so far"' in page.html


def test_examples_are_of_every_kind(hat: Path) -> None:
    run = read_run(hat)
    stream = examples.local_stream(run, None)
    assert stream is not None
    best = torch.cat([examples.best_scores(run, row) for row in run.blocks])
    lowest = float(best.median())
    made = examples.galleries(run, stream, lowest)
    assert [gallery.total for gallery in made] == [10, 15, 10]
    assert all(sum(kind.count for kind in gallery.kinds) == gallery.total for gallery in made)
    count = {
        name: sum(kind.count for gallery in made for kind in gallery.kinds if kind.name == name)
        for name in ("right", "confused", "rejected")
    }
    assert count["rejected"] == int((best.double() < lowest).sum())
    everything = examples.galleries(run, stream, -1e9)
    right = sum(gallery.kinds[0].count for gallery in everything)
    assert right / 35 == pytest.approx(run.summary["cil"])
    for gallery, names in zip(everything, run.class_names, strict=True):
        for example in gallery.kinds[0].examples:
            assert example.answer == example.truth
            assert example.truth in names
        assert all(example.answer != example.truth for example in gallery.kinds[1].examples)
        assert all(len(kind.examples) == min(4, kind.count) for kind in gallery.kinds)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_keep_every_pixel(channels: int) -> None:
    pixels = torch.randint(0, 256, (channels, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    head, _, content = examples.png_uri(pixels).partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        shown = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)
    assert torch.equal(shown, pixels.expand(3, -1, -1))


def test_the_threshold_is_set_on_validation_images(hat: Path) -> None:
    run = read_run(hat)
    assert run.validation is None
    assert examples.threshold(run, None) is None
    stream = examples.local_stream(run, None)
    assert stream is not None
    own = torch.cat([examples.best_scores(run, run.method.blocks(task.validation.pixels)) for task in stream])
    assert examples.threshold(run, stream) == HeldOutScores.of(own.tolist()).threshold(0.05)


def test_without_the_data_the_page_says_so(tmp_path: Path, hat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda name, folder=None: False)
    written = write_report([hat], tmp_path / "page.html")
    assert written.without_images == ["digits"]
    page = Page(written.path)
    assert "The images of digits are not on the machine" in page.text
    assert not page.all("img")
    assert len(page.all("svg")) == 5


def noise(name: str, *_: object, **__: object) -> DataSet:
    pixels = torch.randint(0, 256, (9, 3, 12, 12), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    images = Images(pixels, torch.zeros(9, dtype=torch.int64))
    return DataSet(name, ("a",), images[:0], images)


def test_external_sets_once_they_were_scored(tmp_path: Path, hat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scored"
    shutil.copytree(hat, folder)
    read = catalog.load
    monkeypatch.setattr(catalog, "available", lambda name, folder=None: True)
    monkeypatch.setattr(catalog, "load", lambda name, *a, **k: (noise if name == "svhn" else read)(name, *a, **k))
    assert "clom scores" in page_of(tmp_path, folder).text
    score_run(folder, external=["svhn"])
    page = page_of(tmp_path, folder)
    check_self_contained(page)
    assert 'aria-label="Scores of known and of unknown images"' in page.html
    assert "rel. Mahalanobis" in page.text
    assert "the right answer is to reject them" in page.text
    (folder / "features.safetensors").write_bytes(b"of another model")
    assert "rel. Mahalanobis" not in page_of(tmp_path, folder).text


def test_the_same_runs_give_the_same_page(tmp_path: Path, hat: Path) -> None:
    assert page_of(tmp_path, hat).html == page_of(tmp_path, hat).html


@pytest.mark.filterwarnings("ignore:The run in")
def test_the_paper_beside_a_run(tmp_path: Path, hat: Path) -> None:
    folder = tmp_path / "called mnist"
    shutil.copytree(hat, folder)
    text = (folder / "config.yaml").read_text().replace("experiment: digits-5t", "experiment: mnist-5t")
    (folder / "config.yaml").write_text(text)
    (folder / signature.NAME).unlink()  # as in runs of earlier versions
    page = page_of(tmp_path, folder)
    paper = reported("mnist-5t", "hat")
    cil = json.loads((folder / "summary.json").read_text())["cil"]
    assert f"{paper['cil'].mean:.1f} ± " in page.text
    assert points(100 * cil - paper["cil"].mean) in page.text
    assert "aria-label=\"CIL of the paper's systems" in page.html.replace("&#39;", "'")


def test_what_the_paper_reports() -> None:
    clom = reported("mnist-5t", "clom")
    assert clom["til"] == Number(99.9, 0.0)
    assert clom["cil"] == Number(96.9, 0.3)
    assert clom["average_incremental_cil"].mean == 98.3
    assert clom["parameters"].mean == 1.07
    assert reported("mnist-5t", "muc")["parameters"].mean == 1.06
    assert reported("cifar10-5t", "clom-odin")["task_detection"].mean == 63.3
    assert reported("digits-5t", "clom") == {}
    assert reported("mnist-5t", "joint") == {}
    assert set(PAPER_METHODS) - set(PAPER_NAMES) == {"finetune", "joint", "a-rps"}
    assert all_systems("mnist-5t")["CLOM"].mean == 96.9
    assert all_systems("digits-5t") == {}


@pytest.mark.filterwarnings("ignore:The run in")
def test_what_is_no_finished_run_is_refused(tmp_path: Path, hat: Path) -> None:
    out = tmp_path / "page.html"

    def refused(message: str, *, remove: str | None = None, damage: str | None = None) -> None:
        folder = tmp_path / "copy"
        shutil.copytree(hat, folder)
        if remove:
            (folder / remove).unlink()
        if damage:
            (folder / damage).write_text("[]")
            (folder / signature.NAME).unlink()  # as in runs of earlier versions
        with pytest.raises(UserError, match=message):
            write_report([hat, folder], out)
        shutil.rmtree(folder)
        assert not out.exists()

    with pytest.raises(UserError, match=r"nowhere is not the folder of a run: it has no config\.yaml"):
        write_report([tmp_path / "nowhere"], out)
    with pytest.raises(UserError, match="is a folder: --out names the page's file"):
        write_report([hat], tmp_path)
    refused("is not finished", remove="summary.json")
    refused("There is no file", remove="scores.safetensors")
    refused("There is no file", remove="model.safetensors")
    refused("Cannot read", remove="environment.json")
    refused("has 0 tasks|cannot be read", damage="metrics.jsonl")
    refused("is damaged", damage="summary.json")
    refused("is damaged", damage="config.yaml")
    refused("cannot be read", damage="scores.safetensors")


@pytest.mark.filterwarnings("ignore:The run in")
def test_other_data_of_the_same_name_are_refused(tmp_path: Path, hat: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(hat, folder)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("test_per_class: 5", "test_per_class: 4", 1))
    (folder / signature.NAME).unlink()  # as in runs of earlier versions
    with pytest.raises(UserError, match=r"not those that .*other was run on"):
        write_report([folder], tmp_path / "page.html")


def test_the_examples_are_scored_on_the_given_device(
    hat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, blocks = [], MaskedMethod.blocks

    def recorded(self: MaskedMethod, pixels: torch.Tensor) -> Blocks:
        if len(pixels) > 1:  # not the generated image that is looked at when a model is loaded
            devices.append(self.device)
        return blocks(self, pixels)

    monkeypatch.setattr(MaskedMethod, "blocks", recorded)
    pages = []
    for device in (torch.device("cpu"), simulated_device()):
        devices.clear()
        write_report([hat], tmp_path / "report.html", device=device)
        assert set(devices) == {device}
        pages.append((tmp_path / "report.html").read_text())
    assert pages[0] == pages[1]
