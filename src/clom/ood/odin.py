"""ODIN (Liang, Li, Srikant 2018): temperature scaling, and a perturbation of the image towards its predicted class.

    x~ = x - eps * sign(-d/dx log S_yhat(x; T)),   S(x; T) = softmax(f(x) / T),   yhat = argmax f(x)

In-distribution images react more strongly. `eps` is a step in the units of `images` (here pixels in [0, 1]); x~ is not
clipped, as in the original. The sign of a zero gradient is zero, so irrelevant pixels do not change (unlike with
`grad >= 0`).

With two classes T does not affect the ranking; only eps does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.ood.scores import Outputs, Score

TEMPERATURE, EPS = 1000.0, 0.0014
"""The paper's temperature, and its typical step for CIFAR."""
LogitsOf = Callable[[Tensor], Tensor]


def perturbed(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`x~`. The gradient is computed on a copy of the images, so that calls for several models are independent."""
    with torch.enable_grad():
        x = images.detach().clone().requires_grad_()
        logits = logits_of(x)
        # A sum in float64, times T: otherwise small gradients underflow. Only the sign matters.
        loss = temperature * F.cross_entropy(logits.double() / temperature, logits.argmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    return images - eps * gradient.sign()


@torch.no_grad()
def odin_score(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`max S(x~; T)` as published, in float64: at T = 1000 different images tie in float32."""
    tempered = logits_of(perturbed(logits_of, images, temperature, eps)).double() / temperature
    return tempered.softmax(1).amax(1)


@torch.no_grad()
def odin_block(logits_of: LogitsOf, images: Tensor, temperature: float = TEMPERATURE, eps: float = EPS) -> Tensor:
    """`(C S(x~; T) - 1) T`: zero for a uniform prediction for any number of classes C, where S itself is 1/C.

    For large T this is `f - mean f`. It preserves the order within a task and is comparable across tasks.
    """
    tempered = logits_of(perturbed(logits_of, images, temperature, eps)).double() / temperature
    return (temperature * torch.expm1(tempered.log_softmax(1) + math.log(tempered.shape[1]))).float()


class ODIN(Score):
    """The largest entry of the ODIN block, which needs additional passes through the network."""

    title = "ODIN"
    needs = ("odin",)

    def __call__(self, outputs: Outputs) -> Tensor:
        return outputs.need_odin().amax(1)
