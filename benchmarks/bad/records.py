"""Bad ledgers and bad folders of runs."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from safetensors.torch import save as to_bytes

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil, spoil_file, spoil_value
from benchmarks.bad.models import SMALL, as_if_learned
from benchmarks.bad.places import in_folder
from benchmarks.bad.settings import TEXTS
from clom import machine
from clom.data.stream import Stream
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.analysis.finished_run import read_run
from clom.experiments.config import RunConfig, resolve
from clom.experiments.ledger import Row, read
from clom.experiments.run import TaskResult, execute
from clom.reporting.paper.rendering import RENDERERS
from clom.reporting.paper.tables import TABLES, check_rows, make_table
from clom.reporting.readme_block import render_digest
from clom.reporting.report.page import write_report
from clom.reporting.results_page import render_page
from clom.storage.model_file import save_model
from clom.storage.score_file import write_scores
from clom.storage.tensors import read_tensors

_NESTED = "[" * 100_000 + "]" * 100_000


@cache
def config() -> RunConfig:
    data = {"data.classes_per_task": None, "data.sizes": [2, 2], "data.train_per_class": 6, "data.test_per_class": 3}
    return resolve("digits-5t", "clom", "smoke", 0, SMALL | data)


@cache
def stream() -> Stream:
    return config().data.stream(None, 0)


@cache
def run_files() -> Mapping[str, bytes]:
    """Every file of a small finished run: `execute` finds all tasks done and writes the rest."""
    method, lines = as_if_learned(config(), stream()), ""
    book = Scorebook(stream().tests)
    for n_tasks in (1, 2):
        sofar = as_if_learned(config(), stream()[:n_tasks])
        book.update(sofar)
        lines += json.dumps(TaskResult(evaluate(book, sofar.calibrations()), 0.1, 0.1, {"fc": 0.5}).to_json()) + "\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "metrics.jsonl").write_text(lines)
        write_scores(folder / "scores.safetensors", book.all_blocks())
        (folder / "environment.json").write_text(json.dumps(machine.describe()))
        save_model(folder / "model.safetensors", method)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is not signed
            execute(config(), stream(), folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- the ledger ------------------------------------------------------------------------------------------------------


@cache
def row() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        _write_run(Path(folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return asdict(Row.of_run(Path(folder) / "run"))


def _ledger_special() -> Mapping[str, Make]:
    good = json.dumps(row())
    texts = {
        "empty": "",
        "nothing but lines": "\n\n\n",
        "a list": "[]",
        "a number": "3",
        "nested": _NESTED,
        "cut": good[:100],
        "number of 5000 digits": '{"seed": ' + "9" * 5000 + "}",
        "twice": good + good,
        "the same run a thousand times": (good + "\n") * 1000,
        "zero bytes": good + "\0\n",
        "no numbers": good.replace("1.0", "NaN").replace("0.5", "Infinity"),
    }
    others: list[Any] = [None, 3, "x", [], {"a": "b"}]
    changes = [(name, value) for name in row() for value in others]
    texts |= {f"{name} is {value}": json.dumps({**row(), name: value}) for name, value in changes}
    wrong: dict[str, Any] = {"til": "x", "cil": {}, "cil_by_calibration": 3, "parameters": 1e300, "minutes": None}
    for name, value in wrong.items():
        texts[f"figure {name} is {value}"] = json.dumps({**row(), "figures": {**row()["figures"], name: value}})
    found = {name: in_folder("ledger.jsonl", text.encode()) for name, text in texts.items()}
    found["not text"] = in_folder("ledger.jsonl", b"\xff\xfe" * 50)
    return {
        **found,
        "a pipe": lambda folder, _: os.mkfifo(folder / "ledger.jsonl"),
        "a folder": lambda folder, _: (folder / "ledger.jsonl").mkdir(),
    }


def _ledger_chance(folder: Path, randomness: Random) -> None:
    lines = []
    for seed in range(3):
        data: Any = {**row(), "seed": seed, "method": randomness.choice(("clom", "hat"))}
        for _ in range(randomness.choice((0, 1, 2))):
            data = spoil_value(data, randomness)
        lines.append(json.dumps(data))
    text = "\n".join(lines).encode()
    (folder / "ledger.jsonl").write_bytes(text if randomness.random() < 0.7 else spoil(text, randomness))


def _read_ledger(folder: Path) -> None:
    rows = read(folder / "ledger.jsonl")
    check_rows(rows, "ledger")
    for name in TABLES:
        table = make_table(name, rows, "smoke")
        for render in RENDERERS.values():
            render(table).encode()
    (render_page(rows) + render_digest(rows)).encode()


def _table_command(folder: Path) -> list[str]:
    return ["table", "main", "--ledger", str(folder / "ledger.jsonl"), "--budget", "smoke"]


# --- runs ------------------------------------------------------------------------------------------------------------


def _write_run(folder: Path, finished: bool = True) -> Path:
    base = folder / "run"
    base.mkdir()
    for name, content in run_files().items():
        if finished or name != "summary.json":
            (base / name).write_bytes(content)
    return base


def _file(name: str, content: bytes | None, finished: bool = True) -> Make:
    def make(folder: Path, randomness: Random) -> None:
        path = _write_run(folder, finished) / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)

    return make


def _scores(**changes: torch.Tensor) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tensors = read_tensors(_write_run(Path(folder)) / "scores.safetensors")[0]
        content: bytes = to_bytes({name: value.clone() for name, value in tensors.items()} | changes)
    return content


def _special(finished: bool) -> Mapping[str, Make]:
    found: dict[str, Make] = {}
    for name, whole in run_files().items():
        lines = whole.splitlines(keepends=True)
        damaged = {
            "absent": None,
            "empty": b"",
            "cut": whole[: len(whole) // 2],
            "without its last line": b"".join(lines[:-1]),
            "zeros": bytes(len(whole)),
            "nested": _NESTED.encode(),
            "a list": b"[1, 2]\n",
            "a group": b"{}\n",
        }
        found |= {f"{name} {what}": _file(name, content, finished) for what, content in damaged.items()}
    blocks = {
        "of no dimensions": torch.tensor(1.0),
        "not numbers": torch.full((6, 2), float("nan")),
        "integers": torch.zeros(6, 2, dtype=torch.int64),
        "of no images": torch.zeros(0, 2),
        "of one dimension": torch.zeros(6),
        "of three classes": torch.zeros(6, 3),
        "equal": torch.zeros(6, 2),
        "gigantic": torch.full((6, 2), 3e38),
    }
    found |= {
        f"scores {what}": _file("scores.safetensors", _scores(**{"0.0": b}), finished) for what, b in blocks.items()
    }
    for name in ("lists of lists", "deep lists", "laughs as a setting", "a number of 5000 digits"):
        found[f"config.yaml {name}"] = _file("config.yaml", TEXTS[name].encode(), finished)
    contents: list[Any] = [3, [], {"external": 3}, {"external": {"kmnist": 1}}, {"external": {"": None}}, None]
    for value in contents:
        found[f"scores.json {value}"] = _file("scores.json", json.dumps(value).encode(), finished)
    found["features.safetensors noise"] = _file("features.safetensors", b"noise", finished)
    return found


def _chance(folder: Path, randomness: Random, finished: bool = True) -> None:
    base = _write_run(folder, finished)
    path = randomness.choice(sorted(base.iterdir()))
    if path.suffix == ".safetensors" or randomness.random() < 0.3:
        spoil_file(path, randomness)
        return
    if path.suffix == ".yaml":
        text = yaml.safe_dump(spoil_value(yaml.safe_load(path.read_text()), randomness), allow_unicode=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    place = randomness.randrange(len(lines))
    value = spoil_value(json.loads(lines[place]), randomness) if randomness.random() < 0.9 else randomness.choice(NASTY)
    lines[place] = json.dumps(value)
    path.write_text("\n".join(lines))


def _read_finished(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_run(folder / "run")
        Row.of_run(folder / "run")
        write_report([folder / "run"], folder / "page.html")


def _continue(folder: Path) -> None:
    """The same run again: everything is learned, only the summary is missing. It is not signed, so that its files are
    read in spite of their damage."""
    whole = {path.name for path in (folder / "run").iterdir()} >= {"model.safetensors", "config.yaml"}
    if not whole:  # it would begin anew, and learn
        (folder / "run" / "model.safetensors").touch()
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        execute(config(), stream(), folder / "run")


def readers() -> list[Reader]:
    return [
        Reader("ledgers", _ledger_special, _ledger_chance, _read_ledger, _table_command),
        Reader(
            "finished runs",
            lambda: _special(True),
            _chance,
            _read_finished,
            lambda folder: ["record", str(folder / "run"), "--ledger", str(folder / "ledger.jsonl")],
        ),
        Reader(
            "interrupted runs",
            lambda: _special(False),
            lambda folder, randomness: _chance(folder, randomness, finished=False),
            _continue,
        ),
    ]
