"""The exported file: the same scores as the model, for any number of images, and nothing in it that should not be."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import clom
from clom.data.memory import Memory
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.export import onnx as export
from clom.export.graphs import make_graph
from clom.export.onnx import Exported, export_model, metadata
from clom.learning.calibration import Affine
from clom.learning.context import TrainingContext
from clom.learning.heads import DiscriminantHead
from clom.methods.baselines import FineTune
from clom.methods.clom import Clom, ClomSettings
from clom.methods.clom_odin import ClomOdin, ClomOdinSettings
from clom.methods.experts import Experts, ExpertsSettings
from clom.methods.families.base import LearnedTask, Method, seeded
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.shared import SharedSettings
from clom.methods.families.task_record import TaskRecord, now
from clom.methods.hat import Hat, HatSettings
from clom.methods.hypernet.method import HyperNet, HyperNetSettings
from clom.methods.ncm import Ncm, NcmSettings
from clom.methods.registry import BUILT_IN, method_class
from clom.methods.slda import Slda, SldaSettings
from clom.methods.supsup import SupSup, SupSupSettings
from clom.nets import AdapterSettings, AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.layers import GatedJoin
from clom.ood.rejection import HeldOutScores
from clom.photos.thresholds import thresholds
from clom.testing.simulated_device import simulated_device
from methods.minimal import minimal

DIGITS_NET = AlexNetSettings(
    channels=(6, 6, 8), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=12, dropout=(0.0, 0.0)
)
PRETRAINED = AdapterSettings(weights="random", width=0.05, hidden=16)
TASKS = (LearnedTask("first", ("a", "b")), LearnedTask("second", ("c", "d", "e")))


def opened(method: Method, tasks: tuple[LearnedTask, ...] = TASKS) -> Method:
    """As if it had learned two tasks, unlike in everything that can be unlike."""
    with seeded(1, "opened"):
        for task in tasks:
            method.open_task(task)
        if isinstance(method, MaskedMethod):
            method.set_fitted(Affine(torch.rand(2) + 0.5, torch.randn(2), torch.randn(2, 5)))
            for module in method.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    torch.nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
                    torch.nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
        for name in ("means", "weight", "bias"):
            if isinstance(values := getattr(method, name, None), Tensor):
                torch.nn.init.normal_(values)
    return method.eval()


def make_clom(net: NetSettings, shape: tuple[int, int, int]) -> Method:
    return opened(Clom(net, ClomSettings(), shape))


def with_flip_tta() -> Method:
    return opened(Clom(DIGITS_NET, ClomSettings(flip_tta=True), (1, 8, 8)))


def with_cross_task() -> Method:
    settings = ClomSettings.model_validate({"memory_fit": {"cross_task": 0.1}})
    method = opened(Clom(DIGITS_NET, settings, (1, 8, 8)))
    assert method.calibrations()["memory"].cross_task is not None
    return method


def grown() -> Method:
    units = {"conv1": 9, "conv2": 6, "conv3": 10, "fc": 15}
    second = LearnedTask(TASKS[1].name, TASKS[1].class_names, units=units)
    method = opened(Clom(DIGITS_NET, ClomSettings(), (1, 8, 8)), (TASKS[0], second))
    assert method.unit_counts()["fc"] == [12, 15]
    return method


def adapters() -> Method:
    method = make_clom(PRETRAINED, (3, 16, 16))
    for name, values in method.named_parameters():
        if ".scales." in name:
            torch.nn.init.normal_(values)
    return method


def discriminants() -> Method:
    """As photos are learned: whether an image belongs is not read from its scores."""
    settings = ClomSettings.model_validate({"learning": {"head": {"kind": "discriminant"}}})
    method = opened(Clom(PRETRAINED, settings, (3, 16, 16)))
    assert isinstance(method, Clom)
    for head in method.heads:
        assert isinstance(head, DiscriminantHead)
        head.spans.data = torch.linalg.qr(torch.rand_like(head.spans).transpose(1, 2)).Q.transpose(1, 2)
    return method


MAKERS: dict[str, Callable[[], Method]] = {
    "clom with discriminants": discriminants,
    "slda": lambda: opened(Slda(PRETRAINED, SldaSettings(), (3, 16, 16))),
    "clom": lambda: make_clom(DIGITS_NET, (1, 8, 8)),
    "clom with cross-task calibration": with_cross_task,
    "clom with flip TTA": with_flip_tta,
    "clom that grew": grown,
    "clom with a residual network": lambda: make_clom(ResNet18Settings(width=4), (3, 16, 16)),
    "clom with adapters": adapters,
    "hat": lambda: opened(Hat(DIGITS_NET, HatSettings(), (1, 8, 8))),
    "supsup": lambda: opened(SupSup(DIGITS_NET, SupSupSettings(), (1, 8, 8))),
    "ncm": lambda: opened(Ncm(PRETRAINED, NcmSettings(), (3, 16, 16))),
}


def images_for(method: Method, count: int) -> Tensor:
    randomness = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, *method.image_shape), dtype=torch.uint8, generator=randomness)


def expected(method: Method, images: Tensor, tasks: tuple[int, ...] = (0, 1)) -> Tensor:
    blocks = method.calibration(method.blocks(images))
    return torch.cat([blocks[task] for task in tasks], 1).detach()


def about(path: Path) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path)
    return {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}


def best_belonging(method: Method, images: Tensor) -> Tensor:
    """What the task of the best class says about each image."""
    sizes = torch.tensor([task.n_classes for task in method.tasks])
    best = torch.arange(len(sizes)).repeat_interleave(sizes)[expected(method, images).argmax(1)]
    return method.belonging(images).gather(1, best[:, None])[:, 0]


def run_onnx(path: Path, images: Tensor) -> tuple[Tensor, Tensor]:
    scores, belonging = onnxruntime.InferenceSession(path).run(None, {"images": images.numpy()})
    return torch.from_numpy(scores), torch.from_numpy(belonging)


@dataclass
class Case:
    method: Method
    path: Path
    exported: Exported


SLOW = ("clom with a residual network", "clom that grew", "hat", "ncm", "slda")  # the other format is quicker


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MAKERS]
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    method = MAKERS[request.param]()
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    return Case(method, path, export_model(path, method))


def test_agrees_with_the_model(case: Case) -> None:
    for count in (1, 2, 5):
        images = images_for(case.method, count)
        wanted = expected(case.method, images)
        assert wanted.std() > 1e-3, "scores that are all alike prove nothing"
        scores, belonging = run_onnx(case.path, images)
        assert scores.shape == (count, 5)
        torch.testing.assert_close(scores, wanted, atol=1e-4, rtol=0)
        torch.testing.assert_close(belonging, best_belonging(case.method, images), atol=1e-4, rtol=0)
    assert case.exported.largest_difference < 1e-5


def test_says_what_it_is(case: Case) -> None:
    told = about(case.path)
    assert told["classes"] == list(case.exported.class_names) == ["a", "b", "c", "d", "e"]
    assert [(task["name"], task["classes"]) for task in told["tasks"]] == [
        ("first", ["a", "b"]),
        ("second", ["c", "d", "e"]),
    ]
    assert told["image_shape"] == list(case.method.image_shape)
    assert told["method"] == case.method.name
    assert told["calibration"] == case.method.calibration_name


def test_is_one_file_without_traces_of_where_it_was_made(case: Case) -> None:
    content = case.path.read_bytes()
    assert [file.name for file in case.path.parent.iterdir()] == ["model.onnx"]
    assert case.exported.n_bytes == len(content)
    for package in (torch, clom):
        assert str(Path(str(package.__file__)).parent).encode() not in content


def test_a_frozen_network_is_asked_once_for_all_tasks(case: Case) -> None:
    convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in case.method.modules())
    tasks = 1 if isinstance(case.method.net_settings, AdapterSettings) else 2
    joins = sum(isinstance(module, GatedJoin) for module in case.method.modules())  # convolutions in the graph
    nodes = onnx.load(case.path).graph.node
    assert sum(node.op_type == "Conv" for node in nodes) == tasks * (convolutions + joins)


# --- a model that has really learned ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tiny_stream: Stream) -> Clom:
    learning = {"plan": {"epochs": 3, "batch": 12}, "head": {"views": 1, "iterations": 20}}
    method = Clom(DIGITS_NET, ClomSettings.model_validate({"learning": learning, "memory_per_class": 4}), (1, 8, 8))
    for task in tiny_stream[:2]:
        method.learn(task)
    return method


@pytest.fixture(scope="module")
def alone(learned: Clom, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second task as a file."""
    path = tmp_path_factory.mktemp("alone") / "m.onnx"
    assert export_model(path, learned, task="task 2").class_names == learned.tasks[1].class_names
    return path


