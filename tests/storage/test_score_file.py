"""Score files: round trips, and errors that name the file for scores of another run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clom.errors import UserError
from clom.storage.score_file import read_scores, write_scores
from clom.storage.tensors import read_tensors, to_bytes

CLASSES, IMAGES = (2, 3, 1), (4, 5, 6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    randomness = torch.Generator().manual_seed(0)
    blocks = [[torch.randn(n, width, generator=randomness) for width in CLASSES] for n in IMAGES]
    write_scores(tmp_path / "scores.safetensors", blocks)
    return tmp_path / "scores.safetensors"


def test_round_trip(path: Path) -> None:
    stored = read_tensors(path)[0]
    for blocks in (read_scores(path), read_scores(path, CLASSES)):
        assert [[tuple(block.shape) for block in row] for row in blocks] == [[(n, c) for c in CLASSES] for n in IMAGES]
        assert torch.equal(blocks[2][1], stored["1.2"])


def test_slices_can_be_written(tmp_path: Path) -> None:
    """If tasks share a network, blocks are slices of one matrix."""
    whole = torch.arange(12.0).view(3, 4)
    write_scores(tmp_path / "s", [[whole[:, :2], whole[:, 2:]]] * 2)
    assert torch.equal(torch.cat(read_scores(tmp_path / "s")[1], 1), whole)


def test_tasks_that_the_model_has_not_learned_are_skipped(path: Path) -> None:
    assert [len(row) for row in read_scores(path, CLASSES[:2])] == [2, 2]


def changed(path: Path, **changes: Tensor | None) -> Path:
    tensors = {**read_tensors(path)[0], **{name.lstrip("t").replace("_", "."): t for name, t in changes.items()}}
    path.write_bytes(to_bytes({name: value for name, value in tensors.items() if value is not None}, {}))
    return path


@pytest.mark.parametrize("n_classes", [CLASSES, None], ids=["known classes", "any classes"])
@pytest.mark.parametrize(
    ("name", "block", "problem"),
    [
        ("t0_1", None, "has no scores '0.1'"),
        ("t0_1", torch.zeros(3, 2), "shapes"),
        ("t0_1", torch.zeros(5), "shapes"),
        ("t0_1", torch.tensor(1.0), "shapes"),
        ("t0_1", torch.zeros(0, 2), "shapes"),
        ("t0_1", torch.zeros(5, 0), "shapes"),
        ("t0_1", torch.full((5, 2), torch.nan), "NaN"),
        ("t0_1", torch.zeros(5, 2, dtype=torch.int64), "floating"),
        ("theads", torch.zeros(1), "other names"),
        ("t0_0_0", torch.zeros(4, 2), "other names"),
    ],
)
def test_scores_of_another_run_are_rejected(
    n_classes: tuple[int, ...] | None, name: str, block: Tensor | None, problem: str, path: Path
) -> None:
    with pytest.raises(UserError, match=f"{re.escape(str(path))}.*{problem}"):
        read_scores(changed(path, **{name: block}), n_classes)


def test_other_class_counts_are_rejected(path: Path) -> None:
    with pytest.raises(UserError, match="shapes"):
        read_scores(path, (2, 2, 1))
