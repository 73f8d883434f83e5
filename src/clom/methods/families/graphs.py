"""Exportable scoring graphs: the modules that `Method.scoring_graph` of each family returns.

A masked task's graph is its compact sub-network, run on all rotations as one batch. Rotation r reads block r of the
head and the blocks are averaged (Eq. 6), so the graph holds one head matrix per rotation. A frozen pretrained backbone
is shared by all tasks and runs once.

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

# --- one sub-network per task ----------------------------------------------------------------------------------------


class MaskedScores(nn.Module):
    """The concatenated scores of several tasks, each from its own network after the frozen `backbone`, if any."""

    def __init__(self, tasks: Iterable[TaskScores], backbone: nn.Module | None, rotations: int, flip_tta: bool) -> None:
        super().__init__()
        self.tasks, self.backbone = nn.ModuleList(tasks), backbone
        self.rotations, self.flip_tta = rotations, flip_tta

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.flip_tta:
            images = with_flipped(images)
        views = torch.cat([rotate(images, turn) for turn in range(self.rotations)])
        if self.backbone is not None:
            views = self.backbone(views)  # adapters accept features as well as images
        outputs = [task(views) for task in self.tasks]
        return torch.cat([scores for scores, _ in outputs], 1), torch.stack([belonging for _, belonging in outputs], 1)


class TaskScores(nn.Module):
    """One task's scores. `net` computes the features at the indices `kept` of those that `head` reads."""

    weight: Tensor
    bias: Tensor
    spans: Tensor | None

    def __init__(
        self, net: Net, kept: Tensor, head: nn.Module, n_features: int, rotations: int, flip_tta: bool
    ) -> None:
        super().__init__()
        self.net, self.rotations, self.flip_tta = net, rotations, flip_tta
        if isinstance(net, AdapterNet):
            del net.backbone  # `MaskedScores` runs it once for all tasks
        bias = head(torch.zeros(1, n_features))
        weight = head(torch.eye(n_features)) - bias  # [features, rotations * classes], for any linear head
        self.register_buffer("weight", weight[kept].unflatten(1, (rotations, -1)).transpose(0, 1).contiguous())
        self.register_buffer("bias", bias.view(rotations, -1).mean(0))
        spans = None
        if isinstance(head, DiscriminantHead):
            spans = head.spans[:, :, kept].view(rotations, -1, head.spans.shape[1], len(kept))
        self.register_buffer("spans", spans)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(views, 0, {}).unflatten(0, (self.rotations, -1))
        scores = torch.matmul(features, self.weight).mean(0) + self.bias
        if self.flip_tta:
            scores = average_flipped(scores)
        return scores, scores.amax(1) if self.spans is None else nearest_span(features, self.spans)


# --- one network for all tasks ---------------------------------------------------------------------------------------


class FeatureScores(nn.Module):
    """Scores computed from features by `scores`. The in-distribution score of a task is the largest of its classes'
    scores or, if given, of their `similarity`."""

    def __init__(
        self, backbone: nn.Module, scores: nn.Module, sizes: Sequence[int], similarity: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.scores, self.similarity, self.sizes = backbone, scores, similarity, list(sizes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        scores = self.scores(features)
        return scores, _largest(scores if self.similarity is None else self.similarity(features), self.sizes)


class ExpertScores(nn.Module):
    """Scores of one expert, or, with the head of a task predictor, log-probabilities of the classes of all experts."""

    def __init__(
        self,
        backbone: nn.Module,
        heads: tuple[Tensor, Tensor],
        predictor: tuple[Tensor, Tensor] | None,
        scales: Sequence[float],
        spans: Sequence[Tensor],
    ) -> None:
        super().__init__()
        self.backbone, self.heads, self.scales = backbone, linear(*heads), list(scales)
        self.predictor = None if predictor is None else linear(*predictor)
        self.spans = nn.ParameterList(nn.Parameter(own, requires_grad=False) for own in spans)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        belonging = torch.stack([nearest_span(features[None], own[None]) for own in self.spans], 1)
        scores = self.heads(features)
        if self.predictor is None:
            return scores, belonging
        sizes = [len(own) for own in self.spans]
        chances = torch.split(self.predictor(features).log_softmax(1), sizes, dim=1)
        parts = zip(chances, self.scales, torch.split(scores, sizes, dim=1), strict=True)
        joint = [chance.logsumexp(1, keepdim=True) + (scale * block).log_softmax(1) for chance, scale, block in parts]
        return torch.cat(joint, 1), belonging


class Lifted(nn.Module):
    """A backbone followed by a fixed map of its features."""

    def __init__(self, backbone: nn.Module, lift: nn.Module) -> None:
        super().__init__()
        self.backbone, self.lift = backbone, lift

    def forward(self, images: Tensor) -> Tensor:
        lifted: Tensor = self.lift(self.backbone(images))
        return lifted


class NearestMeans(nn.Module):
    """Negative squared distance between unit vectors, multiplied out because ONNX has no distance operator."""

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means)

    def forward(self, features: Tensor) -> Tensor:
        directions = F.normalize(features)
        lengths = directions.pow(2).sum(1, keepdim=True) + self.means.pow(2).sum(1)
        return 2 * F.linear(directions, self.means) - lengths


class SharedScores(nn.Module):
    """Columns of `method.scores`, computed from the attributes `parts` alone: nothing else, stored images least of all,
    may be exported. `method` has a `backbone` that embeds images."""

    columns: Tensor

    def __init__(self, method: nn.Module, parts: Iterable[str], columns: Tensor, sizes: Sequence[int]) -> None:
        super().__init__()
        needed, twin = set(parts), copy.copy(method)
        for kind in ("_modules", "_buffers", "_parameters"):
            object.__setattr__(twin, kind, {n: value for n, value in getattr(method, kind).items() if n in needed})
        object.__setattr__(twin, "embed", twin.backbone)  # one forward pass for any batch size
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
