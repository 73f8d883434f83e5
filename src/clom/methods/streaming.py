"""Linear classifiers that are solved from running statistics: class means and one scatter matrix.

Every lesson solves the classes of all tasks again. The statistics are exact, whatever the order of the photos.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.methods.families.base import LearnedTask
from clom.methods.families.frozen import FrozenMethod, FrozenSettings
from clom.methods.families.graphs import FeatureScores, Lifted, NearestMeans, linear
from clom.nets import NetSettings


class StreamingMethod(FrozenMethod):
    """`scores = W phi(x) + b`, where phi is the identity, or a random map that never changes."""

    class_buffers: ClassVar[tuple[str, ...]] = ("means", "counts", "weight", "bias")
    scoring_buffers: ClassVar[tuple[str, ...]] = ("weight", "bias")
    scatter: Tensor
    """Sum over the photos of `(phi - mean) (phi - mean)^T`, each with its own class's mean."""
    n_samples: Tensor
    weight: Tensor
    bias: Tensor
    scatter_type: ClassVar[torch.dtype] = torch.float64
    """In which the scatter matrix is stored; it is computed in float64."""

    def __init__(
        self,
        net: NetSettings,
        settings: FrozenSettings,
        image_shape: Sequence[int],
        seed: int = 0,
        width: int | None = None,
    ) -> None:
        """`width` is the dimension of phi; by default that of the features."""
        super().__init__(net, settings, image_shape, seed)
        d = width or self.backbone.n_features
        self.register_buffer("means", torch.empty(0, d, dtype=torch.float64))
        self.register_buffer("scatter", torch.zeros(d, d, dtype=self.scatter_type))
        self.register_buffer("n_samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weight", torch.empty(0, d))
        self.register_buffer("bias", torch.empty(0))

    @abstractmethod
    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of all classes, from the statistics."""

    def lift(self, features: Tensor) -> Tensor:
        """phi."""
        return features

    def lift_views(self, features: Tensor) -> Tensor:
        """phi of `[photos, views, d]`."""
        return self.lift(features.flatten(0, 1)).view(*features.shape[:2], -1)

    def lift_graph(self) -> nn.Module | None:
        """phi as a module for export; None if it is the identity."""
        return None

    def _fit(self, features: Tensor, rows: Tensor, tasks: Sequence[int]) -> None:
        self.absorb(self.lift_views(features), rows)
        weight, bias = self.solve()
        self._renew(weight.float(), bias.float(), tasks)

    def _renew(self, solved_weight: Tensor, solved_bias: Tensor, tasks: Sequence[int]) -> None:
        """Use the solution for the classes of `tasks`."""
        weight, bias = self.weight.clone(), self.bias.clone()
        for own in map(self.rows, tasks):
            weight[own], bias[own] = solved_weight[own], solved_bias[own]
        self.weight, self.bias = weight, bias

    def absorb(self, lifted: Tensor, rows: Tensor) -> None:
        """Update the statistics with photos in several views, `[photos, views, d]`, each view weighted by their number.

        With n photos of mean m so far, and k new ones of mean m', the scatter grows by that of the new ones around m'
        and by `n k / (n + k) (m' - m) (m' - m)^T`.
        """
        means, scatter, views = self.means.clone(), self.scatter.double(), lifted.shape[1]
        n_before = self.counts_or_zeros()
        counts = n_before.clone()
        for row in torch.unique(rows).tolist():
            new = lifted[rows == row].double()
            k, n = len(new), int(n_before[row])
            mean = new.mean((0, 1))
            deviations = (new - mean).flatten(0, 1)
            shift = mean - means[row]
            scatter = scatter + deviations.T @ deviations / views
            if n:
                scatter = scatter + (n * k / (n + k)) * torch.outer(shift, shift)
            means[row] = mean if n == 0 else means[row] + shift * (k / (n + k))
            counts[row] = n + k
        self.means, self.scatter = means, scatter.to(self.scatter_type)
        self.n_samples = self.n_samples + len(rows)
        if self.counts is not None:
            self.counts = counts

    def counts_or_zeros(self) -> Tensor:
        """The photos of each class; zeros in files of earlier versions, whose classes `extend` refuses."""
        return self.n_samples.new_zeros(len(self.means)) if self.counts is None else self.counts

    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        return F.linear(self.lift(features), self.weight[rows], self.bias[rows])

    def near(self, features: Tensor, rows: slice) -> Tensor:
        return super().near(self.lift(features), rows)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        near = NearestMeans(F.normalize(self.class_rows("means", tasks)).float())
        scores = linear(self.class_rows("weight", tasks), self.class_rows("bias", tasks))
        backbone: Any = self.exported_backbone()
        if (lift := self.lift_graph()) is not None:
            backbone = Lifted(backbone, lift)
        return FeatureScores(backbone, scores, [self.tasks[task].n_classes for task in tasks], similarity=near)

    def _forget(self, number: int, task: LearnedTask) -> str:
        super()._forget(number, task)
        return "The covariance, which all classes share, still includes it."

    def _shared_by_extension(self) -> str:
        return (
            "The covariance, which all classes share, includes the photos; other tasks use it from the next lesson on."
        )

    def n_parameters(self) -> int:
        return super().n_parameters() + self.weight.numel() + self.bias.numel()
