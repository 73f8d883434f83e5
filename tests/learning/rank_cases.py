"""What is learned in one process and in several, to be compared. As a script: one of the several processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clom.data.formats import read_digits
from clom.data.stream import Stream, split
from clom.evaluation.scorebook import Scorebook
from clom.launch import read_launch
from clom.learning.distributed import session
from clom.learning.loop import Progress
from clom.methods.base import Method
from clom.methods.registry import METHODS, method_class
from clom.nets import AlexNetSettings, NetSettings, PooledConvSettings, ResNet18Settings

PLAIN = AlexNetSettings(channels=(6, 6, 8), hidden=12, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
DROPOUT = PLAIN.model_copy(update={"dropout": (0.2, 0.5)})
NORMS = ResNet18Settings(width=4)
# SGD: the first steps of Adam are as long for a gradient that is zero but for rounding as for any other.
SGD = {"kind": "sgd", "lr": 0.01}
TRAINING = {"plan": {"epochs": 1, "batch": 13}, "optimiser": SGD}  # 13 rows: 7 for the one and 6 for the other
GATES = {**TRAINING, "gates_optimiser": SGD}
MASKED = {"memory_per_class": 2, "learning": GATES}
CONTRASTIVE = {"memory_per_class": 2, "learning": {**GATES, "head": {"views": 1, "iterations": 5}}}
SGD_HEAD = {"learning": {**GATES, "cross_entropy": 1.0, "head": {"plan": {"epochs": 1, "batch": 13}}}}
SMALL_MEMORY = {**TRAINING, "memory": {"size": 8}}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("clom", "clom-no-calibration", "clom-no-ood", "supsup-ood"), CONTRASTIVE),
    **dict.fromkeys(("hat", "clom-odin", "supsup"), MASKED),
    **dict.fromkeys(("finetune", "joint", "pass"), TRAINING),
    **dict.fromkeys(("lwf-r", "icarl", "bic"), SMALL_MEMORY),
    "mnemonics": {**SMALL_MEMORY, "exemplars": {"plan": {"epochs": 1, "batch": 13}}},
    "co2l": {**SMALL_MEMORY, "head": {"views": 1, "iterations": 5}},
    "derpp": {**SMALL_MEMORY, "replay_batch": 5},
    "muc": {**TRAINING, "ood": "noise", "side_training": {"plan": {"epochs": 1, "batch": 13}}},
}
CASES: dict[str, tuple[str, NetSettings, dict[str, Any]]] = {
    **{name: (name, PLAIN, settings) for name, settings in SETTINGS.items()},
    "sgd head": ("clom", PLAIN, SGD_HEAD),
    "dropout": ("clom", DROPOUT, CONTRASTIVE),
    "pooled": ("supsup", PooledConvSettings(channels=(4, 4, 6), hidden=8), MASKED),
    **{f"{name} norms": (name, NORMS, SETTINGS[name]) for name in ("clom", "hat", "supsup", "finetune", "derpp")},
}


def stream() -> Stream:
    return split(read_digits(), [2, 2], train_per_class=16, test_per_class=5, validation=0.2)


class Outcome:
    """Gradients of every task's first step, what two tasks leave behind, and its scores."""

    def __init__(self, case: str) -> None:
        name, net, settings = CASES[case]
        maker = method_class(name)
        tasks = stream()
        self.method = maker(net, maker.settings_type.model_validate(settings), tasks.image_shape, 0)
        self.gradients: list[dict[str, Tensor]] = []
        book = Scorebook(tasks.tests)
        for task in tasks:
            self.method.learn(task, self._look)
            book.update(self.method)
        self.numbers = {name: value.clone() for name, value in self.method.state_dict().items()}
        self.scores = book.state()

    def _look(self, step: Progress) -> None:
        if step.done == 1 and step.task == len(self.gradients):
            self.gradients.append(_gradients(self.method))

    def to_file(self) -> dict[str, Any]:
        return {"gradients": self.gradients, "numbers": self.numbers, "scores": self.scores}


def _gradients(method: Method) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    launch = read_launch()
    with session(launch):
        outcomes = {case: Outcome(case).to_file() for case in CASES}
    torch.save(outcomes, folder / f"{launch.rank}.pt")


assert SETTINGS.keys() == {name for name, entry in METHODS.items() if entry.divisible}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
