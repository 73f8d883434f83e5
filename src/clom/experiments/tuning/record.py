"""The record of a search: everything a reader needs, as JSON, and the recipe that it found.

Tested by tests/experiments/tuning/test_search.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from clom.errors import UserError
from clom.experiments import provenance
from clom.experiments.run import read_config
from clom.experiments.task_result import TaskResult, read_results
from clom.experiments.tuning.adoption import write_recipe
from clom.experiments.tuning.plans import SearchPlan, recipe_of
from clom.experiments.tuning.search import Search
from clom.experiments.tuning.space import LENGTH
from clom.experiments.tuning.trials import PUBLISHED, START, Choices
from clom.files import write_json
from clom.settings import flatten

OBJECTIVE = "CIL on training images that were held out"
_ENOUGH = 3  # finished trials for an importance


def write_record(search: Search, others: Sequence[SearchPlan] = ()) -> dict[str, Any]:
    """Write `search.json` and `recipe.yaml`. `others` are plans of experiments to which the result is transferred."""
    plan = search.plan
    trials = [_trial_record(search, trial) for trial in search.done]
    best = best_trial(search)
    recipe = recipe_of(_choices(best), plan, others)
    record = {
        "search": plan.name,
        "objective": OBJECTIVE,
        **plan.conditions(),
        "best": best.number + 1,
        "trials": trials,
        "importance": _importance(search),
        "recipe": recipe,
    }
    write_recipe(search.folder / "recipe.yaml", recipe)
    write_json(search.folder / "search.json", record)
    return record


def best_trial(search: Search) -> FrozenTrial:
    finished = [trial for trial in search.done if trial.state == TrialState.COMPLETE]
    if not finished:
        raise UserError(f"No trial of {search.plan.name} reached its last task: there is no recipe to write.")
    return max(finished, key=lambda trial: (trial.value or 0.0, -trial.number))


def _choices(trial: FrozenTrial) -> Choices:
    return dict(trial.params)


def _trial_record(search: Search, trial: FrozenTrial) -> dict[str, Any]:
    folder = search.folder / "trials" / str(trial.number + 1)
    environment = provenance.recorded(folder)
    path = folder / "metrics.jsonl"
    results = read_results(path) if path.exists() else []
    start = str(trial.params.get(START, PUBLISHED))
    return {
        "number": trial.number + 1,
        "state": trial.user_attrs["outcome"],
        START: start,
        LENGTH: trial.params[LENGTH],
        "choices": {name: value for name, value in trial.params.items() if name not in (START, LENGTH)},
        "settings": _differences(folder, search.plan.starts.settings[start]),
        "cil": [round(result.evaluation.preferred.cil, 5) for result in results],
        "til": [round(result.evaluation.til, 5) for result in results],
        "passes": _passes(results),
        "core_minutes": round(sum(result.cpu_minutes for result in results), 3),
        "precision": environment.get("precision"),
        "device": environment.get("device"),
        "commit": environment.get("commit"),
        "machine": f"{environment.get('processor')}, {environment.get('threads')} threads",
    }


def _differences(folder: Path, start: dict[str, Any]) -> dict[str, Any]:
    """What the trial trained with, where it differs from its start; empty if it was not run."""
    before = flatten(start)
    used = read_config(folder).settings if (folder / "config.yaml").exists() else start
    return {name: value for name, value in flatten(used).items() if before.get(name) != value}


def _passes(results: Sequence[TaskResult]) -> int:
    return round(sum(result.passes or 0.0 for result in results))


def _importance(search: Search) -> dict[str, float]:
    """Share of the variance of the finished trials that each choice explains; empty if there are too few."""
    finished = [trial for trial in search.done if trial.state == TrialState.COMPLETE]
    if len(finished) < _ENOUGH:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    try:
        found = optuna.importance.get_param_importances(search.study, evaluator=evaluator)
    except RuntimeError:  # all trials are equally good
        return {}
    return {name: round(share, 3) for name, share in found.items()}
