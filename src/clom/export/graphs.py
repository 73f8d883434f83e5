"""A model as one self-contained graph: uint8 images in, calibrated scores out.

Tested by tests/export/test_onnx.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.errors import UserError
from clom.methods.families.base import Method


class Graph(nn.Module):
    """uint8 images `[n, channels, height, width]` to `scores [n, classes]` and `belonging [n]`, the uncalibrated
    OOD score of the predicted class's task."""

    scales: Tensor
    shifts: Tensor
    cross_task: Tensor | None
    task_of: Tensor

    def __init__(
        self, raw: nn.Module, scales: Tensor, shifts: Tensor, cross_task: Tensor | None, task_of: Tensor
    ) -> None:
        super().__init__()
        self.raw = raw
        self.register_buffer("scales", scales)
        self.register_buffer("shifts", shifts)
        self.register_buffer("cross_task", cross_task)  # [classes, classes]
        self.register_buffer("task_of", task_of)  # class -> index of its task

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        raw, belonging = self.raw(to_unit(images))
        scores = raw * self.scales + self.shifts
        if self.cross_task is not None:
            scores = scores + torch.matmul(raw, self.cross_task)
        return scores, belonging.gather(1, self.task_of[scores.argmax(1)][:, None])[:, 0]


@torch.no_grad()
def make_graph(method: Method, tasks: Sequence[int]) -> Graph:
    """The graph of the given tasks, concatenated in order. Raises UserError if the method has no graph."""
    if method.uses_predictor and len(tasks) > 1 and not method.exports_decision:
        raise UserError(
            f"The task predictor '{next(iter(method.decisions()))}' cannot be exported. Export single tasks with "
            "--task, or decide by the calibration: method.use_predictor(None)."
        )
    affine = method.calibration
    sizes = torch.tensor([method.tasks[task].n_classes for task in tasks])
    scales, shifts = (values[list(tasks)].repeat_interleave(sizes).clone() for values in (affine.scales, affine.shifts))
    task_of = torch.arange(len(tasks)).repeat_interleave(sizes)
    cross_task = None
    if affine.cross_task is not None and len(tasks) == len(method.tasks):  # no effect on a single task
        cross_task = affine.cross_task.detach()[task_of].T.contiguous()
    return Graph(method.scoring_graph(tasks), scales.detach(), shifts.detach(), cross_task, task_of).eval()
