"""Linear heads and the two ways of fitting one to frozen features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.settings import NonNegative, Positive, Settings


class HeadSettings(Settings):
    """Step 2: the linear classifier on frozen features."""

    views: Positive = 6
    """How many augmented views of each image the features are taken of, once."""
    l2: NonNegative = 1e-3
    """Strength of `l2 * |W|^2 / 2` added to the mean cross-entropy."""
    iterations: Positive = 100


def solve_head(
    features: Tensor, labels: Tensor, n_outputs: int, settings: HeadSettings, class_weights: Tensor | None = None
) -> nn.Linear:
    """The minimiser of Eq. 4 plus an L2 term: convex, so it is solved instead of being trained.

    Features are divided by their root mean square first, so that `l2` means the same for every task and network; the
    scale is folded back into the weights. `class_weights [n_outputs]` make it a weighted mean over the samples.
    """
    scale = features.pow(2).mean().sqrt().clamp(min=1e-12)
    inputs = features / scale
    head = nn.Linear(features.shape[1], n_outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    solver = torch.optim.LBFGS(
        head.parameters(),
        max_iter=settings.iterations,
        history_size=10,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
    )

    def objective() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(head(inputs), labels, class_weights) + settings.l2 / 2 * head.weight.pow(2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.div_(scale)
    return head


@torch.no_grad()
def widened(head: nn.Linear, kept: Tensor, n_features: int) -> nn.Linear:
    """A head on the features `kept` as one on all features, with zeros for the others."""
    wide = nn.Linear(n_features, head.out_features)
    wide.weight.zero_()
    wide.weight[:, kept] = head.weight
    wide.bias.copy_(head.bias)
    return wide
