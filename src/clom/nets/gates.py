"""Gates: one number in [0, 1] per unit and task, multiplied onto what the unit puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

Gates = Mapping[str, Tensor]
"""Gate group -> one value per unit. A group that is missing is fully open."""


def per_channel(gate: Tensor, n_dims: int, dim: int) -> Tensor:
    """A gate vector shaped so that it multiplies dimension `dim` of a tensor with `n_dims` dimensions."""
    return gate.view(*[1] * dim, -1, *[1] * (n_dims - dim - 1))


class _SteepSigmoid(torch.autograd.Function):
    """sigmoid(s * e) forward; s_max * sigmoid'(e) backward, whatever s is.

    HAT rescales the embedding's gradient by (s_max / s) * sigmoid'(e) / sigmoid'(s e). Multiplied out, sigmoid'(s e)
    cancels; computed one after the other in float32 it is 0 * inf once the gate saturates, and the unit is stuck open.
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
    """Eq. 12 while a task is being learned: differentiable, with the compensated gradient of HAT."""
    return cast(Tensor, _SteepSigmoid.apply(embedding, scale, max_scale))  # type: ignore[no-untyped-call]
