"""Linear heads in closed form or at the minimum of the documented objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.learning.heads import HeadSettings, nearest_span, solve_head, spans_of, weigh_rotations


def blobs(n: int = 60, n_classes: int = 3, d: int = 5, spread: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % n_classes
    centres = torch.randn(n_classes, d, generator=generator)
    return centres[labels] + spread * torch.randn(n, d, generator=generator), labels


def gradient_norm(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, l2: float) -> float:
    """Gradient norm of mean cross-entropy + l2/2 |W|^2, on features divided by their root mean square."""
    scale = features.double().pow(2).mean().sqrt()
    w = (weight.detach().double() * scale).requires_grad_()
    b = bias.detach().double().requires_grad_()
    logits = features.double() / scale @ w.T + b
    (F.cross_entropy(logits, labels) + l2 / 2 * w.pow(2).sum()).backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    assert b.grad is not None
    return float(torch.cat([w.grad.flatten(), b.grad]).norm())


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_gradient_of_the_objective_vanishes(l2: float, spread: float) -> None:
    features, labels = blobs(spread=spread)
    head = solve_head(7 * features, labels, 3, HeadSettings(l2=l2, iterations=300))
    at_zero = gradient_norm(7 * features, labels, torch.zeros(3, 5), torch.zeros(3), l2)
    assert gradient_norm(7 * features, labels, head.weight, head.bias, l2) < 1e-3 * at_zero


def test_separable_labels_are_recovered() -> None:
    features, labels = blobs()
    head = solve_head(features, labels, 3, HeadSettings())
    assert torch.equal(head(features).argmax(1), labels)
    assert F.cross_entropy(head(features), labels).item() < 0.1


def test_scale_of_the_features_does_not_matter() -> None:
    features, labels = blobs()
    one, ten = (solve_head(factor * features, labels, 3, HeadSettings()) for factor in (1.0, 10.0))
    torch.testing.assert_close(ten(10 * features), one(features), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(10 * ten.weight, one.weight, rtol=1e-3, atol=1e-3)


def test_weighted_classes_are_repeated_samples() -> None:
    features, labels = blobs(spread=1.0)
    features = F.normalize(features)  # unit length, so that repeating some does not change the root mean square
    rare = torch.cat([(labels == 0).nonzero().flatten()[:5], (labels > 0).nonzero().flatten()])
    counts = torch.bincount(labels[rare])
    assert counts.tolist() == [5, 20, 20]
    repeated = torch.cat([rare[:5].repeat(4), rare[5:]])
    config = HeadSettings(l2=1e-2, iterations=300)
    weighted = solve_head(features[rare], labels[rare], 3, config, 1 / counts)
    balanced = solve_head(features[repeated], labels[repeated], 3, config)
    torch.testing.assert_close(weighted.weight, balanced.weight, rtol=1e-2, atol=1e-3)
    assert not torch.allclose(weighted.weight, solve_head(features[rare], labels[rare], 3, config).weight, atol=1e-2)


def test_more_l2_means_smaller_weights() -> None:
    features, labels = blobs()
    sizes = [solve_head(features, labels, 3, HeadSettings(l2=l2)).weight.norm().item() for l2 in (1e-3, 1e-2, 1e-1)]
    assert sizes[0] > 1.3 * sizes[1] > 1.6 * sizes[2]


def test_a_class_without_samples_scores_below_the_others() -> None:
    features, labels = blobs()
    head = solve_head(features, labels, 4, HeadSettings())
    assert head.out_features == 4
    assert not bool((head(features).argmax(1) == 3).any())


def test_all_zero_features_predict_the_class_frequencies() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10)
    head = solve_head(torch.zeros(40, 3), labels, 2, HeadSettings())
    assert torch.equal(head.weight, torch.zeros(2, 3))
    assert head(torch.zeros(1, 3)).softmax(1)[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-3)


def test_a_discriminant_head_of_four_points() -> None:
    """Means (2, 0) and (0, 2); deviations +-(1, 0) and +-(0, 1): covariance 1/2, so weights 2 mu and biases -4."""
    features = torch.tensor([[3.0, 0], [1, 0], [0, 3], [0, 1]])
    head = solve_head(features, torch.tensor([0, 0, 1, 1]), 2, HeadSettings(kind="discriminant", shrinkage=0.3))
    torch.testing.assert_close(head.weight, torch.tensor([[4.0, 0], [0, 4]]), check_stride=False)
    torch.testing.assert_close(head.bias, torch.tensor([-4.0, -4]))
    assert head.weight.is_contiguous()


def test_discriminants_match_the_log_likelihood() -> None:
    """With one covariance for all classes, differences of logits are differences of log-likelihoods."""
    features, labels = blobs(n=90, spread=1.0)
    head = solve_head(features, labels, 3, HeadSettings(kind="discriminant", shrinkage=1e-6))
    means = torch.stack([features[labels == label].mean(0) for label in range(3)])
    deviations = features - means[labels]
    covariance = deviations.T @ deviations / len(features)
    offsets = features[:, None] - means  # [n, classes, d]
    likelihood = -(offsets @ torch.linalg.inv(covariance) * offsets).sum(2) / 2  # up to a term shared by all classes
    scores = head(features)
    torch.testing.assert_close(
        scores - scores[:, :1], likelihood - likelihood[:, :1], atol=1e-2, rtol=1e-3, check_dtype=False
    )


def test_discriminants_of_one_sample_per_class() -> None:
    head = solve_head(torch.eye(3), torch.arange(3), 3, HeadSettings(kind="discriminant"))
    assert torch.equal(head(torch.eye(3)).argmax(1), torch.arange(3))


def test_the_mean_over_rotations_becomes_a_weighted_one() -> None:
    head = torch.nn.Linear(3, 8)  # two classes
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))  # one image in four rotations

    def average() -> Tensor:
        return torch.stack([head(features[turn])[2 * turn : 2 * turn + 2] for turn in range(4)])

    before = average()
    weigh_rotations(head, 0.25)
    assert torch.equal(average(), before), "a weight of 1/4 must change nothing"
    weigh_rotations(head, 0.4)
    expected = 0.4 * before[0] + 0.2 * before[1:].sum(0)
    torch.testing.assert_close(average().mean(0), expected)


def test_spans_of_two_classes() -> None:
    """The first class lies in a plane; the second has a single image, so its second direction is zero."""
    features = torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 0], [1, 1, 0, 0], [0, 0, 5, 0]])
    spans = spans_of(features, torch.tensor([0, 0, 0, 1]), n_outputs=2, n_directions=2)
    torch.testing.assert_close(spans[0].T @ spans[0], torch.diag(torch.tensor([1.0, 1, 0, 0])), atol=1e-6, rtol=0)
    torch.testing.assert_close(spans[1].abs(), torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 0]]), atol=1e-6, rtol=0)


def test_similarity_is_the_cosine_to_the_nearest_span() -> None:
    """(3, 4) and (4, 3) have cosines 0.6 and 0.8 with the first class's axis and vice versa with the second's; in the
    second case the classes swap places in the second rotation."""
    features = torch.tensor([[[3.0, 4]], [[4, 3]]])
    axes = torch.eye(2)[:, None]  # [classes, directions, d]
    assert nearest_span(features, torch.stack((axes, axes))).item() == pytest.approx(0.7)
    assert nearest_span(features, torch.stack((axes, axes.flip(0)))).item() == pytest.approx(0.8)
