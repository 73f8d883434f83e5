"""Linear heads and the ways of fitting one to frozen features at once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.settings import NonNegative, Positive, Settings, Share


class HeadSettings(Settings):
    """Step 2: the linear classifier on frozen features."""

    views: Positive = 6
    """How many augmented views of each image the features are taken of, once."""
    l2: NonNegative = 1e-3
    """Strength of `l2 * |W|^2 / 2` added to the mean cross-entropy."""
    iterations: Positive = 100
    kind: Literal["logistic", "discriminant"] = "logistic"
    """`logistic` minimises Eq. 4. `discriminant` is linear discriminant analysis with the task's own covariance: with
    few images of a pretrained network's features it answers better and tells tasks apart far better."""
    shrinkage: Share = 0.6
    """`discriminant`: the share of the covariance that is replaced by a multiple of the identity of the same size."""
    directions: Positive = 20
    """`discriminant`: along how many directions the images of a class may differ and still be like it."""
    upright: Share = 0.25
    """Weight of the unturned image among its four rotations; the others share the rest. A quarter is Eq. 6. Photos are
    taken upright, and so were those that pretrained features come from."""


def solve_head(
    features: Tensor, labels: Tensor, n_outputs: int, settings: HeadSettings, class_weights: Tensor | None = None
) -> nn.Linear:
    """The minimiser of Eq. 4 plus an L2 term: convex, so it is solved instead of being trained. Or discriminants.

    Features are divided by their root mean square first, so that `l2` means the same for every task and network; the
    scale is folded back into the weights. `class_weights [n_outputs]` make it a weighted mean over the samples.
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


class DiscriminantHead(nn.Linear):
    """Discriminants of classes, and the few directions that span each class: whether an image is like any of them.

    Discriminants say which class it is rather. How much of an image's features lies in the span of a class says whether
    it is one at all: one direction would be about the class's mean, and twenty tell strangers apart better than the
    nearest of all its images.
    """

    def __init__(self, n_features: int, n_outputs: int, n_directions: int) -> None:
        super().__init__(n_features, n_outputs)
        self.spans = nn.Parameter(torch.zeros(n_outputs, n_directions, n_features), requires_grad=False)

    def similarity(self, features: Tensor, rotations: int) -> Tensor:
        """Cosine between features `[rotations * n, d]` and the span of the nearest class, each rotation asked about its
        own spans and averaged before the nearest is taken: `[n]`."""
        spans = self.spans.view(rotations, -1, *self.spans.shape[1:])
        return nearest_span(features.view(rotations, -1, self.in_features), spans)


def nearest_span(features: Tensor, spans: Tensor) -> Tensor:
    """Of features `[rotations, n, d]` and orthonormal rows `[rotations, classes, directions, d]`: the largest mean
    over rotations of the part of a feature that lies in a class's span, `[n]`."""
    _, n_classes, n_directions, _ = spans.shape
    parts = F.normalize(features, dim=2) @ spans.flatten(1, 2).transpose(1, 2)
    cosines = parts.view(*parts.shape[:2], n_classes, n_directions).square().sum(3).sqrt()  # [rotations, n, classes]
    return cosines.mean(0).amax(1)


@torch.no_grad()
def spans_of(features: Tensor, labels: Tensor, n_outputs: int, n_directions: int) -> Tensor:
    """For each class the orthonormal directions along which its unit features are largest, `[classes, directions, d]`;
    zeros where it has fewer features than that."""
    directions = F.normalize(features.cpu().double())  # not every device has float64
    labels = labels.cpu()
    spans = directions.new_zeros(n_outputs, n_directions, features.shape[1])
    for label in range(n_outputs):
        found = torch.linalg.svd(directions[labels == label], full_matrices=False).Vh[:n_directions]
        spans[label, : len(found)] = found
    return spans.float().to(features.device)


@torch.no_grad()
def discriminant_head(features: Tensor, labels: Tensor, n_outputs: int, settings: HeadSettings) -> DiscriminantHead:
    """The discriminants of classes that share a covariance, all of which have samples."""
    exact, labels = features.cpu().double(), labels.cpu()  # not every device has float64
    means = torch.stack([exact[labels == label].mean(0) for label in range(n_outputs)])
    deviations = exact - means[labels]
    weight, bias = discriminants(means, deviations.T @ deviations / len(exact), settings.shrinkage)
    head = DiscriminantHead(features.shape[1], n_outputs, settings.directions)
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    head.spans.copy_(spans_of(features, labels, n_outputs, settings.directions))
    return head.to(features.device)


def discriminants(means: Tensor, covariance: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weight `[classes, d]` and bias of linear discriminant analysis with a shrunk covariance.

    `w_c = C^-1 mu_c`, `b_c = -mu_c w_c / 2`; classes are equally likely.
    """
    average = covariance.diagonal().mean().clamp(min=1e-12)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    shrunk = (1 - shrinkage) * covariance + shrinkage * average * identity
    weight = torch.linalg.solve(shrunk, means.T).T.contiguous()
    return weight, -(weight * means).sum(1) / 2


@torch.no_grad()
def weigh_rotations(head: nn.Linear, upright: float, rotations: int = 4) -> None:
    """Fold weights of rotations into the blocks of the head that they read, so that their plain mean is weighted."""
    if rotations == 1:
        return
    rest = (1 - upright) / (rotations - 1)
    weights = torch.tensor([upright] + [rest] * (rotations - 1)).to(head.weight.device) * rotations
    factors = weights.repeat_interleave(head.out_features // rotations)
    head.weight.mul_(factors[:, None])
    head.bias.mul_(factors)


@torch.no_grad()
def expand_head(head: nn.Linear, kept: Tensor, n_features: int) -> nn.Linear:
    """A head on the features `kept` as one on all features, with zeros for the others."""
    wide = nn.Linear(n_features, head.out_features).to(head.weight.device)
    if isinstance(head, DiscriminantHead):
        wide = DiscriminantHead(n_features, head.out_features, head.spans.shape[1]).to(head.weight.device)
        wide.spans[:, :, kept] = head.spans
    wide.weight.zero_()
    wide.weight[:, kept] = head.weight
    wide.bias.copy_(head.bias)
    return wide


def make_head(settings: HeadSettings, n_features: int, n_outputs: int) -> nn.Linear:
    """An empty head of the kind that `solve_head` returns."""
    if settings.kind == "discriminant":
        return DiscriminantHead(n_features, n_outputs, settings.directions)
    return nn.Linear(n_features, n_outputs)
