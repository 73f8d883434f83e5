"""Supermask: weights stay random; each task learns which of them to use (SupSup, Wortsman et al. 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from clom.learning.protection.base import Protection
from clom.nets.compact import compact, sub_network
from clom.nets.data_parallel import split_over_ranks
from clom.nets.gates import Gates
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
    """The number of weights that a mask keeps. Rounded, since `n - int((1 - k) n)` can be one too many in floats."""
    return max(1, round(density(shape, rho) * math.prod(shape)))


class _TopAbsolute(torch.autograd.Function):
    """A 0/1 mask of the `keep` largest |S|, with a straight-through gradient times the sign of S.

    The gradient also reaches weights that are masked out, so they can return.
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
    """Random signs times sqrt(2 / fan-in): the untrained weights."""
    return torch.sign(torch.randn(shape)) * math.sqrt(2 / math.prod(shape[1:]))


class LearnedMask(nn.Module):
    """A task's mask over one frozen tensor: scores during training, one bit per entry afterwards."""

    bits: Tensor

    def __init__(self, weight: Tensor, rho: float) -> None:
        super().__init__()
        self.shape, self.keep = weight.shape, n_kept(weight.shape, rho)
        scores = torch.empty(weight.shape)  # drawn on the CPU, so that all devices start from the same scores
        nn.init.kaiming_uniform_(scores, a=math.sqrt(5))
        self.scores: nn.Parameter | None = nn.Parameter(scores.to(weight.device))
        n_bytes = math.ceil(weight.numel() / 8)
        self.register_buffer("bits", torch.zeros(n_bytes, dtype=torch.uint8, device=weight.device))

    def forward(self) -> Tensor:
        """The 0/1 mask, in the shape of the weights."""
        if self.scores is not None:
            return top_mask(self.scores, self.keep)
        flags = self.bits[:, None].bitwise_right_shift(self._bit_positions()).bitwise_and(1)
        return flags.flatten()[: self.shape.numel()].view(self.shape).float()

    def _bit_positions(self) -> Tensor:
        return torch.arange(8, dtype=torch.uint8, device=self.bits.device)

    @torch.no_grad()
    def finish(self) -> None:
        """Fix the mask and replace its scores by bits, which take 1/32 of the space."""
        flags = self().flatten().to(torch.uint8)
        padded = F.pad(flags, (0, 8 * len(self.bits) - len(flags))).view(-1, 8)
        self.bits.copy_(padded.bitwise_left_shift(self._bit_positions()).sum(1))
        self.scores = None

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: object) -> None:
        if prefix + "scores" not in state:
            self.scores = None  # a finished mask was saved
        super()._load_from_state_dict(state, prefix, *args)


class MaskedHead(nn.Module):
    """A frozen random linear layer without bias, whose mask is learned per task."""

    def __init__(self, weight: Tensor, rho: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.mask = LearnedMask(weight, rho)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight * self.mask())


class Supermask(Protection):
    """One mask per task over the shared random weights; masks are independent of each other."""

    def __init__(self, net: Net, settings: SupermaskSettings) -> None:
        super().__init__()
        self.net = net
        self.settings = settings
        self._names = [name for name, p in net.named_parameters() if any(p is q for q in net.shared_parameters())]
        with torch.no_grad():
            for parameter in self._weights().values():
                parameter.copy_(signed_constant(tuple(parameter.shape)))
                parameter.requires_grad_(False)
        self.head_signs = nn.Parameter(torch.sign(torch.randn(_HEAD_ROWS, net.n_features)), requires_grad=False)
        self.tasks = nn.ModuleList()  # per task: one mask for each weight tensor of the network

    @property
    def n_tasks(self) -> int:
        return len(self.tasks)

    def add_task(self) -> None:
        self.net.add_task()
        rho = self.settings.sparsity
        self.tasks.append(nn.ModuleList(LearnedMask(weight, rho) for weight in self._weights().values()))

    def make_head(self, task: int, n_outputs: int) -> nn.Module:
        """A mask over random rows that all tasks share."""
        constant = math.sqrt(2 / self.net.n_features)
        return MaskedHead(self.head_signs[:n_outputs] * constant, self.settings.sparsity)

    def finish(self, task: int, head: nn.Module) -> None:
        for module in (*self.tasks[task].modules(), *head.modules()):
            if isinstance(module, LearnedMask):
                module.finish()

    def sub_network(self, task: int) -> dict[str, Tensor]:
        masks = {f"mask {name}": mask for name, mask in self.masks(task).items()}
        return sub_network(self.net, task, self._all_open()) | masks

    def forget(self, task: int, untouched: Self) -> None:
        """Remove the task; the weights are untrained anyway."""
        del self.tasks[task]
        self.net.forget_task(task)

    def masks(self, task: int) -> dict[str, Tensor]:
        return {name: mask() for name, mask in zip(self._names, self._masks(task), strict=True)}

    def features(self, images: Tensor, task: int) -> Tensor:
        features: Tensor = functional_call(self.net, self._masked_weights(task), (images, task, {}))
        return features

    @torch.no_grad()
    def compact(self, task: int) -> tuple[Net, Tensor]:
        """The network with the mask applied once and batch norm folded in."""
        net = copy.deepcopy(self.net)
        for name, weight in self._masked_weights(task).items():
            net.get_parameter(name).copy_(weight)
        dense = compact(net, task, self._all_open())
        return dense, torch.arange(net.n_features, device=self.device)

    def _all_open(self) -> Gates:
        return {group: torch.ones(size, device=self.device) for group, size in self.net.gate_sizes().items()}

    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        """No annealing and no penalty: the density of a mask is fixed."""
        weights = self._masked_weights(task)
        features = split_over_ranks(
            lambda part: cast(Tensor, functional_call(self.net, weights, (part, task, {}))), images
        )
        return features, images.new_zeros(())

    def weights(self, task: int) -> list[nn.Parameter]:
        return self.net.task_parameters(task)

    def mask_parameters(self, task: int) -> list[nn.Parameter]:
        return [mask.scores for mask in self._masks(task) if mask.scores is not None]

    def _masked_weights(self, task: int) -> dict[str, Tensor]:
        return {
            name: weight * mask()
            for (name, weight), mask in zip(self._weights().items(), self._masks(task), strict=True)
        }

    def _weights(self) -> dict[str, nn.Parameter]:
        return {name: self.net.get_parameter(name) for name in self._names}

    def _masks(self, task: int) -> list[LearnedMask]:
        return list(cast(Iterable[LearnedMask], self.tasks[task]))


_HEAD_ROWS = 1024
