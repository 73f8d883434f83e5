"""Curves as TensorBoard's event files, in the run's folder `tensorboard/`.

Tested by tests/reporting/tracking/test_tracker.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clom.reporting.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from clom.reporting.tracking.tracker import Pixels


class TensorBoard:
    """`tensorboard --logdir runs` shows all runs in a folder side by side."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the extra

        self._writer: Any = SummaryWriter(str(run.folder / "tensorboard"), flush_secs=10)
        lines = "\n".join(f"    {name}: {value}" for name, value in run.settings.items())
        self._writer.add_text("settings", lines)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, name: str, pixels: Pixels, step: int) -> None:
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()
