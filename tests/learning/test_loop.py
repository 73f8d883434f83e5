"""The training loop: every sample once per epoch, correct progress, and a clear error when training diverges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator, shuffled_batches
from clom.learning.progress import Progress
from clom.learning.schedule import Schedule


@pytest.mark.parametrize(
    ("n", "batch", "sizes"),
    [(25, 8, [9, 8, 8]), (24, 8, [8, 8, 8]), (3, 8, [3]), (13, 8, [7, 6]), (11, 8, [11]), (1, 1, [1])],
)
def test_batches_hold_all_samples_once_and_have_equal_sizes(n: int, batch: int, sizes: list[int]) -> None:
    batches = shuffled_batches(n, batch, generator(0))
    assert [len(index) for index in batches] == sizes
    assert torch.cat(batches).sort().values.tolist() == list(range(n))


def test_batches_are_reshuffled_each_time() -> None:
    randomness = generator(0)
    first, second = (torch.cat(shuffled_batches(50, 8, randomness)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat(shuffled_batches(50, 8, generator(0))))


def test_generators_of_different_paths_are_independent() -> None:
    def draw(*path: int | str) -> Tensor:
        return torch.rand(4, generator=generator(0, *path))

    assert torch.equal(draw("views", 1), draw("views", 1))
    drawn = [draw(*path) for path in [("views", 1), ("views", 2), ("batches", 1), ("views",), ()]]
    drawn.append(torch.rand(4, generator=generator(1, "views", 1)))
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn)


def line() -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.tensor(1.0))
    return weight, torch.optim.SGD([weight], lr=0.1)


def test_epochs_positions_and_progress() -> None:
    weight, optimiser = line()
    batches: list[Batch] = []
    reports: list[Progress] = []

    def loss_of(batch: Batch) -> Tensor:
        batches.append(batch)
        return weight * len(batch.index)

    fit(
        loss_of,
        optimiser,
        Plan(epochs=3, batch=8),
        25,
        generator(0),
        task=4,
        phase="features",
        context=TrainingContext(reports.append),
    )
    assert [batch.step for batch in batches] == list(range(9))
    assert [batch.position for batch in batches] == pytest.approx([0, 1 / 3, 2 / 3] * 3)
    for epoch in range(3):
        seen = torch.cat([batch.index for batch in batches[3 * epoch : 3 * epoch + 3]])
        assert seen.sort().values.tolist() == list(range(25))
    assert [progress.done for progress in reports] == list(range(1, 10))
    assert {(progress.total, progress.epochs, progress.task, progress.phase) for progress in reports} == {
        (9, 3, 4, "features")
    }
    assert [progress.epoch for progress in reports] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert reports[-1].done == reports[-1].total
    assert reports[0].loss == 9.0


def test_rates_follow_the_schedule_in_every_group() -> None:
    a, b = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))
    optimiser = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 10.0}])
    plan = Plan(epochs=3, batch=1, schedule=Schedule(kind="steps", steps=(1, 2)))
    # The loss is a + b, so each step subtracts the rate: two steps per epoch at 1, 0.1 and 0.01 times the base rates.
    reports: list[Progress] = []
    fit(lambda batch: a + b, optimiser, plan, 2, generator(0), context=TrainingContext(reports.append))
    assert [report.rates for report in reports[::2]] == [
        pytest.approx((factor, 10 * factor)) for factor in (1.0, 0.1, 0.01)
    ]
    assert a.item() == pytest.approx(-2.22, rel=1e-5)
    assert b.item() == pytest.approx(-22.2, rel=1e-5)


def test_hooks_surround_each_step_and_gradients_do_not_accumulate() -> None:
    weight, optimiser = line()
    events: list[tuple[str, float]] = []
    fit(
        lambda batch: weight * 2.0,
        optimiser,
        Plan(epochs=2, batch=4, schedule=Schedule(kind="constant")),
        4,
        generator(0),
        before_step=lambda: events.append(("before", weight.item())),
        after_step=lambda: events.append(("after", weight.item())),
        context=TrainingContext(lambda progress: events.append(("report", weight.item()))),
    )
    assert [name for name, _ in events] == ["before", "after", "report"] * 2
    assert [value for _, value in events] == pytest.approx([1.0, 0.8, 0.8, 0.8, 0.6, 0.6])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_divergence_stops_training(bad: float) -> None:
    """`Method.learn` then restores the weights from before the task."""
    weight, optimiser = line()
    steps: list[int] = []

    def loss_of(batch: Batch) -> Tensor:
        steps.append(batch.step)
        return weight * (bad if batch.step == 3 else 1.0)

    plan = Plan(epochs=5, batch=4, schedule=Schedule(kind="constant"))
    with pytest.raises(UserError, match=r"task 3 .*epoch 2 of 5.*features"):
        fit(loss_of, optimiser, plan, 8, generator(0), task=2, phase="features")
    assert steps == [0, 1, 2, 3]
