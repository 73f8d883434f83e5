"""Checkpoint files: damage of a single bit is detected, the previous file is then used, and no code is run."""

from __future__ import annotations

import hashlib
import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from clom.errors import UserError
from clom.learning.context import Snapshot
from clom.stopping import Stopped, StopRequest
from clom.storage import checkpoints as module
from clom.storage.checkpoints import MAGIC, CheckpointFolder, Damaged, from_bytes, to_bytes


def snapshot(step: int, phase: int = 0) -> Snapshot:
    weight = torch.arange(6.0).view(1, 2, 3, 1).contiguous(memory_format=torch.channels_last) + step
    return Snapshot(phase, step, 10, {"weight": weight}, [{"lr": 0.1, "betas": (0.9, 0.99)}], torch.get_rng_state()[:8])


def folder(path: Path, **options: Any) -> CheckpointFolder:
    return CheckpointFolder(path, 2, "this run", **{"every": 0.0, **options})


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_snapshot_round_trip(tmp_path: Path) -> None:
    folder(tmp_path).save(snapshot(3))
    found = folder(tmp_path).latest(0)
    assert found is not None
    assert (found.phase, found.step, found.total, found.parts) == (0, 3, 10, snapshot(3).parts)
    assert torch.equal(found.method["weight"], snapshot(3).method["weight"])
    assert found.method["weight"].stride() == snapshot(3).method["weight"].stride(), "rounding depends on it"


def test_the_last_two_of_every_phase_are_kept(tmp_path: Path) -> None:
    checkpoints = folder(tmp_path)
    for step in (1, 2, 9, 10):
        checkpoints.save(snapshot(step))
    checkpoints.save(snapshot(1, phase=1))
    assert names(tmp_path) == [
        "task2-phase0-step000000009.ckpt",
        "task2-phase0-step000000010.ckpt",
        "task2-phase1-step000000001.ckpt",
    ]
    newest = [folder(tmp_path).latest(phase) for phase in (0, 1, 2)]
    assert [found and found.step for found in newest] == [10, 1, None]
    checkpoints.clear()
    assert not tmp_path.exists()
    checkpoints.clear()


def test_checkpoints_of_another_run_or_task_are_ignored(tmp_path: Path) -> None:
    folder(tmp_path).save(snapshot(1))
    assert CheckpointFolder(tmp_path, 2, "another run").latest(0) is None
    assert CheckpointFolder(tmp_path, 3, "this run").latest(0) is None
    assert CheckpointFolder(tmp_path / "absent", 2, "this run").latest(0) is None


def small_file() -> bytes:
    return to_bytes({"numbers": torch.arange(5.0), "step": 7})


def test_every_truncation_is_detected() -> None:
    file = small_file()
    assert from_bytes(file)["step"] == 7
    for length in range(len(file)):
        with pytest.raises(Damaged):
            from_bytes(file[:length])
    with pytest.raises(Damaged):
        from_bytes(file + b"\0")


def test_every_flipped_bit_is_detected() -> None:
    file = small_file()
    for position in range(len(file)):
        for bit in range(8):
            changed = bytearray(file)
            changed[position] ^= 1 << bit
            with pytest.raises(Damaged):
                from_bytes(bytes(changed))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_warns_and_the_previous_one_is_used(tmp_path: Path, damage: str) -> None:
    checkpoints = folder(tmp_path)
    checkpoints.save(snapshot(4))
    checkpoints.save(snapshot(5))
    newest = tmp_path / "task2-phase0-step000000005.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(bytes({"cut": content[: len(content) // 2], "flip": content, "empty": bytearray()}[damage]))
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        found = folder(tmp_path).latest(0)
    assert found is not None
    assert found.step == 4
    folder(tmp_path).save(snapshot(6))
    assert names(tmp_path) == ["task2-phase0-step000000004.ckpt", "task2-phase0-step000000006.ckpt"]


