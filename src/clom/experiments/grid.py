"""Grids of runs: experiments x methods x seeds x variants. A finished run is never repeated."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError

from clom.errors import UserError
from clom.experiments.allowance import parse_allowance, with_passes
from clom.experiments.catalogue import Budget, anchored, read_experiment
from clom.experiments.config import RunConfig, resolve
from clom.experiments.plain_yaml import read_yaml
from clom.experiments.run import is_finished, read_config
from clom.files import write_atomically
from clom.locks import Held, Lock
from clom.methods.registry import TRAINED_METHODS
from clom.plugins import loaded
from clom.settings import Settings, Share, explain
from clom.stopping import StopRequest

Outcome = Literal["finished", "failed", "stopped", "busy"]
"""Busy: another process is working on the run."""
_SECONDS_BETWEEN_LOOKS = 0.5
_PREVIEW = threading.Lock()  # previews of runs use torch's global random state
_SECONDS_TO_STOP = 2.0  # Ctrl-C reaches the run as well: a second signal would cost it what it has not saved


class Block(Settings):
    """All combinations of the listed experiments, methods, seeds and variants."""

    experiments: tuple[str, ...]
    methods: tuple[str, ...] | Literal["all"] = ("clom",)
    budget: Budget = "cpu"
    seeds: tuple[int, ...] = (0,)
    variants: dict[str, dict[str, Any]] = Field(default_factory=lambda: {"": dict[str, Any]()})
    """Name -> settings that differ from the recipe, by dotted name; the empty name is the recipe itself."""
    length: Share | None = None
    """Train for as many epochs as use this fraction of the experiment's allowance, as in a search; by default for as
    many as the recipe says."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid and its folder."""

    experiment: str
    """Its name, or the path of its file."""
    config: RunConfig
    variant: str
    folder: Path
    plugins: tuple[str, ...] = ()
    """Files and modules that the run's process has to import."""
    length: float | None = None
    """The fraction of the allowance that its numbers of epochs are fitted to; None for those of `config`."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def state(self) -> Literal["finished", "failed", "open"]:
        if is_finished(self.folder):
            return "finished"
        return "failed" if self.failure else "open"

    @property
    def failure(self) -> str:
        """Why the last attempt failed; empty if none did, or if another one finished the run."""
        path = self.folder / "failure.txt"
        return path.read_text(encoding="utf-8").strip() if path.exists() and not is_finished(self.folder) else ""

    def command(
        self,
        data: Path | None,
        threads: int | None,
        device: str = "auto",
        precision: str = "auto",
        compile: bool = False,
        allowance: str | None = None,
    ) -> list[str]:
        """The command line of this run, with the current interpreter; by default with the experiment's allowance, or
        with the fraction of it that the run is fitted to, which takes seconds."""
        if allowance is None and self.length is not None:
            allowance = f"{self._passes:.0f}"
        elif allowance is None and read_experiment(self.experiment).at(self.config.budget).allowance is not None:
            allowance = "experiment"
        compute = Compute(data, threads, device, precision, compile)
        words = command_line(self.experiment, self.config, self.folder, compute, self.plugins)
        words += ["--allowance", allowance] if allowance else []
        return [*words, *set_options(self.fitted(data).overrides)]

    @property
    def _passes(self) -> float:
        """The passes that `length` stands for."""
        return (self.length or 1.0) * (parse_allowance("experiment", self.experiment, self.config.budget).passes or 0.0)

    def fitted(self, data: Path | None = None) -> RunConfig:
        """The run with the numbers of epochs for its length; one that has begun keeps those that it began with."""
        if self.length is None:
            return self.config
        if (self.folder / "config.yaml").exists():
            return read_config(self.folder)
        with _PREVIEW, _one_thread():
            return with_passes(self.config, self.config.data.stream(data, self.config.seed), self._passes, data)

    def run(
        self,
        data: Path | None = None,
        threads: int | None = None,
        device: str = "auto",
        precision: str = "auto",
        compile: bool = False,
        allowance: str | None = None,
        stop: StopRequest | None = None,
    ) -> Outcome:
        """Run it in a separate process, until it ends or `stop` is requested."""
        try:
            command = self.command(data, threads, device, precision, compile, allowance)
        except UserError as problem:  # its length cannot be fitted; the other runs go on
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "failure.txt", f"{problem}\n".encode())
            return "failed"
        return execute_command(command, self.folder, stop)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Other cores are busy with runs, and waiting for them would take longer than computing alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Compute:
    """Where a run finds its data, and what it computes with."""

    data: Path | None = None
    threads: int | None = None
    device: str = "auto"
    precision: str = "auto"
    compile: bool = False


def command_line(
    experiment: str, config: RunConfig, folder: Path, compute: Compute, plugins: Sequence[str] = ()
) -> list[str]:
    """The command line of a run, with the current interpreter; without its settings."""
    words = [sys.executable, "-m", "clom.cli.supervised", "run", experiment, "--method", config.method]
    words += ["--budget", config.budget, "--seed", str(config.seed), "--out", str(folder)]
    words += ["--data", str(compute.data)] if compute.data else []
    words += ["--threads", str(compute.threads)] if compute.threads else []
    words += ["--device", compute.device, "--precision", compute.precision, *(["--compile"] if compute.compile else [])]
    for plugin in plugins:
        words += ["--plugin", plugin]
    return words


def set_options(overrides: Mapping[str, Any]) -> list[str]:
    """Command-line options for settings by dotted name."""
    return [word for name, value in overrides.items() for word in ("--set", f"{name}={json.dumps(value)}")]


class RunProcess:
    """A run in a separate process, with its output in the folder's `log.txt`. It does not outlive this process."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder, self._stopped = folder, False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").unlink(missing_ok=True)
        with (folder / "log.txt").open("wb") as log:
            # `clom.cli.supervised` stops when its input is closed, which the system does if this process is killed.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask it to stop; it saves its progress first."""
        self._stopped = True
        self._process.terminate()

    def wait(self, seconds: float | None = None) -> None:
        """Raises `subprocess.TimeoutExpired` if it takes longer."""
        self._process.wait(seconds)

    def wait_or_stop(self, stop: StopRequest) -> None:
        """Wait until it ends; once `stop` is requested, ask it to stop, unless the same signal has reached it, too."""
        while not self.ended and not stop.requested:
            with suppress(subprocess.TimeoutExpired):
                self.wait(_SECONDS_BETWEEN_LOOKS)
        if stop.requested:
            self._stopped = True
            with suppress(subprocess.TimeoutExpired):
                self.wait(_SECONDS_TO_STOP)
        if not self.ended:
            self.stop()

    def finished(self) -> bool:
        """Whether it finished its run. If not, and if nobody stopped it, the reason is written to `failure.txt`."""
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if is_finished(self.folder):
            return True
        if not self._stopped:
            lines = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            reason = next((line for line in reversed(lines) if line.strip()), "no output")
            write_atomically(self.folder / "failure.txt", f"exit code {code}: {reason}\n".encode())
        return False


