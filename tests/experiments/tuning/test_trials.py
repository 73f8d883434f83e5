"""Trials start from the published and the hand-written settings, and their length follows from the allowance."""

from __future__ import annotations

import pytest

from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.allowance import planned_passes
from clom.experiments.config import RunConfig, resolve
from clom.experiments.tuning.plans import SearchPlan, plan_search, transferred
from clom.experiments.tuning.space import Parameter, Space
from clom.experiments.tuning.trials import BY_HAND, PUBLISHED, Starts, starts_of, trial_data, trial_run
from clom.methods.registry import PAPER_METHODS, TRAINED_METHODS
from clom.settings import flatten

SEARCHED = ("digits-5t", "mnist-5t", "cifar10-5t", "cifar100-10t")


def starts(experiment: str, method: str, space: Space, budget: str = "cpu") -> Starts:
    return starts_of(experiment, method, budget, 0, space, "here")


def plan_of(experiment: str, method: str) -> SearchPlan:
    """Without images: an allowance is given, and nothing is trained."""
    stream = resolve("digits-5t", budget="smoke").data.stream(None, 0)
    return plan_search(experiment, method, stream, allowance="1000")


@pytest.mark.parametrize("experiment", SEARCHED)
@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_every_system_is_searched_from_its_published_settings(experiment: str, method: str) -> None:
    plan = plan_of(experiment, method)
    assert list(plan.starts.settings) == [PUBLISHED, BY_HAND]
    first, second = (plan.starts.trial(choices) for choices in plan.starts.first_choices())
    assert (first.settings, second.settings) == tuple(plan.starts.settings.values())
    usual = resolve(experiment, method, by_hand=True)
    assert {first.budget, second.budget} == {"cpu"}
    assert first.net == second.net == usual.net
    names = set(plan.starts.parameters) - {"start", "length"}
    assert any(name.endswith("optimiser.lr") for name in names), "the learning rate"
    assert len(names) <= 4, "and at most three numbers of its own"
    published = flatten(resolve(plan.starts.space.published or experiment, method, "paper", by_hand=True).settings)
    rate = next(name for name in names if name.endswith("optimiser.lr") and name in published)
    assert flatten(first.settings)[rate] == published[rate]
    if method in PAPER_METHODS:
        assert not first.settings.get("flip_tta")
        assert not second.settings.get("flip_tta")


def test_the_first_trial_of_derpp_is_its_publication() -> None:
    first = plan_of("cifar10-5t", "derpp").starts.settings[PUBLISHED]
    assert (first["alpha"], first["beta"], first["plan"]["batch"], first["replay_batch"]) == (0.1, 0.5, 32, 32)
    assert (first["optimiser"]["kind"], first["optimiser"]["lr"]) == ("sgd", 0.03)


def test_the_row_clom_is_the_papers_system() -> None:
    """In its second trial as well."""
    for method in ("clom", "supsup-ood"):
        for settings in plan_of("cifar10-5t", method).starts.settings.values():
            assert settings["memory_fit"]["cross_task"] is None
            assert not settings["flip_tta"]
            learning = settings["learning"]
            assert (learning["order"], learning["cross_entropy"], learning["rotations"]) == ("paper", 0.0, 4)


def test_choices_change_the_settings_of_their_start() -> None:
    space = Space(
        space={
            "optimiser.lr": Parameter(times=(0.2, 5)),
            "alpha": Parameter(values=(0.3, 0.4), also=("beta",)),
            "plan.batch": Parameter(times=(0.2, 5)),
            "replay_batch": Parameter(range=(1, 100)),
        },
        fixed={"memory.size": 100},
    )
    found = starts("cifar10-5t", "derpp", space)
    assert found.parameters["alpha"].values == (0.3, 0.4, 0.1, 0.5), "with those of both starts"
    choices = {"length": 0.5, "alpha": 0.3, "optimiser.lr": 1.23456, "plan.batch": 1.3, "replay_batch": 7.6}
    one, other = (found.trial({"start": start, **choices}).settings for start in (PUBLISHED, BY_HAND))
    assert (one["optimiser"]["lr"], other["optimiser"]["lr"]) == (0.037, 0.00247)
    assert (one["optimiser"]["kind"], other["optimiser"]["kind"]) == ("sgd", "adam")
    assert (one["plan"]["batch"], other["plan"]["batch"]) == (42, 83)
    for settings in (one, other):
        assert (settings["alpha"], settings["beta"]) == (0.3, 0.3)
        assert (settings["replay_batch"], settings["memory"]["size"]) == (8, 100)


