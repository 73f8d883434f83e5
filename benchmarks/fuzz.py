"""Give every reader bad input, and check that it is read or refused with a message: no traceback, no hang, no 1 GB.

python -m benchmarks.fuzz [--count 1000] [--seed 0] [--only "model file"] [--number 17 --keep folder]

Inputs are read in another process, which may map one more gigabyte and is killed after ten seconds. Time spent waiting
for the CPU does not count, so that other load on the machine does not look like a hang.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bad.cases import Case, Reader, plan
from benchmarks.bad.worker import FAULTS, Outcome, serve

MOST_SECONDS = 10.0
_TO_START, _TO_MAKE, _LOOK = 1800.0, 600.0, 0.2
KINDS = ("read", "refused", *FAULTS)


def all_readers() -> list[Reader]:
    from benchmarks.bad import (
        arrays,
        checkpoints,
        connections,
        idx,
        implausible,
        models,
        nasty_names,
        pickles,
        pictures,
        records,
        runs,
        settings,
        trees,
    )

    parts = (
        idx,
        pickles,
        arrays,
        trees,
        pictures,
        settings,
        records,
        runs,
        models,
        checkpoints,
        connections,
        implausible,
        nasty_names,
    )
    return [reader for part in parts for reader in part.readers()]


class Worker:
    """The reading process, replaced when it hangs or dies."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.by_hand: dict[str, int] = {}
        """Reader -> number of handmade inputs."""
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._start()

    def judge(self, case: Case, folder: Path) -> tuple[str, Outcome]:
        """A description of the input, and its outcome."""
        self._start()
        self._pipe.send((case, folder))
        what, outcome = "?", Outcome("traceback", "the process that should make the input ended")
        try:
            if self._pipe.poll(_TO_MAKE):
                what = self._pipe.recv()
                if self._answers():
                    return what, self._pipe.recv()
                outcome = Outcome("hang", f"no answer after {MOST_SECONDS:.0f} s", MOST_SECONDS)
        except (EOFError, ConnectionError):
            self._process.join(10)
            outcome = Outcome("traceback", f"the process that read it died: exit code {self._process.exitcode}")
        self.stop()
        return what, outcome

    def _answers(self) -> bool:
        """Whether the process replies in time."""
        started, asleep = self._seconds()[0], 0.0
        while True:
            if self._pipe.poll(_LOOK):
                return True
            used, sleeps = self._seconds()
            asleep += _LOOK if sleeps else 0.0
            if used - started + asleep > MOST_SECONDS:
                return False

    def _seconds(self) -> tuple[float, bool]:
        """CPU time of the reading process and whether it is blocked on something else; wall time if the system does
        not provide these."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] in "SD"
        except (OSError, IndexError):
            return time.monotonic(), False

    def _start(self) -> None:
        if self._process is not None:
            return
        self._pipe, other = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(other, self.seed, all_readers), daemon=True)
        self._process.start()
        other.close()
        if not self._pipe.poll(_TO_START):
            raise RuntimeError("the reading process did not start")
        self.by_hand = self._pipe.recv()

    def stop(self) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None


def judged(worker: Worker, cases: Sequence[Case], keep: Path | None = None) -> Iterator[tuple[Case, str, Outcome]]:
    """Create and read every case in an empty folder."""
    for case in cases:
        folder = keep or Path(tempfile.mkdtemp(prefix="clom-fuzz-"))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield case, *worker.judge(case, folder)
        finally:
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="number of inputs over all readers")
    parser.add_argument("--seed", type=int, default=0, help="decides the inputs made by chance")
    parser.add_argument("--only", help="one reader")
    parser.add_argument("--number", type=int, help="one input of that reader, as a failure was listed")
    parser.add_argument("--keep", type=Path, help="folder in which that input stays")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    worker = Worker(options.seed)
    chosen = {name: count for name, count in worker.by_hand.items() if options.only in (None, name)}
    if not chosen or (options.number is not None and options.only is None):
        worker.stop()
        parser.error(f"--only takes one of: {', '.join(worker.by_hand)}")
    cases = [Case(options.only, options.number)] if options.number is not None else None
    cases = cases or plan(chosen, options.count, options.seed)
    found = []
    for case, what, outcome in judged(worker, cases, options.keep):
        found.append((case, what, outcome))
        if options.number is not None:
            print(f"{what}: {outcome.kind} in {outcome.seconds:.2f} s: {outcome.detail}")
        elif outcome.kind in FAULTS:
            show_fault(case, what, outcome, options.seed)
        elif sys.stderr.isatty():
            print(f"\r{len(found)} of {len(cases)}  {case.reader:30}", end="", file=sys.stderr, flush=True)
    worker.stop()
    report(found, time.monotonic() - started)
    sys.exit(any(outcome.kind in FAULTS for _, _, outcome in found))


def show_fault(case: Case, what: str, outcome: Outcome, seed: int) -> None:
    again = f'python -m benchmarks.fuzz --seed {seed} --only="{case.reader}" --number {case.number} --keep folder'
    print(f"\n{outcome.kind}: {case.reader}, {what}\n  {again}\n{outcome.detail}", flush=True)


def report(found: Sequence[tuple[Case, str, Outcome]], seconds: float) -> None:
    count = Counter((case.reader, outcome.kind) for case, _, outcome in found)
    total = Counter(outcome.kind for _, _, outcome in found)
    print(f"{'reader':28}" + "".join(f"{kind:>16}" for kind in KINDS))
    for reader in dict.fromkeys(case.reader for case, _, _ in found):
        print(f"{reader:28}" + "".join(f"{count[reader, kind] or '-':>16}" for kind in KINDS))
    slowest = max(found, key=lambda item: item[2].seconds)
    print(f"\nslowest: {slowest[2].seconds:.1f} s ({slowest[0].reader}, {slowest[1]}); all: {seconds:.0f} s")
    others = "".join(f", {total[kind]} {kind}" for kind in ("ran code", "endless message") if total[kind])
    print(
        f"{len(found)} inputs, {total['traceback']} tracebacks, {total['hang']} hangs, {total['over 1 GB']} over 1 GB"
        + others
    )


if __name__ == "__main__":
    main()
