"""A search runs every trial once, starts with the published settings, and never looks at test images."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import yaml

from clom.cli import main
from clom.data import catalog
from clom.data.images import DataSet, Images
from clom.data.stream import Stream, Task
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.experiments.defaults import read_recipe_file
from clom.experiments.grid import Compute
from clom.experiments.run import read_config
from clom.experiments.task_result import TaskResult
from clom.experiments.tuning import running, search, trials
from clom.experiments.tuning.plans import SearchPlan, plan_search
from clom.experiments.tuning.record import write_record
from clom.experiments.tuning.running import run_searches
from clom.experiments.tuning.search import Outcome, Search, Trial
from clom.experiments.tuning.space import Parameter
from clom.learning.context import TrainingContext
from clom.methods.families.base import Method
from clom.stopping import StopRequest
from clom.storage.model_file import load_model
from experiments.tuning.trial_processes import InThisProcess, Scripted
from processes import environment

WORDS = ["tune", "digits-5t", "--budget", "smoke", "--allowance", "8000"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SECONDS_BETWEEN_LOOKS", 0.0)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of trials, in the order in which they are run."""
    monkeypatch.setattr(search, "RunProcess", InThisProcess)
    monkeypatch.setattr(InThisProcess, "started", [])
    return InThisProcess.started


@pytest.fixture
def planned_and_scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(search, "RunProcess", Scripted)
    monkeypatch.setattr(Scripted, "started", [])
    monkeypatch.setattr(Scripted, "stopped", [])
    monkeypatch.setattr(Scripted, "script", {})
    monkeypatch.setattr(Scripted, "slow", ())
    return Scripted


@pytest.fixture
def scripted(planned_and_scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    """Whose length does not matter: planning it would take a second for each."""
    monkeypatch.setattr(trials, "with_passes", lambda config, *_: config)
    return planned_and_scripted


@pytest.fixture(scope="module")
def stream() -> Stream:
    return resolve("digits-5t", budget="smoke").data.stream(None, 0)


@pytest.fixture
def plan(stream: Stream) -> SearchPlan:
    return plan_search("digits-5t", "hat", stream, budget="smoke", trials=4, allowance="6000")


class Seen:
    """A watcher that remembers, and may interrupt."""

    def __init__(self, interrupt_at: tuple[int, int] | None = None) -> None:
        self.tasks: list[tuple[int, int]] = []
        self.outcomes: dict[int, Outcome] = {}
        self._interrupt_at = interrupt_at

    def task_done(self, trial: Trial, result: TaskResult) -> None:
        self.tasks.append((trial.number, result.evaluation.n_tasks))
        if self.tasks[-1] == self._interrupt_at:
            raise KeyboardInterrupt

    def trial_done(self, trial: Trial, outcome: Outcome) -> None:
        self.outcomes[trial.number] = outcome


def run(searches: list[Search], seen: Seen, jobs: int = 1) -> dict[str, str]:
    return run_searches(searches, Compute(threads=1), jobs, seen, StopRequest())


def tune(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*WORDS, *words])
    assert not ended.value.code


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "search.json").read_text())
    return found


# --- whole searches ---------------------------------------------------------------------------------------------------


