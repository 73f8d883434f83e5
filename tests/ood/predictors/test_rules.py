"""Task predictors: by hand, and the relation of TIL, task detection and CIL."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clom.evaluation.metrics import correctness
from clom.evaluation.task_prediction import Outcome, outcome
from clom.ood.predictors.base import TaskOutputs, joint
from clom.ood.predictors.rules import Argmax, Product, Standardiser, TaskThenClass
from clom.ood.registry import PREDICTORS

BLOCKS = [torch.tensor([[0.0, 2.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 9.0]])]
SCORES = torch.tensor([[-1.0, 1.0], [4.0, 0.5]])


def outputs_of(blocks: list[Tensor], scores: Tensor) -> list[TaskOutputs]:
    return [TaskOutputs(block, score=score) for block, score in zip(blocks, scores.unbind(1), strict=True)]


OUTPUTS = outputs_of(BLOCKS, SCORES)


def test_predictors_by_hand() -> None:
    assert Argmax().tasks(OUTPUTS).tolist() == [0, 1]
    assert TaskThenClass().tasks(OUTPUTS).tolist() == [1, 0]
    # Image 0: e^2/(1+e^2) * sigmoid(-2) = .105 against e/(e+2) * sigmoid(2) = .507; image 1: .953 * .971 against .03.
    wanted = Product()(OUTPUTS).exp()
    assert wanted[0].tolist() == pytest.approx([0.8808 * 0.1192, 0.5761 * 0.8808], abs=1e-4)
    assert wanted[1].tolist() == pytest.approx([0.9526 * 0.9707, 0.9998 * 0.0293], abs=1e-4)


def test_product_is_the_best_of_all_products() -> None:
    """The class with the highest product of class and task probability belongs to the predicted task."""
    joint = torch.cat([b.softmax(1) * SCORES.softmax(1)[:, k : k + 1] for k, b in enumerate(BLOCKS)], 1)
    winners = torch.bucketize(joint.argmax(1), torch.tensor([2, 5]), right=True)
    assert torch.equal(winners, Product().tasks(OUTPUTS))


def test_product_of_extreme_scores_is_finite() -> None:
    blocks = [torch.tensor([[900.0, 0.0]]), torch.tensor([[0.0, -900.0]])]
    wanted = Product()(outputs_of(blocks, torch.tensor([[1e6, -1e6]])))
    assert torch.isfinite(wanted).all()
    assert wanted.argmax(1).item() == 0


def test_standardiser_by_hand() -> None:
    standard = Standardiser.fit([torch.tensor([1.0, 3.0]), torch.tensor([10.0, 10.0, 40.0, 40.0])])
    assert standard([torch.tensor([2.0, 4.0]), torch.tensor([25.0, 55.0])]).tolist() == [[0.0, 0.0], [2.0, 2.0]]


def test_standardiser_undoes_scale_and_shift_of_a_task() -> None:
    randomness = torch.Generator().manual_seed(0)
    own = [torch.randn(30, generator=randomness) for _ in range(2)]
    images = [torch.randn(9, generator=randomness) for _ in range(2)]
    plain = Standardiser.fit(own)(images)
    moved = Standardiser.fit([own[0], 100 * own[1] - 7])([images[0], 100 * images[1] - 7])
    torch.testing.assert_close(plain, moved, rtol=1e-4, atol=1e-4)


def test_standardiser_of_a_constant_score_is_finite() -> None:
    assert torch.isfinite(Standardiser.fit([torch.ones(5)])([torch.tensor([1.0, 0.5])])).all()


def test_outcome_by_hand() -> None:
    second = [torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 2.0, 0.0]])]
    outputs = [OUTPUTS, outputs_of(second, torch.tensor([[0.0, 1.0]]))]
    labels = [torch.tensor([1, 0]), torch.tensor([0])]  # TIL correct, correct, wrong
    assert outcome(Argmax(), outputs, labels) == Outcome(task_detection=1 / 3, cil=1 / 3)
    assert outcome(TaskThenClass(), outputs, labels) == Outcome(task_detection=2 / 3, cil=1 / 3)


@st.composite
def random_stream(draw: st.DrawFn) -> tuple[list[list[Tensor]], list[Tensor], list[Tensor]]:
    """Blocks, scores and labels of one to four tasks; few values, so that ties occur."""
    classes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    randomness = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    ties = draw(st.booleans())

    def values(*shape: int) -> Tensor:
        return (
            torch.randint(-1, 2, shape, generator=randomness).float()
            if ties
            else torch.randn(shape, generator=randomness)
        )

    images = [draw(st.integers(1, 12)) for _ in classes]
    blocks = [[values(n, c) for c in classes] for n in images]
    scores = [values(n, len(classes)) for n in images]
    labels = [torch.randint(0, c, (n,), generator=randomness) for n, c in zip(images, classes, strict=True)]
    return blocks, scores, labels


RULES = [name for name in PREDICTORS.names() if not {"statistics", "samples"} & set(PREDICTORS.get(name).needs)]


def all_outputs(blocks: list[list[Tensor]], scores: list[Tensor]) -> list[list[TaskOutputs]]:
    return [outputs_of(row, own) for row, own in zip(blocks, scores, strict=True)]


@pytest.mark.parametrize("name", RULES)
@given(data=random_stream())
@settings(max_examples=40, deadline=None)
def test_relation_of_til_task_detection_and_cil(
    name: str, data: tuple[list[list[Tensor]], list[Tensor], list[Tensor]]
) -> None:
    blocks, scores, labels = data
    result = outcome(PREDICTORS.get(name)(), all_outputs(blocks, scores), labels)
    right = [blocks[task][task].argmax(1) == labels[task] for task in range(len(labels))]
    til = float(torch.cat(right).double().mean())
    assert til + result.task_detection - 1 <= result.cil + 1e-12
    assert result.cil <= min(til, result.task_detection) + 1e-12


@given(random_stream())
@settings(max_examples=40, deadline=None)
def test_argmax_is_the_argmax_over_concatenated_blocks(
    data: tuple[list[list[Tensor]], list[Tensor], list[Tensor]],
) -> None:
    blocks, scores, labels = data
    found = [correctness(blocks[task], labels[task], task) for task in range(len(labels))]
    result = outcome(Argmax(), all_outputs(blocks, scores), labels)
    assert result.cil == pytest.approx(float(torch.cat([a.cil for a in found]).double().mean()))
    for task, result_on_task in enumerate(found):
        assert torch.equal(Argmax().tasks(outputs_of(blocks[task], scores[task])), result_on_task.detected_task)


def test_random_data_of_five_tasks_of_two() -> None:
    """CIL is P(task and TIL correct), and no value is trivial, for every predictor."""
    randomness = torch.Generator().manual_seed(0)
    blocks, scores, labels = [], [], []
    for task in range(5):
        right = torch.randint(0, 2, (400,), generator=randomness)
        row = [torch.randn(400, 2, generator=randomness) for _ in range(5)]
        row[task][torch.arange(400), right] += 1.6
        wanted = torch.randn(400, 5, generator=randomness)
        wanted[:, task] += 1.5
        blocks.append(row)
        scores.append(wanted)
        labels.append(right)
    for name in RULES:
        result = outcome(PREDICTORS.get(name)(), all_outputs(blocks, scores), labels)
        assert 0.35 < result.cil < result.task_detection < 0.95


def test_joint_blocks_have_the_scores_as_maxima() -> None:
    scores = torch.tensor([[0.25, -3.0], [1e4, 2.0]], dtype=torch.float64)
    blocks = joint(BLOCKS, scores)
    assert torch.equal(torch.stack([block.amax(1) for block in blocks], 1), scores)
    assert blocks[0].tolist() == [[-1.75, 0.25], [1e4, 9997.0]]
    for before, after in zip(BLOCKS, blocks, strict=True):
        assert torch.equal(before.argmax(1), after.argmax(1))
