"""Checks of arguments and paths that need neither torch nor a model, so that mistakes are found at once.

As validators of options (`clom.cli.options`) they run before a command does.

Tested by tests/cli/test_mistakes.py.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Sequence
from pathlib import Path

from clom.errors import UserError, shorten, unknown

DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")


def is_folder(kind: object, folder: Path | None) -> None:
    """Checks the folder of data sets: if it does not exist, its data sets would be downloaded."""
    if folder is not None and not folder.expanduser().is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"The folder of data sets {folder} {what}. Correct --data, or leave it out.")


def is_file(kind: object, path: Path | None) -> None:
    _check_file(path)


def is_model(kind: object, path: Path | None) -> None:
    _check_file(path, " 'clom learn' creates a model.")


def _check_file(path: Path | None, advice: str = "") -> None:
    if path is None:  # an option that was not given
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a file.")
    if not path.exists():
        near = _similar(path)
        raise UserError(f"There is no file {path}.{f' Did you mean {near}?' if near else advice}")


def _similar(path: Path) -> Path | None:
    """A file or folder of a similar name at the same place."""
    try:
        names = [found.name for found in path.parent.iterdir() if not found.name.startswith(".")]
    except OSError:
        return None
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return path.parent / close[0] if close else None


def is_run(kind: object, folder: Path | Sequence[Path]) -> None:
    """Checks that a folder, or each of several, is that of a run."""
    for one in [folder] if isinstance(folder, Path) else folder:
        if (one / "config.yaml").is_file():
            continue
        inside = sorted(one.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
        hint = "'clom run' creates one."
        if inside:
            hint = f"It contains runs, for example {inside[-1].parent}."
        elif not one.exists() and (near := _similar(one)):
            hint = f"Did you mean {near}?"
        raise UserError(f"{one} is not the folder of a run: it has no config.yaml. {hint}")


def is_class_folder(kind: object, folder: Path) -> None:
    """Checks a folder of photos to be learned: one subfolder per class."""
    if folder.is_file() and folder.suffix.lower() != ".zip":
        raise UserError(f"{folder} is a file: photos are learned from a folder with one subfolder per class, or a zip.")
    if not folder.exists():
        near = _similar(folder)
        raise UserError(f"There is no folder {folder}.{f' Did you mean {near}?' if near else ''}")


def any_exists(places: Sequence[str]) -> None:
    """Checks that at least one photo, folder or pattern may have photos; others are listed as skipped later."""
    if not any(glob.has_magic(place) or Path(place).exists() for place in places):
        near = _similar(Path(places[0]))
        raise UserError(f"There is no file or folder {places[0]}.{f' Did you mean {near}?' if near else ''}")


def is_device(kind: object, name: str | None) -> None:
    """Checks the name; whether the device exists is found out later."""
    if name is not None and name not in DEVICES and not re.fullmatch(r"cuda:\d+", name):
        raise unknown("device", name, DEVICES)


def is_precision(kind: object, name: str | None) -> None:
    if name is not None and name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)


def is_assignment(kind: object, pairs: Sequence[str]) -> None:
    """Checks `--set name=value`; whether there is such a setting is found out later."""
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"--set takes name=value, for example --set learning.plan.epochs=10; got '{shorten(pair)}'."
            )


def check_run_request(experiment: str | None, method: str, budget: str, out: Path | None) -> str:
    """The experiment, after checks of the names and of the output folder of `clom run`."""
    from clom.experiments.catalogue import BUDGETS, experiment_names, read_experiment
    from clom.methods.registry import METHODS

    if experiment is None:
        raise UserError(
            "Name an experiment, for example: clom run digits-5t --budget smoke\n"
            f"  built in:    {', '.join(experiment_names())}\n"
            "  your own:    clom new experiment NAME writes a YAML file to start from; then clom run NAME.yaml\n"
            "  methods:     --method NAME; 'clom list methods' shows them\n"
            "  no idea yet: clom demo learns ten digits in about two minutes"
        )
    read_experiment(experiment)
    if ":" not in method and not method.endswith(".py"):
        METHODS.entry(method)
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, but a run needs a folder. Choose another path with --out.")
    return experiment
