"""Calibration: one scale and one shift per task make tasks comparable and never change a TIL prediction."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clom.learning.calibration import Affine, CalibrationSettings, fit_to_memory

SIZES = (2, 3, 2)
SCALES = torch.tensor([0.02, 1.0, 40.0])
SHIFTS = torch.tensor([0.04, -1.0, 60.0])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def comparable(n_per_task: int = 40, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Comparable logits of three tasks: the true class is higher by 4, noise 1; labels index the concatenation."""
    randomness = seeded(seed)
    labels = torch.cat(
        [
            sum(SIZES[:task]) + torch.randint(0, size, (n_per_task,), generator=randomness)
            for task, size in enumerate(SIZES)
        ]
    )
    scores = torch.randn(len(labels), sum(SIZES), generator=randomness) + 4 * F.one_hot(labels, sum(SIZES))
    return list(torch.split(scores, list(SIZES), 1)), labels


def distorted(blocks: list[Tensor]) -> list[Tensor]:
    return Affine(SCALES, SHIFTS)(blocks)


def cil(blocks: list[Tensor], labels: Tensor) -> float:
    return float((torch.cat(blocks, 1).argmax(1) == labels).double().mean())


def test_affine_by_hand() -> None:
    blocks = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])]
    first, second = Affine(torch.tensor([2.0, 0.5]), torch.tensor([-1.0, 10.0]))(blocks)
    assert first.tolist() == [[1.0, 3.0]]
    assert second.tolist() == [[11.5], [12.0]]


def test_cross_task_by_hand() -> None:
    """The second task's shift depends on the first task's first score (weight 3) and on its own (weight -1)."""
    blocks = [torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0]])]
    cross_task = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, -1.0]])
    affine = Affine(torch.tensor([2.0, 0.5]), torch.tensor([-1.0, 10.0]), cross_task)
    first, second = affine(blocks)
    assert first.tolist() == [[1.0, 3.0]]
    assert second.tolist() == [[11.0]]  # 0.5 * 4 + 10 + 3 * 1 - 1 * 4
    (alone,) = affine.for_task(1)(blocks[1:])
    assert alone.tolist() == [[12.0]]


def test_cross_task_finds_the_minimum_and_uses_scores_of_other_tasks() -> None:
    """Only the first task's second score separates the second task's images from the rest."""
    blocks, labels = comparable()
    blocks[1] = torch.randn(blocks[1].shape, generator=seeded(1)) * 0.1 + 4 * F.one_hot((labels - 2).clamp(0, 2), 3)
    blocks[0][:, 1] += 6.0 * ((labels >= 2) & (labels < 5))
    settings = CalibrationSettings(cross_task=0.03)
    fitted = fit_to_memory(blocks, labels, settings, seeded())
    plain = fit_to_memory(blocks, labels, CalibrationSettings(), seeded())
    assert plain.cross_task is None
    assert cil(plain(blocks), labels) < 0.8
    assert cil(fitted(blocks), labels) > 0.9
    for before, after in zip(blocks, fitted(blocks), strict=True):
        assert torch.equal(before.argmax(1), after.argmax(1))  # TIL predictions are unchanged

    # The gradient of the documented objective, in terms of standardised logits, vanishes.
    exact = [block.double() for block in blocks]
    spreads = torch.stack([block.std(correction=0) for block in exact])
    centres = torch.stack([block.mean() for block in exact])
    sizes = torch.tensor(SIZES)
    assert fitted.cross_task is not None
    cross_task = (fitted.cross_task.double() * spreads.repeat_interleave(sizes)).requires_grad_()
    log_scales = (fitted.scales.double() * spreads).log().requires_grad_()
    moved = fitted.cross_task.double() @ centres.repeat_interleave(sizes)
    shifts = (fitted.shifts.double() + fitted.scales.double() * centres + moved).requires_grad_()
    standard = [(block - centre) / spread for block, centre, spread in zip(exact, centres, spreads, strict=True)]
    scores = torch.cat(Affine(log_scales.exp(), shifts, cross_task)(standard), 1)
    pull = 1e-3 * (log_scales.square().sum() + shifts.square().sum()) + 0.03 * cross_task.square().sum()
    (F.cross_entropy(scores, labels) + pull).backward()  # type: ignore[no-untyped-call]
    for values in (log_scales, shifts, cross_task):
        assert values.grad is not None
        assert float(values.grad.abs().max()) < 1e-4


def test_cross_task_needs_the_exact_solver() -> None:
    with pytest.raises(ValueError, match="solver: exact"):
        CalibrationSettings(cross_task=0.1, solver="sgd")
    with pytest.raises(ValueError, match="solver: exact"):
        CalibrationSettings(cross_task=0.1, solver="paper")


def test_identity_changes_nothing() -> None:
    blocks, _ = comparable()
    for before, after in zip(blocks, Affine.identity(3)(blocks), strict=True):
        assert torch.equal(before, after)


