"""Linear heads, fitted to frozen features in one go: logistic regression or linear discriminant analysis."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.settings import NonNegative, Positive, Settings, Share


class HeadSettings(Settings):
    """Step 2: the linear classifier on frozen features."""

    views: Positive = 6
    """Augmented views of each image whose features are extracted, once."""
    l2: NonNegative = 1e-3
    """Strength of `l2 * |W|^2 / 2` added to the mean cross-entropy."""
    iterations: Positive = 100
    kind: Literal["logistic", "discriminant"] = "logistic"
    """`logistic` minimises Eq. 4. `discriminant` is linear discriminant analysis with the task's own covariance, which
    is more accurate, and much better at telling tasks apart, with pretrained features of few images."""
    shrinkage: Share = 0.6
    """`discriminant`: the share of the covariance replaced by a multiple of the identity with the same trace."""
    directions: Positive = 20
    """`discriminant`: dimension of the subspace that describes each class."""
    upright: Share = 0.25
    """Weight of the unrotated image among its four rotations; the others share the rest. 0.25 is Eq. 6. Photos are
    upright, as are those that pretrained features were learned from."""


def solve_head(
    features: Tensor, labels: Tensor, n_outputs: int, settings: HeadSettings, class_weights: Tensor | None = None
) -> nn.Linear:
    """The minimiser of Eq. 4 plus an L2 term, which is convex and solved with L-BFGS; or linear discriminants.

    Features are first divided by their root mean square, so that `l2` means the same for every task and network; the
    scale is folded back into the weights. `class_weights [n_outputs]` weight the mean over the samples.
    """
    if settings.kind == "discriminant":
        return discriminant_head(features, labels, n_outputs, settings)
    scale = features.pow(2).mean().sqrt().clamp(min=1e-12)
    inputs = features / scale
    head = nn.Linear(features.shape[1], n_outputs).to(features.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    solver = torch.optim.LBFGS(
        head.parameters(),
        max_iter=settings.iterations,
        history_size=10,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
    )

    def objective() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(head(inputs), labels, class_weights) + settings.l2 / 2 * head.weight.pow(2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.div_(scale)
    return head


@torch.no_grad()
def relative_to_last(head: nn.Linear) -> nn.Linear:
    """The outputs of `head` minus its last one, which is dropped: log-odds of each class against the last."""
    relative = nn.Linear(head.in_features, head.out_features - 1).to(head.weight.device)
    relative.weight.copy_(head.weight[:-1] - head.weight[-1])
    relative.bias.copy_(head.bias[:-1] - head.bias[-1])
    return relative


class DiscriminantHead(nn.Linear):
    """Linear discriminants, plus a low-dimensional subspace per class for OOD detection.

    Discriminants choose among the classes. The cosine between an image's features and a class's subspace says whether
    the image belongs to the class at all: one direction is roughly the class mean, and twenty detect unknown images
    better than the nearest training image does.
    """

    def __init__(self, n_features: int, n_outputs: int, n_directions: int) -> None:
        super().__init__(n_features, n_outputs)
        self.spans = nn.Parameter(torch.zeros(n_outputs, n_directions, n_features), requires_grad=False)

    def similarity(self, features: Tensor, rotations: int) -> Tensor:
        """Cosine between features `[rotations * n, d]` and the subspace of the nearest class, `[n]`.

        Each rotation has its own subspaces; cosines are averaged over rotations before the maximum over classes.
        """
        spans = self.spans.view(rotations, -1, *self.spans.shape[1:])
        return nearest_span(features.view(rotations, -1, self.in_features), spans)


def nearest_span(features: Tensor, spans: Tensor) -> Tensor:
    """Cosine to the nearest class's subspace, averaged over rotations, `[n]`.

    `features [rotations, n, d]`; `spans [rotations, classes, directions, d]` holds orthonormal rows.
    """
    _, n_classes, n_directions, _ = spans.shape
    parts = F.normalize(features, dim=2) @ spans.flatten(1, 2).transpose(1, 2)
    cosines = parts.view(*parts.shape[:2], n_classes, n_directions).square().sum(3).sqrt()  # [rotations, n, classes]
    return cosines.mean(0).amax(1)


@torch.no_grad()
def spans_of(features: Tensor, labels: Tensor, n_outputs: int, n_directions: int) -> Tensor:
    """The first principal directions of each class's normalised features, `[classes, directions, d]`, padded with zeros
    for classes with fewer samples than directions."""
    directions = F.normalize(features.cpu().double())  # some devices have no float64
    labels = labels.cpu()
    spans = directions.new_zeros(n_outputs, n_directions, features.shape[1])
    for label in range(n_outputs):
        found = torch.linalg.svd(directions[labels == label], full_matrices=False).Vh[:n_directions]
        spans[label, : len(found)] = found
    return spans.float().to(features.device)


@torch.no_grad()
def discriminant_head(features: Tensor, labels: Tensor, n_outputs: int, settings: HeadSettings) -> DiscriminantHead:
    """Linear discriminant analysis with a shared covariance; every class needs samples."""
    exact, labels = features.cpu().double(), labels.cpu()  # some devices have no float64
    means = torch.stack([exact[labels == label].mean(0) for label in range(n_outputs)])
    deviations = exact - means[labels]
    weight, bias = discriminants(means, deviations.T @ deviations / len(exact), settings.shrinkage)
    head = DiscriminantHead(features.shape[1], n_outputs, settings.directions)
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    head.spans.copy_(spans_of(features, labels, n_outputs, settings.directions))
    return head.to(features.device)


def discriminants(means: Tensor, covariance: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weight `[classes, d]` and bias of linear discriminant analysis with a shrunk covariance and equal class priors.

    `w_c = C^-1 mu_c`, `b_c = -mu_c w_c / 2`.
    """
    average = covariance.diagonal().mean().clamp(min=1e-12)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    shrunk = (1 - shrinkage) * covariance + shrinkage * average * identity
    weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk)).T.contiguous()
    return weight, -(weight * means).sum(1) / 2


