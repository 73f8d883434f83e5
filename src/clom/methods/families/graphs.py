"""Scores as graphs of plain operations, for export: what `Method.scoring_graph` of each family returns.

A masked task's graph is its compact sub-network, run on all rotations as one batch. Rotation r reads block r of the
head and the blocks are averaged (Eq. 6), so the graph holds one matrix of the head for each rotation. A frozen
pretrained network is the same for all tasks and runs once.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.views import average_flipped, rotate, with_flipped
from clom.learning.heads import DiscriminantHead, nearest_span
from clom.nets.layers import Net
from clom.nets.networks.adapters import AdapterNet

# --- a sub-network for each task -------------------------------------------------------------------------------------


class MaskedScores(nn.Module):
    """The scores of several tasks side by side, each by its own network; `frozen` is what all of them begin with."""

    def __init__(self, parts: Iterable[TaskScores], frozen: nn.Module | None, rotations: int, mirror: bool) -> None:
        super().__init__()
        self.parts, self.frozen = nn.ModuleList(parts), frozen
        self.rotations, self.mirror = rotations, mirror

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.mirror:
            images = with_flipped(images)
        views = torch.cat([rotate(images, turn) for turn in range(self.rotations)])
        if self.frozen is not None:
            views = self.frozen(views)  # adapters take its features as well as images
        found = [part(views) for part in self.parts]
        return torch.cat([scores for scores, _ in found], 1), torch.stack([belonging for _, belonging in found], 1)


class TaskScores(nn.Module):
    """One task's scores. `net` gives the features `kept` of all those that `head` reads."""

    weight: Tensor
    bias: Tensor
    spans: Tensor | None

    def __init__(self, net: Net, kept: Tensor, head: nn.Module, n_features: int, rotations: int, mirror: bool) -> None:
        super().__init__()
        self.net, self.rotations, self.mirror = net, rotations, mirror
        if isinstance(net, AdapterNet):
            del net.backbone  # it has run before
        bias = head(torch.zeros(1, n_features))
        weight = head(torch.eye(n_features)) - bias  # [features, rotations * classes] of any linear head
        self.register_buffer("weight", weight[kept].unflatten(1, (rotations, -1)).transpose(0, 1).contiguous())
        self.register_buffer("bias", bias.view(rotations, -1).mean(0))
        spans = None
        if isinstance(head, DiscriminantHead):
            spans = head.spans[:, :, kept].view(rotations, -1, head.spans.shape[1], len(kept))
        self.register_buffer("spans", spans)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(views, 0, {}).unflatten(0, (self.rotations, -1))
        scores = torch.matmul(features, self.weight).mean(0) + self.bias
        if self.mirror:
            scores = average_flipped(scores)
        return scores, scores.amax(1) if self.spans is None else nearest_span(features, self.spans)


# --- one network for all tasks ---------------------------------------------------------------------------------------


class FeatureScores(nn.Module):
    """Scores computed from features by `scores`; an image belongs to a task by the largest of its classes' scores, or
    of what `similarity` says about them."""

    def __init__(
        self, backbone: nn.Module, scores: nn.Module, sizes: Sequence[int], similarity: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.scores, self.similarity, self.sizes = backbone, scores, similarity, list(sizes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        scores = self.scores(features)
        return scores, _largest(scores if self.similarity is None else self.similarity(features), self.sizes)


class NearestMeans(nn.Module):
    """Minus the squared distance of unit vectors, multiplied out: ONNX has no distance."""

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means)

    def forward(self, features: Tensor) -> Tensor:
        directions = F.normalize(features)
        lengths = directions.pow(2).sum(1, keepdim=True) + self.means.pow(2).sum(1)
        return 2 * F.linear(directions, self.means) - lengths


class SharedScores(nn.Module):
    """Columns of what `method.scores` gives, computed from its attributes `parts` alone: the rest, stored images above
    all, must not leave the model. `method` has a `backbone` and embeds images with it."""

    columns: Tensor

    def __init__(self, method: nn.Module, parts: Iterable[str], columns: Tensor, sizes: Sequence[int]) -> None:
        super().__init__()
        needed, twin = set(parts), copy.copy(method)
        for kind in ("_modules", "_buffers", "_parameters"):
            object.__setattr__(twin, kind, {n: value for n, value in getattr(method, kind).items() if n in needed})
        object.__setattr__(twin, "embed", twin.backbone)  # a batch of any size at once
        self.method, self.sizes = twin, list(sizes)
        self.register_buffer("columns", columns)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.method.scores(images)[:, self.columns]  # type: ignore[operator]
        return scores, _largest(scores, self.sizes)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], len(weight))
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _largest(scores: Tensor, sizes: list[int]) -> Tensor:
    """The largest score of each task, `[n, tasks]`."""
    return torch.stack([block.amax(1) for block in torch.split(scores, sizes, dim=1)], 1)
