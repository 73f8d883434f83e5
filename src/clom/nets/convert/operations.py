"""The supported operations, as torch.fx represents them: functions, and tensor methods by name.

Each of them maps zero to zero unit by unit, so that a closed unit stays zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POINTWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Hardswish,
    nn.Tanh,
    nn.Identity,
)
POOLING: tuple[type[nn.Module], ...] = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    **{
        function: function
        for function in (F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, torch.relu, torch.tanh)
    },
    **{function: function for function in (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d)},
    torch.relu_: F.relu,
    F.tanh: torch.tanh,
    torch.max_pool2d: F.max_pool2d,
    # tensor methods, by name
    "relu": torch.relu,
    "relu_": torch.relu,
    "tanh": torch.tanh,
    "contiguous": Tensor.contiguous,
}
"""Operations that map zero to zero unit by unit -> the function that replaces them."""
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
SCALINGS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul"), torch.mul),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div"), torch.div),
}
SHIFTS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add"), torch.add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub"), torch.sub),
}
RESHAPINGS = (torch.flatten, torch.reshape, torch.squeeze, "flatten", "view", "reshape", "squeeze")
MEANS = (torch.mean, "mean")
REASONS: dict[str, str] = {
    "LayerNorm": "normalises over all units, so that every unit would depend on those of other tasks",
    "GroupNorm": "normalises over several units, so that they would depend on those of other tasks",
    "MultiheadAttention": "mixes units by attention, which has no gates",
    "BatchNorm1d": "normalises something other than the output of a convolution",
    "BatchNorm2d": "normalises something other than the output of one convolution that nothing else reads",
    "cat": "concatenates units of several layers",
    "stack": "concatenates units of several layers",
    "Sigmoid": "does not map the zero of a closed unit to zero",
    "Softplus": "does not map the zero of a closed unit to zero",
    "PReLU": "has a parameter that no gate protects",
}
