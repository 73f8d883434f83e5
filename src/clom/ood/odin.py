"""ODIN (Liang, Li, Srikant 2018): temper the outputs, nudge the image towards its own answer, look at the new maximum.

    x~ = x - eps * sign(-d/dx log S_yhat(x; T)),   S(x; T) = softmax(f(x) / T),   yhat = argmax f(x)

Familiar images react more strongly. `eps` is a step in the units of `images` (here pixels in [0, 1]); x~ is not
clipped, as in the original. The sign of a zero gradient is zero: pixels that do not matter stay (not `grad >= 0`).

With two classes T cannot change any ranking: only eps matters there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.ood.scores import Outputs, Score

TEMPERATURE, EPS = 1000.0, 0.0014
"""The paper's temperature, and the step it typically chose for CIFAR."""
LogitsOf = Callable[[Tensor], Tensor]


def perturbed(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`x~`. The gradient is taken on a fresh copy of the images, so that asking several models mixes nothing."""
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        logits = logits_of(x)
        # A sum in float64, times T: in less, small gradients vanish. Only the sign counts.
        loss = temperature * F.cross_entropy(logits.double() / temperature, logits.argmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    return images - eps * gradient.sign()


@torch.no_grad()
def odin_score(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`max S(x~; T)` as published, in float64: at T = 1000 float32 makes ties of different images."""
    tempered = logits_of(perturbed(logits_of, images, temperature, eps)).double() / temperature
    return tempered.softmax(1).amax(1)


@torch.no_grad()
def odin_block(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`(C S(x~; T) - 1) T`: zero for no preference whatever the number of classes C, where S itself starts from 1/C.

    For large T this is `f - mean f`. It keeps the order within a task and can be compared across tasks.
    """
    tempered = logits_of(perturbed(logits_of, images, temperature, eps)).double() / temperature
    return (temperature * torch.expm1(tempered.log_softmax(1) + math.log(tempered.shape[1]))).float()


class ODIN(Score):
    """The largest entry of the ODIN block, for which the network has to be run again."""

    title = "ODIN"
    needs = ("odin",)

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.need_odin().amax(1)
