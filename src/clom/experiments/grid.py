"""Many runs as one work list: experiments x methods x seeds x variants. A run that is finished is never repeated."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from clom.errors import UserError
from clom.experiments.catalogue import Budget, anchored
from clom.experiments.config import RunConfig, resolve
from clom.experiments.plain_yaml import read_yaml
from clom.experiments.run import is_finished
from clom.files import write_atomically
from clom.methods.registry import PAPER_METHODS
from clom.plugins import loaded
from clom.settings import Settings, explain


class Block(Settings):
    """All combinations of what it lists."""

    experiments: tuple[str, ...]
    methods: tuple[str, ...] | Literal["all"] = ("clom",)
    budget: Budget = "cpu"
    seeds: tuple[int, ...] = (0,)
    variants: dict[str, dict[str, Any]] = Field(default_factory=lambda: {"": dict[str, Any]()})
    """Name -> settings that differ from the recipe, with dotted names; the empty name is the recipe itself."""


@dataclass(frozen=True)
class Cell:
    """One run of the list and the folder it lives in."""

    experiment: str
    """Its name, or the path of its file."""
    config: RunConfig
    variant: str
    folder: Path
    plugins: tuple[str, ...] = ()
    """Files and modules that the run's process has to load."""

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
        """Why the last attempt failed; empty if none did."""
        path = self.folder / "failure.txt"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def command(
        self, data: Path | None, threads: int | None, device: str = "auto", precision: str = "auto"
    ) -> list[str]:
        """The ordinary command line of this run, with the interpreter that is running now."""
        config = self.config
        words = [sys.executable, "-m", "clom", "run", self.experiment, "--method", config.method]
        words += ["--budget", config.budget, "--seed", str(config.seed), "--out", str(self.folder)]
        words += ["--data", str(data)] if data else []
        words += ["--threads", str(threads)] if threads else []
        words += ["--device", device, "--precision", precision]
        for plugin in self.plugins:
            words += ["--plugin", plugin]
        for name, value in config.overrides.items():
            words += ["--set", f"{name}={json.dumps(value)}"]
        return words

    def run(
        self,
        data: Path | None = None,
        threads: int | None = None,
        device: str = "auto",
        precision: str = "auto",
    ) -> bool:
        """Do it in a process of its own; whether it finished."""
        return execute_command(self.command(data, threads, device, precision), self.folder)


def execute_command(command: Sequence[str], folder: Path) -> bool:
    """Do a run in a process of its own, whose output goes to `log.txt` in its folder; whether it finished.

    A function of plain data: a cluster's job gets nothing whose code another machine might not have loaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.txt").unlink(missing_ok=True)
    with (folder / "log.txt").open("wb") as log:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if done.returncode == 0 and is_finished(folder):
        return True
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    reason = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    write_atomically(folder / "failure.txt", f"exit code {done.returncode}: {reason}\n".encode())
    return False


def read_grid(path: Path) -> list[Block]:
    """A YAML file with one block, or with several under `blocks`."""
    content = read_yaml(path)
    blocks = content.get("blocks", [content]) if isinstance(content, Mapping) else None
    if not isinstance(blocks, list) or not blocks:
        raise UserError(f"{path} must hold experiments, methods and seeds, or several such groups under 'blocks'.")
    try:
        return [_anchored(Block.model_validate(block), path.parent) for block in blocks]
    except ValidationError as problem:
        raise explain(problem, Block) from None


def _anchored(block: Block, folder: Path) -> Block:
    """Paths of experiments are relative to the grid's file."""
    return block.model_copy(update={"experiments": tuple(anchored(name, folder) for name in block.experiments)})


def cells(blocks: Sequence[Block], out: Path) -> list[Cell]:
    """The work list; every name and setting in it is checked before anything runs."""
    found: dict[str, Cell] = {}
    for block in blocks:
        names = PAPER_METHODS if block.methods == "all" else block.methods
        for experiment, (variant, overrides), method, seed in itertools.product(
            block.experiments, block.variants.items(), names, block.seeds
        ):
            config = resolve(experiment, method, block.budget, seed, overrides)
            name = config.run_name + (f"-{variant}" if variant else "")
            cell = found.setdefault(name, Cell(experiment, config, variant, out / name, tuple(loaded())))
            if cell.experiment != experiment:
                raise UserError(
                    f"{cell.experiment} and {experiment} are both called '{config.experiment}': rename one of them."
                )
    return list(found.values())
