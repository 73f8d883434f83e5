"""Kill a run at random moments, resume it, and check that the result is bit-identical to an uninterrupted run.

python -m benchmarks.crash [--kills 50] [--seed 0] [--method clom]

Every run is a fork of this process, which has everything imported and never trains, so that nearly all of the time is
spent on the work to be interrupted. Moments are drawn in CPU time, which is independent of other load on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clom import machine
from clom.data.stream import Stream
from clom.experiments.config import RunConfig, resolve
from clom.experiments.run import execute, read_results
from clom.storage.tensors import checksum, read_tensors

N_TASKS = 3
SETTINGS = {
    "data.sizes": [2] * N_TASKS,
    "data.classes_per_task": None,
    "data.train_per_class": 48,
    "net.channels": [16, 16, 32],
    "net.hidden": 64,
}
PLAN = {"epochs": 4, "batch": 16}


@dataclass(frozen=True)
class Crasher:
    """A digits run of a few seconds with a checkpoint after every step, to be completed or killed."""

    config: RunConfig
    stream: Stream

    @staticmethod
    def of(method: str) -> Crasher:
        usual = resolve("digits-5t", method, "smoke").make_method((1, 8, 8)).settings
        plan = {
            f"{'plan' if hasattr(usual, 'plan') else 'learning.plan'}.{name}": value for name, value in PLAN.items()
        }
        config = resolve("digits-5t", method, "smoke", 0, SETTINGS | plan)
        return Crasher(config, config.data.stream(None, 0))

    def start(self, folder: Path) -> int:
        """Start or resume the run in a new process."""
        sys.stdout.flush()
        if process := os.fork():
            return process
        try:
            execute(self.config, self.stream, folder, every=0)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def finish(self, folder: Path) -> float:
        """Complete the run; return the CPU seconds it took."""
        process = self.start(folder)
        _, status, usage = os.wait4(process, 0)
        if status:
            raise SystemExit(f"The run in {folder} failed.")
        return usage.ru_utime + usage.ru_stime

    def kill_after(self, seconds: float, folder: Path) -> bool:
        """Start the run and kill it after this CPU time; return whether it was still running."""
        process = self.start(folder)
        while processor_seconds(process) < seconds and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        try:
            os.kill(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1] == signal.SIGKILL
        except (ProcessLookupError, ChildProcessError):
            return False


def processor_seconds(process: int) -> float:
    """The CPU time of a running process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def state_of(folder: Path) -> str:
    """The progress of a killed run."""
    if (folder / "summary.json").exists():
        return "finished"
    if not (folder / "config.yaml").exists():
        return "nothing written yet"
    lines = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
    kept = sorted(file.stem for file in folder.glob("checkpoints/*.ckpt"))
    writing = ", while writing" if list(folder.glob("**/.*.tmp")) else ""
    return f"{lines} tasks learned, {kept[-1] if kept else 'no checkpoint'}{writing}"


def fingerprint(folder: Path) -> tuple[object, ...]:
    """All results of a run: the model, the scores, and the figures except for times."""
    files = [checksum(*read_tensors(folder / name)) for name in ("model.safetensors", "scores.safetensors")]
    results = read_results(folder / "metrics.jsonl", N_TASKS)
    return (*files, [(result.evaluation, result.capacity) for result in results])


def crash(crasher: Crasher, kills: int, seed: int, place: Path) -> tuple[int, int]:
    """How many of the killed runs ended bit-identical, and how many were killed within a task that had a checkpoint."""
    draw, equal, within, done = random.Random(seed), 0, 0, 0
    spent = crasher.finish(place / "whole")
    expected = fingerprint(place / "whole")
    print(f"uninterrupted run: {spent:.1f} s of CPU time", flush=True)
    while done < kills:
        folder, seconds = place / f"killed-{done}", draw.uniform(0, spent)
        if not crasher.kill_after(seconds, folder):  # finished before it could be killed
            shutil.rmtree(folder)
            continue
        where = state_of(folder)
        crasher.finish(folder)
        same = fingerprint(folder) == expected
        done, equal, within = done + 1, equal + same, within + ("phase" in where)
        verdict = "bit-identical" if same else "DIFFERENT"
        print(f"{done:3}  killed after {seconds:4.2f} s ({where}): {verdict}", flush=True)
        shutil.rmtree(folder)
    return equal, within


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="clom")
    options = parser.parse_args(arguments)
    machine.tune_process(threads=1)
    with tempfile.TemporaryDirectory() as place:
        equal, within = crash(Crasher.of(options.method), options.kills, options.seed, Path(place))
    print(f"{within} of {options.kills} were killed within a task that had a checkpoint")
    print(f"{equal} of {options.kills} bit-identical to the uninterrupted run")
    if equal < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
