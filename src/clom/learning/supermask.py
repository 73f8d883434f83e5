"""Supermask: weights are random and stay so; a task learns which of them to use (SupSup, Wortsman et al. 2020)."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from clom.learning.protection import Protection
from clom.nets.layers import Net
from clom.settings import Settings


class SupermaskSettings(Settings):
    sparsity: float = 32.0
    """rho of the Erdos-Renyi rule: density `min(0.5, rho (out + in) / weights)`; larger is denser."""


def density(shape: torch.Size, rho: float) -> float:
    """The fraction of a layer's weights that a mask keeps."""
    n_out, n_in = shape[0], shape[1]
    return min(0.5, rho * (n_out + n_in) / math.prod(shape))


def n_kept(shape: torch.Size, rho: float) -> int:
    """How many weights that is. Rounded, not `n - int((1 - k) n)`, which floating point makes one too many at times."""
    return max(1, round(density(shape, rho) * math.prod(shape)))


class _TopAbsolute(torch.autograd.Function):
    """A 0/1 mask of the `keep` largest |S|; backward, the gradient passes straight through with the sign of S.

    It also reaches weights that are masked out now: that is how they come back.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, keep: int) -> Tensor:
        ctx.save_for_backward(scores)
        flat = scores.abs().flatten()
        mask = torch.zeros_like(flat)
        mask[flat.topk(keep, sorted=False).indices] = 1.0
        return mask.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (scores,) = ctx.saved_tensors
        return grad_outputs[0] * scores.sign(), None


def top_mask(scores: Tensor, keep: int) -> Tensor:
    return cast(Tensor, _TopAbsolute.apply(scores, keep))  # type: ignore[no-untyped-call]


def signed_constant(shape: tuple[int, ...]) -> Tensor:
    """Random signs times sqrt(2 / fan-in): the weights that are never trained."""
    return torch.sign(torch.randn(shape)) * math.sqrt(2 / math.prod(shape[1:]))


class MaskedHead(nn.Module):
    """A frozen random linear layer without bias, of which a task learns a mask."""

    def __init__(self, weight: Tensor, rho: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scores = _new_scores(weight)
        self.keep = n_kept(weight.shape, rho)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight * top_mask(self.scores, self.keep))


class Supermask(Protection):
    """One mask of scores per task over the shared random weights; masks never touch each other."""

    def __init__(self, net: Net, settings: SupermaskSettings) -> None:
        super().__init__()
        self.net = net
        self.settings = settings
        self._names = {name: p for name, p in net.named_parameters() if any(p is q for q in net.shared_parameters())}
        with torch.no_grad():
            for parameter in self._names.values():
                parameter.copy_(signed_constant(tuple(parameter.shape)))
                parameter.requires_grad_(False)
        self.head_signs = nn.Parameter(torch.sign(torch.randn(_HEAD_ROWS, net.n_features)), requires_grad=False)
        self.scores = nn.ModuleList()

    @property
    def n_tasks(self) -> int:
        return len(self.scores)

    def add_task(self) -> None:
        self.net.add_task()
        self.scores.append(nn.ParameterList(_new_scores(weight) for weight in self._names.values()))

    def make_head(self, task: int, n_outputs: int) -> nn.Module:
        """All tasks mask the same random rows."""
        constant = math.sqrt(2 / self.net.n_features)
        return MaskedHead(self.head_signs[:n_outputs] * constant, self.settings.sparsity)

    def masks(self, task: int) -> dict[str, Tensor]:
        scores = cast(nn.ParameterList, self.scores[task])
        rho = self.settings.sparsity
        return {
            name: top_mask(score, n_kept(weight.shape, rho))
            for (name, weight), score in zip(self._names.items(), scores, strict=True)
        }

    def features(self, images: Tensor, task: int) -> Tensor:
        masked = {name: self._names[name] * mask for name, mask in self.masks(task).items()}
        features: Tensor = functional_call(self.net, masked, (images, task, {}))
        return features

    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        """No annealing and no penalty: the density of a mask is fixed."""
        return self.features(images, task), images.new_zeros(())

    def weights(self, task: int) -> list[nn.Parameter]:
        return self.net.task_parameters(task)

    def mask_parameters(self, task: int) -> list[nn.Parameter]:
        return list(cast(nn.ParameterList, self.scores[task]))


_HEAD_ROWS = 1024


def _new_scores(weight: Tensor) -> nn.Parameter:
    scores = torch.empty_like(weight, memory_format=torch.contiguous_format)
    nn.init.kaiming_uniform_(scores, a=math.sqrt(5))
    return nn.Parameter(scores)
