"""Supported operations map zero to zero, unit by unit, which is all that protection requires."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clom.nets.convert.operations import FUNCTIONS, POINTWISE, POOLING

ARGUMENTS: dict[str, tuple[Any, ...]] = {"max_pool2d": (2,), "avg_pool2d": (2,)}
ARGUMENTS |= {"adaptive_avg_pool2d": (1,), "adaptive_max_pool2d": (1,), "fn": (2,)}


def maps() -> Tensor:
    """Two images of three units, the second of which is closed."""
    values = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    values[:, 1] = 0
    return values


@pytest.mark.parametrize("kind", [*POINTWISE, *POOLING])
def test_layers(kind: type[nn.Module]) -> None:
    layer = kind(2) if kind in POOLING else kind()
    result = layer(maps())
    assert not result[:, 1].any()
    assert result[:, ::2].any(dim=(2, 3)).all()
    assert not list(layer.parameters())


@pytest.mark.parametrize("function", dict.fromkeys(FUNCTIONS.values()), ids=lambda function: function.__name__)
def test_functions(function: Any) -> None:
    result = function(maps(), *ARGUMENTS.get(function.__name__, ()))
    assert not result[:, 1].any()
    assert result[:, ::2].flatten(2).any(2).all()