def test_a_calibration_for_another_number_of_tasks_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Affine.identity(2)(comparable()[0])


@pytest.mark.parametrize("solver", ["exact", "sgd"])
def test_comparability_is_recovered_on_other_samples(solver: str) -> None:
    """Fitted to 60 samples and evaluated on others: accuracy rises from a third to nearly 1."""
    memory, labels = comparable(20)
    settings = CalibrationSettings.model_validate({"solver": solver})
    fitted = fit_to_memory(distorted(memory), labels, settings, seeded())
    unseen, truth = comparable(200, seed=1)
    assert cil(unseen, truth) > 0.98
    assert cil(distorted(unseen), truth) < 0.34
    assert cil(fitted(distorted(unseen)), truth) > 0.96


def test_fitted_scales_undo_the_distortion() -> None:
    """With a margin of 4 and noise 1 the best weight of every logit is 4 / 1^2, although the inputs differ by 2,000."""
    memory, labels = comparable(200)
    fitted = fit_to_memory(distorted(memory), labels, CalibrationSettings(prior=0.0), seeded())
    assert (fitted.scales * SCALES).tolist() == pytest.approx([4.0, 4.0, 4.0], rel=0.25)
    assert fitted.scales.dtype == fitted.shifts.dtype == torch.float32


def test_exact_is_a_minimum() -> None:
    """No small change of any scale or shift lowers the objective."""
    memory, labels = comparable(200)
    blocks = [block.double() for block in distorted(memory)]
    fitted = fit_to_memory(blocks, labels, CalibrationSettings(prior=0.0), seeded())

    def loss(scales: Tensor, shifts: Tensor) -> float:
        return float(F.cross_entropy(torch.cat(Affine(scales.double(), shifts.double())(blocks), 1), labels))

    best = loss(fitted.scales, fitted.shifts)
    assert best < 0.1
    for task in range(3):
        for factor in (0.8, 1.25):
            scales = fitted.scales.clone()
            scales[task] *= factor
            assert loss(scales, fitted.shifts) > best
        for step in (-0.3, 0.3):
            shifts = fitted.shifts.clone()
            shifts[task] += step
            assert loss(fitted.scales, shifts) > best


