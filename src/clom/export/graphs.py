"""A model as one graph of plain operations: bytes in, calibrated scores out, nothing of this package inside.

A task's graph is its compact sub-network, asked for all rotations as one batch. Rotation r reads block r of the head
and the blocks are averaged (Eq. 6), so what the graph keeps of a head is one matrix for each rotation. A frozen
pretrained network is the same for all tasks and is asked once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.views import rotate, with_mirrored, without_mirrored
from clom.errors import UserError
from clom.learning.heads import DiscriminantHead, nearest_span
from clom.learning.protection.base import Protection
from clom.learning.protection.hard_attention import HardAttention
from clom.learning.protection.supermask import Supermask
from clom.methods.clom_odin import ClomOdin
from clom.methods.families.base import Method
from clom.methods.families.masked import MaskedMethod
from clom.methods.families.shared import SharedNetwork
from clom.methods.icarl import Icarl
from clom.methods.ncm import Ncm
from clom.methods.registry import METHODS, method_class
from clom.methods.slda import Slda
from clom.nets.compact import compact, open_features
from clom.nets.layers import Net
from clom.nets.networks.adapters import AdapterNet

_NEEDED_TO_ANSWER = {"backbone", "head", "side"}
"""What a method with one shared network answers from. The rest, stored images above all, must not leave the model."""


class Graph(nn.Module):
    """uint8 images `[n, channels, height, width]` to `scores [n, classes]` and `belonging [n]`: how much an image looks
    like those of the task of its best class, not calibrated."""

    scales: Tensor
    shifts: Tensor
    cross: Tensor | None
    task_of: Tensor

    def __init__(self, raw: nn.Module, scales: Tensor, shifts: Tensor, cross: Tensor | None, task_of: Tensor) -> None:
        super().__init__()
        self.raw = raw
        self.register_buffer("scales", scales)
        self.register_buffer("shifts", shifts)
        self.register_buffer("cross", cross)  # [classes, classes]: what each score adds to each
        self.register_buffer("task_of", task_of)  # the place of each class's task

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        raw, belonging = self.raw(to_unit(images))
        scores = raw * self.scales + self.shifts
        if self.cross is not None:
            scores = scores + torch.matmul(raw, self.cross)
        return scores, belonging.gather(1, self.task_of[scores.argmax(1)][:, None])[:, 0]


@torch.no_grad()
def make_graph(method: Method, tasks: Sequence[int]) -> Graph:
    """The graph of one task, or of all side by side in their order; refused for methods that have none."""
    affine = next(iter(method.calibrations().values()))
    sizes = torch.tensor([method.tasks[task].n_classes for task in tasks])
    scales, shifts = (values[list(tasks)].repeat_interleave(sizes).clone() for values in (affine.scales, affine.shifts))
    task_of = torch.arange(len(tasks)).repeat_interleave(sizes)
    cross = None
    if affine.cross is not None and len(tasks) == len(method.tasks):  # for a task alone it changes nothing
        cross = affine.cross.detach()[task_of].T.contiguous()
    return Graph(_raw_scores(method, tasks, sizes.tolist()), scales.detach(), shifts.detach(), cross, task_of).eval()


def _raw_scores(method: Method, tasks: Sequence[int], sizes: list[int]) -> nn.Module:
    """Images in [0, 1] to what is not calibrated yet: `[n, classes]`, and `[n, tasks]` of how much each belongs."""
    if not _has_graph(type(method)):
        able = [name for name in METHODS if _has_graph(method_class(name))]
        raise UserError(f"{method.name} cannot be exported: {_reason(method)} These can: {', '.join(able)}.")
    if isinstance(method, MaskedMethod):
        return _MaskedScores(method, tasks)
    columns = _columns(method, tasks)
    if isinstance(method, Ncm | Icarl):
        means = F.normalize(method.means[columns]) if isinstance(method, Ncm) else method.means[columns]
        return _ByFeatures(method.backbone, _NearestMeans(means), None, sizes)
    if isinstance(method, Slda):
        means = F.normalize(method.means[columns]).float()
        discriminants = _linear(method.weight[columns], method.bias[columns])
        return _ByFeatures(method.backbone, discriminants, _NearestMeans(means), sizes)
    assert isinstance(method, SharedNetwork)
    return _SharedScores(method, columns, sizes)


def _has_graph(kind: type[Method]) -> bool:
    return issubclass(kind, MaskedMethod | Ncm | Slda | SharedNetwork) and not issubclass(kind, ClomOdin)


def _reason(method: Method) -> str:
    if isinstance(method, ClomOdin):
        return "it needs the gradient of the image for every answer."
    return "its network depends on the image or is generated for each task."


def _columns(method: Method, tasks: Sequence[int]) -> Tensor:
    """Where the classes of these tasks are among the classes of all tasks."""
    starts = torch.tensor([0] + [task.n_classes for task in method.tasks]).cumsum(0)
    return torch.cat([torch.arange(int(starts[task]), int(starts[task + 1])) for task in tasks])


# --- a mask per task -------------------------------------------------------------------------------------------------


class _MaskedScores(nn.Module):
    """One task's scores after the other's."""

    def __init__(self, method: MaskedMethod, tasks: Sequence[int]) -> None:
        super().__init__()
        self.rotations, self.mirror = method.learner.rotations, method.settings.mirror
        self.parts = nn.ModuleList(_TaskScores(method, task) for task in tasks)
        net = method.protection.net
        self.backbone = net.backbone if isinstance(net, AdapterNet) else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.mirror:
            images = with_mirrored(images)
        turned = torch.cat([rotate(images, turn) for turn in range(self.rotations)])
        if self.backbone is not None:
            turned = self.backbone(turned)  # adapters take its features as well as images
        found = [part(turned) for part in self.parts]
        return torch.cat([scores for scores, _ in found], 1), torch.stack([belonging for _, belonging in found], 1)


class _TaskScores(nn.Module):
    weight: Tensor
    bias: Tensor
    spans: Tensor | None

    def __init__(self, method: MaskedMethod, task: int) -> None:
        super().__init__()
        self.net, kept = _compact_network(method.protection, task)
        if isinstance(self.net, AdapterNet):
            del self.net.backbone
        head, n_features = method.heads[task], method.protection.net.n_features
        bias = head(torch.zeros(1, n_features))
        weight = head(torch.eye(n_features)) - bias  # [features, rotations * classes] of any linear head
        self.rotations, self.mirror = method.learner.rotations, method.settings.mirror
        self.register_buffer("weight", weight[kept].unflatten(1, (self.rotations, -1)).transpose(0, 1).contiguous())
        self.register_buffer("bias", bias.view(self.rotations, -1).mean(0))
        spans = None
        if isinstance(head, DiscriminantHead):
            spans = head.spans[:, :, kept].view(self.rotations, -1, head.spans.shape[1], len(kept))
        self.register_buffer("spans", spans)

    def forward(self, turned: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(turned, 0, {}).unflatten(0, (self.rotations, -1))
        scores = torch.matmul(features, self.weight).mean(0) + self.bias
        if self.mirror:
            scores = without_mirrored(scores)
        return scores, scores.amax(1) if self.spans is None else nearest_span(features, self.spans)


def _compact_network(protection: Protection, task: int) -> tuple[Net, Tensor]:
    """The task's dense network, and which of all features it gives."""
    net = protection.net
    if isinstance(protection, HardAttention) and protection.settings.binary:
        gates = protection.gates(task)
        return compact(net, task, gates), open_features(net, gates)
    if isinstance(protection, Supermask):
        masked = copy.deepcopy(net)
        for name, mask in protection.masks(task).items():
            masked.get_parameter(name).mul_(mask)
        return compact(masked, task, {group: torch.ones(n) for group, n in net.gate_sizes().items()}), torch.arange(
            net.n_features
        )
    raise UserError("A model with soft gates (attention.binary: false) cannot be exported: no unit is ever closed.")


