"""Post-hoc OOD scores. The convention: high = belongs to the task.

A score is called with a task's `Outputs` and returns one number per image. The outputs that it uses besides the block
are declared in `needs`. Some scores are first `fit` to the task's own outputs; if a task's model never changes after
training, a fitted score stays valid.

Features that a task's mask closes are always zero. Scores of features exclude them: covariances would be singular.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from clom.errors import UserError

NEEDS = {
    "features": "features for each task",
    "labels": "labelled images",
    "linear_head": "a linear head on its features",
    "odin": "logits that can be differentiated with respect to the image",
}
"""Outputs that a score may need besides the block (fields of `Outputs`), and their descriptions in messages."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a task's model for images: its block, and the other fields if a score needs them."""

    block: Tensor
    """`[images, classes of the task]`"""
    features: Tensor | None = None
    """`[images, d]`"""
    labels: Tensor | None = None
    """The labels of the images within the task; only passed to `fit`."""
    odin: Tensor | None = None
    """The block of the perturbed images (`odin.odin_block`)."""
    linear_head: tuple[Tensor, Tensor] | None = None
    """Weight `[classes, d]` and bias of the linear layer that reads the features."""

    def only(self, needs: Collection[str]) -> Outputs:
        """The block and these fields only."""
        without: dict[str, Any] = dict.fromkeys(NEEDS.keys() - set(needs))
        return replace(self, **without)

    def need_features(self) -> Tensor:
        """The features in float64."""
        if self.features is None:
            raise _missing("features")
        return self.features.double()

    def need_labels(self) -> Tensor:
        if self.labels is None:
            raise _missing("labels")
        return self.labels

    def need_odin(self) -> Tensor:
        if self.odin is None:
            raise _missing("odin")
        return self.odin

    def need_linear_head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias in float64."""
        if self.linear_head is None:
            raise _missing("linear_head")
        weight, bias = self.linear_head
        return weight.double(), bias.double()


def _missing(need: str) -> UserError:
    return UserError(f"A score uses {NEEDS[need]} without declaring it: add needs = ({need!r},).")


class Score(ABC):
    """Base class of OOD scores: `fit`, then call. Subclasses must be constructible without arguments."""

    title: ClassVar[str] = ""
    """Name in tables; by default the registered name."""
    needs: ClassVar[Collection[str]] = ()
    """The fields of `Outputs` that it uses besides the block: a tuple of names from `NEEDS`."""

    def fit(self, own: Outputs) -> Self:
        """Fit to the outputs of the task's own training images; does nothing by default."""
        return self

    @abstractmethod
    def __call__(self, outputs: Outputs) -> Tensor:
        """One number per image, `[images]`; high = belongs."""


class MSP(Score):
    """The maximum softmax probability (Hendrycks and Gimpel 2017). It ignores the magnitude of the logits."""

    title = "MSP"

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def __call__(self, outputs: Outputs) -> Tensor:
        return (outputs.block / self.temperature).softmax(1).amax(1)


class MaxLogit(Score):
    """The largest entry of the block, as compared in CIL by argmax."""

    title = "MaxLogit"

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.block.amax(1)


class Energy(Score):
    """`T logsumexp(f / T)` (Liu et al. 2020): between MaxLogit and MaxLogit + T log C."""

    title = "Energy"

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def __call__(self, outputs: Outputs) -> Tensor:
        return self.temperature * torch.logsumexp(outputs.block / self.temperature, 1)


class NegEntropy(Score):
    """`sum p log p`: 0 for a certain prediction, -log C for a uniform one."""

    title = "NegEntropy"

    def __call__(self, outputs: Outputs) -> Tensor:
        log_p = outputs.block.log_softmax(1)
        return (log_p.exp() * log_p).sum(1)


class GEN(Score):
    """Generalised entropy (Liu et al. 2023): `-sum p^g (1 - p)^g` over the `top` most probable classes."""

    title = "GEN"

    def __init__(self, gamma: float = 0.1, top: int | None = None) -> None:
        self.gamma, self.top = gamma, top

    def __call__(self, outputs: Outputs) -> Tensor:
        p = outputs.block.softmax(1)
        p = p.topk(min(self.top or p.shape[1], p.shape[1]), 1).values
        return -(p.pow(self.gamma) * (1 - p).pow(self.gamma)).sum(1)


