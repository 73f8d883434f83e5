"""Every method on a simulated accelerator is bit-identical to the CPU, and no operation mixes the two.

Tests `clom.testing.simulated_device` and `clom.learning.random_states` along the way.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from clom.data.stream import Stream, Task
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families import base
from clom.methods.families.base import Method
from clom.methods.families.masked_network import MaskedNetwork
from clom.methods.registry import PAPER_METHODS, method_class
from clom.nets.passes import PassCounter
from clom.storage.checkpoints import CheckpointFolder
from clom.storage.model_file import load_model, save_model
from clom.testing.simulated_device import simulated_device, waits_so_far

CPU = torch.device("cpu")
EXPERIMENT = "digits-5t"
SMALL = {"data.train_per_class": 24, "data.test_per_class": 10}
WAITS = {
    "derpp": "the reservoir decides for each item whether to store it, and compares logits of different widths",
    "ccg": "the weights of the task loss depend on the number of images of each task in a batch",
}
"""Methods whose steps read from the device, and the reason."""


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def stream() -> Stream:
    config = resolve(EXPERIMENT, "clom", "smoke", 0, SMALL)
    return config.data.stream(None, 0)[:3]


@pytest.fixture(autouse=True)
def equal_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU takes fewer images at a time than an accelerator; matrix products of fewer rows may round differently."""
    monkeypatch.setattr(MaskedNetwork, "_images_at_once", lambda self, device: self._batch_size)


def make(name: str, device: torch.device) -> Method:
    config = resolve(EXPERIMENT, name, "smoke", 0, SMALL)
    return config.make_method(config.image_shape()).to(device)


def check_same(one: Method, other: Method, stream: Stream) -> None:
    """State, scores and calibrations are bit-identical."""
    state, others = one.state_dict(), other.state_dict()
    assert list(state) == list(others)
    for name, value in state.items():
        assert torch.equal(value.cpu(), others[name].cpu()), name
    for test in stream.tests[: len(one.tasks)]:
        for first, second in zip(one.blocks(test.pixels), other.blocks(test.pixels), strict=True):
            assert first.device == second.device == CPU
            assert torch.equal(first, second)
    ways, theirs_by_name = one.calibrations(), other.calibrations()
    assert list(ways) == list(theirs_by_name)
    for name, way in ways.items():
        assert torch.equal(way.scales, theirs_by_name[name].scales)
        assert torch.equal(way.shifts, theirs_by_name[name].shifts)


@pytest.mark.filterwarnings("ignore:No channel is free", "ignore:Task .* closed every")
@pytest.mark.parametrize("name", PAPER_METHODS)
def test_learns_scores_saves_loads_and_resumes_as_on_the_cpu(name: str, stream: Stream, tmp_path: Path) -> None:
    device = simulated_device()
    on_cpu, on_device = make(name, CPU), make(name, device)
    counters = PassCounter(1e6), PassCounter(1e6)
    for task in stream[:2]:
        for method, counter in zip((on_cpu, on_device), counters, strict=True):
            method.learn(task, TrainingContext(passes=counter))
    assert counters[0].total == counters[1].total > 0
    assert {value.device for value in on_device.state_dict().values()} == {device}
    check_same(on_cpu, on_device, stream)
    book = Scorebook(stream.tests[:2])
    book.update(on_device)
    assert all(block.device == CPU for test in range(2) for block in book.blocks(test))

    save_model(tmp_path / "model.safetensors", on_device)
    loaded = load_model(tmp_path / "model.safetensors").to(device)
    check_same(on_cpu, loaded, stream)

    whole, parts = PassCounter(1e6), PassCounter(1e6)
    on_cpu.learn(stream[2], TrainingContext(passes=whole))
    pieces = learn_in_two_pieces(loaded, stream, tmp_path / "checkpoints", parts)
    check_same(on_cpu, pieces, stream)
    assert whole.total == parts.total


FETCHING = [name for name in PAPER_METHODS if method_class(name).fetches_batches]


def test_the_masked_methods_fetch_their_batches() -> None:
    assert {"clom", "hat", "supsup"} <= set(FETCHING)


@pytest.mark.filterwarnings("ignore:No channel is free", "ignore:Task .* closed every")
@pytest.mark.parametrize("name", FETCHING)
def test_images_that_do_not_fit_on_the_device_are_fetched_batch_by_batch(
    name: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same result, and without waiting for the device."""
    device = simulated_device()
    whole, fetching = make(name, device).learn(stream[0]), make(name, device)
    monkeypatch.setattr(base, "device_memory", lambda device: 4 * stream[0].train.pixels.nbytes - 1)
    placed: list[Task] = []
    learn = fetching._learn

    def recorded(task: Task, context: TrainingContext) -> None:
        placed.append(task)
        learn(task, context)

    monkeypatch.setattr(fetching, "_learn", recorded)
    seen: list[tuple[Progress, int]] = []
    context = TrainingContext(lambda progress: seen.append((progress, waits_so_far())), seconds_between_reports=0.0)
    fetching.learn(stream[0], context)
    assert (placed[0].train.pixels.device, placed[0].train.labels.device) == (CPU, device)
    check_same(whole, fetching, stream)
    steps = [(progress, waits) for progress, waits in seen if progress.loss == progress.loss]
    gaps = {later[1] - earlier[1] for earlier, later in pairwise(steps) if later[0].done == earlier[0].done + 1}
    assert gaps == {1}, "a step reads more from the device than the loss it reports"

    monkeypatch.setattr(base, "device_memory", lambda device: 4 * stream[0].train.pixels.nbytes)
    assert make(name, device)._placed(stream[0]).train.pixels.device == device, "it takes just a quarter"


def learn_in_two_pieces(method: Method, stream: Stream, folder: Path, passes: PassCounter) -> Method:
    """Interrupt the third task after a few steps, then resume it from its checkpoints alone."""
    again = copy.deepcopy(method)
    steps = 0

    def crash(progress: Progress) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise Crash

    first = CheckpointFolder(folder, 2, "test", every=0)
    with pytest.raises(Crash):
        method.learn(stream[2], TrainingContext(crash, first, 0.0, passes=PassCounter(passes.unit)))
    checkpoints = CheckpointFolder(folder, 2, "test", every=0)
    return again.learn(stream[2], TrainingContext(checkpoints=checkpoints, passes=passes))


@pytest.mark.filterwarnings("ignore:No channel is free", "ignore:Task .* closed every")
@pytest.mark.parametrize("name", PAPER_METHODS)
def test_no_step_waits_for_the_device(name: str, stream: Stream) -> None:
    """Between two progress reports, several steps apart, nothing is read from the device."""
    method = make(name, simulated_device()).learn(stream[0])
    seen: list[tuple[Progress, int]] = []

    def look(progress: Progress) -> None:
        seen.append((progress, waits_so_far()))

    before = waits_so_far()
    method.learn(stream[1], TrainingContext(look, seconds_between_reports=0.0))
    assert waits_so_far() > before, "the counter does not work"
    gaps = [
        later[1] - earlier[1]
        for earlier, later in pairwise(seen)
        if later[0].done == earlier[0].done + 1
        and later[0].phase == earlier[0].phase
        and later[0].loss == later[0].loss
    ]
    assert gaps, "no two consecutive steps were reported"
    if name in WAITS:
        assert max(gaps) > 1, f"{name} no longer waits: remove it from the list"
    else:
        assert set(gaps) == {1}, "a step reads more from the device than the loss it reports"