@given(st.integers(0, 2**32 - 1), st.sampled_from(["exact", "sgd", "paper"]), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_scales_are_positive_and_til_never_changes(seed: int, solver: str, n_tasks: int, n_images: int) -> None:
    randomness = seeded(seed)
    sizes = torch.randint(1, 4, (n_tasks,), generator=randomness).tolist()
    spread = 10 ** (4 * torch.rand(n_tasks, generator=randomness) - 2)
    blocks = [
        spread[task] * torch.randn(n_tasks * n_images, size, generator=randomness) for task, size in enumerate(sizes)
    ]
    labels = torch.randint(0, sum(sizes), (n_tasks * n_images,), generator=randomness)
    settings = CalibrationSettings.model_validate({"solver": solver, "iterations": 20})
    fitted = fit_to_memory(blocks, labels, settings, seeded())
    assert bool((fitted.scales > 0).all())
    assert bool(torch.isfinite(fitted.scales).all())
    assert bool(torch.isfinite(fitted.shifts).all())
    # In float64: an affine map may round two logits that differ by one float32 step to the same value.
    exactly = Affine(fitted.scales.double(), fitted.shifts.double())
    for before, after in zip(blocks, exactly([block.double() for block in blocks]), strict=True):
        assert torch.equal(before.argmax(1), after.argmax(1))


def test_sgd_takes_the_papers_number_of_steps_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, labels = comparable(35)  # 105 samples: batches of 35 are the nearest to 32
    sizes: list[int] = []
    real = F.cross_entropy

    def counted(scores: Tensor, truth: Tensor) -> Tensor:
        sizes.append(len(truth))
        return real(scores, truth)

    monkeypatch.setattr(F, "cross_entropy", counted)
    settings = CalibrationSettings(solver="sgd")
    assert (settings.iterations, settings.lr, settings.batch) == (160, 0.01, 32)
    fit_to_memory(distorted(memory), labels, settings, seeded())
    assert sizes == [35] * 160


@pytest.mark.parametrize("scales", [torch.ones(3), SCALES])
def test_the_papers_sgd_by_hand(scales: Tensor) -> None:
    """Eq. 9 with its gradient written out: sigma and mu themselves, from 1 and 0, batches of 32 and what is left."""
    memory, labels = comparable(20)
    blocks = [block.double() for block in Affine(scales, SHIFTS)(memory)]
    how = CalibrationSettings(solver="paper")
    assert (how.iterations, how.lr, how.batch, how.momentum) == (160, 0.01, 32, 0.8)

    scores, tasks = torch.cat(blocks, 1), torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    numbers = torch.stack([torch.ones(3), torch.zeros(3)]).double()  # sigma, mu
    velocity, order, randomness = torch.zeros(2, 3).double(), torch.empty(0, dtype=torch.int64), seeded()
    for _ in range(160):
        if not len(order):
            order = torch.randperm(60, generator=randomness)
        batch, order = order[:32], order[32:]
        wrong = (numbers[0][tasks] * scores[batch] + numbers[1][tasks]).softmax(1) - F.one_hot(labels[batch], 7)
        by_task = torch.zeros(2, 3).double()
        by_task[0].index_add_(0, tasks, (wrong * scores[batch]).mean(0))
        by_task[1].index_add_(0, tasks, wrong.mean(0))
        velocity = 0.8 * velocity + by_task
        numbers -= 0.01 * velocity
        numbers[0].clamp_(min=1e-3)

    fitted = fit_to_memory(blocks, labels, how, seeded())
    assert torch.allclose(fitted.scales.double(), numbers[0], rtol=1e-6, atol=1e-7)
    assert torch.allclose(fitted.shifts.double(), numbers[1], rtol=1e-6, atol=1e-7)
    assert bool((numbers[0] != 1).all())


def test_sgd_by_hand() -> None:
    """`solver: sgd` with its gradient written out: log sigma and mu of standardised logits, from 0."""
    memory, labels = comparable(20)
    blocks = [block.double() for block in distorted(memory)]
    spreads = torch.stack([block.std(correction=0) for block in blocks])
    centres = torch.stack([block.mean() for block in blocks])
    tasks = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    scores = (torch.cat(blocks, 1) - centres[tasks]) / spreads[tasks]
    numbers, velocity, randomness = torch.zeros(2, 3).double(), torch.zeros(2, 3).double(), seeded()
    batches: list[Tensor] = []
    for _ in range(160):
        if not batches:
            batches = list(torch.randperm(60, generator=randomness).tensor_split(2))  # 32 fits 60 twice, rounded
        batch = batches.pop(0)
        sigma = numbers[0].exp()[tasks]
        wrong = (sigma * scores[batch] + numbers[1][tasks]).softmax(1) - F.one_hot(labels[batch], 7)
        by_task = torch.zeros(2, 3).double()
        by_task[0].index_add_(0, tasks, (wrong * sigma * scores[batch]).mean(0))
        by_task[1].index_add_(0, tasks, wrong.mean(0))
        velocity = 0.8 * velocity + by_task
        numbers -= 0.01 * velocity

    fitted = fit_to_memory(blocks, labels, CalibrationSettings(solver="sgd"), seeded())
    scales = numbers[0].exp() / spreads
    assert torch.allclose(fitted.scales.double(), scales, rtol=1e-6)
    assert torch.allclose(fitted.shifts.double(), numbers[1] - scales * centres, rtol=1e-6, atol=1e-6)


def test_more_sgd_lowers_the_loss() -> None:
    memory, labels = comparable(20)
    blocks = distorted(memory)

    def loss(iterations: int) -> float:
        fitted = fit_to_memory(blocks, labels, CalibrationSettings(solver="sgd", iterations=iterations), seeded())
        return float(F.cross_entropy(torch.cat(fitted(blocks), 1), labels))

    start, end = loss(1), loss(160)
    assert end < 0.8 * start
    assert loss(40) < start


@pytest.mark.parametrize("solver", ["exact", "sgd", "paper"])
def test_same_randomness_same_result(solver: str) -> None:
    memory, labels = comparable(20)
    settings = CalibrationSettings.model_validate({"solver": solver})
    one, two = (fit_to_memory(distorted(memory), labels, settings, seeded(5)) for _ in range(2))
    assert torch.equal(one.scales, two.scales)
    assert torch.equal(one.shifts, two.shifts)


def test_fitting_does_not_modify_the_blocks() -> None:
    blocks, labels = comparable(5)
    before = [block.clone() for block in blocks]
    fit_to_memory(blocks, labels, CalibrationSettings(), seeded())
    for old, new in zip(before, blocks, strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("solver", ["exact", "sgd", "paper"])
def test_an_empty_buffer_gives_the_identity(solver: str) -> None:
    """The first point of the paper's memory ablation: no samples, so the logits are unchanged."""
    settings = CalibrationSettings.model_validate({"solver": solver})
    fitted = fit_to_memory(
        [torch.empty(0, 2), torch.empty(0, 3)], torch.empty(0, dtype=torch.int64), settings, seeded()
    )
    assert fitted.scales.tolist() == [1.0, 1.0]
    assert fitted.shifts.tolist() == [0.0, 0.0]


def test_a_single_sample_of_a_single_class() -> None:
    """The sample standard deviation would be undefined."""
    fitted = fit_to_memory([torch.tensor([[3.0]])], torch.tensor([0]), CalibrationSettings(), seeded())
    assert bool((fitted.scales > 0).all())
    assert bool(torch.isfinite(fitted.scales).all())