def test_one_task_alone(learned: Clom, alone: Path, tiny_stream: Stream) -> None:
    pixels = tiny_stream.tests[1].pixels
    scores, belonging = run_onnx(alone, pixels)
    torch.testing.assert_close(scores, expected(learned, pixels, (1,)), atol=1e-4, rtol=0)
    torch.testing.assert_close(belonging, learned.belonging(pixels)[:, 1], atol=1e-4, rtol=0)
    assert [task["name"] for task in about(alone)["tasks"]] == ["task 2"]


def test_only_open_units_are_written(learned: Clom, alone: Path) -> None:
    stored = sum(math.prod(tensor.dims) for tensor in onnx.load(alone).graph.initializer)
    graph = make_graph(learned, [1])
    small = sum(values.numel() for values in (*graph.parameters(), *graph.buffers()))
    whole = sum(p.numel() for part in (learned.protection.net, learned.heads[1]) for p in part.parameters())
    assert stored <= small + 40  # and some numbers that tell shapes
    assert small < 0.9 * whole


def test_stored_images_stay_in_the_model(learned: Clom, alone: Path, tiny_stream: Stream, tmp_path: Path) -> None:
    joint = clom.make_method("joint", "digits-5t", "smoke", net__channels=[4, 4, 6], plan__epochs=1)
    export_model(tmp_path / "learned.pt2", learned)
    export_model(tmp_path / "joint.pt2", joint.learn(tiny_stream[0]))
    for method, path in ((learned, alone), (learned, tmp_path / "learned.pt2"), (joint, tmp_path / "joint.pt2")):
        memory, content = method.memory, path.read_bytes()
        assert isinstance(memory, Memory)
        assert len(memory) > 0
        assert not any(image.numpy().tobytes() in content for image in memory.pixels)


