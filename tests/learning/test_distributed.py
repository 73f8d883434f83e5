"""Two real processes train like one: the same gradients, weights, statistics and scores, up to rounding."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clom.methods.registry import BUILT_IN
from learning import rank_cases
from learning.rank_cases import LEARNING, NETS, ON_A_DEVICE, SETTINGS, differentiate, learn
from processes import ended, start

Found = dict[str, Any]


def difference(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Relative difference of the concatenated tensors."""
    ours, theirs = (torch.cat([value.double().flatten() for value in side]) for side in (got, wanted))
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


def largest_difference(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest relative difference of any tensor."""
    assert got.keys() == wanted.keys()
    return max(difference([got[name]], [wanted[name]]) for name in wanted)


def gradient_differences(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[float]:
    """Masks and weights separately, since their gradients differ by orders of magnitude."""
    assert got.keys() == wanted.keys()
    masks = {name for name in wanted if "embeddings" in name or "scores" in name}
    for kind in (masks, wanted.keys() - masks):
        if kind:
            yield difference([got[name] for name in kind], [wanted[name] for name in kind])


def test_every_data_parallel_method_is_compared() -> None:
    assert SETTINGS.keys() == {name for name, entry in BUILT_IN.items() if entry.divisible}


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """A single test, since starting processes dominates the time."""
    processes = start(2, str(rank_cases.__file__), str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks this small close whole layers
        alone = {case: learn(case) for case in LEARNING}
    for code, _, errors in ended(processes):
        assert code == 0, errors
    two = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for rank in two:
        check_networks(rank["differentiated"])
        check_gradients(rank["learned"], alone)
        assert "do not have the same numbers" in rank["communicated"]["refused"]
        assert rank["communicated"]["shared"] == ["from 0", ""]
    check_results(two[0]["learned"], alone)
    check_equal(two[0]["learned"], two[1]["learned"])
    for rank in two:
        check_equal(rank["on a device"], rank["learned"], ON_A_DEVICE)
    assert "Another process of this run has ended" in (tmp_path / "lost.txt").read_text()


def check_networks(found: Found) -> None:
    """Weights, gates, batch-norm statistics, dropout, and random numbers drawn afterwards, in float64; one rank has 11
    rows, the other 10."""
    for case in NETS:
        assert largest_difference(found[case], differentiate(case)) <= 1e-11, case


def check_gradients(found: Found, alone: Found) -> None:
    for case in LEARNING:
        # Batch norm divides units that hardly vary by almost zero, which amplifies rounding errors in float32.
        limit, n_tasks = (2e-4, 1) if "batch norm" in case else (1e-5, 2)
        for task in range(n_tasks):
            got, wanted = found[case]["gradients"][task], alone[case]["gradients"][task]
            assert max(gradient_differences(got, wanted)) <= limit, case


def check_results(found: Found, alone: Found) -> None:
    """The model after two tasks, and its scores."""
    for case in LEARNING:
        for what in ("state", "scores") if "batch norm" not in case else ():
            assert largest_difference(found[case][what], alone[case][what]) <= 1e-5, (case, what)


def check_equal(first: Found, second: Found, cases: Iterable[str] = LEARNING) -> None:
    """Two models are bit-identical: those of both processes, or those of two devices."""
    for case in cases:
        for what in ("state", "scores"):
            one, other = first[case][what], second[case][what]
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one), (case, what)
