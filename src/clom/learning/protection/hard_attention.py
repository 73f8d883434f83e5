"""Hard attention to the task (HAT): one gate per unit and task; updates never change the open units of old tasks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, cast

import torch
from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor, nn
from torch.nn import functional as F

from clom.learning.loop import generator
from clom.learning.losses import sparsity
from clom.learning.protection.base import Protection
from clom.nets.compact import compact, open_features, sub_network
from clom.nets.data_parallel import split_over_ranks
from clom.nets.gates import Gates, soft_gate
from clom.nets.growth import evened, narrowed, resize, set_n_features
from clom.nets.layers import GatedLayer, GatedLinear, Net
from clom.settings import NonNegative, Positive, PositiveNumber, Settings


def _read_growth(value: object) -> object:
    if value is True:  # YAML reads on as true, and off as false
        raise ValueError("must be auto, off or a number of units")
    return "off" if value is False else value


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
    growth: Annotated[Literal["auto", "off"] | Positive, BeforeValidator(_read_growth)] = "off"
    """Whether layers get more units before a new task, closed for all old ones. `auto`: until as many are free as the
    most demanding task so far opened anew. A number: that many, in every layer in which fewer are free."""

    @model_serializer(mode="wrap")
    def _without_growth(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without growth, settings are written as before it existed, so that older runs are recognised."""
        values: dict[str, Any] = dump(self)
        return {name: value for name, value in values.items() if (name, value) != ("growth", "off")}


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
        self._scale = 1 / settings.s_max
        self._used: Gates = {}
        self._update_masks: list[UpdateMask] = []

    @property
    def n_tasks(self) -> int:
        return len(self.embeddings)

    def add_task(self) -> None:
        self._current = -1
        self.net.add_task()
        embeddings = _Embeddings(self._gate_sizes(), self.settings.initial_mean, self.settings.initial)
        self.embeddings.append(embeddings.to(self.device))

    def sizes_for_next_task(self) -> dict[str, int]:
        growth, sizes = self.settings.growth, self._gate_sizes()
        if growth == "off" or not self.n_tasks:
            return {}
        history = [self.used(before) for before in range(self.n_tasks + 1)]
        for group, size in sizes.items():
            in_use = [int((used[group] > 0.5).sum()) for used in history]
            free, most_opened = size - in_use[-1], max(after - before for before, after in pairwise(in_use))
            if growth == "auto":
                sizes[group] += max(0, most_opened - free)
            elif free < growth:
                sizes[group] += growth
        return evened(self.net, sizes)

    def grow(self, sizes: Mapping[str, int], seed: int) -> None:
        current = self._gate_sizes()
        if not sizes or sizes == current:
            return
        fits = sizes.keys() == current.keys() and evened(self.net, sizes) == sizes
        if not fits or any(sizes[group] < size for group, size in current.items()):
            raise ValueError(f"gate groups of sizes {current} cannot grow to {dict(sizes)}")
        self._resize(sizes, generator(seed, "growth", *sizes.values()))

    def _resize(self, sizes: Mapping[str, int], randomness: torch.Generator | None = None) -> None:
        for layer in self._layers():
            resize(layer, sizes, randomness)
        set_n_features(self.net, sizes)

    def gates(self, task: int) -> Gates:
        """Units that were appended after the task was learned are closed."""
        gates, sizes = self._gates_as_learned(task), self.net.gate_sizes()
        return {group: F.pad(gate, (0, sizes[group] - len(gate))) for group, gate in gates.items()}

    def _gates_as_learned(self, task: int) -> Gates:
        """The gates of the units that existed when the task was learned."""
        gates = self._all_gates(task)
        return {group: gates[group] for group in self.net.gate_sizes()}

    def _net_as_learned(self, task: int) -> Net:
        """The network with the units that existed when the task was learned."""
        return narrowed(self.net, self._sizes(task))

    def _sizes(self, task: int) -> dict[str, int]:
        return {group: len(embedding) for group, embedding in self.embeddings_of(task).items()}

    def n_features(self, task: int) -> int:
        group = self.net.feature_group
        return self.net.n_features if group is None else self._sizes(task)[group]

    def unit_counts(self) -> dict[str, list[int]]:
        sizes = [self._sizes(task) for task in range(self.n_tasks)]
        return {group: [then[group] for then in sizes] for group in self.net.gate_sizes()}

    def _layers(self) -> list[GatedLayer]:
        """The gated layers that tasks share."""
        return [*self.net.gated_layers(), *([] if self.projection is None else [self.projection])]

    def _gate_sizes(self) -> dict[str, int]:
        projection = self.projection
        return self.net.gate_sizes() | ({} if projection is None else {projection.gate_out: projection.n_units})

    def _all_gates(self, task: int) -> Gates:
        """The task's mask as learned, outside training, including the gates of the projection."""
        embeddings = self.embeddings_of(task)
        if self.settings.binary:
            return {group: (e > 0).to(e.dtype) for group, e in embeddings.items()}
        return {group: torch.sigmoid(self.settings.s_max * e) for group, e in embeddings.items()}

    @torch.no_grad()
    def used(self, before: int) -> Gates:
        """Eq. 14: a unit counts as used as soon as one of the first `before` tasks opened it."""
        total = {group: torch.zeros(size, device=self.device) for group, size in self._gate_sizes().items()}
        for task in range(before):
            for group, gate in self._all_gates(task).items():
                known = total[group][: len(gate)]
                known.copy_(torch.maximum(known, gate))
        return total

    @torch.no_grad()
    def capacity(self) -> dict[str, list[float]]:
        after = [self.used(task + 1) for task in range(self.n_tasks)]
        return {
            group: [round(float(used[group][:count].mean()), 4) for used, count in zip(after, counts, strict=True)]
            for group, counts in self.unit_counts().items()
        }

    @torch.no_grad()
    def training_values(self) -> dict[str, float]:
        """s, and the share of each gate group that the task in training has open."""
        if self._current < 0:
            return {}
        opened = {group: float((e > 0).float().mean()) for group, e in self.embeddings_of(self._current).items()}
        return {"s": self._scale} | {f"gates open/{group}": share for group, share in opened.items()}

    def closed_groups(self, task: int) -> list[str]:
        return [group for group, gate in self.gates(task).items() if not gate.any()]

    def features(self, images: Tensor, task: int) -> Tensor:
        features: Tensor = self._net_as_learned(task)(images, task, self._gates_as_learned(task))
        return features

    def compact(self, task: int) -> tuple[Net, Tensor] | None:
        if not self.settings.binary:
            return None  # soft gates close no unit
        net, gates = self._net_as_learned(task), self._gates_as_learned(task)
        return compact(net, task, gates), open_features(net, gates)

    def training_features(self, images: Tensor, task: int, position: float) -> tuple[Tensor, Tensor]:
        self._scale = annealed_scale(position, self.settings.s_max)
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
        gates = sum(self._sizes(task)[self.projection.gate_out] for task in range(self.n_tasks))
        return super().n_parameters() - training - gates

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
        return sub_network(self._net_as_learned(task), task, self._gates_as_learned(task))

    @torch.no_grad()
    def forget(self, task: int, untouched: Self) -> None:
        del self.embeddings[task]
        self.net.forget_task(task)
        self._resize(untouched._gate_sizes())  # units that only the forgotten task knew
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