def test_kept_groups_are_those_of_the_budget() -> None:
    kept = starts("cifar10-5t", "ccg", Space(keep=("network", "augmentation.shift")))
    usual, published = (resolve("cifar10-5t", "ccg", budget).settings for budget in ("cpu", "paper"))
    assert kept.settings[PUBLISHED] == {**published, "network": usual["network"]}
    assert published["network"] != usual["network"]


def test_mistakes_are_explained() -> None:
    for space, message in (
        (Space(keep=("netwrk",)), "here: There is no group of settings 'netwrk'. Did you mean 'network'?"),
        (Space(space={"sparsty": Parameter(times=(0.5, 2))}), "here: There is no setting 'sparsty'. Did you mean"),
        (Space(space={"sparsity": Parameter(range=(0.2, 1))}), "does not contain the published value, 0.1"),
        (Space(fixed={"sparsty": 1}), "There is no setting 'sparsty'. Did you mean 'sparsity'?"),
        (Space(published="cifar11-5t"), "Did you mean 'cifar10-5t'?"),
    ):
        with pytest.raises(UserError) as problem:
            starts("cifar10-5t", "ccg", space)
        assert message in str(problem.value)


def test_equal_starts_are_one() -> None:
    found = starts("digits-5t", "bic", Space(space={"optimiser.lr": Parameter(times=(0.5, 2))}))
    assert list(found.settings) == [PUBLISHED]
    assert list(found.parameters) == ["length", "optimiser.lr"]
    assert found.first_choices() == [{"length": 1.0, "optimiser.lr": 1.0}]


@pytest.fixture(scope="module")
def stream() -> Stream:
    return resolve("digits-5t", budget="smoke").data.stream(None, 0)


@pytest.fixture(scope="module")
def plan(stream: Stream) -> SearchPlan:
    return plan_search("digits-5t", "finetune", stream, budget="smoke", allowance="20000")


def epochs(config: RunConfig) -> int:
    found: int = config.settings["plan"]["epochs"]
    return found


def test_a_whole_run_uses_its_share_of_the_allowance_and_a_trial_a_quarter_of_its_epochs(plan: SearchPlan) -> None:
    choices = plan.starts.first_choices()[0]
    for length in (1.0, 0.5):
        whole = plan.whole_run({**choices, "length": length})
        used = planned_passes(whole, plan.stream).total
        assert 0.9 * length * 20_000 < used <= length * 20_000
        assert epochs(trial_run(whole)) == round(epochs(whole) / 4)
    assert trial_data() == {"data.held_out": 0.2, "data.first_tasks": 3}


def test_one_recipe_fits_the_allowance_with_every_seed_of_a_table(stream: Stream) -> None:
    """The random paths of RPS-Net cost more with some seeds than with others."""
    plan = plan_search("digits-5t", "a-rps", stream, budget="smoke", allowance="200000")
    whole = plan.whole_run(plan.starts.first_choices()[1])
    used = [planned_passes(whole.model_copy(update={"seed": seed}), stream).total for seed in (0, 1, 2)]
    assert whole.seed == 0
    assert used[0] < 0.95 * max(used), "seed 0 alone would have allowed more epochs"
    assert 0.9 * 200_000 < max(used) <= 200_000


def test_too_short_a_run_uses_the_whole_allowance(stream: Stream) -> None:
    one_epoch = planned_passes(resolve("digits-5t", "finetune", "smoke", 0, {"plan.epochs": 1}), stream).total
    plan = plan_search("digits-5t", "finetune", stream, budget="smoke", allowance=str(1.5 * one_epoch))
    by_hand = plan.starts.first_choices()[1]
    assert epochs(plan.whole_run({**by_hand, "length": 0.5})) == 1
    small = plan_search("digits-5t", "finetune", stream, budget="smoke", allowance=str(0.5 * one_epoch))
    with pytest.raises(UserError, match="cannot learn digits-5t with"):
        small.whole_run(by_hand)


def test_without_an_allowance_a_run_is_as_long_as_by_hand(stream: Stream) -> None:
    plan = plan_search("digits-5t", "finetune", stream, budget="smoke", allowance="none")
    assert plan.allowance == planned_passes(resolve("digits-5t", "finetune", "smoke"), stream).total


def test_what_is_found_is_transferred_by_its_choices() -> None:
    plan = plan_of("cifar100-10t", "clom")
    there = transferred(plan, "cifar100-20t", plan.stream)
    choices = {**plan.starts.first_choices()[0], "attention.sparsity_first": 2.0, "learning.optimiser.lr": 0.5}
    found = there.starts.trial(choices)
    assert found.experiment == "cifar100-20t"
    assert found.settings["attention"]["sparsity_first"] == 7.0, "twice the published value for that experiment"
    assert found.settings["learning"]["optimiser"]["lr"] == 0.5
