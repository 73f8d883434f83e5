"""The numbers that the paper prints, from `paper.json`.

Tested by tests/reporting/paper/test_tables.py.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_paper() -> dict[str, Any]:
    """The content of `paper.json`."""
    text = (resources.files("clom.reporting.paper") / "paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def is_printed(short: str) -> bool:
    """Whether the paper prints numbers of a system of this label."""
    return any(short in read_paper()[table] for table in ("final_accuracy", "ood_ablation"))


def paper_experiments(short: str) -> list[str]:
    """The experiments for which the paper prints a number of this system, in its order; none for other systems."""
    paper = read_paper()
    printed = {
        experiment
        for table in ("final_accuracy", "ood_ablation")
        for experiment, numbers in paper[table].get(short, {}).items()
        if any(number is not None for number in numbers.values())
    }
    return [experiment for experiment in paper["experiments"] if experiment in printed]
