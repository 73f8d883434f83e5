"""Losses as pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def supervised_contrastive(z: Tensor, labels: Tensor, temperature: float, *, authors_form: bool = False) -> Tensor:
    """Eq. 3: mean over anchors of the mean over positives of -log softmax of z.z'/tau over all others.

    `z` holds unit vectors `[n, d]`. An anchor whose class occurs once has no positives and does not count.
    `authors_form` counts the anchor as a positive of its own, as the authors' code does: with that code's floor of 1e-8
    inside the logarithm the value is `(|P| L + 18.42) / (|P| + 1)`; the paper excludes the anchor.
    """
    z = z.float()
    similarity = z @ z.T / temperature
    # The anchor is no candidate. A large negative number instead of -inf keeps 0 * log p finite below.
    similarity.fill_diagonal_(-1e9)
    log_normaliser = torch.logsumexp(similarity, dim=1)
    positive = labels[:, None] == labels[None, :]
    positive.fill_diagonal_(False)
    count = positive.sum(1)
    mean_similarity = torch.where(positive, similarity, 0.0).sum(1) / count.clamp(min=1)
    loss = (log_normaliser - mean_similarity)[count > 0]
    if authors_form:
        n_positive = count[count > 0]
        loss = (n_positive * loss - torch.log(torch.tensor(1e-8))) / (n_positive + 1)
    return loss.mean()


def sparsity(gates: list[Tensor], used: list[Tensor]) -> Tensor:
    """The ratio in Eq. 16: newly opened units over units that were still free, one ratio over all layers."""
    free = [1 - u for u in used]
    opened = torch.stack([(a * f).sum() for a, f in zip(gates, free, strict=True)]).sum()
    room = torch.stack([f.sum() for f in free]).sum()
    return opened / room.clamp(min=1)