def test_the_model_may_be_on_another_device(tiny_stream: Stream, tmp_path: Path) -> None:
    device, method = simulated_device(), opened(Hat(DIGITS_NET, HatSettings(), tiny_stream.image_shape))
    written = [
        export_model(tmp_path / "cpu.pt2", method),
        export_model(tmp_path / "compared.pt2", method, device=device),
        export_model(tmp_path / "moved.pt2", method.to(device)),
    ]
    assert method.device == device, "exporting moved the model"
    assert len({export.largest_difference for export in written}) == 1
    images = torch.randint(0, 256, (2, *tiny_stream.image_shape), dtype=torch.uint8)
    first, *others = [torch.export.load(export.path).module()(images)[0] for export in written]
    assert all(torch.equal(first, other) for other in others)


def test_exporting_changes_nothing(tiny_stream: Stream, tmp_path: Path) -> None:
    method = FineTune(DIGITS_NET, SharedSettings.model_validate({"plan": {"epochs": 1}}), (1, 8, 8))
    method.learn(tiny_stream[0])
    before = {name: values.clone() for name, values in method.state_dict().items()}
    export_model(tmp_path / "m.pt2", method)
    assert all(torch.equal(values, before[name]) for name, values in method.state_dict().items())
    method.learn(tiny_stream[1])
    assert not torch.equal(before["backbone.net.fc.weight"], method.state_dict()["backbone.net.fc.weight"])


