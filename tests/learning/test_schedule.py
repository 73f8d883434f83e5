"""Learning rates of the paper and of the small budgets; the plateau rule of HAT and HyperNet."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import Images
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Batches, Plan, fit
from clom.learning.progress import Progress
from clom.learning.schedule import Plateau, PlateauTracker, Schedule, ValidationScores, Validator

PAPER = Schedule(kind="cosine", warmup=10, start=0.1, horizon=700, every="epoch")


@pytest.mark.parametrize(
    ("epoch", "rate"), [(0, 0.1), (5, 0.55), (9, 0.91), (10, 1.0), (355, 0.5112), (360, 0.5), (699, 0.00061)]
)
def test_the_papers_rates(epoch: int, rate: float) -> None:
    assert PAPER.factor(epoch, 700) == pytest.approx(rate, abs=5e-5 if rate > 0.01 else 5e-6)


def test_once_an_epoch() -> None:
    assert PAPER.factor(5.99, 700) == PAPER.factor(5, 700)
    every_step = PAPER.model_copy(update={"every": "step"})
    assert every_step.factor(5.5, 700) == pytest.approx(0.595)


def test_cosine_ends_with_the_training_by_default() -> None:
    schedule = Schedule(kind="cosine", warmup=2)
    assert schedule.factor(2, 10) == 1
    assert schedule.factor(6, 10) == pytest.approx(0.5)
    assert schedule.factor(10, 10) == pytest.approx(0, abs=1e-15)
    assert schedule.factor(11, 10) == pytest.approx(0, abs=1e-15)  # never rises again


def test_steps_of_the_papers_classifier() -> None:
    schedule = Schedule(kind="steps", steps=(60, 75, 90), every="epoch")
    rates = [0.1 * schedule.factor(epoch, 100) for epoch in (0, 59, 60, 74, 75, 89, 90, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])


def test_every_step_may_drop_by_its_own_factor() -> None:
    """HyperNet's rates, of which the last is half of the one before."""
    schedule = Schedule(kind="steps", steps=(80, 120, 160, 180), drop=(0.1, 0.1, 0.1, 0.5), every="epoch")
    rates = [schedule.factor(epoch, 200) for epoch in (79, 80, 120, 160, 179, 180, 199)]
    assert rates == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-3, 5e-4, 5e-4])
    with pytest.raises(ValidationError, match="drop has 1 values for 2 steps"):
        Schedule(kind="steps", steps=(1, 2), drop=(0.1,))
    with pytest.raises(ValidationError, match="must be in order"):
        Schedule(kind="steps", steps=(2, 1), drop=(0.1, 0.5))


def test_constant_with_and_without_warm_up() -> None:
    assert [Schedule(kind="constant").factor(position, 10) for position in (0.0, 3.3, 9.9)] == [1, 1, 1]
    warm = Schedule(kind="constant", warmup=2, start=0.5)
    assert [warm.factor(position, 10) for position in (0, 1, 2, 3)] == pytest.approx([0.5, 0.75, 1, 1])


def test_misspelt_names_are_refused() -> None:
    with pytest.raises(ValidationError):
        Schedule.model_validate({"kind": "linear"})
    with pytest.raises(ValidationError):
        Schedule.model_validate({"warm_up": 3})


# --- plateau ---------------------------------------------------------------------------------------------------------

HYPERNET = Plateau(monitor="accuracy", drop=math.sqrt(0.1), smallest_lr=5e-7, stop=False, restore_best=False)


class Told(Validator):
    """Scores that are given in advance."""

    def __init__(self, scores: list[ValidationScores], module: nn.Module) -> None:
        super().__init__(images(1), lambda pixels: (pixels, pixels), [module])
        object.__setattr__(self, "left", list(scores))

    def scores(self, batch: int = 256) -> ValidationScores:
        return self.left.pop(0)  # type: ignore[attr-defined, no-any-return]


def images(n: int, seed: int = 0) -> Images:
    """Noise with labels that have little to do with it."""
    randomness = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 2, 2), generator=randomness).to(torch.uint8)
    right = (pixels[:, 0, 0, 0] > 127).long()
    return Images(pixels, torch.where(torch.rand(n, generator=randomness) < 0.3, 1 - right, right))


def followed(rule: Plateau, lr: float, values: list[float]) -> tuple[list[float], bool]:
    """The learning rate after every epoch, and whether training ended with the last."""
    scores = [ValidationScores(value, value) for value in values]
    tracker = PlateauTracker(rule, Told(scores, nn.Linear(1, 1)), lr)
    rates = []
    for _ in values:
        assert not tracker.ended
        tracker.after_epoch()
        rates.append(lr * tracker.factor)
    return rates, tracker.ended


