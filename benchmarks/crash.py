"""Kill `run` or `learn` at random moments, resume it, and check that the files have the same bytes as without a kill.

python -m benchmarks.crash [run | learn] [--kills 50] [--seed 0] [--method clom]

Every run is a fork of this process, which has everything imported and never trains, so that nearly all of the time is
spent on the work to be interrupted. Moments are drawn in CPU time, which is independent of other load on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from clom import machine
from clom.data.folders import Pictures
from clom.data.formats import read_digits
from clom.data.images import DataSet, Images
from clom.data.stream import Stream
from clom.experiments.config import RunConfig, resolve
from clom.experiments.run import execute, read_results
from clom.methods.families.base import Method
from clom.photos.teach import learn_pictures, teach
from clom.storage.checkpoints import CheckpointFolder
from clom.storage.model_file import load_model, save_model

N_TASKS = 3
SETTINGS = {
    "data.sizes": [2] * N_TASKS,
    "data.classes_per_task": None,
    "data.train_per_class": 48,
    "net.channels": [16, 16, 32],
    "net.hidden": 64,
}
PLAN = {"epochs": 4, "batch": 16}


class Crasher(ABC):
    """A job of a few seconds with a checkpoint after every step, to be completed or killed."""

    @abstractmethod
    def work(self, folder: Path) -> None:
        """Start or resume the job."""

    @abstractmethod
    def state_of(self, folder: Path) -> str:
        """The progress of a killed job."""

    @abstractmethod
    def results(self, folder: Path) -> tuple[object, ...]:
        """Hashes of the files that the job made, and of figures except for times."""

    def start(self, folder: Path) -> int:
        """Start or resume the job in a new process."""
        sys.stdout.flush()
        if process := os.fork():
            return process
        try:
            self.work(folder)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def finish(self, folder: Path) -> float:
        """Complete the job; return the CPU seconds it took."""
        process = self.start(folder)
        _, status, usage = os.wait4(process, 0)
        if status:
            raise SystemExit(f"The job in {folder} failed.")
        return usage.ru_utime + usage.ru_stime

    def kill_after(self, seconds: float, folder: Path) -> bool:
        """Start the job and kill it after this CPU time; return whether it was still running."""
        process = self.start(folder)
        while processor_seconds(process) < seconds and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        try:
            os.kill(process, signal.SIGKILL)
            return os.waitpid(process, 0)[1] == signal.SIGKILL
        except (ProcessLookupError, ChildProcessError):
            return False


@dataclass(frozen=True)
class Run(Crasher):
    """A run on digits."""

    config: RunConfig
    stream: Stream

    @staticmethod
    def of(method: str) -> Run:
        config = resolve("digits-5t", method, "smoke", 0, SETTINGS | Run.plan(method))
        return Run(config, config.data.stream(None, 0))

    @staticmethod
    def plan(method: str) -> dict[str, int]:
        usual = resolve("digits-5t", method, "smoke").make_method((1, 8, 8)).settings
        group = "plan" if hasattr(usual, "plan") else "learning.plan"
        return {f"{group}.{name}": value for name, value in PLAN.items()}

    def work(self, folder: Path) -> None:
        execute(self.config, self.stream, folder, every=0)

    def state_of(self, folder: Path) -> str:
        if (folder / "summary.json").exists():
            return "finished"
        if not (folder / "config.yaml").exists():
            return "nothing written yet"
        lines = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
        return f"{lines} tasks learned, {_checkpoint(folder / 'checkpoints')}{_writing(folder)}"

    def results(self, folder: Path) -> tuple[object, ...]:
        figures = read_results(folder / "metrics.jsonl", N_TASKS)
        files = [_digest(folder / name) for name in ("model.safetensors", "scores.safetensors")]
        return (*files, [(result.evaluation, result.capacity) for result in figures])


@dataclass(frozen=True)
class Learn(Crasher):
    """A second task for a model file, whose network is trained from scratch. The time in the record is a given one."""

    model: Method
    pictures: Pictures

    @staticmethod
    def of(method: str) -> Learn:
        dataset = read_digits()
        config = resolve("digits-5t", method, "smoke", 0, SETTINGS | Run.plan(method))
        model = config.make_method((1, 8, 8))
        tasks = [_some(dataset, labels) for labels in ((0, 1), (2, 3))]
        learn_pictures(model, tasks[0], "first")
        return Learn(model, tasks[1])

    def work(self, folder: Path) -> None:
        if len(load_model(self._model_in(folder)).tasks) == 2:
            return  # killed after it was done
        CheckpointFolder.due = lambda self: True  # type: ignore[method-assign]
        teach(self._model_in(folder), lambda size: self.pictures, "second")

    def start(self, folder: Path) -> int:
        if not self._model_in(folder).exists():
            save_model(self._model_in(folder), self.model)
        return super().start(folder)

    def state_of(self, folder: Path) -> str:
        return f"{_checkpoint(folder / '.my.model.checkpoints')}{_writing(folder)}"

    def results(self, folder: Path) -> tuple[object, ...]:
        return (_digest(self._model_in(folder)), sorted(path.name for path in folder.glob("[!.]*")))

    def _model_in(self, folder: Path) -> Path:
        return folder / "my.model"


def _some(dataset: DataSet, labels: tuple[int, int]) -> Pictures:
    rows = torch.cat([(dataset.train.labels == label).nonzero()[:60, 0] for label in labels])
    images = Images(dataset.train.pixels[rows], dataset.train.labels[rows] - labels[0])
    return Pictures(tuple(dataset.class_names[label] for label in labels), images, tuple(Path() for _ in rows), ())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _checkpoint(folder: Path) -> str:
    kept = sorted(file.stem for file in folder.glob("*.ckpt"))
    return kept[-1] if kept else "no checkpoint"


def _writing(folder: Path) -> str:
    return ", while writing" if list(folder.glob("**/.*.tmp")) else ""


def processor_seconds(process: int) -> float:
    """The CPU time of a running process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def crash(crasher: Crasher, kills: int, seed: int, place: Path) -> tuple[int, int]:
    """How many of the killed jobs ended with the same bytes, and how many were killed within a task that had a
    checkpoint."""
    draw, equal, within, done = random.Random(seed), 0, 0, 0
    spent = crasher.finish(place / "whole")
    expected = crasher.results(place / "whole")
    print(f"uninterrupted: {spent:.1f} s of CPU time", flush=True)
    while done < kills:
        folder, seconds = place / f"killed-{done}", draw.uniform(0, spent)
        if not crasher.kill_after(seconds, folder):  # finished before it could be killed
            shutil.rmtree(folder)
            continue
        where = crasher.state_of(folder)
        crasher.finish(folder)
        same = crasher.results(folder) == expected
        done, equal, within = done + 1, equal + same, within + ("phase" in where)
        verdict = "the same bytes" if same else "DIFFERENT"
        print(f"{done:3}  killed after {seconds:4.2f} s ({where}): {verdict}", flush=True)
        shutil.rmtree(folder)
    return equal, within


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["run", "learn"], nargs="?", default="run")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="clom")
    options = parser.parse_args(arguments)
    machine.tune_process(threads=1)
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"  # else the time of learning is part of a model file
    crasher = (Run if options.what == "run" else Learn).of(options.method)
    with tempfile.TemporaryDirectory() as place:
        equal, within = crash(crasher, options.kills, options.seed, Path(place))
    print(f"{within} of {options.kills} were killed within a task that had a checkpoint")
    print(f"{equal} of {options.kills} ended with the same bytes as without interruption")
    if equal < options.kills:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
