"""Knowledge distillation from the network of an earlier task."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

M = TypeVar("M", bound=nn.Module)


def teacher_of(student: M) -> M:
    """A frozen copy in evaluation mode: neither its parameters nor its running statistics change."""
    return copy.deepcopy(student).eval().requires_grad_(False)


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """`-sum_c p_c log r_c` of the softened outputs, mean over the batch; its minimum is the teacher's entropy, not
    0."""
    targets = (teacher / temperature).softmax(1)
    return -(targets * (student / temperature).log_softmax(1)).sum(1).mean()


def soft_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """`KL(teacher || student)` of the softened outputs, summed over classes, mean over the batch."""
    targets = (teacher / temperature).log_softmax(1)
    return F.kl_div((student / temperature).log_softmax(1), targets, reduction="batchmean", log_target=True)
