"""The stream of many tasks has new classes in every task, and the benchmark writes its numbers, page and picture."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.many_tasks import main, permuted_digits
from clom.testing import check_stream


def test_classes_come_back_under_another_permutation() -> None:
    stream = permuted_digits(12, seed=0)
    check_stream(stream)
    assert len({name for names in stream.class_names for name in names}) == 24
    first, again, third = (
        torch.cat([stream[number].train.pixels, stream.tests[number].pixels]).flatten(1) for number in (0, 5, 10)
    )
    assert not torch.equal(first, again)
    assert not torch.equal(again, third)
    # The same images with their pixels in another order, the same for training and test images.
    order = [int((first == again[:, pixel : pixel + 1]).all(0).nonzero()[0]) for pixel in range(64)]
    assert torch.equal(first[:, order], again)
    assert order != sorted(order)


def test_both_runs_are_compared(tmp_path: Path) -> None:
    main(
        ["--tasks", "3", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")],
        {"learning.plan.epochs": 3, "net.channels": [4, 4, 8], "net.hidden": 16, "learning.head.views": 1},
    )
    found = json.loads((tmp_path / "out" / "many-tasks.json").read_text())["growth"]
    assert found["off"]["units"]["conv1"] == [4, 4, 4]
    assert found["auto"]["units"]["conv1"][-1] > 4
    assert all(len(result["cil_after_task"]) == 3 for result in found.values())
    written = (tmp_path / "out" / "many-tasks.md").read_text()
    assert f"| auto | {100 * found['auto']['til']:.1f} |" in written
    assert (tmp_path / "out" / "many-tasks.svg").stat().st_size > 5000
