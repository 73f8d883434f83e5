"""A search: its folder, its trials in an optuna study, and what the sampler proposes next.

| in the folder | contents |
|---|---|
| `search.db` | the optuna study: choices, states and results of all trials |
| `trials/3/` | the run of the third trial, as `clom run` writes it |
| `search.json`, `search.png` | the record of the finished search and its figure |
| `recipe.yaml` | the best trial at its full length, for `clom run --recipe` |

A trial that was interrupted is continued; a finished one is never repeated.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from clom.errors import UserError
from clom.experiments.grid import Compute, RunProcess, command_line, set_options
from clom.experiments.task_result import TaskResult, read_results
from clom.experiments.tuning.adoption import plain, recipe_part, write_recipe
from clom.experiments.tuning.plans import SearchPlan
from clom.experiments.tuning.space import Parameter
from clom.experiments.tuning.trials import PUBLISHED, START, Choices, TooLong, trial_data, trial_run
from clom.plugins import loaded

HOPELESS = 0.1
"""A trial is pruned if its CIL is this far below the best one after the same task."""
_GUIDED_AFTER = 2  # trials; with six in all, optuna's default of ten random ones would leave it nothing to do

Outcome = Literal["finished", "pruned", "diverged", "too long"]
"""Too long: even the shortest training would exceed the allowance."""


class Search:
    """The state of one search, in a folder that one process at a time may use."""

    def __init__(self, plan: SearchPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        folder.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            storage=f"sqlite:///{folder / 'search.db'}",
            study_name=plan.name,
            direction="maximize",
            load_if_exists=True,
        )
        conditions = self.study.user_attrs.get("conditions")
        if conditions is None:
            for choices in plan.starts.first_choices():
                self.study.enqueue_trial(choices)
            self.study.set_user_attr("conditions", plan.conditions())
        elif conditions != plain(plan.conditions()):
            differing = ", ".join(name for name in conditions if conditions[name] != plain(plan.conditions()).get(name))
            raise UserError(
                f"{folder} has a search under other conditions ({differing}). Choose another folder with --out, or "
                "remove it."
            )

    @property
    def done(self) -> list[FrozenTrial]:
        """All trials that need no more work, in order."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    @cached_property
    def _interrupted(self) -> list[FrozenTrial]:
        """Trials of an earlier process that did not end."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def next_trial(self, n_running: int) -> Trial | None:
        """An interrupted trial or a new one; None if there are enough."""
        # A sampler of its own for each trial: a continued search then proposes what an uninterrupted one would have.
        seed = 1000 * self.plan.seed + len(self.done)
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_GUIDED_AFTER)
        if self._interrupted:
            return Trial(self, self._interrupted.pop(0)._trial_id)
        if len(self.done) + n_running >= self.plan.trials:
            return None
        return Trial(self, self.study.ask()._trial_id)


class Trial:
    """One trial that is not done yet, and its process."""

    def __init__(self, search: Search, trial_id: int) -> None:
        self.search = search
        self._trial = optuna.trial.Trial(search.study, trial_id)
        self.choices: Choices = {
            name: _suggest(self._trial, name, parameter) for name, parameter in search.plan.starts.parameters.items()
        }
        self.folder = search.folder / "trials" / str(self.number)
        self.process: RunProcess | None = None
        self.results: list[TaskResult] = []
        self.pruned = False

    @property
    def number(self) -> int:
        """Counted from 1."""
        return self._trial.number + 1

    @property
    def is_published(self) -> bool:
        return self.number == 1 and self.choices.get(START, PUBLISHED) == PUBLISHED

    def start(self, compute: Compute) -> bool:
        """Start or continue its run in a separate process; returns whether it fits the allowance."""
        plan = self.search.plan
        try:
            config = trial_run(plan.whole_run(self.choices))
        except TooLong:
            return False
        recipe = self.folder / "recipe.yaml"
        write_recipe(recipe, {config.experiment: recipe_part(plan.name, config)})
        words = command_line(plan.experiment, config, self.folder, compute, loaded())
        self.process = RunProcess([*words, "--recipe", str(recipe), *set_options(trial_data())], self.folder)
        return True

    def new_results(self) -> list[TaskResult]:
        """Results after tasks that were learned since the last call. Stops the process if they are hopeless."""
        path = self.folder / "metrics.jsonl"
        known, self.results = len(self.results), read_results(path) if path.exists() else []
        for step in range(known, len(self.results)):
            cil = self.results[step].evaluation.preferred.cil
            if step not in self._recorded.intermediate_values:  # a continued trial has reported it
                self._trial.report(cil, step)
            last = step + 1 == self.search.plan.n_tasks
            if not self.is_published and not last and not self.pruned and self._hopeless(step, cil):
                self.pruned = True
                if self.process is not None:
                    self.process.stop()
        return self.results[known:]

    @property
    def _recorded(self) -> FrozenTrial:
        return self.search.study.get_trials(deepcopy=False)[self._trial.number]

    def _hopeless(self, step: int, cil: float) -> bool:
        others = self.search.study.get_trials(deepcopy=False)
        reached = [trial.intermediate_values[step] for trial in others if step in trial.intermediate_values]
        return cil < max(reached, default=0.0) - HOPELESS

    def end(self) -> Outcome:
        """Record the result. Raises UserError if the run failed for another reason than its settings."""
        assert self.process is not None
        finished = self.process.finished()
        self.new_results()
        if finished:
            outcome: Outcome = "finished"
        elif self.pruned:
            outcome = "pruned"
        else:
            failure = (self.folder / "failure.txt").read_text(encoding="utf-8").strip()
            if "diverged" not in failure:
                raise UserError(f"Trial {self.number} of {self.search.plan.name} failed: {failure}")
            outcome = "diverged"
            self._trial.report(0.0, len(self.results))  # so that the sampler avoids such settings
        return self._tell(outcome)

    def skip(self) -> Outcome:
        """Record that it cannot be run within the allowance."""
        self._trial.report(0.0, 0)
        return self._tell("too long")

    def _tell(self, outcome: Outcome) -> Outcome:
        self._trial.set_user_attr("outcome", outcome)
        if outcome == "finished":
            self.search.study.tell(self._trial, self.results[-1].evaluation.preferred.cil)
        else:
            self.search.study.tell(self._trial, state=TrialState.PRUNED)
        return outcome


def _suggest(trial: optuna.trial.Trial, name: str, parameter: Parameter) -> Any:
    if parameter.values is not None:
        return trial.suggest_categorical(name, parameter.values)
    low, high = parameter.times or parameter.range or (0.0, 0.0)
    return trial.suggest_float(name, low, high, log=parameter.log or parameter.times is not None)