def test_held_out_images_are_neither_learned_nor_stored_and_test_images_not_looked_at(
    tmp_path: Path, in_this_process: list[str], monkeypatch: pytest.MonkeyPatch, digits: DataSet
) -> None:
    """Images are recognised by their content, which is different for all of them."""
    held_out = contents(*resolve("digits-5t", "icarl", "smoke", 0, {"data.held_out": 0.2}).data.stream(None, 0).tests)
    learned: set[bytes] = set()
    really_learn = Method.learn

    def learn(method: Method, task: Task, context: TrainingContext | None = None) -> Method:
        learned.update(contents(task.train, task.validation))
        return really_learn(method, task, context)

    monkeypatch.setattr(Method, "learn", learn)
    tune("--method", "icarl", "--trials", "2", "--out", str(tmp_path / "a"))
    assert in_this_process == ["1", "2"]
    assert len(learned) > 100
    assert not learned & set(held_out)
    model = load_model(tmp_path / "a" / "trials" / "2" / "model.safetensors")
    stored = [value for value in model.state_dict().values() if value.dtype == torch.uint8 and value.ndim == 4]
    assert stored
    images = {image.numpy().tobytes() for value in stored for image in value}
    assert images & learned
    assert not images & set(held_out)

    garbage = Images(torch.randint_like(digits.test.pixels, 256), digits.test.labels)
    monkeypatch.setattr(catalog, "load", lambda *_: replace(digits, test=garbage))
    tune("--method", "icarl", "--trials", "2", "--out", str(tmp_path / "b"))
    results = [[trial["cil"] for trial in read(tmp_path / name)["trials"]] for name in ("a", "b")]
    assert results[0] == results[1]


def contents(*parts: Images) -> list[bytes]:
    return [image.numpy().tobytes() for part in parts for image in part.pixels]