# --- one network for all tasks ---------------------------------------------------------------------------------------


class _ByFeatures(nn.Module):
    """Scores read from features; an image is a task's own if its `similarity`, or else a score, is high."""

    def __init__(self, backbone: nn.Module, scores: nn.Module, similarity: nn.Module | None, sizes: list[int]) -> None:
        super().__init__()
        self.backbone, self.scores, self.similarity, self.sizes = backbone, scores, similarity, sizes

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        scores = self.scores(features)
        return scores, _strongest(scores if self.similarity is None else self.similarity(features), self.sizes)


class _NearestMeans(nn.Module):
    """Minus the squared distance of unit vectors, multiplied out: ONNX has no distance."""

    means: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", means)

    def forward(self, features: Tensor) -> Tensor:
        directions = F.normalize(features)
        lengths = directions.pow(2).sum(1, keepdim=True) + self.means.pow(2).sum(1)
        return 2 * F.linear(directions, self.means) - lengths


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], len(weight))
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _strongest(scores: Tensor, sizes: list[int]) -> Tensor:
    """The largest score of each task, `[n, tasks]`."""
    return torch.stack([block.amax(1) for block in torch.split(scores, sizes, dim=1)], 1)


class _SharedScores(nn.Module):
    columns: Tensor

    def __init__(self, method: SharedNetwork, columns: Tensor, sizes: list[int]) -> None:
        super().__init__()
        self.method, self.sizes = _without_portions(method), sizes
        self.register_buffer("columns", columns)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.method.scores(images)[:, self.columns]
        return scores, _strongest(scores, self.sizes)


def _without_portions(method: SharedNetwork) -> SharedNetwork:
    """A view of the method that embeds a batch of any size in one go, and has only what answers need."""
    twin = copy.copy(method)
    for kind in ("_modules", "_buffers", "_parameters"):
        kept = {name: value for name, value in getattr(method, kind).items() if name in _NEEDED_TO_ANSWER}
        object.__setattr__(twin, kind, kept)
    object.__setattr__(twin, "embed", twin.backbone)
    return twin