def ridge(gram: Tensor, sums: Tensor, penalty: float) -> Tensor:
    """Weights `[classes, d]` of ridge regression to one-hot targets: `(G + l I)^-1 C`, from the Gram matrix G of the
    inputs and their sums C per class, `[classes, d]`."""
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.cholesky_solve(sums.T, torch.linalg.cholesky(gram + penalty * identity)).T.contiguous()


def mean_classifier(
    means: Tensor, counts: Tensor, scatter: Tensor, shrinkage_rate: float, penalty: float
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the mean of linear discriminants and ridge regression, each divided by the root mean square of
    its scores, from statistics of n samples with d features.

    The covariance of the discriminants is shrunk by `k d / (k d + n)`. Ridge regression is that of classes of equal
    size around the mean m of the class means: the Gram matrix is `G = scatter + n/c sum (mu - m) (mu - m)^T`, the
    targets are one-hot, and `penalty` is relative to `trace(G) / n`.
    """
    n, (n_classes, d) = float(counts.sum()), means.shape
    scatter = scatter.to(means)
    total = means.new_zeros(n_classes, d), means.new_zeros(n_classes)
    centre = means.mean(0)
    between = means - centre
    gram = scatter + n / n_classes * between.T @ between
    regression = ridge(gram, n / n_classes * between, penalty * max(float(gram.trace()) / n, 1e-12))
    rate = shrinkage_rate * d
    for weight, bias in (
        discriminants(means, scatter / n, rate / (rate + n)),
        (regression, -(regression @ centre)),
    ):
        size = _score_size(weight, bias, means, counts, scatter)
        total = total[0] + weight / size, total[1] + bias / size
    return total


def _score_size(weight: Tensor, bias: Tensor, means: Tensor, counts: Tensor, scatter: Tensor) -> Tensor:
    """Root mean square of a sample's scores around their mean over the classes."""
    weight, bias = weight - weight.mean(0), bias - bias.mean()
    of_means = (means @ weight.T + bias).pow(2).sum(1) @ counts.to(means)
    around_means = ((weight @ scatter) * weight).sum()
    return ((of_means + around_means) / (counts.sum() * len(means))).sqrt().clamp(min=1e-12)


@torch.no_grad()
def weigh_rotations(head: nn.Linear, upright: float, rotations: int = 4) -> None:
    """Fold rotation weights into the head's outputs, in place, so that the mean over rotations becomes weighted."""
    if rotations == 1:
        return
    rest = (1 - upright) / (rotations - 1)
    weights = torch.tensor([upright] + [rest] * (rotations - 1)).to(head.weight.device) * rotations
    factors = weights.repeat_interleave(head.out_features // rotations)
    head.weight.mul_(factors[:, None])
    head.bias.mul_(factors)


@torch.no_grad()
def expand_head(head: nn.Linear, kept: Tensor, n_features: int) -> nn.Linear:
    """Turn a head on the features `kept` into one on all features, with zero weights for the others."""
    wide = nn.Linear(n_features, head.out_features).to(head.weight.device)
    if isinstance(head, DiscriminantHead):
        wide = DiscriminantHead(n_features, head.out_features, head.spans.shape[1]).to(head.weight.device)
        wide.spans[:, :, kept] = head.spans
    wide.weight.zero_()
    wide.weight[:, kept] = head.weight
    wide.bias.copy_(head.bias)
    return wide


def make_head(settings: HeadSettings, n_features: int, n_outputs: int) -> nn.Linear:
    """An untrained head of the type that `solve_head` returns."""
    if settings.kind == "discriminant":
        return DiscriminantHead(n_features, n_outputs, settings.directions)
    return nn.Linear(n_features, n_outputs)
