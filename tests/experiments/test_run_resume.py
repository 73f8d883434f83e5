"""A run that is stopped, killed or damaged anywhere is resumed bit-identically, or refused with a reason."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clom.data.images import Images
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.config import RunConfig, resolve
from clom.experiments.provenance import data_digest
from clom.experiments.run import RunResult, TaskResult, execute, read_results
from clom.learning.progress import Progress
from clom.locks import Lock
from clom.stopping import Stopped, StopRequest
from clom.storage.model_file import load_model
from clom.storage.tensors import checksum, read_tensors

TINY: dict[str, Any] = {
    "data.sizes": [2, 2],
    "data.classes_per_task": None,
    "data.train_per_class": 12,
    "data.test_per_class": 5,
    "net.channels": [6, 6, 8],
    "net.hidden": 16,
    "learning.plan.batch": 8,
    "learning.plan.epochs": 2,
    "learning.head.iterations": 5,
    "memory_per_class": 2,
}
CONFIG: RunConfig = resolve("digits-5t", "clom", "smoke", 0, TINY)
MADE = ("model.safetensors", "scores.safetensors")


@pytest.fixture(scope="module")
def stream() -> Stream:
    return CONFIG.data.stream(None, CONFIG.seed)


@pytest.fixture(scope="module")
def whole(stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return execute(CONFIG, stream, tmp_path_factory.mktemp("runs") / "whole")


def check_same(folder: Path, whole: RunResult) -> None:
    for name in MADE:
        assert checksum(*read_tensors(folder / name)) == checksum(*read_tensors(whole.folder / name)), name
    results = read_results(folder / "metrics.jsonl", 2)
    assert [result.evaluation for result in results] == whole.history
    assert [result.passes for result in results] == [result.passes for result in whole.tasks]
    assert not (folder / "checkpoints").exists()
    assert not [file for file in folder.iterdir() if file.name.endswith((".tmp", ".lock"))]


class At:
    """Calls a function at a training step, counted over both tasks; extraction of head features does not count."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.left, self.action = step, action
        self.seen: list[tuple[int, int]] = []

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "features":
            self.seen.append((progress.task, progress.done))
            self.left -= 1
            if self.left == 0:
                self.action()