def execute_command(command: Sequence[str], folder: Path, stop: StopRequest | None = None) -> Outcome:
    """Execute a run in a separate process, unless somebody else is working on it or has finished it.

    All arguments are plain data, so that a cluster job can be pickled and started on another machine.
    """
    stop = stop or StopRequest()
    try:
        with Lock(folder / "log.txt", "written"):  # held by the grid; the run itself locks its folder
            if is_finished(folder):
                return "finished"
            with Lock(folder, "worked on"):
                pass  # else a `clom run` of the same folder would let this one fail
            process = RunProcess(command, folder)
            process.wait_or_stop(stop)
            if process.finished():
                return "finished"
    except Held:
        time.sleep(_SECONDS_BETWEEN_LOOKS)  # before the caller tries again
        return "busy"
    return "stopped" if stop.requested else "failed"


def read_grid(path: Path) -> list[Block]:
    """The blocks of a YAML file: one, or several under `blocks`."""
    content = read_yaml(path)
    blocks = content.get("blocks", [content]) if isinstance(content, Mapping) else None
    if not isinstance(blocks, list) or not blocks:
        raise UserError(f"{path} must contain experiments, methods and seeds, or several such groups under 'blocks'.")
    try:
        return [_anchored(Block.model_validate(block), path.parent) for block in blocks]
    except ValidationError as problem:
        raise explain(problem, Block) from None


def _anchored(block: Block, folder: Path) -> Block:
    """Paths of experiments are relative to the grid's file."""
    return block.model_copy(update={"experiments": tuple(anchored(name, folder) for name in block.experiments)})


def cells(blocks: Sequence[Block], out: Path) -> list[Cell]:
    """All runs of the grid; every name and setting is checked before anything runs."""
    found: dict[str, Cell] = {}
    for block in blocks:
        names = TRAINED_METHODS if block.methods == "all" else block.methods
        for experiment, (variant, overrides), method, seed in itertools.product(
            block.experiments, block.variants.items(), names, block.seeds
        ):
            config = resolve(experiment, method, block.budget, seed, overrides)
            if block.length is not None:
                parse_allowance("experiment", experiment, block.budget)  # raises if there is none
            name = config.run_name + (f"-{variant}" if variant else "")
            name += "" if block.length is None else f"-length{block.length:g}"
            cell = found.setdefault(name, Cell(experiment, config, variant, out / name, tuple(loaded()), block.length))
            if cell.experiment != experiment:
                raise UserError(
                    f"{cell.experiment} and {experiment} are both called '{config.experiment}': rename one of them."
                )
    return list(found.values())
