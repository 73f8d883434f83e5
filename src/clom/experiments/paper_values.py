"""What the paper reports, by our names of its systems and experiments. Percent, as there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

PAPER_NAMES = {
    "clom": "CLOM",
    "clom-no-calibration": "CLOM(-c)",
    "clom-no-ood": "CLOM (w/o OOD)",
    "clom-odin": "CLOM (ODIN)",
    "hat": "HAT",
    "hypernet": "HyperNet",
    "supsup": "SupSup",
    "supsup-ood": "SupSup (OOD in CLOM)",
    "owm": "OWM",
    "muc": "MUC",
    "pass": "PASS",
    "lwf-r": "LwF.R",
    "icarl": "iCaRL",
    "mnemonics": "Mnemonics",
    "bic": "BiC",
    "derpp": "DER++",
    "a-rps": "A-RPS",
    "co2l": "Co2L",
    "ccg": "CCG",
}


@dataclass(frozen=True)
class Reported:
    """A mean of the paper, with its deviation over runs where it gives one."""

    mean: float
    std: float | None = None


@cache
def _paper() -> dict[str, Any]:
    text = (resources.files("clom.experiments") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def reported(experiment: str, method: str) -> dict[str, Reported]:
    """All that the paper says about a system on an experiment; the names are those of a run's summary."""
    name = PAPER_NAMES.get(method, "")
    found: dict[str, Reported] = {}
    ablation = _entry("ood_ablation", name, experiment)
    for figure, key in (("til", "til"), ("cil", "cil"), ("task_detection", "task_detection_rate"), ("auc", "auc")):
        if key in ablation:
            found["auc_maxlogit" if figure == "auc" else figure] = Reported(ablation[key])
    for table, prefix in (("final_accuracy", ""), ("average_incremental_accuracy", "average_incremental_")):
        entry = _entry(table, name, experiment)
        for figure in ("til", "cil"):
            if figure in entry:
                found[prefix + figure] = Reported(entry[figure], entry.get(f"{figure}_std"))
    sizes = _paper()["parameters_millions"]
    size = sizes.get(name, sizes.get(f"{name}-LwF", {})).get(experiment)  # one system has two names there
    if size is not None:
        found["parameters"] = Reported(size)
    return found


def all_systems(experiment: str, figure: str = "cil") -> dict[str, Reported]:
    """One figure of every system of the paper's main table on an experiment; empty if it has no such experiment."""
    systems = _paper()["final_accuracy"]
    entries = {name: by_experiment.get(experiment, {}) for name, by_experiment in systems.items()}
    return {
        name: Reported(entry[figure], entry.get(f"{figure}_std")) for name, entry in entries.items() if figure in entry
    }


def _entry(table: str, name: str, experiment: str) -> dict[str, float]:
    entry: dict[str, float] = _paper()[table].get(name, {}).get(experiment, {})
    return entry