@pytest.mark.parametrize("name", [name for name in MAKERS if name in SLOW or name == "clom"])
def test_torch_export(name: str, tmp_path: Path) -> None:
    method = MAKERS[name]()
    export_model(tmp_path / "m.pt2", method)
    extra = {"clom.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["clom.json"])["classes"] == ["a", "b", "c", "d", "e"]
    for count in (1, 5):
        images = images_for(method, count)
        scores, belonging = program.module()(images)
        torch.testing.assert_close(scores, expected(method, images), atol=1e-4, rtol=0)
        torch.testing.assert_close(belonging, best_belonging(method, images), atol=1e-4, rtol=0)
    assert str(Path(str(torch.__file__)).parent).encode() not in (tmp_path / "m.pt2").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_either_agrees_or_says_why_not(name: str, tmp_path: Path) -> None:
    pretrained = method_class(name).needs_pretrained
    overrides: dict[str, Any] = {} if pretrained else {"net.channels": [4, 4, 6], "net.hidden": 12}
    config = resolve("digits-5t", name, "smoke", 0, overrides)
    if pretrained:
        config = config.model_copy(update={"net": PRETRAINED})
    method = opened(config.make_method((1, 8, 8)))
    if name in ("clom-odin", "hypernet", "ccg"):
        with pytest.raises(UserError, match="cannot be exported"):
            export_model(tmp_path / "m.onnx", method)
        return
    export_model(tmp_path / "m.onnx", method)
    images = images_for(method, 4)
    torch.testing.assert_close(run_onnx(tmp_path / "m.onnx", images)[0], expected(method, images), atol=1e-4, rtol=1e-4)


# --- thresholds ------------------------------------------------------------------------------------------------------


def test_thresholds_are_those_of_the_kept_images(learned: Clom) -> None:
    told = [json.loads(metadata(learned, [0, 1])["tasks"])[task]["thresholds"] for task in (0, 1)]
    for task in (0, 1):
        mine = learned.memory.pixels[learned.memory.tasks == task]
        own = learned.block(mine, task).amax(1)
        assert len(own) == 8
        judge = HeldOutScores.of(own.tolist())
        assert told[task] == {
            rate: pytest.approx(judge.threshold(float(rate)), abs=1e-4) for rate in ("0.01", "0.05", "0.1")
        }
        assert thresholds(learned, task, [0.25])[0.25] == pytest.approx(float(own.sort().values[1]), abs=1e-5)


def test_without_kept_images_there_are_none() -> None:
    assert thresholds(opened(minimal((1, 8, 8))), 0, [0.05]) == {}
    assert thresholds(MAKERS["ncm"](), 0, [0.05]) == {}
    assert thresholds(MAKERS["hat"](), 0, [0.05]) == {}


def test_a_record_counts_before_kept_images(learned: Clom) -> None:
    before = learned.tasks[0]
    shown = (2,) * before.n_classes
    record = TaskRecord(
        learned=now(), images=shown, validation_images=shown, accuracy=1.0, belonging=(1, 2, 3, 4), fingerprint="x"
    )
    learned.tasks[0] = LearnedTask(before.name, before.class_names, record)
    found = thresholds(learned, 0, [0.3, 0.4, 0.1])
    learned.tasks[0] = before
    for rate, raw in {0.3: 1.0, 0.4: 2.0, 0.1: 1 + 1.5 * math.log(0.5)}.items():
        assert found[rate] == pytest.approx(raw, rel=1e-9)


# --- refusals --------------------------------------------------------------------------------------------------------


def refused(path: Path, method: Method, task: str | None = None) -> str:
    path.parent.mkdir(exist_ok=True)
    before = list(path.parent.iterdir())
    with pytest.raises(UserError) as problem:
        export_model(path, method, task)
    assert list(path.parent.iterdir()) == before
    return str(problem.value)


def test_methods_without_a_graph(tmp_path: Path) -> None:
    odin = opened(ClomOdin(DIGITS_NET, ClomOdinSettings(), (1, 8, 8)))
    text = refused(tmp_path / "m.onnx", odin)
    assert "clom-odin cannot be exported" in text
    assert "gradient" in text
    hypernet = opened(HyperNet(DIGITS_NET, HyperNetSettings(), (1, 8, 8)))
    for method in (hypernet, opened(minimal((1, 8, 8)))):
        assert f"{method.name} cannot be exported" in refused(tmp_path / "m.onnx", method)


def test_soft_gates(tmp_path: Path) -> None:
    settings = ClomSettings.model_validate({"attention": {"binary": False}})
    assert "soft gates" in refused(tmp_path / "m.onnx", opened(Clom(DIGITS_NET, settings, (1, 8, 8))))


def test_nothing_learned(tmp_path: Path) -> None:
    assert "nothing" in refused(tmp_path / "m.onnx", Clom(DIGITS_NET, ClomSettings(), (1, 8, 8)))


def test_a_misspelt_task(learned: Clom, tmp_path: Path) -> None:
    assert "Did you mean 'task 1'?" in refused(tmp_path / "m.onnx", learned, task="tsk 1")


@pytest.mark.parametrize("name", ["model", "model.pt", "model.onnx.txt", "model.safetensors"])
def test_an_unknown_ending(learned: Clom, tmp_path: Path, name: str) -> None:
    assert "should end in .onnx or .pt2" in refused(tmp_path / name, learned)


def test_a_folder(learned: Clom, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    assert "is a folder" in refused(tmp_path / "m.onnx", learned)


def test_without_the_packages(learned: Clom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    text = refused(tmp_path / "m.onnx", learned)
    assert "onnx, onnxscript, onnxruntime" in text
    assert "pip install onnx onnxscript onnxruntime" in text
    export_model(tmp_path / "m.pt2", learned)  # needs none of them


def test_a_graph_that_disagrees_is_not_written(learned: Clom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.pt2").write_bytes(b"old")
    monkeypatch.setattr(export, "AGREEMENT", -1.0)
    assert "disagrees" in refused(tmp_path / "m.pt2", learned)
    assert (tmp_path / "m.pt2").read_bytes() == b"old"


def test_more_than_a_file_can_hold(learned: Clom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGEST_ONNX", 1000)
    assert "--task" in refused(tmp_path / "m.onnx", learned, task="task 1")


def test_experts_decide_in_the_graph(tiny_stream: Stream, tmp_path: Path) -> None:
    """All tasks: probabilities of all classes, as the model compares them. One task: its expert's scores."""
    net = AdapterSettings(weights="random", width=0.05, features="stages")
    method = Experts(net, ExpertsSettings(directions=3), (1, 8, 8))
    for task in tiny_stream:
        method.learn(task, TrainingContext(folds=3))
    images = tiny_stream.tests[1].pixels[:5]
    export_model(tmp_path / "all.pt2", method)
    scores, belonging = torch.export.load(tmp_path / "all.pt2").module()(images)
    compared = torch.cat(method.comparable_blocks(images), 1).float()
    torch.testing.assert_close(scores, compared, atol=1e-4, rtol=1e-4)
    tasks = torch.tensor([0, 0, 1, 1, 2, 2])[compared.argmax(1)]
    torch.testing.assert_close(belonging, method.belonging(images).gather(1, tasks[:, None])[:, 0], atol=1e-5, rtol=0)
    export_model(tmp_path / "one.pt2", method, tiny_stream[1].name)
    scores, belonging = torch.export.load(tmp_path / "one.pt2").module()(images)
    torch.testing.assert_close(scores, method.block(images, 1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(belonging, method.belonging(images)[:, 1], atol=1e-5, rtol=0)
