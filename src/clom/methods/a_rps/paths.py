"""A network of parallel modules, of which a path selects one per level (RPS-Net, Rajasegaran et al. 2019).

A module is created when a path first selects it, and every image passes through all modules created so far: the union
of all paths. The paths are saved with the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.passes import CountedNetwork
from clom.settings import Positive, PositiveNumber, Settings


class PathSettings(Settings):
    """The levels; by default the authors' network for CIFAR-100. Use fewer and narrower ones for small images."""

    widths: tuple[Positive, ...] = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    """Channels of each level: L = 9."""
    pools: tuple[Positive, ...] = (5, 7)
    """The levels, counted from 1, that are followed by 2x2 max-pooling."""
    modules: Positive = 8
    """M: maximum number of modules per level."""
    mean: tuple[float, float, float] = (0.4914, 0.4822, 0.4465)
    deviation: tuple[PositiveNumber, PositiveNumber, PositiveNumber] = (0.2023, 0.1994, 0.2010)
    """Mean and standard deviation of the pixels: those of CIFAR-10 for any data, as in the authors' code."""

    @model_validator(mode="after")
    def _pools_follow_levels(self) -> Self:
        if not self.widths:
            raise ValueError("a network needs at least one level")
        if any(level > len(self.widths) for level in self.pools):
            raise ValueError(f"pools {self.pools} name levels above {len(self.widths)}, the number of widths")
        return self


class PathNet(CountedNetwork):
    """Features of images in [0, 1]: levels of `relu(skip(x) + sum of the modules)`, then global average pooling."""

    paths: Tensor
    """`[paths, levels]`: the module that each path selects at each level, the current path last."""
    mean: Tensor
    deviation: Tensor

    def __init__(self, settings: PathSettings, image_size: int) -> None:
        super().__init__()
        if image_size < 2 ** len(settings.pools):
            raise UserError(
                f"Images of {image_size} pixels cannot be halved {len(settings.pools)} times: shorten paths.pools."
            )
        self.settings = settings
        self.n_features = settings.widths[-1]
        inputs = (3, *settings.widths[:-1])
        self.levels = nn.ModuleList(
            Level(n_in, n_out, first=number == 0)
            for number, (n_in, n_out) in enumerate(zip(inputs, settings.widths, strict=True))
        )
        for name, values in (("mean", settings.mean), ("deviation", settings.deviation)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("paths", torch.empty(0, len(settings.widths), dtype=torch.int64))
        self.begin(torch.zeros(len(settings.widths), dtype=torch.int64))  # the first path: module 0 of every level

    def forward(self, images: Tensor) -> Tensor:
        values = (images - self.mean) / self.deviation
        for number, level in enumerate(self.levels, start=1):
            values = level(values)
            if number in self.settings.pools:
                values = F.max_pool2d(values, 2)
        return values.mean((2, 3))  # the authors' 8 x 8 window is the whole map of 32-pixel images

    def begin(self, path: Tensor) -> None:
        """Start a new path: create missing modules; those of earlier paths count as frozen from now on."""
        self.paths = torch.cat([self.paths, path[None].to(self.paths.device)])
        for level, module in zip(self._levels(), path.tolist(), strict=True):
            level.build(module)

    def fixed(self) -> Tensor:
        """`[levels, M]`: the union of all paths before the current one."""
        return union(self.paths[:-1], self.settings.modules)

    def path(self) -> Tensor:
        """`[levels, M]`: the current path."""
        return union(self.paths[-1:], self.settings.modules)

    def modules_in(self, mask: Tensor) -> list[nn.Module]:
        """The modules marked by a mask `[levels, M]`; all of them must exist."""
        levels = list(self._levels())
        return [levels[level].module(module) for level, module in mask.nonzero().tolist()]

    def freeze(self) -> None:
        """Let only the new modules of the current path and the skips, which all paths share, be trained."""
        self.requires_grad_(True)
        for module in self.modules_in(self.fixed()):
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Frozen modules stay in evaluation mode: otherwise their running statistics would drift."""
        super().train(mode)
        for module in self.modules_in(self.fixed()):
            module.eval()
        return self

    def _levels(self) -> Iterator[Level]:
        for level in self.levels:
            assert isinstance(level, Level)
            yield level

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: object) -> None:
        # The stored paths determine which modules exist. They are created in the original order.
        paths = state.get(prefix + "paths")
        if paths is not None:
            self._check(paths)
            if not torch.equal(paths.cpu(), self.paths.cpu()):  # an optimiser may hold the existing parameters
                self._rebuild(paths)
        super()._load_from_state_dict(state, prefix, *args)

    def _rebuild(self, paths: Tensor) -> None:
        for level in self._levels():
            level.clear()
        self.paths = paths.new_empty(0, len(self.levels))
        for path in paths:
            self.begin(path)

    def _check(self, paths: Tensor) -> None:
        fits = paths.dtype == torch.int64 and paths.ndim == 2 and paths.shape[1] == len(self.levels) and len(paths) > 0
        if not fits or int(paths.min()) < 0 or int(paths.max()) >= self.settings.modules:
            raise ValueError(f"stored paths do not fit {len(self.levels)} levels of {self.settings.modules} modules")


class Level(nn.Module):
    """Parallel modules and a skip: the identity if shapes match, otherwise a convolution; the first level has none."""

    def __init__(self, n_in: int, n_out: int, first: bool) -> None:
        super().__init__()
        self.n_in, self.n_out, self.first = n_in, n_out, first
        self.skip: nn.Module | None = None
        if not first:
            self.skip = nn.Identity() if n_in == n_out else nn.Sequential(*_convolution(n_in, n_out), nn.ReLU())
        self.parallel = nn.ModuleDict()

    def forward(self, values: Tensor) -> Tensor:
        outputs: list[Tensor] = [module(values) for module in self.parallel.values()]
        if self.skip is not None:
            outputs.append(self.skip(values))
        return F.relu(sum(outputs[1:], outputs[0]))

    def build(self, number: int) -> None:
        """Create module `number` unless it exists."""
        if str(number) in self.parallel:
            return
        layers = [*_convolution(self.n_in, self.n_out), nn.ReLU()]
        if not self.first:
            layers += _convolution(self.n_out, self.n_out)
        self.parallel[str(number)] = nn.Sequential(*layers)

    def module(self, number: int) -> nn.Module:
        return self.parallel[str(number)]

    def clear(self) -> None:
        self.parallel = nn.ModuleDict()


def _convolution(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out)]


def union(paths: Tensor, modules: int) -> Tensor:
    """From module numbers `[paths, levels]` to a mask `[levels, modules]` of the modules on any path."""
    return F.one_hot(paths, modules).bool().any(0)


def draw_path(fixed: Tensor, randomness: torch.Generator, prefer_free: bool = False) -> Tensor:
    """A uniformly drawn module per level; with `prefer_free`, one that was not used before if there is any."""
    fixed = fixed.cpu()  # the generator's device
    allowed = torch.ones_like(fixed)
    if prefer_free:
        allowed = ~fixed | fixed.all(1, keepdim=True)
    return torch.multinomial(allowed.float(), 1, generator=randomness).flatten()
