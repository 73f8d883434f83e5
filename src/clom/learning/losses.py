"""Losses as pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def supervised_contrastive(z: Tensor, labels: Tensor, temperature: float, *, authors_form: bool = False) -> Tensor:
    """Eq. 3: mean over anchors of the mean over positives of -log softmax of z.z'/tau over all others.

    `z` holds unit vectors `[n, d]`. An anchor without positives does not count; if no anchor has any, the loss is 0.
    `authors_form` counts the anchor among its positives, as the authors' code does: with that code's floor of 1e-8
    inside the logarithm the value is `(|P| L + 18.42) / (|P| + 1)`; the paper excludes the anchor.
    """
    losses, count = _anchor_losses(z, labels, temperature)
    if authors_form:
        losses = (count * losses - torch.tensor(1e-8).log()) / (count + 1)
    valid = count > 0  # a mask, since indexing by it would synchronise with the device
    return torch.where(valid, losses, 0.0).sum() / valid.sum().clamp(min=1)


def asymmetric_contrastive(
    z: Tensor, labels: Tensor, current: Tensor, temperature: float, base_temperature: float
) -> Tensor:
    """Co2L's L_asym: only the `current` rows are anchors; the others are negatives only, but still receive gradients.

    As in the original code, the sum over anchors is divided by the number of all rows and multiplied by
    `temperature / base_temperature`. The loss of a batch without current rows is 0.
    """
    losses, count = _anchor_losses(z, labels, temperature)
    return torch.where(current & (count > 0), losses, 0.0).mean() * (temperature / base_temperature)


def relation_distillation(z: Tensor, past: Tensor, temperature: float, past_temperature: float) -> Tensor:
    """Co2L's L_ird: mean over rows of the cross-entropy between the old and the new similarities to the other rows.

    `z` and `past` hold unit vectors of the same samples from the new and the old network; no gradient flows to `past`.
    Its minimum is the entropy of the old similarities, not 0.
    """
    targets = _similarity(past.detach(), past_temperature).softmax(1)
    # log_softmax, since the logarithm of a softmax that underflows is -inf.
    return -(targets * _similarity(z, temperature).log_softmax(1)).sum(1).mean()


def _anchor_losses(z: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """For every row, the mean over its positives of -log softmax of z.z'/tau over all others, and their number."""
    similarity = _similarity(z, temperature)
    positive = labels[:, None] == labels[None, :]
    positive.fill_diagonal_(False)
    count = positive.sum(1)
    mean_similarity = torch.where(positive, similarity, 0.0).sum(1) / count.clamp(min=1)
    return torch.logsumexp(similarity, dim=1) - mean_similarity, count


def _similarity(z: Tensor, temperature: float) -> Tensor:
    """z.z'/tau of all pairs, always in float32. The diagonal is so low that its softmax is 0, yet finite, so that 0
    times its logarithm is 0."""
    z = z.float()
    return (z @ z.T / temperature).fill_diagonal_(-1e9)


def sparsity(gates: list[Tensor], used: list[Tensor]) -> Tensor:
    """The ratio in Eq. 16: newly opened units over units still free, as one ratio over all layers."""
    free = [1 - u for u in used]
    opened = torch.stack([(a * f).sum() for a, f in zip(gates, free, strict=True)]).sum()
    n_free = torch.stack([f.sum() for f in free]).sum()
    return opened / n_free.clamp(min=1)
