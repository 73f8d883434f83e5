"""Hard attention to the task (HAT): one gate per unit and task; updates never change the open units of old tasks."""

from __future__ import annotations

from typing import Self, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from clom.learning.losses import sparsity
from clom.learning.protection.base import Protection
from clom.nets.compact import compact, open_features, sub_network
from clom.nets.data_parallel import split_over_ranks
from clom.nets.gates import Gates, soft_gate
from clom.nets.layers import GatedLayer, GatedLinear, Net
from clom.settings import NonNegative, PositiveNumber, Settings


class HardAttentionSettings(Settings):
    """HAT's hyper-parameters; defaults as in the paper's appendix."""

    s_max: PositiveNumber = 700.0
    sparsity_first: NonNegative = 0.75
    """lambda_1, the weight of the sparsity term for the first task."""
    sparsity_rest: NonNegative = 0.5
    """lambda_t, the weight for all later tasks."""
    clamp: PositiveNumber = 6.0
    """Embeddings are clamped to +-clamp (authors' code)."""
    initial: NonNegative = 1.0
    """Embeddings start as N(initial_mean, initial^2)."""
    initial_mean: float = Field(default=0.0, allow_inf_nan=False)
    """0 starts with half of all units closed, as in the paper; 1 with a sixth, which narrow networks need."""
    binary: bool = True
    """Outside training, gates are exactly 0 or 1 and old tasks are protected exactly. False: gates `sigmoid(s_max e)`
    and soft protection as in the paper, whose ablation over s measures this."""


class HardAttention(Protection):
    """Hard attention to the task (HAT), Sec. "Protecting OOD Model of Each Task Using Masks"."""

    def __init__(self, net: Net, settings: HardAttentionSettings, projection: GatedLinear | None = None) -> None:
        """`projection` is a layer of the projection g that all tasks share. It has gates and is protected like the
        network's layers, but only training uses it."""
        super().__init__()
        self.net = net
        self.settings = settings
        self.projection = projection
        self.exact = settings.binary
        self.embeddings = nn.ModuleList()  # per task: gate group -> e
        # The task in training, and what `begin` prepares for it.
        self._current = -1
        self._used: Gates = {}
        self._update_masks: list[UpdateMask] = []

    @property
    def n_tasks(self) -> int:
        return len(self.embeddings)

    def add_task(self) -> None:
        self.net.add_task()
        embeddings = _Embeddings(self._gate_sizes(), self.settings.initial_mean, self.settings.initial)
        self.embeddings.append(embeddings.to(self.device))

    def gates(self, task: int) -> Gates:
        gates = self._all_gates(task)
        return {group: gates[group] for group in self.net.gate_sizes()}

    def _layers(self) -> list[GatedLayer]:
        """The gated layers that tasks share."""
        return [*self.net.gated_layers(), *([] if self.projection is None else [self.projection])]

    def _gate_sizes(self) -> dict[str, int]:
        projection = self.projection
        return self.net.gate_sizes() | ({} if projection is None else {projection.gate_out: projection.n_units})

    def _all_gates(self, task: int) -> Gates:
        """The task's mask outside training, including the gates of the projection."""
        embeddings = self.embeddings_of(task)
        if self.settings.binary:
            return {group: (e > 0).to(e.dtype) for group, e in embeddings.items()}
        return {group: torch.sigmoid(self.settings.s_max * e) for group, e in embeddings.items()}

    @torch.no_grad()
    def used(self, before: int) -> Gates:
        """Eq. 14: a unit counts as used as soon as one of the first `before` tasks opened it."""
        total = {group: torch.zeros(size, device=self.device) for group, size in self._gate_sizes().items()}
        for task in range(before):
            total = {group: torch.maximum(total[group], a) for group, a in self._all_gates(task).items()}
        return total

    @torch.no_grad()
    def capacity(self) -> dict[str, list[float]]:
        after = [self.used(task + 1) for task in range(self.n_tasks)]
        return {group: [round(float(used[group].mean()), 4) for used in after] for group in self.net.gate_sizes()}

    def closed_groups(self, task: int) -> list[str]:
        return [group for group, gate in self.gates(task).items() if not gate.any()]

    def features(self, images: Tensor, task: int) -> Tensor:
        features: Tensor = self.net(images, task, self.gates(task))
        return features

    def compact(self, task: int) -> tuple[Net, Tensor] | None:
        if not self.settings.binary:
            return None  # soft gates close no unit
        gates = self.gates(task)
        return compact(self.net, task, gates), open_features(self.net, gates)

    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        gates = {group: self._soft_gate(e, position) for group, e in self.embeddings_of(task).items()}
        strength = self.settings.sparsity_first if task == 0 else self.settings.sparsity_rest
        penalty = strength * sparsity(list(gates.values()), [self._used[group] for group in gates])
        return split_over_ranks(lambda part: cast(Tensor, self.net(part, task, gates)), images), penalty

    def projected(self, features: Tensor, task: int, position: float) -> Tensor:
        if self.projection is None:
            return super().projected(features, task, position)
        group = self.projection.gate_out
        gates = {group: self._soft_gate(self.embeddings_of(task)[group], position)}
        return F.relu(self.projection(features, gates))

    def _soft_gate(self, embedding: Tensor, position: float) -> Tensor:
        s_max = self.settings.s_max
        return soft_gate(embedding, annealed_scale(position, s_max), s_max)

    def n_parameters(self) -> int:
        if self.projection is None:
            return super().n_parameters()
        training = sum(parameter.numel() for parameter in self.projection.parameters())
        return super().n_parameters() - training - self.n_tasks * self.projection.n_units

    def weights(self, task: int) -> list[nn.Parameter]:
        projection = [] if self.projection is None else list(self.projection.parameters())
        return self.net.shared_parameters() + self.net.task_parameters(task) + projection

    def mask_parameters(self, task: int) -> list[nn.Parameter]:
        return list(self.embeddings_of(task).values())

    def begin(self, task: int) -> None:
        self._current = task
        self._used = used = self.used(task)
        self._update_masks = []
        for layer in self._layers():
            weight_protection, bias_protection = _protection(layer, used)
            self._update_masks.append(UpdateMask(layer.weight, weight_protection))
            if layer.bias is not None:
                self._update_masks.append(UpdateMask(layer.bias, bias_protection))

    def sub_network(self, task: int) -> dict[str, Tensor]:
        return sub_network(self.net, task, self.gates(task))

    @torch.no_grad()
    def forget(self, task: int, untouched: Self) -> None:
        del self.embeddings[task]
        self.net.forget_task(task)
        used = self.used(self.n_tasks)
        for layer, fresh in zip(self._layers(), untouched._layers(), strict=True):
            weight_protection, bias_protection = _protection(layer, used)
            layer.weight.copy_(torch.where(weight_protection > 0, layer.weight, fresh.weight.to(layer.weight.device)))
            if layer.bias is not None and fresh.bias is not None:
                layer.bias.copy_(torch.where(bias_protection > 0, layer.bias, fresh.bias.to(layer.bias.device)))

    def before_step(self) -> None:
        for update_mask in self._update_masks:
            update_mask.save()

    @torch.no_grad()
    def after_step(self) -> None:
        for update_mask in self._update_masks:
            update_mask.restore()
        for embedding in self.mask_parameters(self._current):
            embedding.clamp_(-self.settings.clamp, self.settings.clamp)

    def embeddings_of(self, task: int) -> dict[str, nn.Parameter]:
        """Gate group -> the task's embedding e."""
        embeddings = self.embeddings[task]
        assert isinstance(embeddings, _Embeddings)
        return embeddings.by_group()