def test_the_recipe_is_the_best_trial_at_its_full_length(
    tmp_path: Path, in_this_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--method", "finetune", "--trials", "3", "--out", str(tmp_path / "s"), "--record", str(tmp_path / "kept"))
    tune(*words, "--two-phase", "mnist-5t") if catalog.available("mnist", None) else tune(*words)
    printed = capsys.readouterr().out
    assert "trial 3 of 3: task 3, CIL" in printed
    assert "left" in printed
    assert "finished" in printed
    record = read(tmp_path / "s")
    assert json.loads((tmp_path / "kept" / "digits-5t-finetune.json").read_text()) == record
    assert [trial["start"] for trial in record["trials"]][:2] == ["published", "by hand"]
    assert [trial["length"] for trial in record["trials"]][:2] == [1.0, 1.0]
    best = record["trials"][record["best"] - 1]
    assert best["cil"][-1] == max(trial["cil"][-1] for trial in record["trials"])
    assert all(trial["passes"] > 0 and trial["core_minutes"] > 0 and trial["commit"] for trial in record["trials"])
    assert (tmp_path / "s" / "search.png").exists()

    recipe = read_recipe_file(tmp_path / "s" / "recipe.yaml")
    found = resolve("digits-5t", "finetune", "smoke", recipe=recipe)
    tried = read_config(tmp_path / "s" / "trials" / str(record["best"]))
    assert found.search == tried.search == "digits-5t-finetune"
    for part in ("optimiser", "augmentation"):
        assert found.settings[part] == tried.settings[part]
    assert max(1, round(found.settings["plan"]["epochs"] / 4)) == tried.settings["plan"]["epochs"]
    assert (tried.data.held_out, tried.data.first_tasks) == (0.2, 3)
    assert (found.data.held_out, found.data.first_tasks) == (None, None)
    with pytest.raises(UserError, match=r"found for digits-5t \(budget smoke\), not for cifar10-5t at budget smoke"):
        resolve("cifar10-5t", "finetune", "smoke", recipe={"digits-5t": recipe["digits-5t"]})

    in_this_process.clear()
    tune(*words)
    assert in_this_process == [], "a finished search is not repeated"
    assert "finished" in capsys.readouterr().out


def test_a_plug_in_is_searched(tmp_path: Path, in_this_process: list[str]) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("space: {strength: {values: [0.01, 0.1]}, optimiser.lr: {times: [0.5, 2]}}")
    example = Path(__file__).parents[3] / "examples" / "own_method.py"
    words = ["--method", f"{example}:PullBack", "--trials", "2", "--out", str(tmp_path / "s")]
    tune(*words, "--space", str(space))
    record = read(tmp_path / "s")
    assert record["trials"][0]["choices"]["strength"] == 0.03, "its own, not one of the file's"
    recipe = yaml.safe_load((tmp_path / "s" / "recipe.yaml").read_text())
    assert recipe["digits-5t"]["smoke"]["strength"] in (0.01, 0.03, 0.1)


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("space: {optimser.lr: {times: [0.5, 2]}}")
    for words, message in (
        (["--method", "finetune", "--space", str(space)], "no setting 'optimser.lr'. Did you mean 'optimiser.lr'?"),
        (["--method", "finetun"], "There is no method 'finetun'. Did you mean 'finetune'?"),
        (["--method", "finetune", "--two-phase", "cifar11-5t"], "There is no experiment 'cifar11-5t'. Did you mean"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*WORDS, "--out", str(tmp_path / "s"), *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


# --- the order of events, without training ----------------------------------------------------------------------------


def test_hopeless_trials_are_pruned_but_not_the_published_one(
    tmp_path: Path, scripted: type[Scripted], plan: SearchPlan
) -> None:
    scripted.script = {"1": [0.4, 0.3, 0.2], "2": [0.9, 0.8, 0.7], "3": [0.81, 0.69, 0.6], "4": [0.79, 0.9, 0.9]}
    scripted.slow = ("1",)  # the second trial is seen first, and is far better
    seen, found = Seen(), Search(plan, tmp_path)
    assert run([found], seen, jobs=2) == {}
    assert seen.tasks.index((2, 1)) < seen.tasks.index((1, 1))
    assert seen.outcomes == {1: "finished", 2: "finished", 3: "pruned", 4: "pruned"}
    assert sorted(scripted.stopped) == ["3", "4"]
    record = write_record(found)
    assert [trial["state"] for trial in record["trials"]] == ["finished", "finished", "pruned", "pruned"]
    assert [trial["cil"] for trial in record["trials"]] == [[0.4, 0.3, 0.2], [0.9, 0.8, 0.7], [0.81, 0.69], [0.79]]
    assert record["best"] == 2
    first, second = (plan.whole_run(trial.params).settings for trial in found.done[:2])
    assert record["recipe"]["digits-5t"]["smoke"] == second != first
    assert [trial["passes"] for trial in record["trials"]] == [300, 300, 200, 100]


def test_what_does_not_fit_the_allowance_is_not_run(
    tmp_path: Path, planned_and_scripted: type[Scripted], stream: Stream
) -> None:
    """An epoch of DER++ as published for MNIST replays 256 images with every ten new ones."""
    plan = plan_search("digits-5t", "derpp", stream, budget="smoke", trials=2, allowance="6000")
    planned_and_scripted.script = {"2": [0.5, 0.5, 0.5]}
    seen, found = Seen(), Search(plan, tmp_path)
    assert run([found], seen) == {}
    assert seen.outcomes == {1: "too long", 2: "finished"}
    first, second = write_record(found)["trials"]
    assert (first["state"], first["cil"], first["settings"]) == ("too long", [], {})
    assert second["settings"]["plan.epochs"] >= 1


def test_divergence_counts_as_a_trial(tmp_path: Path, scripted: type[Scripted], plan: SearchPlan) -> None:
    scripted.script = {"1": [0.5, -1], "2": [0.5, 0.5, 0.5], "3": [-1], "4": [0.5, 0.5, 0.6]}
    seen, found = Seen(), Search(plan, tmp_path)
    assert run([found], seen) == {}
    assert seen.outcomes == {1: "diverged", 2: "finished", 3: "diverged", 4: "finished"}
    assert write_record(found)["best"] == 4
    assert len(found.done) == 4


def test_another_failure_stops_that_search_only_and_is_retried(
    tmp_path: Path, scripted: type[Scripted], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [
        plan_search("digits-5t", method, stream, budget="smoke", trials=2, allowance="6000")
        for method in ("hat", "finetune")
    ]
    monkeypatch.setattr(scripted, "failure", "No space left on device")
    scripted.script = {"1": [0.5, 0.5, 0.5], "2": [0.5, -1]}
    failures = run([Search(plan, tmp_path / plan.name) for plan in plans], Seen(), jobs=2)
    assert set(failures) == {"digits-5t-hat", "digits-5t-finetune"}
    assert failures["digits-5t-hat"].endswith("failed: exit code 2: No space left on device")
    scripted.script["2"] = [0.5, 0.5, 0.5]
    scripted.started.clear()
    assert run([Search(plan, tmp_path / plan.name) for plan in plans], Seen(), jobs=2) == {}
    assert scripted.started == ["2", "2"]


def test_an_interrupted_search_is_continued(tmp_path: Path, scripted: type[Scripted], plan: SearchPlan) -> None:
    scripted.script = {str(number): [0.5, 0.4, 0.3 + 0.01 * number] for number in range(1, 5)}
    through = Search(plan, tmp_path / "through")
    run([through], Seen())
    scripted.started.clear()

    with pytest.raises(KeyboardInterrupt):
        run([Search(plan, tmp_path / "stopped")], Seen(interrupt_at=(3, 2)))
    assert scripted.started == ["1", "2", "3"]
    continued, seen = Search(plan, tmp_path / "stopped"), Seen()
    run([continued], seen)
    assert scripted.started == ["1", "2", "3", "3", "4"]
    assert (3, 3) in seen.tasks
    assert [trial.params for trial in continued.done] == [trial.params for trial in through.done]
    assert [trial.value for trial in continued.done] == [trial.value for trial in through.done]
    more = Search(replace(plan, trials=5), tmp_path / "stopped")
    scripted.script["5"] = [0.5, 0.5, 0.5]
    run([more], Seen())
    assert scripted.started[-1] == "5"


def test_another_search_is_not_continued(tmp_path: Path, stream: Stream, plan: SearchPlan) -> None:
    Search(plan, tmp_path)
    with pytest.raises(UserError, match=r"has a search under other conditions \(allowance\)"):
        Search(replace(plan, allowance=7000), tmp_path)


def test_the_sampler_learns_from_earlier_trials(tmp_path: Path, scripted: type[Scripted], stream: Stream) -> None:
    """With a start that is clearly worse, all further trials begin from the other one."""
    plan = plan_search("digits-5t", "hat", stream, budget="smoke", trials=6, allowance="6000")
    scripted.script = {str(number): [0.9, 0.9, 0.9] for number in range(1, 7)} | {"1": [0.9, 0.9, 0.1]}
    found = Search(plan, tmp_path)
    run([found], Seen())
    assert [trial.params["start"] for trial in found.done][2:] == ["by hand"] * 4
    rates = [trial.params["learning.optimiser.lr"] for trial in found.done[2:]]
    assert len(set(rates)) == 4


def test_every_value_of_a_parameter_can_be_proposed(plan: SearchPlan) -> None:
    study = optuna.create_study()
    for parameter, kind in (
        (Parameter(values=(1, 2)), (1, 2)),
        (Parameter(range=(1, 2)), None),
        (Parameter(times=(0.5, 2)), None),
    ):
        value = search._suggest(study.ask(), f"x{parameter}", parameter)
        assert value in kind if kind else 0.5 <= value <= 2


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_search_is_continued(tmp_path: Path) -> None:
    words = [*WORDS, "--method", "finetune", "--trials", "2", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "clom", *words], env=environment(), start_new_session=True)
    first, second = (tmp_path / "trials" / number / "metrics.jsonl" for number in "12")
    while not second.exists():
        assert process.poll() is None, "it ended before its second trial began"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = first.stat().st_mtime_ns
    done = subprocess.run([sys.executable, "-m", "clom", *words], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert first.stat().st_mtime_ns == before
    assert [trial["state"] for trial in read(tmp_path)["trials"]] == ["finished", "finished"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_stops_the_trials_and_loses_nothing(tmp_path: Path) -> None:
    words = [*WORDS, "--method", "finetune", "--trials", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "clom", *words]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "trials" / "1" / "metrics.jsonl").exists():
        assert process.poll() is None, "it ended before its first task was learned"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "The same command continues the search." in printed
    assert subprocess.run(command, env=environment(), capture_output=True).returncode == 0
    assert [trial["state"] for trial in read(tmp_path)["trials"]] == ["finished", "finished"]
