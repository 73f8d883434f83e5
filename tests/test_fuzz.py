"""A short run of the fuzzer, which must find nothing, and faulty readers, in which it must find every fault."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from benchmarks.bad import connections
from benchmarks.bad import worker as reading
from benchmarks.bad.cases import Case, Make, Reader, plan
from benchmarks.bad.damage import NASTY, spoil, spoil_value
from benchmarks.bad.payload import MARK
from benchmarks.bad.worker import FAULTS, Watch, limited_memory, wanted_memory
from benchmarks.fuzz import Worker, judged
from clom.errors import DataError, UserError

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits its own memory, which only Linux enforces")


@linux
def test_a_short_run_of_the_fuzzer_finds_nothing() -> None:
    worker = Worker(seed=1)
    try:
        found = list(judged(worker, plan(worker.by_hand, 100, seed=1)))
    finally:
        worker.stop()
    assert len(found) == 100
    assert {case.reader for case, _, _ in found} == set(worker.by_hand)
    assert [(case, what, outcome) for case, what, outcome in found if outcome.kind in FAULTS] == []
    kinds = Counter(outcome.kind for _, _, outcome in found)
    assert kinds["refused"] > 50  # the inputs really are bad


def test_connections_that_accept_not_even_a_refusal_are_ended(tmp_path: Path) -> None:
    (reader,) = connections.readers()
    reader.special()["page, nobody reads"](tmp_path, Random(0))
    reader.read(tmp_path)


def endless(folder: Path) -> None:
    raise UserError("x" * 10_000)


def running(folder: Path) -> None:
    os.system("true")


def marking(folder: Path) -> None:
    (folder / MARK).touch()


def failing(folder: Path) -> None:
    raise KeyError("x")


def greedy(folder: Path) -> None:
    bytearray(3 * 10**9)


def greedy_in_secret(folder: Path) -> None:
    try:
        bytearray(3 * 10**9)
    except MemoryError:
        raise DataError("too large") from None


def refusing(folder: Path) -> None:
    raise DataError("no")


def reading_fine(folder: Path) -> None:
    time.sleep(0)


@linux
@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (endless, "endless message"),
        (running, "ran code"),
        (marking, "ran code"),
        (failing, "traceback"),
        (greedy, "over 1 GB"),
        (greedy_in_secret, "over 1 GB"),
        (refusing, "refused"),
        (reading_fine, "read"),
    ],
)
def test_every_fault_is_detected(read: Make, kind: str, tmp_path: Path) -> None:
    reader = Reader("r", dict, lambda folder, randomness: None, read)  # type: ignore[arg-type]
    assert reading._judge(reader, Case("r", 0), tmp_path, Watch()).kind == kind


@pytest.mark.parametrize(("words", "kind"), [(["list", "budgets"], "read"), (["list", "x"], "refused")])
def test_commands_are_judged_by_their_exit_code(words: list[str], kind: str, tmp_path: Path) -> None:
    reader = Reader("r", dict, lambda folder, randomness: None, failing, lambda folder: words)
    assert reading._judge(reader, Case("r", 7), tmp_path, Watch()).kind == kind


@linux
def test_the_memory_limit_is_removed_afterwards() -> None:
    much = 2 * 10**9  # more than this process may have freed and kept
    with pytest.raises(MemoryError), limited_memory(10**8):
        bytearray(much)
    assert len(bytearray(much)) == much


def test_a_failed_allocation_is_found_in_the_exception_chain() -> None:
    error = UserError("too large")
    assert not wanted_memory(error)
    error.__context__ = ValueError()
    error.__context__.__context__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
    assert wanted_memory(error)


def test_the_plan_is_shared_evenly_and_repeatable() -> None:
    by_hand: Mapping[str, int] = {"few": 2, "many": 500, "none": 0}
    cases = plan(by_hand, 100, seed=3)
    assert Counter(case.reader for case in cases) == {"few": 33, "many": 33, "none": 34}
    assert len(set(cases)) == 100
    assert [case.number for case in cases if case.reader == "few"] == list(range(33))
    chosen = [case.number for case in cases if case.reader == "many"]
    assert sum(number < 500 for number in chosen) == 22  # two thirds handwritten cases, the rest random
    assert cases == plan(by_hand, 100, seed=3)
    assert cases != plan(by_hand, 100, seed=4)


def test_damage_depends_on_the_seed_alone() -> None:
    content, value = bytes(range(256)) * 20, {"a": [1, 2, {"b": 3}], "c": "d"}
    spoiled = [spoil(content, Random(seed)) for seed in range(50)]
    assert spoiled == [spoil(content, Random(seed)) for seed in range(50)]
    assert sum(one != content for one in spoiled) >= 48
    changed = [repr(spoil_value(value, Random(seed))) for seed in range(50)]
    assert changed == [repr(spoil_value(value, Random(seed))) for seed in range(50)]
    assert len(set(changed)) > 20
    assert value == {"a": [1, 2, {"b": 3}], "c": "d"}
    assert len(NASTY) > 30