def _protection(layer: GatedLayer, used: Gates) -> tuple[Tensor, Tensor]:
    """How strongly old tasks protect each entry of a layer's weight and bias: 1 fully, 0 not at all."""
    # Inputs and outputs without gates are used by every task.
    post = layer.weight.new_ones(1) if layer.gate_out is None else used[layer.gate_out]
    pre = layer.weight.new_ones(1) if layer.gate_in is None else used[layer.gate_in].repeat_interleave(layer.spread)
    # Eq. 15: 1 - min(a_i, a_j), the same for every cell of a kernel.
    both = torch.minimum(post[:, None], pre[None, :])
    return both.view(*both.shape, *[1] * (layer.weight.ndim - 2)), post


def annealed_scale(position: float, s_max: float) -> float:
    """s rises from 1/s_max to s_max over a sweep: at first every unit learns, at the end gates are almost binary."""
    return 1 / s_max + (s_max - 1 / s_max) * position


class _Embeddings(nn.Module):
    """The learnable e of one task: one vector per gate group, in network order."""

    def __init__(self, sizes: dict[str, int], mean: float, spread: float) -> None:
        super().__init__()
        self._groups = list(sizes)
        self.values = nn.ParameterList(nn.Parameter(mean + spread * torch.randn(size)) for size in sizes.values())

    def by_group(self) -> dict[str, nn.Parameter]:
        return dict(zip(self._groups, self.values, strict=True))


class UpdateMask:
    """Masks the applied update of one parameter where it is protected. Masking the update instead of the gradient makes
    momentum, weight decay and any other optimiser state harmless."""

    def __init__(self, parameter: Tensor, protection: Tensor) -> None:
        """`protection` in [0, 1], broadcastable to the parameter: 1 allows no update, 0 the whole update."""
        self.parameter, self.protection = parameter, protection
        self.exact = bool(((protection == 0) | (protection == 1)).all())
        self.needed = bool((protection > 0).any())
        # With binary gates, protected weights are constant for the whole task: saved once, restored after each step.
        self.saved = parameter.detach().clone() if self.needed else None
        self.mask = protection > 0

    def save(self) -> None:
        """Called before the optimiser's step."""
        if self.needed and not self.exact and self.saved is not None:
            self.saved.copy_(self.parameter.detach())

    def restore(self) -> None:
        """Called after the optimiser's step."""
        if self.saved is None:
            return
        if self.exact:
            torch.where(self.mask, self.saved, self.parameter.data, out=self.parameter.data)
        else:
            self.parameter.data.copy_(self.saved + (1 - self.protection) * (self.parameter.data - self.saved))
