"""Two real processes learn what one learns: the same gradients, weights, statistics and scores, up to rounding."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learning import rank_cases
from learning.rank_cases import CASES, Outcome

BATCH_NORM_FREE = [name for name in CASES if not name.endswith("norms")]
WITH_BATCH_NORM = [name for name in CASES if name.endswith("norms")]


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
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes got, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    for code, _, errors in end(start(2, str(rank_cases.__file__), str(folder))):
        assert code == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@cache
def one(case: str) -> dict[str, Any]:
    """What one process gets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks this small close whole layers
        return Outcome(case).to_file()


def difference(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest relative difference of a tensor."""
    assert got.keys() == wanted.keys()
    pairs = [(got[name].double(), wanted[name].double()) for name in wanted]
    return max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in pairs)


@pytest.mark.parametrize("case", BATCH_NORM_FREE)
def test_gradients_are_those_of_one_process(case: str, two: list[dict[str, Any]]) -> None:
    for mine in two:
        assert difference(mine[case]["gradients"][0], one(case)["gradients"][0]) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_all(case: str, two: list[dict[str, Any]]) -> None:
    mine = two[0]
    print(case, [difference(a, b) for a, b in zip(mine[case]["gradients"], one(case)["gradients"])], difference(mine[case]["numbers"], one(case)["numbers"]), difference(mine[case]["scores"], one(case)["scores"]))
