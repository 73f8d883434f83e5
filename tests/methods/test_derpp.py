"""DER++: reference values, reservoir sampling, and invariants of replay."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.data.images import DataSet, Images, to_unit
from clom.data.stream import Stream, Task, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.baselines import FineTune
from clom.methods.derpp import Derpp, DerppSettings, Draw, Reservoir, output_loss, uniform
from clom.methods.families.base import LearnedTask
from clom.methods.families.shared import SharedSettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
PLAN = {"epochs": 2, "batch": 16}


def make(net: NetSettings = ALEXNET, seed: int = 0, **settings: Any) -> Derpp:
    return Derpp(net, DerppSettings.model_validate({"plan": PLAN, **settings}), (1, 8, 8), seed)


def offer(reservoir: Reservoir, numbers: range, draw: Draw, width: int = 3) -> None:
    """Item number i is an image filled with i, labelled i, with outputs i."""
    labels = torch.tensor(list(numbers))
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    reservoir.offer(pixels, labels, labels[:, None].float().expand(-1, width), draw)


def reservoir_of(size: int, width: int = 3) -> Reservoir:
    reservoir = Reservoir(size, (1, 2, 2))
    reservoir.widen(width)
    return reservoir


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
@pytest.mark.parametrize("size", [200, 20, 1, 0])
def test_is_a_method(size: int, net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed, memory={"size": size}, replay_batch=8), tiny_stream)


# --- reference values -------------------------------------------------------------------------------------------------


def test_output_loss_is_a_mean_not_a_squared_norm() -> None:
    outputs, stored = torch.tensor([[0.5, 0.5, -1]]), torch.tensor([[1.0, 0, -1]])
    assert float(output_loss(outputs, stored, torch.tensor([3]))) == pytest.approx(0.1666667, abs=1e-6)
    assert float((outputs - stored).norm() ** 2) == pytest.approx(0.5)


class Scripted(nn.Module):
    """Fixed outputs for the dark and bright new images, then for the first replay sample, then for the second."""

    n_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(3))
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            return torch.tensor([[2.0, 0, 0], [0, 1, 0]])[(images[:, 0, 0, 0] > 0.5).long()] + self.zero
        outputs = torch.tensor([[0.5, 0.5, -1]] if self.calls == 2 else [[0.0, 0, 1]])
        return outputs.expand(len(images), -1) + self.zero


def test_the_whole_loss() -> None:
    method = make(alpha=0.2, beta=0.5, plan={"epochs": 1, "batch": 2})
    task = LearnedTask("only", ("a", "b", "c"))
    method.open_task(task)
    method.backbone, method.head = Scripted(), nn.Identity()  # type: ignore[assignment]
    stored = torch.tensor([[1.0, 0, -1]]).expand(4, -1)
    method.reservoir.offer(
        torch.zeros(4, 1, 8, 8), torch.ones(4, dtype=torch.int64), stored, uniform(torch.Generator())
    )
    pixels = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    stream = Images(pixels, torch.tensor([0, 1]))
    reports: list[Progress] = []
    method._learn(Task(task.name, task.class_names, stream, stream), TrainingContext(reports.append))
    # .3954948 + .2 * .1666667 + .5 * 1.5514448
    assert [progress.loss for progress in reports] == pytest.approx([1.2045505], abs=1e-6)


# --- all outputs from the start ---------------------------------------------------------------------------------------


def test_all_outputs_are_trained_and_stored_from_the_first_task() -> None:
    """By hand, for zero weights: a head of four outputs on the features [1, 2], a first task of two classes, one step.

    The softmax is 1/4 everywhere, so the gradient of the biases is 1/4 for all outputs but the label's, -3/4: the
    outputs of classes that have not come yet are pushed down.
    """
    method = make(n_classes=4, plan={"epochs": 1, "batch": 1}, optimiser={"kind": "sgd", "lr": 0.1})
    method.open_task(LearnedTask("first", ("a", "b")))
    method.backbone = Constant()  # type: ignore[assignment]
    method.head.parts[0] = part = nn.Linear(2, 4)
    nn.init.zeros_(part.weight)
    nn.init.zeros_(part.bias)
    image = Images(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8), torch.tensor([1]))
    reports: list[Progress] = []
    method._learn(Task("first", ("a", "b"), image, image), TrainingContext(reports.append))
    assert [progress.loss for progress in reports] == pytest.approx([1.3862944])  # log 4, not log 2
    assert part.bias.tolist() == pytest.approx([-0.025, 0.075, -0.025, -0.025])
    assert part.weight[3].tolist() == pytest.approx([-0.025, -0.05])
    assert method.reservoir.outputs[0].tolist() == [0, 0, 0, 0]
    assert int(method.reservoir.widths[0]) == 4, "stored logits hold down later classes"
    assert method.memory_bytes == 64 + 4 * 4
    assert [tuple(block.shape) for block in method.blocks(image.pixels)] == [(1, 2)], "classes seen so far alone"


def test_the_head_does_not_grow_up_to_the_announced_classes_and_grows_beyond(tiny_stream: Stream) -> None:
    method = make(n_classes=5, memory={"size": 500})
    before = method.n_parameters()
    method.learn(tiny_stream[0]).learn(tiny_stream[1])
    assert method.n_parameters() == before
    assert torch.unique(method.reservoir.widths).tolist() == [0, 5]
    assert method.logits(torch.zeros(2, 3, 8, 8)).shape == (2, 5)
    method.learn(tiny_stream[2])  # six classes
    assert method.head.n_outputs == 6
    assert torch.unique(method.reservoir.widths).tolist() == [0, 5, 6]
    blocks = method.blocks(tiny_stream.tests[0].pixels)
    assert [block.shape[1] for block in blocks] == [2, 2, 2]
    images = to_unit(tiny_stream.tests[0].pixels)
    torch.testing.assert_close(torch.cat(blocks, 1), method.logits(images).detach())


@pytest.mark.parametrize("n_classes", [6, 5, 20])
def test_is_a_method_with_announced_classes(n_classes: int, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(seed=seed, n_classes=n_classes, memory={"size": 20}, replay_batch=8), tiny_stream)


# --- reservoir --------------------------------------------------------------------------------------------------------


def test_every_item_is_stored_with_the_same_probability() -> None:
    """All equally likely outcomes of the draws for two slots and four items."""
    bounds: list[int] = []

    def none(bound: int) -> int:
        bounds.append(bound)
        return bound - 1

    offer(reservoir_of(2), range(4), none)
    assert bounds == [3, 4], "the draw for item N is from 0 to N, inclusive"
    counts, outcomes = torch.zeros(4), list(product(range(3), range(4)))
    for outcome in outcomes:
        reservoir, draws = reservoir_of(2), iter(outcome)
        offer(reservoir, range(4), lambda bound, draws=draws: next(draws))  # type: ignore[misc]
        counts[reservoir.labels] += 1
    assert (counts / len(outcomes)).tolist() == [0.5, 0.5, 0.5, 0.5]


def test_draws_are_uniform_below_the_bound() -> None:
    draw = uniform(torch.Generator().manual_seed(0))
    counts = torch.bincount(torch.tensor([draw(3) for _ in range(3000)]), minlength=3)
    assert len(counts) == 3
    assert bool(((counts - 1000).abs() < 120).all())


class Constant(nn.Module):
    """Features [1, 2] for any image."""

    n_features = 2

    def forward(self, images: Tensor) -> Tensor:
        return torch.tensor([[1.0, 2.0]]).expand(len(images), -1)


def test_stored_outputs_are_those_before_the_step() -> None:
    method = make(plan={"epochs": 1, "batch": 1}, optimiser={"kind": "sgd", "lr": 0.1})
    method.open_task(LearnedTask("only", ("a", "b", "c")))
    method.backbone = Constant()  # type: ignore[assignment]
    torch.manual_seed(0)
    method.head.parts[0] = nn.Linear(2, 3)
    image = Images(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8), torch.tensor([1]))
    method._learn(Task("only", ("a", "b", "c"), image, image), TrainingContext())
    before, after = torch.tensor([0.7393418, -1.0620983, 0.0441350]), torch.tensor([0.3787718, -0.5216143, -0.1357790])
    torch.testing.assert_close(method.reservoir.outputs[0], before, rtol=0, atol=1e-6)
    torch.testing.assert_close(method.logits(torch.zeros(1, 3, 8, 8))[0], after, rtol=0, atol=1e-6)
    assert torch.equal(method.reservoir.pixels[0], image.pixels[0]), "the image is stored without augmentation"
    assert int(method.reservoir.labels[0]) == 1
    assert (len(method.reservoir), int(method.reservoir.offered)) == (1, 1)


def test_predictions_are_among_the_classes_seen() -> None:
    method = make()
    outputs = [torch.tensor([3.0, 1]), torch.tensor([2, 2.5]), torch.tensor([5.0, 0])]
    predictions = []
    for number, bias in enumerate(outputs):
        method.open_task(LearnedTask(f"task {number}", (f"{number}a", f"{number}b")))
        part = method.head.parts[number]
        assert isinstance(part, nn.Linear)
        with torch.no_grad():
            part.weight.zero_()
            part.bias.copy_(bias)
        blocks = method.blocks(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
        predictions.append(int(torch.cat(blocks, 1).argmax()))
    assert predictions == [0, 0, 4]
    assert 2 + int(blocks[1].argmax()) == 3


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)])
def test_without_replay_weights_it_is_fine_tuning(net: NetSettings, tiny_stream: Stream) -> None:
    ours = make(net, alpha=0.0, beta=0.0)
    plain = FineTune(net, SharedSettings.model_validate({"plan": PLAN}), (1, 8, 8))
    for task in tiny_stream:
        ours.learn(task)
        plain.learn(task)
    expected = plain.state_dict()
    state = {name: value for name, value in ours.state_dict().items() if not name.startswith("reservoir.")}
    assert list(state) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in state.items())
    assert int(ours.reservoir.offered) == sum(len(task.train) for task in tiny_stream) * 2


def test_filling() -> None:
    reservoir, randomness = reservoir_of(5), torch.Generator().manual_seed(0)
    for count in range(1, 8):
        offer(reservoir, range(count, count + 1), uniform(randomness))
        assert len(reservoir) == min(count, 5)
        drawn = reservoir.sample(10, randomness)
        assert sorted(drawn.tolist()) == list(range(len(reservoir))), "without replacement and never an empty slot"
        assert bool((reservoir.labels[drawn] > 0).all())
        assert len(reservoir.sample(2, randomness)) == min(count, 2)


# --- invariants -------------------------------------------------------------------------------------------------------


def test_stored_logits_do_not_affect_later_outputs() -> None:
    """An item stored with two outputs has no gradient for the third; one stored later has."""
    outputs = torch.tensor([[1.0, 2, 5], [1, 2, 5]], requires_grad=True)
    stored, widths = torch.tensor([[0.0, 0, 0], [0, 0, 1]]), torch.tensor([2, 3])
    loss = output_loss(outputs, stored, widths)
    assert float(loss.detach()) == pytest.approx((1 + 4 + 1 + 4 + 16) / 5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert float(outputs.grad[0, 2]) == 0
    assert float(outputs.grad[1, 2]) > 0


def test_items_stay_together() -> None:
    reservoir = reservoir_of(4)
    offer(reservoir, range(1, 30), uniform(torch.Generator().manual_seed(3)))
    reservoir.widen(5)
    offer(reservoir, range(30, 60), uniform(torch.Generator().manual_seed(4)), width=5)
    assert len(set(reservoir.labels.tolist())) == 4
    for slot in range(4):
        label, width = int(reservoir.labels[slot]), int(reservoir.widths[slot])
        assert width == (3 if label < 30 else 5)
        assert reservoir.pixels[slot].flatten().tolist() == [label] * 4
        assert reservoir.outputs[slot].tolist() == [label] * width + [0] * (5 - width)


def test_outputs_are_copies() -> None:
    reservoir, outputs = reservoir_of(2), torch.ones(1, 3)
    reservoir.offer(torch.zeros(1, 1, 2, 2), torch.tensor([0]), outputs, uniform(torch.Generator()))
    outputs.fill_(9)
    assert reservoir.outputs[0].tolist() == [1, 1, 1]


def test_memory_counts_images_and_outputs(tiny_stream: Stream) -> None:
    method = make(memory={"size": 500})
    assert method.memory_bytes == 0
    method.learn(tiny_stream[0])
    items = len(tiny_stream[0].train) * 2  # every image in both epochs
    assert method.memory_bytes == items * (64 + 2 * 4)
    method.learn(tiny_stream[1])
    assert method.memory_bytes == items * (64 + 2 * 4) + items * (64 + 4 * 4)


class Recorded(Derpp):
    """Records the training batches."""

    def logits(self, images: Tensor) -> Tensor:
        if not hasattr(self, "batches"):
            self.batches: list[Tensor] = []
        self.batches.append(images.detach().clone())
        return super().logits(images)


def test_two_independent_replay_samples_per_step(tiny_stream: Stream) -> None:
    settings = DerppSettings.model_validate({"plan": {"epochs": 1, "batch": 12}, "replay_batch": 6})
    method = Recorded(ALEXNET, settings, (1, 8, 8))
    method.learn(tiny_stream[0])
    # 24 images: the first step finds an empty reservoir, the second replays.
    assert [len(batch) for batch in method.batches] == [12, 12, 6, 6]
    assert not torch.equal(method.batches[2], method.batches[3])
    stored = {image.numpy().tobytes() for image in method.batches[0]}
    for replayed in method.batches[2:]:
        assert len({image.numpy().tobytes() for image in replayed} & stored) == 6


def test_learns_digits(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    method = make(plan={"epochs": 20, "batch": 16}, memory={"size": 60})
    for task in stream:
        method.learn(task)
    book = Scorebook(stream.tests)
    book.update(method)
    evaluation = evaluate(book, method.calibrations())
    assert evaluation.til > 0.9
    assert evaluation.preferred.cil > 0.75