def test_only_damaged_checkpoints_are_like_none(tmp_path: Path) -> None:
    for step in (4, 5):
        (tmp_path / f"task2-phase0-step{step:09}.ckpt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="damaged"):
        assert folder(tmp_path).latest(0) is None


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task2-phase0-step000000004.ckpt")
    with pytest.warns(UserWarning, match="a pipe"):
        assert folder(tmp_path).latest(0) is None


class _Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_a_malicious_checkpoint_with_a_valid_checksum_runs_no_code(tmp_path: Path) -> None:
    body = io.BytesIO()
    torch.save({"snapshot": _Payload(tmp_path / "executed")}, body)
    with pytest.raises(Damaged):
        from_bytes(MAGIC + hashlib.sha256(body.getvalue()).digest() + body.getvalue())
    assert not (tmp_path / "executed").exists()


# --- time ------------------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("clom.storage.checkpoints.time.monotonic", clock.monotonic)
    return clock


@pytest.mark.parametrize(("cost", "pause"), [(0.0, 10.0), (0.05, 10.0), (0.5, 50.0), (60.0, 600.0)])
def test_slow_checkpoints_are_written_less_often(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, cost: float, pause: float
) -> None:
    """At most one percent of the time, but at least every ten minutes."""

    def write(path: Path, content: bytes) -> None:
        clock.now += cost

    monkeypatch.setattr(module, "write_atomically", write)
    checkpoints = folder(tmp_path, every=10.0)
    clock.now += 9.9
    assert not checkpoints.due()
    clock.now += 0.2
    assert checkpoints.due()
    checkpoints.save(snapshot(1))
    clock.now += pause - 0.1
    assert not checkpoints.due()
    clock.now += 0.2
    assert checkpoints.due()
    assert checkpoints.saving == pytest.approx(cost)


def test_a_stop_request_makes_a_checkpoint_due(tmp_path: Path) -> None:
    stop = StopRequest()
    checkpoints = folder(tmp_path, every=1000.0, stop=stop)
    assert not checkpoints.due()
    checkpoints.stop_if_requested()
    stop.number = 15
    assert checkpoints.due()
    with pytest.raises(Stopped) as stopped:
        checkpoints.stop_if_requested()
    assert stopped.value.number == 15


def test_early_snapshots_are_written_with_the_next_one_due(tmp_path: Path, clock: Clock) -> None:
    checkpoints = folder(tmp_path, every=10.0)
    checkpoints.save(snapshot(10))
    assert names(tmp_path) == []
    clock.now += 11
    checkpoints.save(snapshot(3, phase=1))
    assert names(tmp_path) == ["task2-phase0-step000000010.ckpt", "task2-phase1-step000000003.ckpt"]
    checkpoints.save(snapshot(10, phase=1))
    checkpoints.stop.number = 2
    with pytest.raises(Stopped):
        checkpoints.stop_if_requested()
    assert "task2-phase1-step000000010.ckpt" in names(tmp_path), "lost by a stop"


def test_time_is_summed_over_processes(tmp_path: Path, clock: Clock) -> None:
    first = folder(tmp_path)
    clock.now += 30
    first.save(snapshot(1))
    second = folder(tmp_path)
    second.latest(0)
    clock.now += 12
    assert second.seconds == pytest.approx(42)


# --- disks -----------------------------------------------------------------------------------------------------------


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """Limit the size of files this process writes, to simulate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_existing_files_stay(tmp_path: Path) -> None:
    checkpoints = folder(tmp_path / "checkpoints")
    checkpoints.save(snapshot(1))
    before = (tmp_path / "checkpoints" / "task2-phase0-step000000001.ckpt").read_bytes()
    with file_size_limit(500), pytest.raises(UserError, match=r"Cannot write .*step000000002.*too large.* resumes"):
        checkpoints.save(snapshot(2))
    assert names(tmp_path / "checkpoints") == ["task2-phase0-step000000001.ckpt"]
    assert (tmp_path / "checkpoints" / "task2-phase0-step000000001.ckpt").read_bytes() == before


def test_the_error_names_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match=r"Cannot write .*taken"):
        folder(tmp_path / "taken").save(snapshot(1))
    assert (tmp_path / "taken").read_text() == "mine"
