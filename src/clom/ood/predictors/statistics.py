"""Statistics of a task's own data: taken once, when the task is learned, and never changed.

The features of each rotation of each class are described by their mean, with one covariance for all of them. A few
scores of the task's held-out images tell what is usual for the task. No image can be recovered from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clom.ood.predictors.outputs import TaskOutputs

SHRINKAGE = 0.1
"""Of the covariance in the Mahalanobis scores whose usual values are recorded."""
USUAL = ("largest logit", "rotation mahalanobis", "inverse mahalanobis", "typical logit")
"""Scores whose mean and standard deviation on own held-out images are recorded."""


@dataclass(frozen=True)
class TaskStatistics:
    """What a task's model keeps of the task's data, in float32."""

    means: Tensor
    """`[rotations, classes, d]`: the mean feature of each rotation of each class."""
    covariance: Tensor
    """The lower triangle of the pooled within-class covariance, `[d (d + 1) / 2]`."""
    usual: Tensor
    """`[len(USUAL), 2]`: mean and standard deviation of these scores on the task's held-out images."""

    @property
    def n_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.means, self.covariance, self.usual))

    def usual_of(self, score: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a score on own held-out images."""
        mean, deviation = self.usual.double()[USUAL.index(score)].unbind()
        return mean, deviation.clamp(min=1e-12)

    def standardised(self, score: str, values: Tensor) -> Tensor:
        mean, deviation = self.usual_of(score)
        return (values.double() - mean) / deviation


class Gaussians:
    """Squared Mahalanobis distances to the mean of every rotation of every class, with a shared shrunk covariance.

    With `S = L L'`, they are Euclidean distances between `L^-1 h` and `L^-1 mu`.
    """

    def __init__(self, means: Tensor, covariance: Tensor, shrinkage: float, *, unit: bool = False) -> None:
        """`covariance [d, d]` becomes `(1 - shrinkage) S + shrinkage v I`, where v is its mean variance, or 1 for
        `unit`."""
        exact = covariance.double()
        variance = 1.0 if unit else exact.diagonal().mean().clamp(min=1e-12)
        shrunk = (1 - shrinkage) * exact + shrinkage * variance * torch.eye(len(exact), dtype=exact.dtype)
        lower = torch.linalg.cholesky(shrunk)
        self._whitening = torch.linalg.solve_triangular(lower, torch.eye(len(exact), dtype=exact.dtype), upper=False)
        self._means = means.double() @ self._whitening.T  # [rotations, classes, d]

    @staticmethod
    def of(statistics: TaskStatistics, shrinkage: float, *, unit: bool = False) -> Gaussians:
        return Gaussians(statistics.means, unpacked(statistics.covariance), shrinkage, unit=unit)

    def distances(self, features: Tensor) -> Tensor:
        """`[images, rotations, classes]`, from features `[images, rotations, d]`."""
        whitened = (features.double() @ self._whitening.T).transpose(0, 1)  # [rotations, images, d]
        # Not by matrix products, which lose the precision of small distances.
        exactly = "donot_use_mm_for_euclid_dist"
        return torch.cdist(whitened, self._means, compute_mode=exactly).square().transpose(0, 1)

    def unrotated(self, features: Tensor) -> Tensor:
        """Squared distances of the unrotated images to their own classes, `[images, classes]`."""
        return self.distances(features)[:, 0]


def rotation_mahalanobis(distances: Tensor) -> Tensor:
    """The negative squared distance to the nearest class, averaged over rotations, `[images]`; high = belongs."""
    return -distances.amin(2).mean(1)


def inverse_mahalanobis(distances: Tensor) -> Tensor:
    """The largest inverse of the unrotated image's squared distances to the classes, `[images]`."""
    return 1 / distances[:, 0].amin(1).clamp(min=1e-12)


@torch.no_grad()
def measure(train: TaskOutputs, labels: Tensor, held_out: TaskOutputs, held_out_labels: Tensor) -> TaskStatistics:
    """The statistics of a task from its model's outputs for training images and for held-out ones.

    Without held-out images, training images stand in for them.
    """
    features = train.need_features()
    n_classes = train.block.shape[1]
    means = torch.stack([features[labels == label].mean(0) for label in range(n_classes)], 1)  # [rotations, classes, d]
    centred = (features - means.transpose(0, 1)[labels]).flatten(0, 1)
    covariance = centred.T @ centred / len(centred)
    if not len(held_out):
        held_out, held_out_labels = train, labels
    distances = Gaussians(means, covariance, SHRINKAGE).distances(held_out.need_features())
    values = {
        "largest logit": held_out.block.amax(1),
        "rotation mahalanobis": rotation_mahalanobis(distances),
        "inverse mahalanobis": inverse_mahalanobis(distances),
        "typical logit": held_out.block.gather(1, held_out_labels[:, None])[:, 0],
    }
    usual = torch.stack([_moments(values[name]) for name in USUAL])
    return TaskStatistics(means.float(), packed(covariance).float(), usual.float())


def _moments(values: Tensor) -> Tensor:
    exact = values.double()
    return torch.stack([exact.mean(), exact.std(correction=0)])


def packed(symmetric: Tensor) -> Tensor:
    """The lower triangle of a symmetric matrix as a vector, row by row."""
    rows, columns = torch.tril_indices(len(symmetric), len(symmetric)).unbind()
    return symmetric[rows, columns]


def unpacked(triangle: Tensor) -> Tensor:
    """The symmetric matrix of a lower triangle."""
    size = size_of_triangle(len(triangle))
    rows, columns = torch.tril_indices(size, size).unbind()
    matrix = triangle.new_zeros(size, size)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix


def size_of_triangle(length: int) -> int:
    """The number of rows d of a triangle with `d (d + 1) / 2` entries."""
    size = int((2 * length) ** 0.5)
    if size * (size + 1) // 2 != length:
        raise ValueError(f"{length} is not the length of a triangle")
    return size
