"""Layers that name their gate groups, so that everything about masks is derived and nothing is listed by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from clom.nets.gates import Gates


class GatedConv2d(nn.Conv2d):
    """A convolution between two gate groups, followed by a batch normalisation of each task's own if `norm` is set."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: int,
        *,
        gate_in: str | None,
        gate_out: str,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        norm: bool = False,
        affine: bool = True,
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride=stride, padding=padding, bias=bias)
        self.gate_in, self.gate_out, self.spread = gate_in, gate_out, 1
        self.normalised, self.affine = norm, affine
        self.norms = nn.ModuleList()

    @property
    def n_units(self) -> int:
        return self.out_channels

    def add_task(self) -> None:
        if self.normalised:
            norm = nn.BatchNorm2d(self.out_channels, affine=self.affine)
            self.norms.append(norm.to(self.weight.device))

    def norms_of(self, task: int) -> list[nn.BatchNorm2d]:
        """The task's own normalisation: one layer, or none."""
        norm = self.norms[task] if self.normalised else None
        return [norm] if isinstance(norm, nn.BatchNorm2d) else []

    def forward(self, values: Tensor, task: int) -> Tensor:  # type: ignore[override]
        values = super().forward(values)
        for norm in self.norms_of(task):
            values = norm(values)
        return values


class GatedLinear(nn.Linear):
    """A linear layer between two gate groups; each input gate rules `spread` neighbouring inputs (a flattened map)."""

    def __init__(self, n_in: int, n_out: int, *, gate_in: str | None, gate_out: str, spread: int = 1) -> None:
        super().__init__(n_in, n_out)
        self.gate_in, self.gate_out, self.spread = gate_in, gate_out, spread

    @property
    def n_units(self) -> int:
        return self.out_features

    def norms_of(self, task: int) -> list[nn.BatchNorm2d]:
        return []


GatedLayer = GatedConv2d | GatedLinear


class GatedJoin(nn.Module):
    """An identity shortcut: units of one group are added to the units of the same number of another."""

    def __init__(self, *, gate_in: str, gate_out: str) -> None:
        super().__init__()
        self.gate_in, self.gate_out = gate_in, gate_out

    def forward(self, values: Tensor, task: int) -> Tensor:
        return values


class Net(nn.Module, ABC):
    """A feature extractor `h(x, k)`: shared weights, gates passed in, tasks appended without an end in sight."""

    n_features: int
    feature_group: str
    """The gate group of the features, so that heads and scores know which of them a task never uses."""

    @abstractmethod
    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        """Features `[n, n_features]` of images in [0, 1]."""

    def add_task(self) -> None:
        for layer in self.gated_layers():
            if isinstance(layer, GatedConv2d):
                layer.add_task()

    def gated_layers(self) -> Iterator[GatedLayer]:
        for module in self.modules():
            if isinstance(module, GatedConv2d | GatedLinear):
                yield module

    def gate_sizes(self) -> dict[str, int]:
        """Number of units of every gate group, in the order of the forward pass."""
        return {layer.gate_out: layer.n_units for layer in self.gated_layers()}

    def shared_parameters(self) -> list[nn.Parameter]:
        return [p for layer in self.gated_layers() for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter)]

    def task_parameters(self, task: int) -> list[nn.Parameter]:
        """What only this task uses: its normalisation layers."""
        return [p for layer in self.gated_layers() for norm in layer.norms_of(task) for p in norm.parameters()]
