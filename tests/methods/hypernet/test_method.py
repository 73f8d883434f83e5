"""HyperNet: reference values, tasks of any size, and regularised weights of old tasks."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.data.images import DataSet
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.progress import Progress
from clom.methods.families.base import LearnedTask
from clom.methods.hypernet.method import (
    HyperNet,
    HyperNetSettings,
    Hypernetwork,
    HypernetworkSettings,
    add_regulariser,
    drift,
    lookahead,
)
from clom.nets import AlexNetSettings
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method

UNUSED = AlexNetSettings()
LINEAR = HypernetworkSettings(chunk=7000, task_vector=32, chunk_vector=32, hidden=())
MLP: dict[str, Any] = {
    "target": {"kind": "mlp", "hidden": (16, 16)},
    "hypernetwork": {"chunk": 300, "task_vector": 8, "chunk_vector": 8, "hidden": (10,)},
}
RESNET: dict[str, Any] = {
    "target": {"kind": "resnet32", "width": 4, "n": 1},
    "hypernetwork": {"chunk": 500, "task_vector": 8, "chunk_vector": 8, "hidden": ()},
}
kinds = pytest.mark.parametrize("kind", [MLP, RESNET], ids=["mlp", "resnet32"])


def make(kind: dict[str, Any], seed: int = 0, epochs: int = 2, **changes: Any) -> HyperNet:
    learning = {"plan": {"epochs": epochs, "batch": 12}, "optimiser": {"lr": 5e-3}, **changes.pop("learning", {})}
    settings = HyperNetSettings.model_validate({**kind, "learning": learning, **changes})
    return HyperNet(UNUSED, settings, (1, 8, 8), seed)


@kinds
def test_is_a_method(kind: dict[str, Any], tiny_stream: Stream) -> None:
    check_method(lambda seed: make(kind, seed), tiny_stream)
    assert not make(kind).exact_memory


# ----------------------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize(
    ("settings", "n_weights", "n_chunks", "theta"),
    [
        (LINEAR, 464_154, 67, 457_144),
        (LINEAR, 470_004, 68, 457_176),
        (HypernetworkSettings(), 478_410, 12, 465_192),
    ],
)
def test_sizes(settings: HypernetworkSettings, n_weights: int, n_chunks: int, theta: int) -> None:
    with torch.device("meta"):
        hypernetwork = Hypernetwork(settings)
        hypernetwork.make_room(n_weights)
        assert hypernetwork(torch.empty(settings.task_vector), n_weights).shape == (n_weights,)
    assert len(hypernetwork.chunk_vectors) == n_chunks
    assert sum(p.numel() for p in hypernetwork.parameters()) == theta


@pytest.mark.parametrize(
    ("experiment", "n_tasks", "n_classes", "exact"),
    [("cifar10-5t", 5, 2, 457_304), ("mnist-5t", 5, 2, 465_672)],
)
def test_sizes_with_five_task_vectors(experiment: str, n_tasks: int, n_classes: int, exact: int) -> None:
    config = resolve(experiment, "hypernet", "paper")
    shape = (1, 28, 28) if experiment == "mnist-5t" else (3, 32, 32)
    with torch.device("meta"):
        method = config.make_method(shape)
        for task in range(n_tasks):
            method.open_task(LearnedTask(f"task {task}", tuple(f"{task}/{label}" for label in range(n_classes))))
    assert method.n_parameters() == exact


class Scaling(nn.Module):
    """h(e) = theta e."""

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([theta], dtype=torch.float64))

    def forward(self, vector: Tensor, n_weights: int) -> Tensor:
        return (self.theta * vector)[:n_weights]


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sgd(module: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return make_optimiser([(OptimiserSettings(kind="sgd", lr=lr), list(module.parameters()))])


def gradient(module: Scaling) -> float:
    assert module.theta.grad is not None
    return module.theta.grad.item()


def test_lookahead() -> None:
    h, vector, old = Scaling(1.0), double(2.0), double(2.0)
    h.theta.grad = double(1.0)  # so that dtheta = -0.1
    ahead = lookahead(h, sgd(h))
    assert ahead.theta.item() == pytest.approx(0.9)
    assert drift([old], [ahead(vector, 1)]).item() == pytest.approx(0.04)
    add_regulariser(h, sgd(h), [vector], [old], beta=1.0)
    assert gradient(h) == pytest.approx(1.0 - 0.8)
    # Without lookahead both are zero.
    h.theta.grad = double(0.0)
    assert drift([old], [h(vector, 1)]).item() == 0
    add_regulariser(h, sgd(h), [vector], [old], beta=1.0)
    assert gradient(h) == 0


def test_a_full_sgd_step() -> None:
    h, vector, old = Scaling(1.0), double(2.0), double(2.0)
    optimiser = sgd(h)
    (0.5 * (h.theta - 3) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    ahead = lookahead(h, optimiser)
    assert ahead.theta.item() == pytest.approx(1.2)
    assert 0.5 * drift([old], [ahead(vector, 1)]).item() == pytest.approx(0.08)
    add_regulariser(h, optimiser, [vector], [old], beta=0.5)
    assert gradient(h) == pytest.approx(-1.2)
    optimiser.step()
    assert h.theta.item() == pytest.approx(1.12)


def test_averaging() -> None:
    old, new = [double(1, 2, 3), double(0, 1, 0)], [double(1, 2, 2), double(0.5, 1, 0)]
    assert drift(old, new).item() == pytest.approx(0.625)


def test_head_rows() -> None:
    """A body of one weight and a head of two columns, with two rows for task 0 and four for a later task: only the body
    and task 0's own rows count for task 0, though h can generate more."""
    h = Hypernetwork(HypernetworkSettings(chunk=1, task_vector=1, chunk_vector=1, hidden=()))
    h.make_room(1 + 2 * 2)
    h.make_room(1 + 4 * 2)
    change = torch.cat([torch.tensor([0.1]), torch.ones(8)])
    with torch.no_grad():
        h.layers[0].weight.copy_(torch.tensor([[0.0, 1.0]]))  # type: ignore[operator]
        everything, own = h(torch.zeros(1), 9), h(torch.zeros(1), 5)
        h.chunk_vectors.add_(change[:, None])
        assert drift([own], [h(torch.zeros(1), 5)]).item() == pytest.approx(4.01)
        assert drift([everything], [h(torch.zeros(1), 9)]).item() == pytest.approx(8.01)


