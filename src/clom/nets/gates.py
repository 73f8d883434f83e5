"""Gates: one number in [0, 1] per unit and task, multiplied by the unit's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

Gates = Mapping[str, Tensor]
"""Gate group -> one value per unit. A missing group is fully open."""


def per_channel(gate: Tensor, n_dims: int, dim: int) -> Tensor:
    """A gate vector reshaped to broadcast along dimension `dim` of a tensor with `n_dims` dimensions."""
    return gate.view(*[1] * dim, -1, *[1] * (n_dims - dim - 1))


class _AnnealedSigmoid(torch.autograd.Function):
    """sigmoid(s * e) forward; s_max * sigmoid'(e) backward, independent of s.

    HAT rescales the embedding's gradient by (s_max / s) * sigmoid'(e) / sigmoid'(s e). Analytically sigmoid'(s e)
    cancels; computed in two steps in float32 the product is 0 * inf once the gate saturates, and the unit stays open.
    """

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, scale: float, max_scale: float) -> Tensor:
        ctx.save_for_backward(embedding)
        ctx.max_scale = max_scale
        return torch.sigmoid(scale * embedding)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (embedding,) = ctx.saved_tensors
        slope = torch.sigmoid(embedding) * torch.sigmoid(-embedding)
        return grad_outputs[0] * ctx.max_scale * slope, None, None


def soft_gate(embedding: Tensor, scale: float, max_scale: float) -> Tensor:
    """Eq. 12 during training: differentiable, with HAT's gradient compensation."""
    return cast(Tensor, _AnnealedSigmoid.apply(embedding, scale, max_scale))  # type: ignore[no-untyped-call]
