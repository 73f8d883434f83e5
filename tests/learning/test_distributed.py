"""Two real processes learn what one learns: the same gradients, weights, statistics and scores, up to rounding."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clom.methods.registry import METHODS
from learning import rank_cases
from learning.rank_cases import LEARNING, NETS, SETTINGS, differentiate, learn


def start(n_ranks: int, *command: str) -> list[subprocess.Popen[str]]:
    """The same command in so many processes that know of each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    paths = os.pathsep.join(path for path in sys.path if path)
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n_ranks)
    ]


def end(processes: list[subprocess.Popen[str]], seconds: float = 240) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    try:
        texts = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes left what they found."""
    place = tmp_path_factory.mktemp("ranks")
    for code, _, errors in end(start(2, str(rank_cases.__file__), str(place))):
        assert code == 0, errors
    return place


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    """What each of two processes found."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@cache
def alone(case: str) -> dict[str, Any]:
    """What one process learns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks this small close whole layers
        return learn(case)


def difference(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Relative difference of some tensors as one vector."""
    ours, theirs = (torch.cat([value.double().flatten() for value in side]) for side in (got, wanted))
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


def largest_difference(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Of any tensor."""
    assert got.keys() == wanted.keys()
    return max(difference([got[name]], [wanted[name]]) for name in wanted)


def test_every_divisible_method_is_compared() -> None:
    assert SETTINGS.keys() == {name for name, entry in METHODS.items() if entry.divisible}


@pytest.mark.parametrize("case", NETS)
def test_networks_are_exact_in_double_precision(case: str, two: list[dict[str, Any]]) -> None:
    """Weights, gates, statistics of normalisation, dropout, random numbers drawn afterwards: 11 rows here, 10 there."""
    for rank in two:
        assert largest_difference(rank["differentiated"][case], differentiate(case)) <= 1e-11


@pytest.mark.parametrize("case", LEARNING)
def test_gradients_are_those_of_one_process(case: str, two: list[dict[str, Any]]) -> None:
    """Masks and weights apart, since their gradients differ in size by orders of magnitude."""
    # A unit that hardly varies is divided by next to nothing: there, single precision sees less.
    limit, n_tasks = (2e-4, 1) if "batch norm" in case else (1e-5, 2)
    for rank in two:
        for task in range(n_tasks):
            got, wanted = rank["learned"][case]["gradients"][task], alone(case)["gradients"][task]
            assert got.keys() == wanted.keys()
            masks = {name for name in wanted if "embeddings" in name or "scores" in name}
            for kind in (masks, wanted.keys() - masks):
                if kind:
                    assert difference([got[name] for name in kind], [wanted[name] for name in kind]) <= limit


@pytest.mark.parametrize("case", [case for case in LEARNING if "batch norm" not in case])
def test_two_tasks_leave_what_one_process_leaves(case: str, two: list[dict[str, Any]]) -> None:
    for what in ("numbers", "scores"):
        assert largest_difference(two[0]["learned"][case][what], alone(case)[what]) <= 1e-5


@pytest.mark.parametrize("case", LEARNING)
def test_both_processes_have_the_same_model_to_the_last_bit(case: str, two: list[dict[str, Any]]) -> None:
    first, second = (rank["learned"][case] for rank in two)
    for what in ("numbers", "scores"):
        assert first[what].keys() == second[what].keys()
        assert all(torch.equal(first[what][name], second[what][name]) for name in first[what])


def test_what_processes_tell_each_other(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "do not have the same numbers" in rank["talked"]["refused"]
        assert rank["talked"]["shared"] == (b"from 0", b"")


def test_a_process_that_ends_is_missed(folder: Path, two: list[dict[str, Any]]) -> None:
    assert "Another process of this run has ended" in (folder / "lost.txt").read_text()
