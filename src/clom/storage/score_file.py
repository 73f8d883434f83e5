"""The uncalibrated scores of a run, `scores.safetensors`: a tensor `MODEL.TEST` for each task's model and test set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from clom.errors import UserError
from clom.files import write_atomically
from clom.methods.families.base import Blocks
from clom.storage.tensors import read_tensors, to_bytes

_NAME = re.compile(r"(\d{1,9})\.(\d{1,9})")


def write_scores(path: Path, blocks: Sequence[Blocks]) -> None:
    """Write `blocks[test][model]`, as returned by `read_scores`."""
    tensors = {f"{model}.{test}": block for test, row in enumerate(blocks) for model, block in enumerate(row)}
    write_atomically(path, to_bytes(tensors, {}))


def read_scores(path: Path, n_classes: Sequence[int] | None = None) -> list[Blocks]:
    """Blocks `[test][model]` of tasks with `n_classes` classes each, by default of all tasks in the file.

    Further tasks are skipped: a run may be interrupted after its scores were written and before its model was.
    """
    stored = read_tensors(path)[0]
    names = [_NAME.fullmatch(name) for name in stored]
    if not all(names):
        raise UserError(f"{path} is not a score file: it has tensors with other names.")
    n_tasks = len(n_classes) if n_classes is not None else max((int(name[1]) + 1 for name in names if name), default=0)
    try:
        blocks = [[stored[f"{model}.{test}"] for model in range(n_tasks)] for test in range(n_tasks)]
    except KeyError as missing:
        raise UserError(f"{path} does not belong to this run: it has no scores {missing}.") from None
    for row in blocks:
        _check(path, row, n_classes)
    return blocks


def _check(path: Path, row: Blocks, n_classes: Sequence[int] | None) -> None:
    """Check the blocks of one test set."""
    shapes = [tuple(block.shape) for block in row]
    widths = n_classes or [shape[-1] if shape else 0 for shape in shapes]
    if 0 in shapes[0] or shapes != [(*shapes[0][:1], width) for width in widths]:
        raise UserError(f"{path} does not belong to this run: its scores have shapes {shapes}.")
    if not all(block.is_floating_point() and bool(block.isfinite().all()) for block in row):
        raise UserError(f"{path} is damaged: it contains scores that are NaN, infinite or not floating point.")
