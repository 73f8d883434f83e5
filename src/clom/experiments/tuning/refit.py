"""Lengths of training for recipes of recorded searches, for when a system's training costs more or less than before.

What the search chose stays as it is; only the numbers of epochs are computed again, so that they use the chosen
fraction of the allowance.

Tested by tests/experiments/tuning/test_refit.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.experiments.config import resolve
from clom.experiments.tuning.adoption import plain
from clom.experiments.tuning.plans import plan_search, recipe_of, transferred
from clom.experiments.tuning.space import LENGTH
from clom.experiments.tuning.trials import START, Choices
from clom.files import read_json, write_json


def refit(path: Path, data: Path | None = None) -> None:
    """Compute the recipe in the record of a search again. `data` is the folder of data sets."""
    record = read_json(path)
    method, budget, seed = record["method"], record["budget"], record["seed"]
    own, *others = record["recipe"]
    streams = {
        name: resolve(name, method, budget, seed, by_hand=True).data.stream(data, seed) for name in (own, *others)
    }
    allowance = str(record["allowance"])
    plan = plan_search(own, method, streams[own], budget=budget, seed=seed, allowance=allowance, data=data)
    changed = [name for name, value in plain(plan.conditions()).items() if record.get(name) != value]
    if changed:
        raise UserError(
            f"{path} was searched under other conditions ({', '.join(changed)}), so its choices mean something else "
            f"today. Search again: clom tune {own} --method {method}"
        )
    recipe = recipe_of(_choices(record), plan, [transferred(plan, name, streams[name]) for name in others])
    write_json(path, record | {"recipe": recipe})


def _choices(record: dict[str, Any]) -> Choices:
    best = record["trials"][record["best"] - 1]
    return {START: best[START], LENGTH: best[LENGTH], **best["choices"]}
