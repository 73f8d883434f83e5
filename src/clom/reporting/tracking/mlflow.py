"""Curves for MLflow, to the place that MLFLOW_TRACKING_URI names, or else MLflow's default in the working directory.

Tested by tests/reporting/tracking/test_tracker.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clom.reporting.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from clom.reporting.tracking.tracker import Pixels

EXPERIMENT = "clom"


class MLflow:
    """One MLflow run of the experiment `clom`, or of the one that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, run: TrackedRun) -> None:
        import mlflow

        self._mlflow: Any = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT))
        stored = run.folder / "mlflow.id"  # a resumed run continues its curves
        if stored.exists():
            mlflow.start_run(run_id=stored.read_text(encoding="utf-8").strip())
            return
        made = mlflow.start_run(run_name=run.name)
        stored.write_text(f"{made.info.run_id}\n", encoding="utf-8")
        mlflow.log_params({name: str(value)[:500] for name, value in run.settings.items()})

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # A point takes MLflow some 30 ms, which training must not wait for.
        self._mlflow.log_metrics(dict(values), step=step, synchronous=False)

    def picture(self, name: str, pixels: Pixels, step: int) -> None:
        self._mlflow.log_image(pixels, artifact_file=f"{name}-{step}.png")

    def close(self) -> None:
        self._mlflow.flush_async_logging()
        self._mlflow.end_run()
