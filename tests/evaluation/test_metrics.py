"""The paper's metrics, compared with hand-computed values, and the relations between them."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from clom.data.images import Images
from clom.evaluation.metrics import (
    ClassIncremental,
    Evaluation,
    auc,
    auc_grid,
    average_incremental,
    correctness,
    evaluate,
    forgetting,
    max_logit,
    max_softmax,
    mean_auc,
)
from clom.evaluation.scorebook import Scorebook
from clom.learning.calibration import Affine


def book_of(blocks_by_test: list[list[Tensor]], labels: list[Tensor]) -> Scorebook:
    """A filled scorebook without a method: `blocks_by_test[test][model]`."""
    tests = [Images(torch.zeros(len(right), 1, 1, 1, dtype=torch.uint8), right) for right in labels]
    book = Scorebook(tests)
    book.restore(blocks_by_test)
    return book


# Two tasks of two and three classes. Task 0 has three test images, task 1 two.
# Task 0, image 0: correct; image 1: correct task, wrong class; image 2: correct within the task, but task 1 wins.
BY_HAND = [
    [
        torch.tensor([[5.0, 1.0], [2.0, 4.0], [1.0, 3.0]]),
        torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [0.0, 6.0, 0.0]]),
    ],
    [torch.tensor([[1.0, 0.0], [9.0, 0.0]]), torch.tensor([[2.0, 3.0, 8.0], [1.0, 2.0, 0.0]])],
]
LABELS = [torch.tensor([0, 0, 1]), torch.tensor([2, 1])]


def test_correctness_by_hand_with_unequal_class_counts() -> None:
    first = correctness(BY_HAND[0], LABELS[0], 0)
    assert first.til.tolist() == [True, False, True]
    assert first.cil.tolist() == [True, False, False]
    assert first.detected_task.tolist() == [0, 0, 1]
    second = correctness(BY_HAND[1], LABELS[1], 1)
    assert second.til.tolist() == [True, True]
    assert second.cil.tolist() == [True, False]
    assert second.detected_task.tolist() == [1, 0]


def test_evaluation_by_hand_averages_over_images_not_over_tasks() -> None:
    result = evaluate(book_of(BY_HAND, LABELS), {"none": Affine.identity(2)})
    assert result.n_tasks == 2
    assert result.til == pytest.approx(4 / 5)
    assert result.til_by_task == pytest.approx([2 / 3, 1.0])
    cil = result.preferred
    assert cil.cil == pytest.approx(2 / 5)
    assert cil.cil_by_task == pytest.approx([1 / 3, 1 / 2])
    assert cil.task_detection == pytest.approx(3 / 5)
    assert cil.task_confusion == [pytest.approx([2 / 3, 1 / 3]), pytest.approx([1 / 2, 1 / 2])]
    # Task 0's model: own maxima 5, 4, 3 against 1, 9: 3 of 6 pairs. Task 1's: own 8, 2 against 2, 3, 6: 3 + .5 of 6.
    assert cil.auc_maxlogit == pytest.approx((3 / 6 + 3.5 / 6) / 2)


def test_the_last_class_of_a_task_and_the_first_of_the_next_are_not_confused() -> None:
    blocks = [torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([[0.0], [1.0]]), torch.zeros(2, 2)]
    assert correctness(blocks, torch.tensor([2, 2]), 0).detected_task.tolist() == [0, 1]
    assert correctness(blocks, torch.tensor([0, 0]), 1).cil.tolist() == [False, True]


def test_every_calibration_is_reported_and_the_first_is_the_preferred_one() -> None:
    # Scaling task 1's block down by ten assigns all images to task 0.
    calibrations = {"shrunk": Affine(torch.tensor([1.0, 0.1]), torch.zeros(2)), "none": Affine.identity(2)}
    result = evaluate(book_of(BY_HAND, LABELS), calibrations)
    assert list(result.by_calibration) == ["shrunk", "none"]
    assert result.preferred is result.by_calibration["shrunk"]
    assert result.preferred.cil == pytest.approx(2 / 5)
    assert result.preferred.task_confusion == [pytest.approx([1.0, 0.0]), pytest.approx([1.0, 0.0])]
    assert result.preferred.cil_by_task == pytest.approx([2 / 3, 0.0])
    assert result.by_calibration["none"].cil_by_task == pytest.approx([1 / 3, 1 / 2])
    assert result.til == pytest.approx(4 / 5)


@st.composite
def random_scores(draw: st.DrawFn) -> tuple[list[list[Tensor]], list[Tensor], Affine]:
    """Blocks of one to four tasks with one to four classes and one to twelve images each; few values, so ties occur."""
    classes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    images = draw(st.lists(st.integers(1, 12), min_size=len(classes), max_size=len(classes)))
    randomness = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    ties = draw(st.booleans())

    def block(n: int, c: int) -> Tensor:
        if ties:
            return torch.randint(0, 3, (n, c), generator=randomness).float()
        return torch.randn(n, c, generator=randomness)

    blocks = [[block(n, c) for c in classes] for n in images]
    labels = [torch.randint(0, c, (n,), generator=randomness) for n, c in zip(images, classes, strict=True)]
    # Powers of two and small integers, so that rounding creates or breaks no ties.
    scales = 2.0 ** torch.randint(-2, 3, (len(classes),), generator=randomness)
    shifts = torch.randint(-2, 3, (len(classes),), generator=randomness).float()
    return blocks, labels, Affine(scales, shifts)


@given(random_scores())
@settings(max_examples=30, deadline=None)
def test_relation_of_til_task_detection_and_cil(data: tuple[list[list[Tensor]], list[Tensor], Affine]) -> None:
    blocks, labels, affine = data
    result = evaluate(book_of(blocks, labels), {"affine": affine, "none": Affine.identity(len(labels))})
    for cil in result.by_calibration.values():
        assert cil.cil <= min(result.til, cil.task_detection) + 1e-12
        assert cil.cil >= result.til + cil.task_detection - 1 - 1e-12
        assert len(cil.task_confusion) == len(labels)
        for row in cil.task_confusion:
            assert sum(row) == pytest.approx(1.0)
        sizes = [len(right) for right in labels]
        diagonal = sum(size * cil.task_confusion[task][task] for task, size in enumerate(sizes))
        assert cil.task_detection == pytest.approx(diagonal / sum(sizes))
        assert cil.cil == pytest.approx(sum(n * c for n, c in zip(sizes, cil.cil_by_task, strict=True)) / sum(sizes))
    assert result.til == pytest.approx(
        sum(len(right) * til for right, til in zip(labels, result.til_by_task, strict=True)) / sum(map(len, labels))
    )


@given(random_scores())
@settings(max_examples=40, deadline=None)
def test_cil_is_correct_exactly_when_task_and_til_are_correct(
    data: tuple[list[list[Tensor]], list[Tensor], Affine],
) -> None:
    blocks, labels, affine = data
    for task, right in enumerate(labels):
        found = correctness(affine(blocks[task]), right, task)
        both = (found.detected_task == task) & found.til
        assert torch.equal(found.cil, both)


def test_random_data_of_five_tasks_of_two() -> None:
    """The relation, and that none of the three numbers is trivially 0 or 1."""
    randomness = torch.Generator().manual_seed(0)
    blocks, labels = [], []
    for task in range(5):
        right = torch.randint(0, 2, (400,), generator=randomness)
        row = [torch.randn(400, 2, generator=randomness) for _ in range(5)]
        row[task][torch.arange(400), right] += 1.6
        blocks.append(row)
        labels.append(right)
    result = evaluate(book_of(blocks, labels), {"none": Affine.identity(5)})
    both = [(a.detected_task == task) & a.til for task, a in enumerate(map(correctness, blocks, labels, range(5)))]
    assert result.preferred.cil == pytest.approx(float(torch.cat(both).double().mean()))
    assert 0.4 < result.preferred.cil < result.preferred.task_detection < result.til < 0.95


def grid_of_scores(*scores: list[list[float]]) -> list[list[Tensor]]:
    """Blocks of one class, whose maximum is the score itself: `scores[test][model]` is a list."""
    return [[torch.tensor(values)[:, None] for values in row] for row in scores]


def test_auroc_by_hand() -> None:
    """5/6, and .75 with ties; high means the image belongs to the task."""
    blocks = grid_of_scores([[0.9, 0.8, 0.4], [1.0, 0.0, 0.0]], [[0.7, 0.3], [1.0, 1.0]])
    grid = auc_grid(blocks, max_logit)
    assert grid[0][1] == pytest.approx(5 / 6)
    assert grid[1][0] == pytest.approx((2 * 2.5) / 6)
    ties = auc_grid(grid_of_scores([[1.0, 1.0], [0.0]], [[1.0, 0.0], [0.0]]), max_logit)
    assert ties[0][1] == pytest.approx(0.75)
    assert ties[1][0] == pytest.approx(0.5)
    assert mean_auc(grid) == pytest.approx((5 / 6 + 5 / 6) / 2)
    assert mean_auc(ties) == pytest.approx((0.75 + 0.5) / 2)


def test_mean_auc_excludes_the_diagonal() -> None:
    assert mean_auc([[0.0, 0.5, 0.7], [0.9, 0.0, 0.3], [0.1, 0.8, 0.0]]) == pytest.approx(3.3 / 6)
    assert mean_auc([[1.0]]) == 1.0


@given(random_scores())
@settings(max_examples=25, deadline=None)
def test_auc_grid_counts_pairs(data: tuple[list[list[Tensor]], list[Tensor], Affine]) -> None:
    blocks, _, _ = data
    grid = auc_grid(blocks, max_logit)
    for i, j in itertools.permutations(range(len(blocks)), 2):
        own, other = max_logit(blocks[i][i]), max_logit(blocks[j][i])
        pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in own.tolist() for b in other.tolist()]
        assert grid[i][j] == pytest.approx(sum(pairs) / len(pairs))


def test_scores_of_the_ood_notes() -> None:
    """Hand-computed values."""
    logits = torch.tensor([[4.0, 1.0, 0.0], [2.0, 1.9, 1.8], [0.1, 0.0, 0.0], [-3.0, -5.0, -9.0]])
    assert max_logit(logits).tolist() == pytest.approx([4.0, 2.0, 0.1, -3.0])
    assert max_softmax(logits).tolist() == pytest.approx([0.93624, 0.36717, 0.35591, 0.87888], abs=1e-5)


def test_scaling_changes_the_msp_auc_and_not_the_maxlogit_auc() -> None:
    """Why both are reported."""
    randomness = torch.Generator().manual_seed(3)

    def blocks(scale: float) -> list[list[Tensor]]:
        randomness.manual_seed(3)
        row = [[torch.randn(60, 3, generator=randomness) for _ in range(2)] for _ in range(2)]
        for task in range(2):
            row[task][task][:, 0] += 1.0
        return [[scale * block for block in pair] for pair in row]

    def auc(scale: float) -> tuple[float, float]:
        given_blocks = blocks(scale)
        return mean_auc(auc_grid(given_blocks, max_logit)), mean_auc(auc_grid(given_blocks, max_softmax))

    by_scale = [auc(scale) for scale in (0.25, 1.0, 4.0)]
    assert len({round(maxlogit, 12) for maxlogit, _ in by_scale}) == 1
    assert len({round(msp, 12) for _, msp in by_scale}) == 3
    assert 0.5 < by_scale[0][0] < 1.0


def test_auc_does_not_depend_on_the_calibration() -> None:
    """A calibration is fitted to scores of all tasks, and the cross-task terms add them to every block."""
    randomness = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 3, (50,), generator=randomness) for _ in range(3)]
    blocks = [[torch.randn(50, 3, generator=randomness) for _ in range(3)] for _ in range(3)]
    for task in range(3):
        blocks[task][task][torch.arange(50), labels[task]] += 1.5
    draw = partial(torch.rand, generator=randomness)
    calibrations = {
        "cross-task": Affine(draw(3) + 0.1, draw(3), 3 * draw(3, 9)),
        "affine": Affine(draw(3) + 0.1, 5 * draw(3)),
        "none": Affine.identity(3),
    }
    found = evaluate(book_of(blocks, labels), calibrations).by_calibration
    assert len({result.auc_maxlogit for result in found.values()}) == 1
    assert len({result.auc_msp for result in found.values()}) == 1
    assert len({result.cil for result in found.values()}) == 3
    assert found["none"].auc_maxlogit == mean_auc(auc_grid(blocks, max_logit))
    assert found["none"].auc_msp == mean_auc(auc_grid(blocks, max_softmax))


@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 30), st.sampled_from([0, 1, 6]))
@settings(max_examples=50, deadline=None)
def test_auc_equals_that_of_scikit_learn(seed: int, n_positive: int, n_negative: int, digits: int) -> None:
    """With rounded scores there are many ties."""
    randomness = torch.Generator().manual_seed(seed)
    positive = (torch.randn(n_positive, generator=randomness) + 0.5).round(decimals=digits)
    negative = torch.randn(n_negative, generator=randomness).round(decimals=digits)
    truth = [1] * n_positive + [0] * n_negative
    expected = roc_auc_score(truth, torch.cat([positive, negative]).double().numpy())
    assert auc(positive, negative) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("positive", "negative"), [([], [1.0]), ([1.0], []), ([float("nan")], [1.0]), ([1.0], [2.0, float("nan")])]
)
def test_auc_of_no_scores_or_nan_is_an_error(positive: list[float], negative: list[float]) -> None:
    with pytest.raises(ValueError, match="scores on both sides"):
        auc(torch.tensor(positive), torch.tensor(negative))


def history_of(*til_by_task: list[float]) -> list[Evaluation]:
    def by_calibration(cil: float) -> dict[str, ClassIncremental]:
        return {"none": ClassIncremental(cil, [cil], 1.0, 1.0, 1.0, [[1.0]])}

    return [Evaluation(len(row), sum(row) / len(row), row, by_calibration(row[-1] / 2)) for row in til_by_task]


def test_forgetting_by_hand() -> None:
    """(.9 - .6 + .8 - .85) / 2: the last task does not count, and improvements are negative."""
    assert forgetting(history_of([0.9], [0.7, 0.8], [0.6, 0.85, 0.1])) == pytest.approx(0.125)
    assert forgetting(history_of([0.9])) == 0.0
    assert forgetting(history_of([0.9], [0.9, 0.4])) == 0.0


def test_average_incremental_by_hand() -> None:
    history = history_of([0.9], [0.7, 0.8], [0.6, 0.9, 0.3])
    assert average_incremental(history, lambda e: e.til) == pytest.approx((0.9 + 0.75 + 0.6) / 3)
    assert average_incremental(history, lambda e: e.preferred.cil) == pytest.approx((0.45 + 0.4 + 0.15) / 3)


@given(random_scores())
@settings(max_examples=8, deadline=None)
def test_evaluation_json_round_trip(data: tuple[list[list[Tensor]], list[Tensor], Affine]) -> None:
    blocks, labels, affine = data
    result = evaluate(book_of(blocks, labels), {"affine": affine, "none": Affine.identity(len(labels))})
    again = Evaluation.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert list(again.by_calibration) == ["affine", "none"]