def test_hats_rule() -> None:
    """5 epochs without a better loss divide the rate by 3; a better one starts the count again."""
    losses = [2.0, 1.0, 1.0, 1.5, 1.2, 1.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8]
    rates, ended = followed(Plateau(), 0.05, losses)
    assert rates == pytest.approx([0.05] * 11 + [0.05 / 3] * 2)
    assert not ended
    # 0.05 / 3^5 is above 1e-4, 0.05 / 3^6 below it: then training ends.
    rates, ended = followed(Plateau(), 0.05, [1.0] * 31)
    assert rates[:30] == pytest.approx([0.05 / 3 ** (epoch // 5) for epoch in range(30)])
    assert ended


def test_hypernets_rule() -> None:
    """Higher accuracy is better, and the rate stays at the smallest one."""
    rates, ended = followed(HYPERNET, 1e-3, [0.1, 0.2, 0.3, *[0.3] * 4, 0.4, *[0.2] * 60])
    assert rates[:12] == pytest.approx([1e-3] * 12)
    assert rates[12] == pytest.approx(1e-3 * math.sqrt(0.1))
    assert rates[-1] == pytest.approx(5e-7)
    assert not ended


def trained(
    plan: Plan, validator_images: Images, context: TrainingContext | None = None
) -> tuple[nn.Module, list[float]]:
    """A linear classifier with dropout, and the rate of every step."""
    torch.manual_seed(0)
    model, train = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 2)), images(40)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    rates = []

    def loss_of(batch: Batch) -> Tensor:
        rates.append(optimiser.param_groups[0]["lr"])
        part = train[batch.index]
        return F.cross_entropy(model(part.pixels / 255), part.labels)

    validator = Validator(validator_images, lambda pixels: (model(pixels), torch.tensor(0.25)), [model])
    fit(loss_of, optimiser, plan, 40, torch.Generator().manual_seed(1), validator=validator, context=context)
    return model, rates


def hats_loop(rule: Plateau, epochs: int, batch: int, validation: Images) -> tuple[nn.Module, int]:
    """The published loop, written out; and how many epochs it took."""
    torch.manual_seed(0)
    model, train = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 2)), images(40)
    batches = Batches(40, batch, torch.Generator().manual_seed(1))
    lr, best_loss, best_model, patience, taken = 0.5, math.inf, copy.deepcopy(model), rule.patience, 0
    for _ in range(epochs):
        taken += 1
        model.train()
        for _ in range(batches.per_epoch):
            part = train[batches.next()]
            model.zero_grad()
            F.cross_entropy(model(part.pixels / 255), part.labels).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for weight in model.parameters():
                    assert weight.grad is not None
                    weight.sub_(lr * weight.grad)
        model.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(model(validation.pixels / 255), validation.labels))
        if loss < best_loss:
            best_loss, best_model, patience = loss, copy.deepcopy(model), rule.patience
        else:
            patience -= 1
            if patience <= 0:
                lr *= rule.drop
                if lr < rule.smallest_lr:
                    break
                patience = rule.patience
    return best_model, taken


def test_training_is_the_published_loop() -> None:
    rule, validation = Plateau(patience=2, smallest_lr=0.05), images(60, seed=2)
    expected, epochs = hats_loop(rule, 40, 8, validation)
    reports: list[Progress] = []
    plan = Plan(epochs=40, batch=8, schedule=Schedule(kind="constant"), plateau=rule)
    model, rates = trained(plan, validation, TrainingContext(reports.append))
    assert 4 < epochs < 40
    assert len(rates) == 5 * epochs
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], atol=1e-6)
    assert (reports[-1].done, reports[-1].epoch) == (reports[-1].total, epochs)
    last = trained(plan.model_copy(update={"plateau": rule.model_copy(update={"restore_best": False})}), validation)[0]
    assert any(not torch.equal(value, last.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_schedule_and_the_plateau_multiply() -> None:
    """What is right in training is wrong in validation, so that only the first epoch is the best so far."""
    schedule = Schedule(kind="steps", steps=(2,), drop=0.1, every="epoch")
    rule = Plateau(patience=1, drop=0.5, smallest_lr=1e-9)
    opposite = Images(images(40).pixels, 1 - images(40).labels)
    _, rates = trained(Plan(epochs=4, batch=40, schedule=schedule, plateau=rule), opposite)
    assert rates == pytest.approx([0.5, 0.5, 0.5 * 0.1 * 0.5, 0.5 * 0.1 * 0.25])


def test_validation_by_hand() -> None:
    """The mean over all images whatever the batches, with the penalty, in evaluation mode, and without gradients."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(12, 2))
    seen: list[bool] = []

    def outputs_of(pixels: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(model.training or torch.is_grad_enabled())
        return model(pixels), torch.tensor(2.0)

    some = images(10)
    found = Validator(some, outputs_of, [model]).scores(batch=4)
    with torch.no_grad():
        outputs = model.eval()(some.pixels / 255)
    assert found.loss == pytest.approx(float(F.cross_entropy(outputs, some.labels)) + 2)
    assert found.accuracy == pytest.approx(float((outputs.argmax(1) == some.labels).double().mean()))
    assert seen == [False] * 3
    model.train()
    Validator(some, outputs_of, [model]).scores()
    assert model.training
    assert model[1].training


def test_it_needs_validation_images() -> None:
    plan = Plan(epochs=1, batch=8, plateau=Plateau())
    with pytest.raises(UserError, match="needs validation images, and this task has none"):
        trained(plan, images(0))
    weight = nn.Parameter(torch.ones(1))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(UserError, match="has no validation score"):
        fit(lambda batch: weight.sum(), optimiser, plan, 8, torch.Generator())


def test_plans_without_a_plateau_are_written_as_before() -> None:
    assert set(Plan().model_dump()) == {"epochs", "batch", "schedule"}
    plan = Plan(plateau=HYPERNET)
    assert Plan.model_validate(plan.model_dump(mode="json")) == plan
    with pytest.raises(ValidationError):
        Plan.model_validate({"plateau": {"patience": 0}})
