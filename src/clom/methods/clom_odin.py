"""CLOM (ODIN): the paper's ablation with another OOD detector. HAT as it is learned, ODIN when images are scored.

Its TIL is HAT's up to the tiny step, since a temperature changes no order within a task. Everything downstream reads
the ODIN blocks: TIL is the best class for the perturbed image, and both calibrations are fitted on these blocks.

T and eps are fixed numbers: no OOD data exist while a task is learned, and tuning them on other tasks' test images
would be peeking.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from clom.data.images import to_unit
from clom.errors import UserError
from clom.methods.families.base import Blocks
from clom.methods.hat import Hat, HatSettings
from clom.ood.odin import EPS, TEMPERATURE, odin_block
from clom.settings import NonNegative, PositiveNumber


class ClomOdinSettings(HatSettings):
    temperature: PositiveNumber = TEMPERATURE
    eps: NonNegative = EPS
    """The step, for pixels in [0, 1]."""


class ClomOdin(Hat):
    """Kim et al. (the CLOM paper), ablation "CLOM (ODIN)"."""

    name = "clom-odin"
    settings_type = ClomOdinSettings
    settings: ClomOdinSettings

    def _batch_blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        # `(C S - 1) T` instead of S, so that tasks with different numbers of classes can be compared.
        images, temperature, eps = to_unit(pixels), self.settings.temperature, self.settings.eps
        return [odin_block(partial(self.task_logits, task=task), images, temperature, eps) for task in tasks]

    def odin_block(self, pixels: Tensor, task: int) -> Tensor:
        return self.block(pixels, task)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        raise UserError(f"{self.name} cannot be exported: its scores need the gradient with respect to the image.")

    def stored_form(self, pixels: Tensor) -> Tensor:
        return pixels  # ODIN perturbs pixels