def crash() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("step", [2, 5, 8])
def test_resumes_within_a_task(step: int, stream: Stream, whole: RunResult, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(CONFIG, stream, tmp_path, At(step, crash), every=0)
    rest = At(99, crash)
    execute(CONFIG, stream, tmp_path, rest, every=0)
    all_steps = [(task, done) for task in (0, 1) for done in range(1, 7)]  # 22 images: 3 batches of 8, twice
    assert rest.seen == all_steps[step - 1 :], "only the step that failed is repeated"
    check_same(tmp_path, whole)


def test_a_stop_request_takes_effect_after_the_step_and_loses_nothing(
    stream: Stream, whole: RunResult, tmp_path: Path
) -> None:
    stop = StopRequest()

    def ask() -> None:
        stop.number = 15

    at_step = At(8, ask)
    with pytest.raises(Stopped):
        execute(CONFIG, stream, tmp_path, at_step, every=1000.0, stop=stop)
    assert at_step.seen[-1] == (1, 2)
    rest = At(99, crash)
    execute(CONFIG, stream, tmp_path, rest)
    assert rest.seen[0] == (1, 3)
    check_same(tmp_path, whole)


def test_a_stop_request_between_tasks(stream: Stream, whole: RunResult, tmp_path: Path) -> None:
    stop = StopRequest()

    def ask(result: TaskResult, n_tasks: int) -> None:
        stop.number = 2

    with pytest.raises(Stopped):
        execute(CONFIG, stream, tmp_path, on_task=ask, stop=stop)
    assert len(read_results(tmp_path / "metrics.jsonl", 1)) == 1
    execute(CONFIG, stream, tmp_path)
    check_same(tmp_path, whole)


def test_checkpoints_of_another_model_are_not_used(stream: Stream, whole: RunResult, tmp_path: Path) -> None:
    """The model was copied from another run, so the checkpoints do not belong to it."""
    with pytest.raises(ZeroDivisionError):
        execute(CONFIG, stream, tmp_path, At(9, crash), every=0)
    (tmp_path / "model.safetensors").unlink()
    rest = At(99, crash)
    execute(CONFIG, stream, tmp_path, rest)
    assert rest.seen[0] == (0, 1)
    check_same(tmp_path, whole)


def test_partial_files_of_a_killed_process_are_deleted(stream: Stream, whole: RunResult, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    (tmp_path / "run" / ".model.safetensors.123.tmp").write_bytes(b"half")
    execute(CONFIG, stream, tmp_path / "run")
    check_same(tmp_path / "run", whole)


def test_two_processes_cannot_use_the_same_folder(stream: Stream, tmp_path: Path) -> None:
    with Lock(tmp_path / "run"), pytest.raises(UserError, match=r"run is being worked on by process \d+"):
        execute(CONFIG, stream, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_keeps_earlier_tasks_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = resolve("digits-5t", "finetune", "smoke", 0, {"data.train_per_class": 12, "optimiser.lr": 1e38})
    with pytest.raises(UserError, match="diverged"):
        execute(config, config.data.stream(None, 0), tmp_path, every=0)
    begun = {"config.yaml", "signature.json", "environment.json", "progress.jsonl", "checkpoints"}
    assert {file.name for file in tmp_path.iterdir()} <= begun


# --- damage ----------------------------------------------------------------------------------------------------------


def flips(content: bytes, count: int) -> list[bytes]:
    """Copies with one flipped bit: the lowest bit of each of the first bytes, then random ones."""
    draw = random.Random(0)
    places = [(place, 0) for place in range(min(64, len(content)))]
    places += [(draw.randrange(len(content)), draw.randrange(8)) for _ in range(count)]
    changed = []
    for place, bit in places:
        copy = bytearray(content)
        copy[place] ^= 1 << bit
        changed.append(bytes(copy))
    return changed


def test_a_flipped_bit_in_the_scores_is_detected(whole: RunResult, tmp_path: Path) -> None:
    path = whole.folder / "scores.safetensors"
    good = read_tensors(path)
    refused = 0
    for content in flips(path.read_bytes(), 1500):
        (tmp_path / "x").write_bytes(content)
        try:
            tensors, _ = read_tensors(tmp_path / "x")
        except UserError as problem:
            refused += str(tmp_path / "x") in str(problem)
            continue
        assert all(torch.equal(value, good[0][name]) for name, value in tensors.items())
        assert tensors.keys() == good[0].keys()
    assert refused > 1500


def test_a_flipped_bit_in_the_model_is_detected(whole: RunResult, tmp_path: Path) -> None:
    path = whole.folder / "model.safetensors"
    good = load_model(path)
    state, refused = good.state_dict(), 0
    for content in flips(path.read_bytes(), 300):
        (tmp_path / "x").write_bytes(content)
        try:
            loaded = load_model(tmp_path / "x")
        except UserError:
            refused += 1
            continue
        assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
        assert (loaded.tasks, loaded.seed, loaded.settings) == (good.tasks, good.seed, good.settings)
    assert refused > 300


def test_a_flipped_bit_in_the_metrics_is_detected(whole: RunResult, tmp_path: Path) -> None:
    path = whole.folder / "metrics.jsonl"
    refused = 0
    for content in flips(path.read_bytes(), 1500):
        (tmp_path / "x").write_bytes(content)
        try:
            assert read_results(tmp_path / "x", 2) == whole.tasks
        except UserError:
            refused += 1
    assert refused > 1500


def test_metrics_of_older_versions_have_no_checksums(whole: RunResult, tmp_path: Path) -> None:
    lines = [json.dumps(result.to_json()) for result in whole.tasks]
    (tmp_path / "x").write_text("\n".join(lines))
    assert read_results(tmp_path / "x", 2) == whole.tasks


# --- what is needed to repeat it -------------------------------------------------------------------------------------


def test_the_environment_is_recorded(stream: Stream, whole: RunResult, tmp_path: Path) -> None:
    about = json.loads((whole.folder / "environment.json").read_text())
    for name in ("command", "threads", "packages", "commit", "processor", "python", "began"):
        assert about[name] or name == "commit", name
    assert about["seed"] == CONFIG.seed
    assert about["deterministic"] is False
    assert about["data_sha256"] == data_digest(stream)
    assert (about["sessions"], about["earlier"]) == (1, [])


def test_a_run_resumed_elsewhere_records_both_environments(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(CONFIG, stream, tmp_path, At(3, crash), every=0)
    path = tmp_path / "environment.json"
    began = json.loads(path.read_text())
    path.write_text(json.dumps(began | {"threads": 64}))
    execute(CONFIG, stream, tmp_path)
    about = json.loads(path.read_text())
    assert about["began"] == began["began"]
    assert about["sessions"] == 2
    assert [entry["threads"] for entry in about["earlier"]] == [64]


def test_other_images_are_refused(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        execute(CONFIG, stream, tmp_path, At(3, crash), every=0)
    pixels = stream[0].train.pixels.clone()
    pixels[0, 0, 0, 0] ^= 1
    first = replace(stream[0], train=Images(pixels, stream[0].train.labels))
    with pytest.raises(UserError, match="other images"):
        execute(CONFIG, Stream(stream.name, [first, stream[1]], stream.tests), tmp_path)
