"""Curves for Weights & Biases. Nothing leaves this machine unless WANDB_MODE says so.

Tested by tests/reporting/tracking/test_tracker.py.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from clom.reporting.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from clom.reporting.tracking.tracker import Pixels

PROJECT = "clom"


class WeightsAndBiases:
    """By default in offline mode: `wandb sync FOLDER/wandb/offline-run-*` uploads the curves afterwards."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        stored = run.folder / "wandb.id"  # a resumed run continues its curves
        number = stored.read_text(encoding="utf-8").strip() if stored.exists() else uuid.uuid4().hex[:12]
        stored.write_text(f"{number}\n", encoding="utf-8")
        self._wandb = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=number,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            # The console belongs to the progress display.
            settings=wandb.Settings(console="off", quiet=True),
        )
        # wandb's own step may never decrease, but steps and tasks are two axes, and a resumed run repeats some steps.
        self._run.define_metric("*", step_metric="step")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def picture(self, name: str, pixels: Pixels, step: int) -> None:
        self._run.log({name: self._wandb.Image(pixels), "step": step})

    def close(self) -> None:
        self._run.finish()
