"""Settings of all masked methods.

Tested by tests/methods/families/test_masked.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from clom.learning.calibration import CalibrationSettings
from clom.settings import Count, Settings


class MaskedSettings(Settings):
    """Settings of all masked methods."""

    former_names: ClassVar[Mapping[str, str]] = {"mirror": "flip_tta"}
    calibration: Literal["memory", "scale", "none"] = "memory"
    """`memory` (Eq. 9-11) stores `memory_per_class` validation samples; `scale` stores none; `none` is CLOM(-c)."""
    memory_per_class: Count = 20
    memory_fit: CalibrationSettings = CalibrationSettings()
    flip_tta: bool = False
    """Horizontal-flip test-time augmentation: average the scores of an image and of its flip, for data that is flipped
    in training. Not in the paper; doubles the cost of inference."""
    predictor: str | None = None
    """Which task an image belongs to: a task predictor (`clom list predictors`) instead of the largest calibrated
    logit, the paper's rule."""
    statistics: bool = True
    """Whether to keep the statistics of each task's features that some predictors need."""

    @property
    def keeps_samples(self) -> bool:
        return self.calibration == "memory" and self.memory_per_class > 0
