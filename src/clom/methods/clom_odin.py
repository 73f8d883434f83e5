"""CLOM (ODIN): the paper's ablation with another OOD detector. Trained as HAT, scored by ODIN.

TIL equals HAT's up to the effect of the small perturbation, since a temperature does not change the order of classes.
Blocks are ODIN scores, so TIL is the best class of the perturbed image, and calibrations are fitted to ODIN scores.

T and eps are constants: there are no OOD data while a task is learned, and other tasks' test images must not be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from clom.data.images import to_unit
from clom.errors import UserError
from clom.methods.families.base import Blocks
from clom.methods.hat import Hat, HatSettings
from clom.ood.odin import EPS, TEMPERATURE, odin_block
from clom.ood.predictors.base import TaskOutputs
from clom.settings import NonNegative, PositiveNumber


class ClomOdinSettings(HatSettings):
    temperature: PositiveNumber = TEMPERATURE
    eps: NonNegative = EPS
    """Size of the perturbation, for pixels in [0, 1]."""


class ClomOdin(Hat):
    """Kim et al. (the CLOM paper), ablation "CLOM (ODIN)"."""

    name = "clom-odin"
    settings_type = ClomOdinSettings
    settings: ClomOdinSettings

    def _batch_blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        # `(C S - 1) T` instead of S makes tasks with different numbers of classes comparable.
        images, temperature, eps = to_unit(pixels), self.settings.temperature, self.settings.eps
        return [odin_block(partial(self.task_logits, task=task), images, temperature, eps) for task in tasks]

    def odin_block(self, pixels: Tensor, task: int) -> Tensor:
        return self.block(pixels, task)

    def outputs_of(self, pixels: Tensor, tasks: Sequence[int], with_features: bool) -> list[TaskOutputs]:
        blocks = self._blocks(pixels, tasks)
        if not with_features:
            return [TaskOutputs(block) for block in blocks]
        outputs = super().outputs_of(pixels, tasks, with_features)
        return [replace(of_task, block=block) for of_task, block in zip(outputs, blocks, strict=True)]

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        raise UserError(f"{self.name} cannot be exported: its scores need the gradient with respect to the image.")

    def stored_form(self, pixels: Tensor) -> Tensor:
        return pixels  # ODIN perturbs pixels
