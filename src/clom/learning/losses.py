"""Losses as pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def supervised_contrastive(z: Tensor, labels: Tensor, temperature: float, *, authors_form: bool = False) -> Tensor:
    """Eq. 3: mean over anchors of the mean over positives of -log softmax of z.z'/tau over all others.

    `z` holds unit vectors `[n, d]`. An anchor whose class occurs once has no positives and does not count;
    if all are like that, the loss is 0.
    `authors_form` counts the anchor as a positive of its own, as the authors' code does: with that code's floor of 1e-8
    inside the logarithm the value is `(|P| L + 18.42) / (|P| + 1)`; the paper excludes the anchor.
    """
    losses, count = _anchor_losses(z, labels, temperature)
    if authors_form:
        losses = (count * losses - torch.tensor(1e-8).log()) / (count + 1)
    counts = count > 0  # as a mask: picking rows would make the host wait for the device
    return torch.where(counts, losses, 0.0).sum() / counts.sum().clamp(min=1)


def asymmetric_contrastive(
    z: Tensor, labels: Tensor, current: Tensor, temperature: float, base_temperature: float
) -> Tensor:
    """Co2L's L_asym: only the `current` rows are anchors; the others serve as negatives, and so still move.

    As in the original code the sum over anchors is divided by all rows, current or not, and multiplied by
    `temperature / base_temperature`. A batch without a current row gives 0.
    """
    losses, count = _anchor_losses(z, labels, temperature)
    return torch.where(current & (count > 0), losses, 0.0).mean() * (temperature / base_temperature)


def relation_distillation(z: Tensor, past: Tensor, temperature: float, past_temperature: float) -> Tensor:
    """Co2L's L_ird: mean over rows of the cross-entropy between the similarities to the other rows, then and now.

    `z` and `past` hold unit vectors of the same samples by the new and the old network; no gradient reaches `past`.
    At best it is the entropy of the old similarities, not zero.
    """
    targets = _similarity(past.detach(), past_temperature).softmax(1)
    # From log_softmax, not the logarithm of a softmax: that is -inf where the softmax underflows.
    return -(targets * _similarity(z, temperature).log_softmax(1)).sum(1).mean()


def _anchor_losses(z: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """For every row the mean over its positives of -log softmax of z.z'/tau over all others, and their number."""
    similarity = _similarity(z, temperature)
    positive = labels[:, None] == labels[None, :]
    positive.fill_diagonal_(False)
    count = positive.sum(1)
    mean_similarity = torch.where(positive, similarity, 0.0).sum(1) / count.clamp(min=1)
    return torch.logsumexp(similarity, dim=1) - mean_similarity, count


def _similarity(z: Tensor, temperature: float) -> Tensor:
    """z.z'/tau of all pairs, in float32 whatever comes in. A row is never compared with itself: its own entry is
    beyond reach of any softmax, yet finite, so that 0 times its logarithm is 0.
    """
    z = z.float()
    return (z @ z.T / temperature).fill_diagonal_(-1e9)


def sparsity(gates: list[Tensor], used: list[Tensor]) -> Tensor:
    """The ratio in Eq. 16: newly opened units over units that were still free, one ratio over all layers."""
    free = [1 - u for u in used]
    opened = torch.stack([(a * f).sum() for a, f in zip(gates, free, strict=True)]).sum()
    room = torch.stack([f.sum() for f in free]).sum()
    return opened / room.clamp(min=1)
