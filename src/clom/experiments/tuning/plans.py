"""Plans of searches: what is searched on which experiment, and within which allowance.

Tested by tests/experiments/tuning/test_trials.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clom.data.stream import Stream
from clom.experiments.allowance import parse_allowance, planned_passes
from clom.experiments.catalogue import read_experiment
from clom.experiments.config import RunConfig, resolve
from clom.experiments.tuning.adoption import recipe_part
from clom.experiments.tuning.space import LENGTH, read_space, space_of
from clom.experiments.tuning.trials import (
    FIRST_TASKS,
    HELD_OUT,
    TRIAL_SHARE,
    Choices,
    Starts,
    starts_of,
    whole_run,
)
from clom.methods.registry import method_class


@dataclass(frozen=True)
class SearchPlan:
    """What is searched, and under which conditions."""

    experiment: str
    """Its name, or the path of its file."""
    starts: Starts
    stream: Stream
    """All tasks of the experiment, by which the length of trials is computed."""
    allowance: float
    trials: int = 6
    seed: int = 0
    data: Path | None = None
    """The folder of data sets."""

    @property
    def name(self) -> str:
        return f"{self.starts.usual.experiment}-{self.starts.usual.method}"

    @property
    def n_tasks(self) -> int:
        """Tasks that a trial learns."""
        return min(FIRST_TASKS, len(self.stream))

    def conditions(self) -> dict[str, Any]:
        """What must not change when a search is continued."""
        return {
            "experiment": self.starts.usual.experiment,
            "method": self.starts.usual.method,
            "budget": self.starts.usual.budget,
            "seed": self.seed,
            "allowance": self.allowance,
            "trial": {"share": TRIAL_SHARE, "tasks": self.n_tasks, "held_out": HELD_OUT},
            "space": {
                name: parameter.model_dump(mode="json", exclude_defaults=True)
                for name, parameter in self.starts.parameters.items()
            },
            "starts": self.starts.settings,
        }

    def whole_run(self, choices: Choices) -> RunConfig:
        """The run that a trial with these choices stands for."""
        length = float(choices[LENGTH] or 0)
        return whole_run(self.starts.trial(choices), self.stream, self.allowance, length, self.data)


def plan_search(
    experiment: str,
    method: str,
    stream: Stream,
    *,
    budget: str = "cpu",
    trials: int = 6,
    seed: int = 0,
    space: Path | None = None,
    allowance: str | None = None,
    data: Path | None = None,
) -> SearchPlan:
    """The plan of a search. Its space is that of a file, or of the method's recipe.

    Without an `allowance`, that of the experiment is used; an experiment without one gets what the method's
    hand-written recipe uses.
    """
    found = read_experiment(experiment)
    usual = resolve(experiment, method, budget, seed, by_hand=True)
    if space is not None:
        wanted = read_space(space, found)
    else:
        wanted = space_of(method, method_class(method).name, found, usual.settings)
    where = str(space) if space else f"The search space of '{method}'"
    starts = starts_of(experiment, method, budget, seed, wanted, where)
    passes = parse_allowance(allowance, experiment, usual.budget).passes
    if passes is None:
        passes = planned_passes(usual, stream, data).total
    return SearchPlan(experiment, starts, stream, passes, trials, seed, data)


def transferred(plan: SearchPlan, experiment: str, stream: Stream) -> SearchPlan:
    """The plan by which what is found is used on another experiment: the same choices, from that experiment's own
    published and hand-written settings, and the same fraction of its own allowance."""
    usual = plan.starts.usual
    there = plan_search(experiment, usual.method, stream, budget=usual.budget, seed=plan.seed, data=plan.data)
    return replace(there, starts=replace(there.starts, space=plan.starts.space))


def recipe_of(choices: Choices, plan: SearchPlan, others: Sequence[SearchPlan]) -> dict[str, Any]:
    """The recipe that a search found, for its own experiment and for those to which it is transferred."""
    configs = [each.whole_run(choices) for each in (plan, *others)]
    return {config.experiment: recipe_part(plan.name, config) for config in configs}
