"""What is recorded about the machine, and that settings are applied by commands only."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from clom import machine


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


def test_description_is_plain_data_and_names_what_results_depend_on() -> None:
    described = machine.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["packages"]["torch"] == torch.__version__.partition("+")[0] or described["packages"]["torch"]
    assert described["cores"] == machine.cores() >= 1
    assert described["threads"] == torch.get_num_threads()
    assert described["python"] == sys.version.partition(" ")[0].rstrip("+")
    assert described["memory_gb"] > 0


def test_cores_are_those_this_process_may_use() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not bind processes to cores")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_an_unreadable_memory_size_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> int:
        raise OSError(name)

    assert (machine.memory_bytes() or 0) > 2**27
    monkeypatch.setattr(os, "sysconf", fail)
    assert machine.memory_bytes() is None


def test_peak_memory_grows_with_use() -> None:
    before = machine.peak_memory_bytes()
    if before is None:
        pytest.skip("this system does not tell")
    assert 2**25 < before < 2**40
    block = bytearray(os.urandom(1) * 2**24)
    assert (machine.peak_memory_bytes() or 0) >= before
    del block


@pytest.mark.usefixtures("restored_threads")
def test_tuning_sets_threads_and_flushes_denormals() -> None:
    tiny = torch.tensor([1e-40])
    torch.set_flush_denormal(False)
    assert float(tiny * 1) > 0
    machine.tune_process(threads=2)
    assert torch.get_num_threads() == 2
    assert float(tiny * 1) == 0
    machine.tune_process()
    assert torch.get_num_threads() == machine.cores()


@pytest.mark.usefixtures("restored_threads")
def test_another_c_library_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", fail)
    machine.tune_process(threads=1)
    assert torch.get_num_threads() == 1


def test_importing_clom_changes_no_setting(tmp_path: Path) -> None:
    """Only commands tune the process; a library must not."""
    code = (
        "import torch; torch.set_num_threads(1); import clom, clom.methods.clom, clom.cli.run; "
        "print(torch.get_num_threads(), float(torch.tensor([1e-40]) * 1) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == ["1", "True"]


@pytest.mark.usefixtures("restored_threads")
def test_determinism_is_asked_for_and_taken_back() -> None:
    try:
        machine.tune_process(1, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        machine.tune_process(1)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
