"""Steps of a phase: snapshots of everything it changes, and resuming from them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.learning.context import Checkpoints, Snapshot, TrainingContext
from clom.learning.progress import Progress
from clom.nets.passes import PassCounter

PROGRESS = Progress(0, "features", 1, 2)


class Stopped(Exception):
    """Raised by checkpoints when the process should end."""


class InMemory(Checkpoints):
    """Snapshots are due after every second step."""

    def __init__(self, found: list[Snapshot] | None = None, stop: bool = False) -> None:
        self.found, self.saved, self.stop, self._asked = found or [], list[Snapshot](), stop, 0

    def latest(self, phase: int) -> Snapshot | None:
        return next((snapshot for snapshot in reversed(self.found) if snapshot.phase == phase), None)

    def due(self) -> bool:
        self._asked += 1
        return self._asked % 2 == 0

    def save(self, snapshot: Snapshot) -> None:
        method = {name: value.clone() for name, value in snapshot.method.items()}
        parts = [part.clone() for part in snapshot.parts]
        self.saved.append(
            Snapshot(
                snapshot.phase, snapshot.step, snapshot.total, method, parts, snapshot.torch_randomness, snapshot.passes
            )
        )

    def stop_if_requested(self) -> None:
        if self.stop:
            raise Stopped


def random_walk(checkpoints: Checkpoints | None, steps: int = 5, most: int | None = None) -> tuple[Tensor, Tensor]:
    """A method with one weight that takes random steps; the trace is state outside the method."""
    torch.manual_seed(0)
    method, randomness, trace = nn.Linear(1, 1, bias=False), torch.Generator().manual_seed(1), torch.zeros(steps)
    method.weight.data.fill_(1.0)
    context = TrainingContext(checkpoints=checkpoints)
    context.attach(method)
    with torch.no_grad():
        for done, step in enumerate(context.steps(steps, randomness, trace)):
            if done == most:
                raise Stopped
            method.weight += torch.rand(1, generator=randomness) + torch.rand(1)
            trace[step] = method.weight.item()
    return method.weight.detach().clone(), trace


def test_without_checkpoints_it_only_counts() -> None:
    assert list(TrainingContext().steps(3)) == [0, 1, 2]


@pytest.mark.parametrize("interrupted_after", [1, 2, 3, 4])
def test_an_interrupted_phase_ends_like_an_uninterrupted_one(interrupted_after: int) -> None:
    weight, trace = random_walk(None)
    first = InMemory()
    with pytest.raises(Stopped):
        random_walk(first, most=interrupted_after)
    again = random_walk(InMemory(first.saved))
    assert torch.equal(again[0], weight)
    assert torch.equal(again[1], trace)


@pytest.mark.parametrize("found", [False, True])
def test_a_phase_may_end_early_and_stays_ended(found: bool) -> None:
    """What says so is part of the snapshot, which is taken although none is due."""

    def walk(checkpoints: Checkpoints | None) -> list[int]:
        context, last = TrainingContext(checkpoints=checkpoints), torch.zeros(())
        context.attach(nn.Linear(1, 1))
        taken = []
        for step in context.steps(9, last, ended=lambda: bool(last == 2)):
            taken.append(step)
            last.fill_(step)
        assert last == 2
        return taken

    first = InMemory()
    assert walk(first if found else None) == [0, 1, 2]
    if found:
        assert [(snapshot.step, snapshot.total) for snapshot in first.saved] == [(2, 9), (3, 9)]
        assert walk(InMemory(first.saved)) == []


def test_snapshots_are_taken_when_due_and_at_the_end() -> None:
    checkpoints = InMemory()
    random_walk(checkpoints)
    assert [snapshot.step for snapshot in checkpoints.saved] == [2, 4, 5]


def test_a_finished_phase_is_skipped() -> None:
    checkpoints = InMemory()
    weight, _ = random_walk(checkpoints)
    again, _ = random_walk(InMemory(checkpoints.saved), most=0)
    assert torch.equal(again, weight)


def test_weights_that_are_not_finite_are_not_saved() -> None:
    method, checkpoints = nn.Linear(1, 1), InMemory()
    context = TrainingContext(checkpoints=checkpoints)
    context.attach(method)
    for _ in context.steps(2):
        method.weight.data.fill_(float("nan"))
    assert checkpoints.saved == []


def test_a_snapshot_of_another_version_is_refused() -> None:
    checkpoints = InMemory()
    random_walk(checkpoints, steps=4)
    with pytest.raises(UserError, match=r"phase 1 was made by another version.*has 5 steps, not 4.*'checkpoints'"):
        random_walk(InMemory(checkpoints.saved), steps=5)


def test_a_process_is_stopped_between_steps_only() -> None:
    reports: list[Progress] = []
    context = TrainingContext(reports.append, InMemory(stop=True))
    with pytest.raises(Stopped):
        context.report(PROGRESS)
    context.attach(nn.Linear(1, 1))
    steps = context.steps(2)
    next(steps)
    context.report(PROGRESS)  # in the middle of a step, which would be lost
    assert reports == [PROGRESS, PROGRESS]
    with pytest.raises(Stopped):
        next(steps)


def test_a_resumed_phase_has_the_passes_of_its_snapshot() -> None:
    """Those of the interrupted process; unknown if it did not count them."""

    def learn(checkpoints: InMemory, passes: PassCounter | None) -> None:
        context = TrainingContext(checkpoints=checkpoints, passes=passes)
        context.attach(nn.Linear(1, 1))
        for _ in context.steps(4):
            if passes is not None:
                passes.total += 10.0

    whole, first, second = InMemory(), PassCounter(1.0), PassCounter(1.0)
    learn(whole, first)
    assert [(snapshot.step, snapshot.passes) for snapshot in whole.saved] == [(2, 20.0), (4, 40.0)]
    learn(InMemory(whole.saved[:1]), second)
    assert first.total == second.total == 40.0

    uncounted, unknown = InMemory(), PassCounter(1.0)
    learn(uncounted, None)
    learn(InMemory(uncounted.saved[:1]), unknown)
    assert math.isnan(unknown.total)
