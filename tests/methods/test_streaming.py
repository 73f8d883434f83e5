"""Running statistics and the classifiers solved from them, by hand and against plain computations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.stream import Stream
from clom.learning.heads import ridge
from clom.methods.klda import Klda, KldaSettings
from clom.methods.ranpac import Ranpac, RanpacSettings
from clom.methods.slda import Slda, SldaSettings
from clom.methods.streaming import StreamingMethod
from clom.nets import AdapterSettings
from clom.testing import check_method

NET = AdapterSettings(weights="random", width=0.05, hidden=16)
SHAPE = (1, 8, 8)


def slda(seed: int = 0) -> Slda:
    return Slda(NET, SldaSettings(shrinkage=0.1), SHAPE, seed)


def klda(seed: int = 0) -> Klda:
    return Klda(NET, KldaSettings(directions=50, shrinkage=0.1), SHAPE, seed)


def ranpac(seed: int = 0) -> Ranpac:
    return Ranpac(NET, RanpacSettings(directions=50), SHAPE, seed)


def test_klda_is_a_method(tiny_stream: Stream) -> None:
    check_method(klda, tiny_stream)


def test_ranpac_is_a_method(tiny_stream: Stream) -> None:
    check_method(ranpac, tiny_stream)


def learned(make: Callable[[], StreamingMethod], stream: Stream) -> StreamingMethod:
    method = make()
    for task in stream:
        method.learn(task)
    return method


def training_data(method: StreamingMethod, stream: Stream) -> tuple[Tensor, Tensor]:
    """Lifted features of all tasks, and class rows."""
    lifted = torch.cat([method.lift(method.embed(task.train.pixels)) for task in stream]).double()
    offsets = [method.rows(number).start for number in range(len(stream))]
    return lifted, torch.cat([task.train.labels + start for task, start in zip(stream, offsets, strict=True)])


@pytest.mark.parametrize("make", [slda, klda, ranpac])
def test_the_statistics_are_those_of_all_photos_at_once(
    make: Callable[[], StreamingMethod], tiny_stream: Stream
) -> None:
    method = learned(make, tiny_stream)
    lifted, rows = training_data(method, tiny_stream)
    means = torch.stack([lifted[rows == row].mean(0) for row in range(6)])
    deviations = lifted - means[rows]
    torch.testing.assert_close(method.means, means)
    torch.testing.assert_close(method.scatter, deviations.T @ deviations)
    assert method.counts is not None
    assert method.counts.tolist() == torch.bincount(rows).tolist()


def test_statistics_of_three_numbers() -> None:
    """1 and 3, then 8: the mean is 4 and the squared deviations 9 + 1 + 16 = 26."""
    method = slda()
    method.means, method.scatter = torch.zeros(1, 1).double(), torch.zeros(1, 1).double()
    method.counts = torch.zeros(1, dtype=torch.int64)
    row = torch.zeros(1, dtype=torch.int64)
    method.absorb(torch.tensor([[[1.0]], [[3.0]]]), row.expand(2))
    assert (method.means.item(), method.scatter.item(), method.counts.item()) == (2.0, 2.0, 2)
    method.absorb(torch.tensor([[[8.0]]]), row)
    assert method.means.item() == pytest.approx(4.0)
    assert (method.counts.item(), method.n_samples.item()) == (3, 3)
    assert method.scatter.item() == pytest.approx(26.0)


def test_two_views_count_half_each() -> None:
    """One photo seen as 1 and as 3: mean 2, squared deviations (1 + 1) / 2."""
    method = slda()
    method.means, method.scatter = torch.zeros(1, 1).double(), torch.zeros(1, 1).double()
    method.counts = torch.zeros(1, dtype=torch.int64)
    method.absorb(torch.tensor([[[1.0], [3.0]]]), torch.zeros(1, dtype=torch.int64))
    assert (method.means.item(), method.scatter.item(), method.counts.item()) == (2.0, 1.0, 1)


def test_ridge_of_two_points() -> None:
    """Inputs (2, 0) and (0, 1) of two classes, penalty 1: weights 2 / (4 + 1) and 1 / (1 + 1)."""
    inputs = torch.tensor([[2.0, 0], [0, 1]])
    weight = ridge(inputs.T @ inputs, inputs, 1.0)
    torch.testing.assert_close(weight, torch.tensor([[0.4, 0], [0, 0.5]]))


def test_ranpac_solves_ridge_regression_on_all_photos(tiny_stream: Stream) -> None:
    method = learned(ranpac, tiny_stream)
    assert isinstance(method, Ranpac)
    lifted, rows = training_data(method, tiny_stream)
    gram = lifted.T @ lifted + float(method.penalty) * torch.eye(50)
    expected = torch.linalg.solve(gram, lifted.T @ F.one_hot(rows).double()).T
    torch.testing.assert_close(method.weight.double(), expected, atol=1e-4, rtol=1e-3)
    assert not bool(method.bias.any())


def test_the_penalty_of_ranpac_minimises_the_error_of_held_out_photos(tiny_stream: Stream) -> None:
    method, task = ranpac(), tiny_stream[0]
    method.learn(task)
    lifted, labels = method.lift(method.embed(task.train.pixels)).double(), task.train.labels
    held = torch.arange(len(labels)) % 5 == 0
    inputs, targets = lifted[~held], F.one_hot(labels).double()

    def error(penalty: float) -> float:
        weight = ridge(inputs.T @ inputs, torch.stack([inputs[labels[~held] == c].sum(0) for c in (0, 1)]), penalty)
        return float((lifted[held] @ weight.T - targets[held]).pow(2).mean())

    chosen = float(method.penalty)
    assert error(chosen) <= min(error(chosen * 10), error(chosen / 10)) + 1e-9


def test_fourier_features_approximate_the_gaussian_kernel() -> None:
    method = Klda(NET, KldaSettings(directions=20_000, bandwidth=0.7), SHAPE)
    features = torch.rand(2, method.backbone.n_features, generator=torch.Generator().manual_seed(0))
    one, other = method.lift(features)
    distance = torch.dist(F.normalize(features[0], dim=0), F.normalize(features[1], dim=0))
    assert float(one @ other) == pytest.approx(float((-(distance**2) / (2 * 0.7**2)).exp()), abs=0.03)
    assert float(one @ one) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("make", [slda, klda, ranpac])
def test_extending_leaves_the_numbers_of_other_tasks_alone(
    make: Callable[[], StreamingMethod], tiny_stream: Stream
) -> None:
    method = learned(make, tiny_stream)
    before = [method.sub_network(task) for task in range(3)]
    mean, pixels = method.means[2].clone(), tiny_stream.tests[0].pixels
    blocks = method.blocks(pixels)
    more = tiny_stream[1].validation
    changed = method.extend(more, tiny_stream[1].class_names)
    assert changed.tasks == (1,)
    assert dict(changed.photos) == dict(
        zip(tiny_stream[1].class_names, torch.bincount(more.labels).tolist(), strict=True)
    )
    assert "covariance" in changed.shared
    assert not torch.equal(method.means[2], mean)
    for task in (0, 2):
        assert torch.equal(method.blocks(pixels)[task], blocks[task])
        assert all(torch.equal(value, before[task][name]) for name, value in method.sub_network(task).items())
    assert not torch.equal(method.blocks(pixels)[1], blocks[1])


def test_extending_gives_the_statistics_of_all_photos(tiny_stream: Stream) -> None:
    method, other = slda(), slda()
    task = tiny_stream[0]
    half = slice(0, len(task.train), 2)
    rest = slice(1, len(task.train), 2)
    method.learn(type(task)(task.name, task.class_names, task.train[half], task.validation))
    method.extend(task.train[rest], task.class_names)
    other.learn(task)
    torch.testing.assert_close(method.means, other.means)
    torch.testing.assert_close(method.scatter, other.scatter)
    torch.testing.assert_close(method.weight, other.weight, atol=1e-2, rtol=1e-2)


def _numbers(values: Sequence[Tensor]) -> int:
    return sum(value.numel() for value in values)


def test_the_random_directions_are_saved(tiny_stream: Stream) -> None:
    for method in (klda(), ranpac()):
        assert _numbers([value for name, value in method.state_dict().items() if "random.weight" in name]) == 50 * (
            method.backbone.n_features
        )
