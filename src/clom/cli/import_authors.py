"""`clom import-authors`: the published checkpoints as model files.

Tested by tests/cli/test_cli.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.options import SettingsFile


def import_authors_command(
    file: SettingsFile,
    *,
    out: Path | None = None,
    masks: SettingsFile | None = None,
    calibration: SettingsFile | None = None,
) -> None:
    """Convert a checkpoint in the format of the paper's authors to a model file.

    Parameters
    ----------
    file
        Their weights, usually called last.model (AlexNet-like or ResNet-18).
    out
        The model file to write; by default the same name with the suffix .safetensors.
    masks
        Their cumulative masks; by default the file `masks` next to the weights, if it exists.
    calibration
        Their scales and shifts; by default the file `calibration` next to the weights, if it exists.
    """
    from clom.storage.authors import read_authors
    from clom.storage.model_file import save_model

    def companion(given: Path | None, name: str) -> Path | None:
        sibling = file.parent / name
        return given or (sibling if sibling.is_file() else None)

    method = read_authors(file, companion(masks, "masks"), companion(calibration, "calibration")).method
    target = out or file.with_suffix(".safetensors")
    save_model(target, method)
    classes = sum(task.n_classes for task in method.tasks)
    Console().print(
        f"{target}: {len(method.tasks)} tasks, {classes} classes, {method.n_parameters() / 1e6:.2f} M parameters, "
        f"calibration: {method.calibration_name}",
        highlight=False,
        soft_wrap=True,
    )
