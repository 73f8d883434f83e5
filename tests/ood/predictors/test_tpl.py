"""TPL, by hand."""

from __future__ import annotations

import pytest
import torch

from clom.ood.predictors.base import StoredSamples, TaskOutputs
from clom.ood.predictors.statistics import USUAL, TaskStatistics, packed
from clom.ood.predictors.tpl import Tpl, TplSoftMaximum, combined, fit_affine, neighbour_distance


def test_the_two_combinations_by_hand() -> None:
    logit, ratio = torch.tensor([1.2, 0.5]), torch.tensor([2.45, 0.378125])
    assert combined(logit, ratio, soft_maximum=True).tolist() == pytest.approx([2.7019, 1.1341], abs=1e-3)
    assert combined(logit, ratio, soft_maximum=False).tolist() == pytest.approx([0.9481, -0.2559], abs=1e-3)
    one_sided = torch.tensor([3.0]), torch.tensor([0.2])
    assert combined(*one_sided, soft_maximum=True).item() == pytest.approx(3.059, abs=1e-3)
    assert combined(*one_sided, soft_maximum=False).item() == pytest.approx(0.141, abs=1e-3)


def test_the_distance_is_that_of_the_kth_neighbour() -> None:
    others = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])
    assert neighbour_distance(torch.tensor([[1.0, 0.0]]), others, 2).item() == pytest.approx(2.0)
    assert neighbour_distance(torch.tensor([[1.0, 0.0]]), others, 5).item() == pytest.approx(4.0), "the last of three"
    assert neighbour_distance(torch.tensor([[1.0, 0.0]]), others[:0], 5).item() == 0.0


def statistics(largest: float, inverse: float) -> TaskStatistics:
    usual = torch.ones(len(USUAL), 2)
    usual[USUAL.index("largest logit"), 0], usual[USUAL.index("inverse mahalanobis"), 0] = largest, inverse
    return TaskStatistics(torch.zeros(1, 1, 2), packed(torch.eye(2)), usual)


@pytest.mark.parametrize(("kind", "expected"), [(Tpl, [0.9481, -0.2559]), (TplSoftMaximum, [2.7019, 1.1341])])
def test_scores_by_hand(kind: type[Tpl], expected: list[float]) -> None:
    """Logits 3 and 1 (usually 2.5 and 2), inverse distances 5 and .3125 (usually 4), neighbours 1.2 and .3 away."""
    predictor = kind(shrinkage=0.0).fit([statistics(2.5, 4.0), statistics(2.0, 4.0)], None)
    outputs, learned = [], {"scales": torch.ones(2), "shifts": torch.zeros(2)}
    for task, (logit, inverse, far) in enumerate([(3.0, 5.0, 1.2), (1.0, 0.3125, 0.3)]):
        outputs.append(TaskOutputs(torch.tensor([[logit]]), torch.tensor([[[inverse**-0.5, 0.0]]])))
        cosine = 1 - far / 2  # of unit vectors whose squared distance is `far`
        learned[f"others_{task}"] = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]])
    predictor.learned = learned
    scores = predictor._scores(outputs)[0]
    assert scores.tolist() == pytest.approx(expected, abs=1e-3)
    # One class per task, so the within-task probability is 1.
    assert predictor(outputs).exp()[0].tolist() == pytest.approx((scores / 0.05).softmax(0).tolist())


def test_own_samples_are_not_among_the_others() -> None:
    features = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, -1.0]]])
    samples = StoredSamples(
        [TaskOutputs(torch.ones(3, 1), features)] * 2, torch.tensor([0, 1, 1]), torch.zeros(3, dtype=torch.int64)
    )
    learned = Tpl().fit([statistics(1.0, 1.0)] * 2, samples).learned
    assert learned["others_0"].tolist() == [[0.0, 1.0], [0.0, -1.0]]
    assert learned["others_1"].tolist() == [[1.0, 0.0]]


def test_the_affine_map_is_fitted_by_100_steps_of_sgd() -> None:
    scores, tasks = torch.tensor([[0.2, 0.1], [0.4, 0.3], [0.1, 0.05]], dtype=torch.float64), torch.tensor([0, 1, 1])
    found = fit_affine(scores, tasks, temperature=0.05)
    scales, shifts = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    velocity = [torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    truth = torch.eye(2, dtype=torch.float64)[tasks]
    for _ in range(100):
        error = (((scales * scores + shifts) / 0.05).softmax(1) - truth) / 0.05 / 3
        velocity = [0.8 * velocity[0] + (error * scores).sum(0), 0.8 * velocity[1] + error.sum(0)]
        scales, shifts = scales - 0.01 * velocity[0], shifts - 0.01 * velocity[1]
    torch.testing.assert_close(found["scales"], scales)
    torch.testing.assert_close(found["shifts"], shifts)