def test_lookahead_with_adam() -> None:
    module = nn.ParameterList([nn.Parameter(torch.zeros(3))])
    optimiser = make_optimiser([(OptimiserSettings(kind="adam", lr=1e-3), list(module))])
    module[0].grad = torch.tensor([0.5, -4.0, 0.0])
    step = lookahead(module, optimiser)[0].detach()
    torch.testing.assert_close(step, torch.tensor([-1e-3, 1e-3, 0.0]), rtol=0, atol=1e-7)
    assert not optimiser.state, "the optimiser itself made no step"
    assert torch.equal(module[0], torch.zeros(3))


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "lars"])
def test_lookahead_uses_moments_learning_rates_and_decay(kind: Any) -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    settings = OptimiserSettings(kind=kind, lr=0.01, weight_decay=0.1, momentum=0.9)
    optimiser = make_optimiser([(settings, list(module.parameters()))])
    for step in range(4):
        optimiser.param_groups[0]["lr"] = 0.01 / (step + 1)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape)
        before = copy.deepcopy((list(module.parameters()), optimiser.state_dict()))
        ahead = lookahead(module, optimiser)
        assert str((list(module.parameters()), optimiser.state_dict())) == str(before)
        optimiser.step()
        for real, twin, old in zip(module.parameters(), ahead.parameters(), before[0], strict=True):
            assert torch.equal(real, twin)
            assert not torch.equal(real, old)


