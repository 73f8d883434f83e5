"""Optimisers and their settings: those of torch, and LARS, with which the paper trains the features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from clom.errors import UserError
from clom.settings import Fraction, NonNegative, PositiveNumber, Settings


class OptimiserSettings(Settings):
    """Optimiser of one group of parameters; the default is plain Adam."""

    kind: Literal["sgd", "adam", "adamw", "lars"] = "adam"
    lr: PositiveNumber = 2e-3
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    trust: PositiveNumber = 1e-3
    """LARS: trust coefficient, the relative length of a step at lr 1."""
    clip: bool = False
    """LARS: the authors' LARC in clip mode, effective rate `min(trust |w|/|g|, lr)`, instead of `lr trust |w|/|g|`."""


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017): each tensor's step is proportional to its norm."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        clip: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "clip": clip}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return None

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        step = parameter.grad.add(parameter, alpha=group["weight_decay"])
        weight_norm, grad_norm = parameter.norm(), parameter.grad.norm()
        local = group["trust"] * weight_norm / (grad_norm + group["weight_decay"] * weight_norm)
        scale = torch.clamp(local / group["lr"], max=1.0) if group["clip"] else local
        # A mask instead of a condition, which would synchronise with the device.
        step = step * torch.where((weight_norm > 0) & (grad_norm > 0), scale, 1.0)
        state = self.state[parameter]
        if "velocity" in state:
            step = state["velocity"].mul_(group["momentum"]).add_(step)
        elif group["momentum"]:
            state["velocity"] = step.clone()
        parameter.add_(step, alpha=-group["lr"])


def make_optimiser(
    groups: Sequence[tuple[OptimiserSettings, Sequence[nn.Parameter]]], fused: bool | None = None
) -> Optimizer:
    """One optimiser over several parameter groups of the same kind; all other settings may differ.

    Torch's optimisers are `fused` on CUDA by default. On a CPU that saves one to two percent of a training step but
    rounds differently from the other implementations, whose results are bit-identical to each other.
    """
    kind = groups[0][0].kind
    if any(settings.kind != kind for settings, _ in groups):
        kinds = ", ".join(sorted({settings.kind for settings, _ in groups}))
        raise UserError(f"Weights and gates share one optimiser: use the same kind for both, not {kinds}.")
    makers: dict[str, tuple[type[Optimizer], tuple[str, ...]]] = {
        "sgd": (SGD, ("lr", "momentum", "weight_decay")),
        "adam": (Adam, ("lr", "weight_decay")),
        "adamw": (AdamW, ("lr", "weight_decay")),
        "lars": (LARS, ("lr", "momentum", "weight_decay", "trust", "clip")),
    }
    maker, names = makers[kind]
    parameter_groups = [
        {"params": list(parameters), **{name: getattr(settings, name) for name in names}}
        for settings, parameters in groups
        if parameters
    ]
    lr = groups[0][0].lr
    if kind == "lars":
        return maker(parameter_groups, lr=lr)  # type: ignore[call-arg]
    if fused is None:
        fused = parameter_groups[0]["params"][0].device.type == "cuda"
    made = maker(parameter_groups, lr=lr, fused=fused, foreach=not fused)  # type: ignore[call-arg]
    made.register_load_state_dict_pre_hook(_keep_implementation)
    if fused:
        made.register_step_pre_hook(_match_layouts)
    return made


def _keep_implementation(optimiser: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Load the state of an optimiser of another device, or of an earlier version, without its implementation."""
    own = [{name: group[name] for name in ("fused", "foreach")} for group in optimiser.param_groups]
    return state | {"param_groups": [saved | kept for saved, kept in zip(state["param_groups"], own, strict=True)]}


def _match_layouts(optimiser: Optimizer, args: object, kwargs: object) -> None:
    """Copy gradients whose memory format differs from that of their parameter: fused kernels read both in memory
    order, and on a CPU without checking."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
