"""Experts: exact heads, a shared task predictor, and what happens when photos are added."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.heads import mean_classifier
from clom.methods.experts import Experts, ExpertsSettings, more_of_span
from clom.methods.families import frozen_features
from clom.methods.families.frozen import Outputs
from clom.nets import AdapterSettings
from clom.storage.fingerprint import fingerprint
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method
from methods.families.test_frozen import GreyPixels

NET = AdapterSettings(weights="random", width=0.05, hidden=16, features="stages")


def experts(seed: int = 0) -> Experts:
    return Experts(NET, ExpertsSettings(directions=3), (1, 8, 8), seed)


@pytest.fixture(scope="module")
def learned(tiny_stream: Stream) -> Experts:
    method = experts()
    for task in tiny_stream:
        method.learn(task, TrainingContext(folds=3))
    return method


@pytest.fixture
def method(learned: Experts) -> Experts:
    return copy.deepcopy(learned)


def test_is_a_method(tiny_stream: Stream) -> None:
    check_method(experts, tiny_stream)


# --- the closed form -------------------------------------------------------------------------------------------------


def test_the_mean_of_two_classifiers_by_hand() -> None:
    """Classes at 3 and -3 with one feature, two samples each at a distance of 1: n = 4, scatter 4, Gram 4 + 36 = 40.

    Discriminants: covariance 1, whose shrinkage to the mean of its diagonal changes nothing: w = ±3, b = -4.5. Ridge
    regression: ±(4 / 2) 3 / (40 + 40 / 4) = ±0.12, b = 0. Around their mean over both classes the scores of the samples
    x = 2, 4, -2, -4 are ±3 x and ±0.12 x, with root mean squares 3 sqrt(10) and 0.12 sqrt(10): both classifiers count
    the same.
    """
    means, counts, scatter = torch.tensor([[3.0], [-3.0]]).double(), torch.tensor([2, 2]), torch.tensor([[4.0]])
    weight, bias = mean_classifier(means, counts, scatter, shrinkage_rate=0.5, penalty=1.0)
    half = 1 / 10**0.5
    torch.testing.assert_close(weight, torch.tensor([[2 * half], [-2 * half]]).double())
    torch.testing.assert_close(bias, torch.full((2,), -4.5 / 3 * half).double())


def test_shrinkage_falls_with_the_number_of_photos() -> None:
    """Two features of variances 1 and 3, n = 4 and k d = 4: shrunk by a half to 1.5 and 2.5. Means ±(1, 1)."""
    means, counts = torch.tensor([[1.0, 1], [-1, -1]]).double(), torch.tensor([2, 2])
    scatter = torch.diag(torch.tensor([4.0, 12.0]))
    weight, _ = mean_classifier(means, counts, scatter, shrinkage_rate=2.0, penalty=1e9)
    ridge_only = mean_classifier(means, counts, scatter, shrinkage_rate=1e9, penalty=1e9)[0]
    assert float(weight[0, 0] / weight[0, 1]) > float(ridge_only[0, 0] / ridge_only[0, 1])
    assert float(ridge_only[0, 0] / ridge_only[0, 1]) == pytest.approx(1.0, abs=1e-6)


def test_the_subspace_of_a_class_takes_in_more_photos() -> None:
    """With as many directions as features it stands for all photos: the same subspace at once or in two parts."""
    features = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    at_once = more_of_span(torch.zeros(4, 4), features)
    in_parts = more_of_span(more_of_span(torch.zeros(4, 4), features[:5]), features[5:])
    torch.testing.assert_close(at_once.T @ at_once, in_parts.T @ in_parts)
    one = more_of_span(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
    torch.testing.assert_close(one.abs(), 2**0.5 * torch.tensor([[0.6, 0.8]]))


# --- exactness -------------------------------------------------------------------------------------------------------


def test_an_expert_never_changes_and_the_task_predictor_does(tiny_stream: Stream) -> None:
    method, pixels = experts(), tiny_stream.tests[0].pixels
    method.learn(tiny_stream[0], TrainingContext(folds=3))
    block, belonging = method.blocks_and_belonging(pixels)
    network, print_before, shared = method.sub_network(0), fingerprint(method, 0), method.task_weight.clone()
    for task in tiny_stream[1:]:
        method.learn(task, TrainingContext(folds=3))
        blocks, now = method.blocks_and_belonging(pixels, [0])
        assert torch.equal(blocks[0], block[0])
        assert torch.equal(now, belonging)
        assert fingerprint(method, 0) == print_before
        assert all(torch.equal(value, network[name]) for name, value in method.sub_network(0).items())
    assert not torch.equal(method.task_weight[:2], shared)


def test_probabilities_multiply(method: Experts, tiny_stream: Stream) -> None:
    """The class is the expert's, the task the predictor's; all probabilities add up to one."""
    pixels = tiny_stream.tests[1].pixels
    comparable, belonging = method.comparable_and_belonging(pixels)
    chances = torch.cat(comparable, 1).exp()
    torch.testing.assert_close(chances.sum(1), torch.ones(len(pixels)).double())
    shared = (method.task_scale() * method.shared_scores(method.embed(pixels)).double()).softmax(1)
    for task, block in enumerate(method.blocks(pixels)):
        own = method.rows(task)
        torch.testing.assert_close(chances[:, own].sum(1), shared[:, own].sum(1))
        within = (method.scales[task, 0].double() * block.double()).softmax(1)
        torch.testing.assert_close(chances[:, own] / chances[:, own].sum(1, keepdim=True), within)
        assert torch.equal(comparable[task].argmax(1), block.argmax(1))
    assert torch.equal(belonging, method.belonging(pixels))


def test_what_is_saved_is_what_was_learned(method: Experts, tiny_stream: Stream, tmp_path: Path) -> None:
    pixels = tiny_stream.tests[0].pixels
    save_model(tmp_path / "m", method)
    loaded = load_model(tmp_path / "m")
    for mine, theirs in zip(method.comparable_blocks(pixels), loaded.comparable_blocks(pixels), strict=True):
        assert torch.equal(mine, theirs)


# --- out of fold -----------------------------------------------------------------------------------------------------


def test_out_of_fold_outputs_come_from_fits_without_the_photo(
    tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[Tensor] = []
    asked: list[Tensor] = []
    fit, outputs = Experts._fit, Experts._outputs

    def noted_fit(self: Experts, features: Tensor, rows: Tensor, tasks: Sequence[int]) -> None:
        fitted.append(features[:, 0])
        fit(self, features, rows, tasks)

    def noted_outputs(self: Experts, features: Tensor) -> Outputs:
        asked.append(features)
        return outputs(self, features)

    monkeypatch.setattr(Experts, "_fit", noted_fit)
    monkeypatch.setattr(Experts, "_outputs", noted_outputs)
    context, method, task = TrainingContext(folds=5), experts(), tiny_stream[0]
    method.learn(task, context)
    assert (len(fitted), len(asked)) == (6, 5)
    everything = {tuple(row) for row in fitted[-1].tolist()}
    assert len(everything) == len(task.train)
    for seen, held in zip(fitted, asked, strict=False):
        parts = [{tuple(row) for row in part.tolist()} for part in (seen, held)]
        assert parts[0].isdisjoint(parts[1])
        assert parts[0] | parts[1] == everything
    (outside,) = context.out_of_fold
    assert sorted(outside.labels.tolist()) == sorted(task.train.labels.tolist())
    assert outside.block.shape == (len(task.train), task.n_classes)
    assert outside.logit_scale == pytest.approx(float(method.scales[0, 0]))


def test_folds_do_not_change_what_is_learned(tiny_stream: Stream) -> None:
    one, other = experts(), experts()
    one.learn(tiny_stream[0])
    other.learn(tiny_stream[0], TrainingContext(folds=4))
    for name in ("means", "scatter", "weight", "bias", "spans", "counts"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


# --- more photos -----------------------------------------------------------------------------------------------------


def numbers(method: Experts, task: int) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.sub_network(task).items()}


def test_extending_leaves_the_experts_of_other_tasks_alone(method: Experts, tiny_stream: Stream) -> None:
    before = [numbers(method, task) for task in range(3)]
    more = tiny_stream[1].validation
    own = more[more.labels == 0]
    context = TrainingContext(folds=3)
    changed = method.extend(own, tiny_stream[1].class_names, context)
    assert (changed.tasks, dict(changed.photos)) == ((1,), {tiny_stream[1].class_names[0]: len(own)})
    assert "task predictor" in changed.shared
    for task in (0, 2):
        assert all(torch.equal(value, before[task][name]) for name, value in method.sub_network(task).items())
    now = method.sub_network(1)
    assert not torch.equal(now["weight"], before[1]["weight"])
    assert torch.equal(now["spans"][1], before[1]["spans"][1]), "the other class got no photos"
    assert [outside.task for outside in context.out_of_fold] == [1]
    assert len(context.out_of_fold[0].labels) == len(own)


def test_extending_improves_a_class(tiny_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """One photo of each class, then the others."""
    monkeypatch.setattr(frozen_features, "EfficientNetLite", GreyPixels)
    method = experts()
    first, rest = [], []
    for task in tiny_stream:
        few = torch.cat([(task.train.labels == label).nonzero()[:1, 0] for label in range(task.n_classes)])
        others = torch.tensor([row for row in range(len(task.train)) if row not in few.tolist()])
        first.append(Task(task.name, task.class_names, task.train[few], task.validation))
        rest.append(task.train[others])
        method.learn(first[-1])
    pixels, labels = tiny_stream.tests[1].pixels, tiny_stream.tests[1].labels

    def accuracy() -> float:
        return float((method.block(pixels, 1).argmax(1) == labels).double().mean())

    before = accuracy()
    method.extend(rest[1], tiny_stream[1].class_names)
    assert accuracy() > before


def test_what_cannot_be_added(method: Experts, tiny_stream: Stream) -> None:
    images = tiny_stream[0].validation
    state = {name: value.clone() for name, value in method.state_dict().items()}
    with pytest.raises(UserError, match="no class 'eleven'"):
        method.extend(images, ("eleven", *tiny_stream[0].class_names[1:]))
    with pytest.raises(UserError, match="no photos"):
        method.extend(images[slice(0, 0)], tiny_stream[0].class_names)
    with pytest.raises(UserError, match="shape"):
        method.extend(Images(images.pixels[..., :7, :7], images.labels), tiny_stream[0].class_names)
    method.counts = None
    with pytest.raises(UserError, match="earlier version"):
        method.extend(images, tiny_stream[0].class_names)
    method.counts = state["counts"]
    assert all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