@pytest.mark.parametrize("hidden", [(), (6, 5)])
def test_a_chunk_vector_affects_its_chunk_only(hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    h = Hypernetwork(HypernetworkSettings(chunk=10, task_vector=3, chunk_vector=2, hidden=hidden))
    h.make_room(34)
    vector = torch.randn(3)
    with torch.no_grad():
        before = h(vector, 34)
        h.chunk_vectors[1].add_(1)
        changed = (h(vector, 34) != before).nonzero().flatten()
    assert changed.tolist() == list(range(10, 20))
    assert before.shape == (34,)


# ----------------------------------------------------------------------------------------- tasks of different sizes


def test_more_chunk_vectors_do_not_change_old_weights() -> None:
    torch.manual_seed(0)
    h = Hypernetwork(HypernetworkSettings(chunk=10, task_vector=3, chunk_vector=2, hidden=()))
    vector = torch.randn(3)
    h.make_room(25)
    before, vectors = h(vector, 25), h.chunk_vectors.clone()
    for n_weights, n_chunks in ((25, 3), (30, 3), (31, 4), (95, 10), (20, 10)):
        h.make_room(n_weights)
        assert len(h.chunk_vectors) == n_chunks
        assert torch.equal(h.chunk_vectors[:3], vectors)
        assert torch.equal(h(vector, 25), before)


@kinds
def test_tasks_may_have_different_sizes(kind: dict[str, Any], digits: DataSet, tmp_path: Path) -> None:
    stream = split(digits, [2, 5, 1], train_per_class=16, test_per_class=8, validation=0.25)
    chunk = {**kind["hypernetwork"], "chunk": 40}  # small enough that a larger head needs more chunks
    method = make({**kind, "hypernetwork": chunk})
    lengths = []
    for task in stream:
        method.learn(task)
        lengths.append(len(method.hypernetwork.chunk_vectors))
    assert lengths[0] < lengths[1] == lengths[2]
    few, many, one = (len(weights) for weights in method.generated())
    assert many - few == 3 * (few - one), "three more classes are three more rows"
    pixels = stream.tests[1].pixels
    assert [block.shape[1] for block in method.blocks(pixels)] == [2, 5, 1]
    save_model(tmp_path / "model", method)
    loaded = load_model(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(loaded.blocks(pixels), method.blocks(pixels), strict=True))


# --------------------------------------------------------------------------------------- preservation of old tasks


def distance(old: Tensor, new: Tensor) -> float:
    return float((new - old).norm() / old.norm())


def learn_two(kind: dict[str, Any], stream: Stream, **changes: Any) -> tuple[HyperNet, Tensor]:
    """The method after two tasks, and the first target's weights after one."""
    method = make(kind, epochs=20, **changes).learn(stream[0])
    (old,) = method.generated()
    return method.learn(stream[1]), old


@kinds
def test_the_regulariser_preserves_weights_of_old_tasks(kind: dict[str, Any], tiny_stream: Stream) -> None:
    regularised, free = (
        distance(old, method.generated()[0])
        for method, old in (learn_two(kind, tiny_stream, beta=beta) for beta in (0.1, 0.0))
    )
    assert regularised < 0.15, f"the old weights changed by {regularised:.1%}"
    assert free > 3 * regularised, f"{free:.1%} without the regulariser, {regularised:.1%} with it"


def test_old_task_vectors_and_statistics_are_frozen(tiny_stream: Stream) -> None:
    method = make(RESNET).learn(tiny_stream[0])
    vector = method.task_vectors[0].clone()
    statistics = {name: value.clone() for name, value in method.statistics[0].state_dict().items()}
    method.learn(tiny_stream[1])
    assert torch.equal(method.task_vectors[0], vector)
    now = method.statistics[0].state_dict()
    assert all(torch.equal(now[name], value) for name, value in statistics.items())
    other = method.statistics[1].state_dict()
    assert not torch.equal(other["mean0"], statistics["mean0"]), "each task has its own statistics"
    assert not any(parameter.requires_grad for parameter in method.parameters())


def test_a_block_depends_on_its_own_statistics(tiny_stream: Stream) -> None:
    # Statistics of the wrong task would look like forgetting.
    method = make(RESNET).learn(tiny_stream[0]).learn(tiny_stream[1])
    pixels = tiny_stream.tests[0].pixels
    before = method.blocks(pixels)
    method.statistics[0].load_state_dict(method.statistics[1].state_dict())
    assert not torch.allclose(method.block(pixels, 0), before[0])
    assert torch.equal(method.block(pixels, 1), before[1])


@pytest.mark.parametrize(("given", "rate"), [(None, 5e-3), (1e-4, 1e-4)])
def test_learning_rate_of_the_task_vector(given: float | None, rate: float, tiny_stream: Stream) -> None:
    """Adam changes a parameter by about the learning rate in each step; that of the optimiser is 5e-3."""
    plan = {"epochs": 2, "batch": 100, "schedule": {"kind": "constant"}}
    method = make(MLP, learning={"vector_lr": given, "plan": plan})
    seen: list[tuple[Tensor, Tensor]] = []

    def record(progress: Progress) -> None:
        seen.append((method.task_vectors[0].detach().clone(), method.hypernetwork.chunk_vectors.detach().clone()))

    method.learn(tiny_stream[0], TrainingContext(record))
    vector, chunks = (after - before for before, after in zip(*seen, strict=True))
    assert vector.abs().max().item() == pytest.approx(rate, rel=0.2)
    assert chunks.abs().max().item() == pytest.approx(5e-3, rel=0.2)


# --------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("kind", "epochs"),
    [pytest.param(MLP, 20, id="mlp"), pytest.param(RESNET, 20, id="resnet32", marks=pytest.mark.slow)],
)
def test_learns_without_forgetting(kind: dict[str, Any], epochs: int, digits: DataSet) -> None:
    stream = split(digits, [2, 2, 2], train_per_class=60, validation=0.1)
    method = make(kind, epochs=epochs, beta=0.1)
    for task in stream:
        method.learn(task)
    for number, task in enumerate(stream):
        predicted = method.block(task.validation.pixels, number).argmax(1)
        assert (predicted == task.validation.labels).float().mean().item() >= 0.9


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"target.hiden": [3]}, "There is no setting 'target.hiden'. Did you mean 'hidden'?"),
        ({"target.kind": "resnet18"}, "Setting 'target.kind': input should be 'mlp'"),
        ({"hypernetwork.chunk": 0}, "hypernetwork.chunk"),
        ({"beta": -1}, "beta"),
    ],
)
def test_wrong_settings_are_explained(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as problem:
        resolve("digits-5t", "hypernet", overrides=given)
    assert text in str(problem.value)


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("mnist-5t", {"kind": "mlp", "chunk": 42000, "hidden": [10, 10], "vectors": 96, "beta": 0.01, "batch": 128}),
        ("cifar10-5t", {"kind": "resnet32", "chunk": 7000, "hidden": [], "vectors": 32, "beta": 0.05, "batch": 32}),
        ("cifar100-10t", {"kind": "resnet32", "chunk": 7000, "hidden": [], "vectors": 32, "beta": 0.05, "batch": 32}),
        (
            "tinyimagenet-5t",
            {"kind": "resnet32", "chunk": 7000, "hidden": [], "vectors": 32, "beta": 0.05, "batch": 32},
        ),
    ],
)
def test_published_settings_in_the_paper_budget(experiment: str, expected: dict[str, Any]) -> None:
    settings = resolve(experiment, "hypernet", "paper").settings
    h, learning = settings["hypernetwork"], settings["learning"]
    assert h["task_vector"] == h["chunk_vector"]
    assert (learning["optimiser"]["kind"], learning["optimiser"]["lr"]) == ("adam", 1e-3)
    assert expected == {
        "kind": settings["target"]["kind"],
        "chunk": h["chunk"],
        "hidden": h["hidden"],
        "vectors": h["task_vector"],
        "beta": settings["beta"],
        "batch": learning["plan"]["batch"],
    }
    iterations = learning["plan"]["epochs"] * math.ceil(10_800 / 128)
    assert (
        iterations == pytest.approx(2000, rel=0.05) if experiment == "mnist-5t" else learning["plan"]["epochs"] == 200
    )
