"""OWM: reference values of the projector, and outputs on old inputs that hardly change."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import DataSet, to_unit
from clom.data.stream import Stream, split
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.learning.loop import Plan
from clom.learning.optim import OptimiserSettings
from clom.learning.schedule import Schedule
from clom.methods.families.base import LearnedTask
from clom.methods.owm import LayerProjection, Owm, OwmNet, OwmNetSettings, OwmSettings, Projector, SpareHead
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.testing import check_method

NET = AlexNetSettings()
SMALL = OwmNetSettings(channels=(8, 12, 16), hidden=(24, 20), mean=(0.3, 0.3, 0.3), std=(0.38, 0.38, 0.38))


def plan(epochs: int, batch: int = 16) -> Plan:
    return Plan(epochs=epochs, batch=batch, schedule=Schedule(kind="constant"))


def small(seed: int = 0, **settings: object) -> Owm:
    return Owm(NET, OwmSettings.model_validate({"network": SMALL, "plan": plan(2), **settings}), (1, 8, 8), seed)


def projector_of(inputs: Tensor, alpha: float) -> Projector:
    projector = Projector(inputs.shape[1])
    projector.update(inputs, alpha)
    return projector


# The experiment's network is not used.
@pytest.mark.parametrize("net", [NET, ResNet18Settings(width=8)])
@pytest.mark.parametrize("update", ["batch", "task_end"])
def test_is_a_method(net: NetSettings, update: str, tiny_stream: Stream) -> None:
    settings = OwmSettings.model_validate({"network": SMALL, "plan": plan(2), "update": update})
    check_method(lambda seed: Owm(net, settings, (1, 8, 8), seed), tiny_stream)


def test_updates_commute() -> None:
    first, second = torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    projector = projector_of(first, 1.0)
    expected = [[0.9, -0.2, -0.2], [-0.2, 0.6, -0.4], [-0.2, -0.4, 0.6]]
    torch.testing.assert_close(projector.matrix, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(projector(first), 0.1 * first)
    projector.update(second, 0.5)
    both = [[0.863636, -0.090909, -0.272727], [-0.090909, 0.272727, -0.181818], [-0.272727, -0.181818, 0.454545]]
    torch.testing.assert_close(projector.matrix, torch.tensor(both, dtype=torch.float64), rtol=0, atol=1e-6)
    reversed_order = projector_of(second, 0.5)
    reversed_order.update(first, 1.0)
    torch.testing.assert_close(reversed_order.matrix, projector.matrix)


def test_a_block_update_equals_one_update_per_row() -> None:
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    by_row = torch.eye(5, dtype=torch.float64)
    for row in rows:
        k = by_row @ row
        by_row = by_row - torch.outer(k, k) / (0.3 + row @ k)
    torch.testing.assert_close(projector_of(rows, 0.3).matrix, by_row, rtol=0, atol=1e-10)


def test_closed_form_of_the_inverse() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    projector = projector_of(rows[:2], 0.3)
    projector.update(rows[2:], 0.01)
    expected = torch.eye(6, dtype=torch.float64) + rows[:2].T @ rows[:2] / 0.3 + rows[2:].T @ rows[2:] / 0.01
    torch.testing.assert_close(torch.linalg.inv(projector.matrix), expected)


def test_projected_step_by_hand() -> None:
    layer = nn.Linear(2, 1, bias=False)
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]])
    layer.weight.data.copy_(torch.tensor([[1.0, 0.0]]))
    projector = projector_of(first, 0.01)
    torch.testing.assert_close(projector.matrix, torch.diag(torch.tensor([0.00990099, 1.0])).double())
    projection = LayerProjection(layer, projector, 1.0, 1)
    (0.5 * layer(second).square().sum()).backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.36, 0.48]]))
    projection.project()
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.00356436, 0.48]]))
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert layer(first).item() == pytest.approx(0.99643564, abs=1e-6)
    assert layer(second).item() == pytest.approx(0.21386139, abs=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_patches_that_updated_the_projector_are_protected(stride: int) -> None:
    randomness = torch.Generator().manual_seed(2)
    layer = nn.Conv2d(16, 8, 2, bias=False)
    maps = torch.randn(1, 16, 6, 6, generator=randomness)
    projection = LayerProjection(layer, Projector(64), 1e-5, stride)
    with torch.no_grad():
        before = layer(maps)
        projection.update(1.0)
        step = torch.randn(layer.weight.shape, generator=randomness)
        raw = F.conv2d(maps, step)
        layer.weight.grad = step
        projection.project()
        assert layer.weight.grad is not None
        layer.weight += layer.weight.grad
        change = (layer(maps) - before).abs()
    assert 10 < raw.abs().max() < 40
    assert change[..., ::stride, ::stride].max() < 1e-4
    assert (change.max() > 1) == (stride == 2)


def test_means_protect_means_only() -> None:
    samples = torch.eye(2)
    projector = projector_of(samples.mean(0, keepdim=True), 1e-6)
    update = projector(torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(update, torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(samples @ update[0], torch.tensor([1.0, -1.0]))
    assert abs((samples.mean(0) @ update[0]).item()) < 1e-6


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_eigenvalues_stay_between_zero_and_one(rows: int) -> None:
    randomness = torch.Generator().manual_seed(3)
    projector, smallest = Projector(12), 1.0
    # Inputs with a common direction, as mean images have, and the decaying alpha of several tasks.
    for step in range(400):
        inputs = 3 + torch.randn(rows, 12, generator=randomness)
        projector.update(inputs, 1e-5 ** (step % 100 / 100))
        if step % 50 == 49:
            assert (projector.matrix - projector.matrix.T).abs().max() < 1e-6
            eigenvalues = torch.linalg.eigvalsh(projector.matrix)
            assert 0 < eigenvalues[0] <= smallest
            assert eigenvalues[-1] <= 1 + 1e-6
            smallest = eigenvalues[0].item()
    assert smallest < 1e-6


def test_a_large_first_update_with_the_smallest_alpha() -> None:
    patches = 2 + torch.randn(289, 12, generator=torch.Generator().manual_seed(4))
    eigenvalues = torch.linalg.eigvalsh(projector_of(patches, 1e-5).matrix)
    assert 0 < eigenvalues[0] < 1e-8
    assert eigenvalues[-1] < 1e-6


def test_the_first_task_is_projected_in_batch_mode_only(tiny_stream: Stream) -> None:
    identity, name = torch.eye(12, dtype=torch.float64), "projectors.0.matrix"
    weights = {}
    for update in ("batch", "task_end"):
        method = small(update=update)
        assert torch.equal(method.get_buffer(name), identity)
        method.learn(tiny_stream[0])
        assert not torch.equal(method.get_buffer(name), identity)
        weights[update] = method.get_parameter("head.parts.0.weight")
    free = small(update="task_end", alphas=(1e9, 1e9, 1e9, 1e9)).learn(tiny_stream[0])
    assert torch.equal(free.get_parameter("head.parts.0.weight"), weights["task_end"])
    assert not torch.allclose(free.get_parameter("head.parts.0.weight"), weights["batch"])


@pytest.mark.parametrize(("n_classes", "expected"), [(10, 5_270_608), (100, 5_360_608), (200, 5_460_608)])
@pytest.mark.parametrize("size", [28, 32])
def test_published_parameter_counts(n_classes: int, expected: int, size: int) -> None:
    with torch.device("meta"):
        method = Owm(NET, OwmSettings(), (3, size, size))
        for task in range(5):
            names = tuple(f"{task}/{label}" for label in range(n_classes // 5))
            method.open_task(LearnedTask(f"task {task}", names))
    assert method.n_parameters() == expected
    sizes = [len(matrix) for matrix in method.projectors.buffers()]
    assert sizes == [12, 256, 512, 4096, 1000, 1000]


@pytest.mark.parametrize(("size", "expected"), [(32, [289, 81, 25]), (28, [225, 64, 16])])
def test_number_of_patches_per_batch(size: int, expected: list[int]) -> None:
    counts = []

    class Counting(Projector):
        def update(self, inputs: Tensor, alpha: float) -> None:
            counts.append(len(inputs))

    net = OwmNet(SMALL, size)
    projections = [LayerProjection(conv, Counting(1), 1.0, 2) for conv in net.convs]
    net(torch.rand(2, 3, size, size))
    for projection in projections:
        projection.update(0.0)
    assert counts == expected


def test_alphas_halfway_through_a_task() -> None:
    alphas = []

    class Recording(Projector):
        def update(self, inputs: Tensor, alpha: float) -> None:
            alphas.append(alpha)

    for alpha in OwmSettings().alphas:
        layer = nn.Linear(3, 2, bias=False)
        projection = LayerProjection(layer, Recording(3), alpha, 2)
        layer(torch.ones(1, 3))
        projection.update(0.5)
    assert alphas == pytest.approx([0.00316, 0.01, 0.1, 0.316], rel=2e-3)


@pytest.mark.parametrize("n_images", [3, 30])
def test_the_cheaper_product_equals_the_projected_gradient(n_images: int) -> None:
    randomness = torch.Generator().manual_seed(5)
    layer, projector = nn.Linear(9, 7, bias=False), projector_of(torch.randn(4, 9, generator=randomness), 0.1)
    projection = LayerProjection(layer, projector, 1.0, 1)
    inputs = torch.randn(n_images, 9, generator=randomness)
    layer(inputs).square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad @ projector.matrix.float()
    projection.project()
    torch.testing.assert_close(layer.weight.grad, expected)


def test_the_spare_row_is_trained_like_outputs_of_future_classes() -> None:
    features, labels = torch.rand(6, 5, generator=torch.Generator().manual_seed(6)), torch.tensor([0, 1, 0, 1, 1, 0])
    head, all_at_once = SpareHead(5), nn.Linear(5, 4, bias=False)
    head.grow(2)
    nn.init.zeros_(all_at_once.weight)
    steps = torch.optim.SGD([*head.parameters(), *all_at_once.parameters()], lr=1.0)
    for _ in range(20):
        steps.zero_grad()
        outputs = torch.cat([head(features), head.unseen(features, 2)], 1)
        loss = F.cross_entropy(outputs, labels) + F.cross_entropy(all_at_once(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
    assert head.spare.abs().max() > 0.1
    head.grow(2)
    torch.testing.assert_close(head(features), all_at_once(features))


def test_future_classes_are_those_of_the_experiment_not_seen_yet(tiny_stream: Stream) -> None:
    """By hand, for the zero rows of the first task: six equal outputs, so the loss is log 6 and not log 3."""
    method, images, labels = small(n_classes=6), torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    counts = []
    for task in tiny_stream:
        method.open_task(LearnedTask(task.name, task.class_names))
        counts.append(method.n_unseen)
    assert counts == [4, 2, 0]
    for n_classes, expected in ((6, 6), (0, 3)):
        method = small(n_classes=n_classes)
        method.open_task(LearnedTask("first", ("a", "b")))
        assert float(method._loss(images, labels).detach()) == pytest.approx(math.log(expected))


def test_outputs_on_earlier_mean_inputs_hardly_change(tiny_stream: Stream) -> None:
    """In every layer, the change on recorded inputs is below a thousandth of the unprotected change."""
    alphas = (1e-7, 1e-7, 1e-7, 1e-7)
    method = small(alphas=alphas, projector_stride=1, update="task_end").learn(tiny_stream[0])
    pixels = tiny_stream[0].train.pixels
    projections = method._projections()
    method.logits(to_unit(pixels))
    for projection in projections:
        projection.update(1.0)
    method.train()
    _, labels = method.new_data(tiny_stream[0])
    method._loss(torch.rand(len(labels), 3, 8, 8), labels).backward()  # type: ignore[no-untyped-call]
    method.eval()
    raw = [
        weight.grad.clone()
        for projection in projections
        for weight in projection.layer.parameters()
        if weight.grad is not None
    ]
    for projection in projections:
        projection.project()
    projected = [
        weight.grad for projection in projections for weight in projection.layer.parameters() if weight.grad is not None
    ]
    method.logits(to_unit(pixels))
    inputs = [projection.inputs.mean(0, keepdim=True) for projection in projections]
    for before, after, seen in zip(raw, projected, [*inputs, inputs[-1]], strict=True):
        assert after is not None
        if seen.ndim == 4:
            old, new = F.conv2d(seen, before), F.conv2d(seen, after)
        else:
            old, new = seen @ before.T, seen @ after.T
        assert new.abs().max() < 1e-3 * old.abs().max()


def test_only_sgd_without_weight_decay_is_allowed() -> None:
    for wrong in (OptimiserSettings(kind="adam"), OptimiserSettings(kind="sgd", weight_decay=1e-4)):
        with pytest.raises(ValidationError, match="protected directions"):
            OwmSettings(optimiser=wrong)


def test_hooks_are_removed_after_learning(tiny_stream: Stream) -> None:
    method = small().learn(tiny_stream[0])
    assert not any(module._forward_hooks for module in method.modules())


def test_learns_digits_where_an_unprotected_network_forgets(digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, test_per_class=20)
    network = SMALL.model_copy(update={"channels": (16, 24, 32), "hidden": (128, 128), "dropout": 0.0})
    optimiser = OptimiserSettings(kind="sgd", lr=0.1, momentum=0.9)
    accuracy = {}
    # With huge alphas the projectors stay the identity: the same network without protection.
    for update, alphas in (("batch", OwmSettings().alphas), ("task_end", (1e6, 1e6, 1e6, 1e6))):
        common = {"network": network, "optimiser": optimiser, "plan": plan(8, batch=8), "projector_stride": 1}
        settings = OwmSettings.model_validate({**common, "update": update, "alphas": alphas})
        method = Owm(NET, settings, (1, 8, 8))
        for task in stream:
            method.learn(task)
        book = Scorebook(stream.tests)
        book.update(method)
        accuracy[update] = evaluate(book, method.calibrations()).preferred.cil
    assert accuracy["task_end"] < 0.5
    assert accuracy["batch"] > 0.7
