"""Stand-ins for the processes of trials: in this process, or without any training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import yaml

from clom.cli import main
from clom.evaluation.metrics import ClassIncremental, Evaluation
from clom.experiments.config import parse_overrides, resolve
from clom.experiments.defaults import read_recipe_file
from clom.experiments.task_result import TaskResult


class InThisProcess:
    """Runs the command at once: a process would import torch for seconds."""

    started: ClassVar[list[str]] = []

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder, self.ended, self.code = folder, True, 0
        self.started.append(folder.name)
        try:
            main(command[3:])
        except SystemExit as end:
            self.code = int(end.code or 0)

    def stop(self) -> None: ...
    def wait(self, seconds: float | None = None) -> None: ...

    def finished(self) -> bool:
        return self.code == 0


class Scripted:
    """Writes given results, one task per look, and learns nothing."""

    script: ClassVar[dict[str, list[float]]] = {}
    """Trial -> CIL after each task; a negative one stands for divergence."""
    slow: ClassVar[tuple[str, ...]] = ()
    """Trials whose results come one look later."""
    failure: ClassVar[str] = "Training on task 2 diverged: the loss became nan."
    started: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder, self.number = folder, folder.name
        self.started.append(self.number)
        options = {word: command[place + 1] for place, word in enumerate(command[:-1]) if word.startswith("--")}
        changes = [command[place + 1] for place, word in enumerate(command) if word == "--set"]
        config = resolve(
            command[4],
            options["--method"],
            options["--budget"],
            int(options["--seed"]),
            parse_overrides(changes),
            read_recipe_file(Path(options["--recipe"])),
        )
        (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        path = folder / "metrics.jsonl"
        self._written = len(path.read_text().splitlines()) if path.exists() else 0
        self._stopped = self._failed = False
        self._waits = self.number in self.slow

    @property
    def ended(self) -> bool:
        """Every look sees one more task."""
        values = self.script[self.number]
        if self._stopped or self._failed or self._written == len(values):
            return True
        if self._waits:
            self._waits = False
            return False
        cil = values[self._written]
        if cil < 0:
            self._failed = True
            return True
        self._written += 1
        n = self._written
        found = ClassIncremental(cil, [cil] * n, 1.0, 0.5, 0.5, [[1 / n] * n] * n)
        result = TaskResult(Evaluation(n, 1.0, [1.0] * n, {"none": found}), 0.1, 0.2, {}, 100.0)
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(result.to_line())
        return False

    def stop(self) -> None:
        self._stopped = True
        self.stopped.append(self.number)

    def wait(self, seconds: float | None = None) -> None: ...

    def finished(self) -> bool:
        if self._failed or self._stopped:
            (self.folder / "failure.txt").write_text(f"exit code 2: {self.failure}\n")
            return False
        (self.folder / "summary.json").write_text(json.dumps({}))
        return True
