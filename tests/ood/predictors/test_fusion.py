"""Our predictors: by hand, and on made-up tasks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from clom.learning.calibration import CalibrationSettings
from clom.ood.predictors.base import StoredSamples, TaskOutputs
from clom.ood.predictors.calibrated import calibration_of
from clom.ood.predictors.fusion import (
    Fusion,
    FusionWithoutSamples,
    Mahalanobis,
    OtherHead,
    cross_fitted,
    fit_weights,
)
from clom.ood.predictors.other_heads import OtherHeads
from clom.ood.predictors.statistics import USUAL, TaskStatistics, packed
from clom.testing.predictors import made_up_images, made_up_tasks


def test_mahalanobis_is_averaged_over_rotations_and_standardised() -> None:
    usual = torch.ones(len(USUAL), 2)
    usual[USUAL.index("rotation mahalanobis")] = torch.tensor([-4.0, 2.0])
    usual[USUAL.index("largest logit")] = torch.tensor([5.0, 0.5])
    means = torch.tensor([[[0.0], [9.0]], [[2.0], [7.0]]])  # two rotations of two classes
    own = TaskStatistics(means, packed(torch.eye(1)), usual)
    outputs = [TaskOutputs(torch.tensor([[6.0, 0.0]]), torch.tensor([[[3.0], [6.0]]]))]
    # Rotation 0 is 9 from its nearest class, rotation 1 is 1 away: the mean -5 is half a deviation below -4.
    assert Mahalanobis().fit([own], None)(outputs).item() == pytest.approx(-0.5)
    # The largest logit is two deviations above its mean.
    assert FusionWithoutSamples().fit([own], None)(outputs).item() == pytest.approx(1.5)


def test_log_odds_by_hand() -> None:
    heads = OtherHeads([torch.tensor([[1.0], [0.0], [-1.0]])], [torch.tensor([0.0, 0.0, 0.0])], rotations=2)
    outputs = [TaskOutputs(torch.zeros(1, 1), torch.tensor([[[0.0], [2.0]]]))]
    # Rotation 0: log 2 - 0. Rotation 1: log(e^2 + 1) + 2.
    expected = (0.6931 + 2.1269 + 2) / 2
    assert heads.log_odds(outputs).item() == pytest.approx(expected, abs=1e-4)


def test_other_heads_of_rotation_classes() -> None:
    """A head has an output for every rotation of every own class and one for all other tasks; it separates them."""
    _, samples = made_up_tasks()
    heads = OtherHeads.fit(samples, rotations=4, l2=1e-4, iterations=50)
    assert [tuple(weight.shape) for weight in heads.weights] == [(9, 6), (13, 6), (9, 6)]
    images, tasks, labels = made_up_images(seed=5)
    odds = heads.log_odds(images)
    for task in range(3):
        assert odds[tasks == task, task].min() > odds[tasks != task, task].max()
    # The head tells rotation 1 of class 1 from the rest: rotation r of class y is output y + r * classes.
    own = (tasks == 0) & (labels == 1)
    outputs = images[0].need_features()[own, 1].float() @ heads.weights[0].T + heads.biases[0]
    assert (outputs.argmax(1) == 1 + 1 * 2).all()


def test_there_are_no_heads_after_the_first_task() -> None:
    _, samples = made_up_tasks()
    first = samples.tasks == 0
    alone = StoredSamples([samples.outputs[0].rows(first)], samples.tasks[first], samples.labels[first])
    heads = OtherHeads.fit(alone, rotations=4, l2=1e-4, iterations=50)
    assert heads.log_odds(alone.outputs).abs().max() == 0
    assert heads.own_log_probability(alone.outputs).abs().max() == 0


def test_a_head_never_judges_samples_it_was_fitted_on() -> None:
    """With features of pure noise, heads fitted to all samples separate them; cross-fitted ones cannot."""
    randomness = torch.Generator().manual_seed(0)
    tasks, labels = torch.arange(60) % 2, torch.zeros(60, dtype=torch.int64)
    outputs = [TaskOutputs(torch.zeros(60, 1), torch.randn(60, 1, 80, generator=randomness)) for _ in range(2)]
    samples = StoredSamples(outputs, tasks, labels)
    overfitted = OtherHeads.fit(samples, 1, 1e-4, 50).log_odds(outputs).argmax(1)
    judged = cross_fitted(OtherHead, samples).argmax(1)
    assert (overfitted == tasks).double().mean() > 0.95
    assert 0.25 < (judged == tasks).double().mean() < 0.75


def test_every_class_is_in_every_fold() -> None:
    _, samples = made_up_tasks()
    folds = samples.folds(3)
    for task, label in {(int(t), int(y)) for t, y in zip(samples.tasks, samples.labels, strict=True)}:
        own = folds[(samples.tasks == task) & (samples.labels == label)]
        assert own.bincount(minlength=3).max() - own.bincount(minlength=3).min() <= 1
        assert own[:3].tolist() == [0, 1, 2]


def test_weights_are_the_minimum() -> None:
    randomness = torch.Generator().manual_seed(0)
    tasks = torch.arange(90) % 3
    evidence = torch.randn(90, 3, 2, generator=randomness, dtype=torch.float64)
    evidence[torch.arange(90), tasks, 0] += 1.5  # the second kind says nothing
    weights = fit_weights(evidence, tasks).requires_grad_()
    loss = F.cross_entropy(evidence @ weights, tasks) + 1e-3 * weights.square().sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    assert gradient.abs().max() < 1e-4
    assert weights[0] > 5 * weights[1].abs()


def test_fusion_is_the_weighted_sum_of_its_evidence() -> None:
    statistics, samples = made_up_tasks()
    images, tasks, _ = made_up_images(seed=7)
    predictor = Fusion().fit(statistics, samples)
    affine = calibration_of(samples, CalibrationSettings(cross_task=0.03))
    largest = torch.stack([block.amax(1) for block in affine([task.block for task in images])], 1).double()
    heads = OtherHeads.fit(samples, 4, 1e-4, 50)
    kinds = [largest, heads.log_odds(images)]
    expected = sum(weight * kind for weight, kind in zip(predictor.learned["weights"], kinds, strict=True))
    torch.testing.assert_close(predictor(images), expected, rtol=1e-5, atol=1e-5)
    assert (predictor.tasks(images) == tasks).all()