class _Gaussian:
    """Squared Mahalanobis distances to means with a shared covariance, over the active features.

    With `S = L L'`, they are Euclidean distances between `L^-1 h` and `L^-1 mu`.
    """

    def __init__(self, features: Tensor, means: Tensor, centred: Tensor, shrink: float) -> None:
        self.kept = active_features(features)
        covariance = centred[:, self.kept].T @ centred[:, self.kept] / len(centred)
        ridge = shrink * covariance.diagonal().mean().clamp(min=1e-12)
        self.factor = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=covariance.dtype))
        self.means = self._whitened(means)

    def _whitened(self, features: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(self.factor, features[:, self.kept].T, upper=False).T
        return whitened

    def distances(self, features: Tensor) -> Tensor:
        """`[images, means]`"""
        # Not by matrix products, which lose the precision of small distances.
        exactly = "donot_use_mm_for_euclid_dist"
        return torch.cdist(self._whitened(features), self.means, compute_mode=exactly).square()


def active_features(features: Tensor) -> Tensor:
    """A mask of the features that are nonzero for at least one image."""
    return features.abs().amax(0) > 0


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([features[labels == label].mean(0) for label in torch.unique(labels)])


class Mahalanobis(Score):
    """Negative squared distance to the nearest class mean under the within-class covariance (Lee et al. 2018)."""

    title = "Mahalanobis"
    needs = ("features", "labels")

    def __init__(self, shrink: float = 1e-3) -> None:
        self.shrink = shrink

    def fit(self, own: Outputs) -> Self:
        features, labels = own.need_features(), own.need_labels()
        means = class_means(features, labels)
        position = torch.unique(labels, return_inverse=True)[1]
        self.within_ = _Gaussian(features, means, features - means[position], self.shrink)
        return self

    def __call__(self, outputs: Outputs) -> Tensor:
        return -self.within_.distances(outputs.need_features()).amin(1)


class RelativeMahalanobis(Mahalanobis):
    """Mahalanobis distance minus the distance to a single Gaussian of the whole task (Ren et al. 2021)."""

    title = "rel. Mahalanobis"

    def fit(self, own: Outputs) -> Self:
        super().fit(own)
        features = own.need_features()
        mean = features.mean(0, keepdim=True)
        self.background_ = _Gaussian(features, mean, features - mean, self.shrink)
        return self

    def __call__(self, outputs: Outputs) -> Tensor:
        features = outputs.need_features()
        return -(self.within_.distances(features).amin(1) - self.background_.distances(features)[:, 0])


class KNN(Score):
    """Negative distance of the normalised features to the k-th nearest training features (Sun et al. 2022)."""

    title = "kNN"
    needs = ("features",)

    def __init__(self, k: int | None = None) -> None:
        self.k = k
        """By default one percent of the number of stored features."""

    def fit(self, own: Outputs) -> Self:
        self.bank_ = torch.nn.functional.normalize(own.need_features())
        return self

    def __call__(self, outputs: Outputs) -> Tensor:
        query = torch.nn.functional.normalize(outputs.need_features())
        k = min(self.k or max(1, len(self.bank_) // 100), len(self.bank_))
        return -torch.cdist(query, self.bank_).kthvalue(k, dim=1).values


class ViM(Score):
    """Energy minus a virtual logit: the residual of the features outside the principal subspace (Wang et al. 2022)."""

    title = "ViM"
    needs = ("features", "linear_head")

    def __init__(self, dimensions: int | None = None) -> None:
        self.dimensions = dimensions
        """Dimension of the principal subspace; by default half of the features' maximum rank."""

    def fit(self, own: Outputs) -> Self:
        features = own.need_features()
        weight, bias = own.need_linear_head()
        self.kept_ = active_features(features)
        self.origin_ = -torch.linalg.pinv(weight[:, self.kept_]) @ bias
        centred = features[:, self.kept_] - self.origin_
        vectors = torch.linalg.eigh(centred.T @ centred / len(centred)).eigenvectors.flip(1)
        inside = self.dimensions or min(centred.shape) // 2
        self.outside_ = vectors[:, inside:]
        largest, residual = own.block.amax(1).double().mean(), self._residual(features).mean()
        self.alpha_ = float(largest.abs() / residual.clamp(min=1e-12))  # a scale, hence positive
        return self

    def _residual(self, features: Tensor) -> Tensor:
        residual: Tensor = ((features[:, self.kept_] - self.origin_) @ self.outside_).norm(dim=1)
        return residual

    def __call__(self, outputs: Outputs) -> Tensor:
        energy = torch.logsumexp(outputs.block.double(), 1)
        return energy - self.alpha_ * self._residual(outputs.need_features())


class ReAct(Score):
    """Energy of features clipped at a high percentile of the task's own features (Sun et al. 2021)."""

    title = "ReAct"
    needs = ("features", "linear_head")

    def __init__(self, percentile: float = 0.9) -> None:
        self.percentile = percentile

    def fit(self, own: Outputs) -> Self:
        features = own.need_features()
        kept = active_features(features)  # closed units would lower the percentile
        self.limit_ = float(features[:, kept].flatten().quantile(self.percentile)) if kept.any() else 0.0
        return self

    def __call__(self, outputs: Outputs) -> Tensor:
        clipped = outputs.need_features().clamp(max=self.limit_)
        weight, bias = outputs.need_linear_head()
        return torch.logsumexp(clipped @ weight.T + bias, 1)
