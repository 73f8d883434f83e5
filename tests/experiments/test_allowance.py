"""Passes of whole runs: counted as computed by hand, predicted as counted, and limited by an allowance."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.allowance import (
    Allowed,
    PlannedPasses,
    _chosen_steps,
    parse_allowance,
    planned_passes,
    require_within,
    unit_of_passes,
    with_passes,
)
from clom.experiments.catalogue import experiment_names, read_experiment, size_of
from clom.experiments.config import RunConfig, resolve
from clom.learning.context import TrainingContext
from clom.learning.protection.hard_attention import HardAttention
from clom.methods.registry import BUILT_IN
from clom.nets.passes import PassCounter, counting, multiply_adds
from clom.nets.plain import Backbone
from clom.settings import flatten

EXPERIMENT = "digits-5t"
TINY: dict[str, Any] = {"data.sizes": [2, 2], "data.classes_per_task": None, "data.train_per_class": 12}
GENERATIVE: dict[str, Any] = {"rehearsal": "generative", "wgan.steps": 9, "wgan.width": 4}
N = 22
"""Training images of each task: of 12 per class one is for validation."""


def tiny(method: str, **overrides: Any) -> RunConfig:
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return resolve(EXPERIMENT, method, "smoke", 0, TINY | given)


def counted(config: RunConfig, stream: Stream | None = None) -> list[float]:
    """The passes of each task."""
    stream = stream or config.data.stream(None, config.seed)
    method, passes = config.make_method(stream.image_shape), list[float]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in stream:
            counter = PassCounter(unit_of_passes(config, stream.image_shape[-1]))
            method.learn(task, TrainingContext(passes=counter))
            passes.append(counter.total)
    return passes


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_fine_tuning() -> None:
    """Every image forward and backward in each of two epochs."""
    assert counted(tiny("finetune", plan__epochs=2)) == [N * 2 * 3] * 2


def test_hat() -> None:
    """The masked network costs what the whole one does. Then the typical score and the statistics of the task's images,
    which include two for validation, and the scores of the memory, which has one image of each class: all tasks' for
    new images, the new task's for earlier ones."""
    all_open = {"attention__initial_mean": 6.0, "attention__initial": 0.0}
    config = tiny("hat", learning__plan__epochs=2, memory_per_class=2, **all_open)
    assert counted(config) == [N * 2 * 3 + N + (N + 2) + 2, N * 2 * 3 + N + (N + 2) + 2 * 2 + 2]


def test_soft_gates() -> None:
    """Earlier tasks' networks change with every task, so that all of them compute all samples again."""
    config = tiny("hat", learning__plan__epochs=2, memory_per_class=2, attention__binary=False)
    assert counted(config) == [N * 2 * 3 + N + (N + 2) + 2, N * 2 * 3 + N + (N + 2) + 4 * 2]


def test_clom() -> None:
    """Two views in four rotations, one view in four rotations for the head, and the scores of HAT in four rotations."""
    config = tiny(
        "clom",
        learning__plan__epochs=2,
        learning__order="paper",
        learning__head__views=3,
        attention__initial_mean=6.0,
        attention__initial=0.0,
        memory_per_class=2,
    )
    assert counted(config) == [
        N * 2 * 8 * 3 + N * 3 * 4 + N * 4 + (N + 2) * 4 + 2 * 4,
        N * 2 * 8 * 3 + N * 3 * 4 + N * 4 + (N + 2) * 4 + 4 * (2 * 2 + 2),
    ]


def test_units_that_a_task_closed_cost_nothing_afterwards() -> None:
    config = tiny("hat", learning__plan__epochs=1, memory_per_class=2)
    assert N * 3 < counted(config)[0] < N * 3 + N + (N + 2) + 2


def test_icarl() -> None:
    """The memory has four images of each of two classes. From the second task on a teacher runs as well, and the new
    head's rows start from the features. Herding and the means of the memory need features, too."""
    config = tiny("icarl", plan__epochs=2, memory__size=8)
    assert counted(config) == [N * 2 * 3 + N + 8, (N + 8) * 2 * (3 + 1) + N + N + 8]


def test_derpp() -> None:
    """Two batches an epoch, and two draws of five images from the memory, which is empty at the very first step."""
    config = tiny("derpp", plan__epochs=2, plan__batch=11, replay_batch=5, memory__size=50)
    assert counted(config) == [N * 2 * 3 + 3 * 2 * 5 * 3, N * 2 * 3 + 4 * 2 * 5 * 3]


def test_owm_has_a_network_of_its_own() -> None:
    """The published network on 8 x 8 pixels: 2 x 2 kernels on padded images, then two hidden layers. In each of four
    steps, the projectors are updated with patches or mean inputs (rows x size^2, twice), and project the gradients."""
    settings = {"network.channels": [2, 3, 4], "network.hidden": [5, 6], "projector_stride": 2}
    config = tiny("owm", plan__epochs=2, plan__batch=11, **settings)
    own = 81 * 2 * 3 * 4 + 25 * 3 * 2 * 4 + 9 * 4 * 3 * 4 + 4 * 5 + 5 * 6
    updates = 2 * (25 * 12**2 + 9 * 8**2 + 4 * 12**2 + 4**2 + 5**2 + 6**2)
    gradients = 2 * 12**2 + 3 * 8**2 + 4 * 12**2 + 5 * 4**2 + 6 * 5**2
    heads = [3 * 6**2, 4 * 6**2]  # two classes and the row of future ones; then four classes
    work = [N * 2 * 3 * own + 4 * (updates + gradients + head) for head in heads]
    assert counted(config) == pytest.approx([value / unit_of_passes(config, 8) for value in work])


def test_hypernet_runs_a_hypernetwork_besides() -> None:
    """In each of six steps it generates the target's weights, and from the second task on the old ones again, which
    are compared with those from before the task."""
    settings = {"target": {"kind": "mlp", "hidden": [5]}, "hypernetwork.hidden": [4], "hypernetwork.chunk": 50}
    config = tiny("hypernet", learning__plan__epochs=2, learning__plan__batch=8, **settings)
    target = 64 * 5 + 5 * 2
    n_chunks = -(-(64 * 5 + 5 + 5 * 2 + 2) // 50)
    vectors = sum(config.settings["hypernetwork"][name] for name in ("task_vector", "chunk_vector"))
    hyper = n_chunks * (vectors * 4 + 4 * 50)
    steps, training = 6, N * 2 * 3 * target
    assert counted(config) == pytest.approx(
        [
            value / unit_of_passes(config, 8)
            for value in (training + hyper * (1 + 3 * steps), training + hyper * (2 + 3 * steps + 3 * steps))
        ]
    )


def test_the_unit_is_the_experiments_own_network() -> None:
    """A wider network costs more passes, not longer ones."""
    usual, wide = tiny("finetune"), tiny("finetune", net__channels=[128, 64, 128])
    assert usual.common_net is None
    assert wide.common_net == usual.net
    ratio = multiply_adds(Backbone(wide.net, 8), image()) / multiply_adds(Backbone(usual.net, 8), image())
    assert ratio > 1.1
    assert sum(counted(wide)) == pytest.approx(ratio * sum(counted(usual)))


def image() -> Any:
    import torch

    return torch.zeros(1, 3, 8, 8)


# --- predictions -----------------------------------------------------------------------------------------------------


def longer(name: str) -> RunConfig:
    """More epochs of more steps than a preview takes, with batches of unequal size in the second task."""
    config = resolve(EXPERIMENT, name, "smoke", 0, TINY | {"data.sizes": [2, 3, 2]})
    plans = [setting for setting in flatten(config.settings) if setting.endswith(("plan.epochs", "plan.batch"))]
    overrides = {setting: 6 if setting.endswith("epochs") else 10 for setting in plans}
    return resolve(EXPERIMENT, name, "smoke", 0, TINY | {"data.sizes": [2, 3, 2]} | overrides)


@pytest.mark.parametrize("name", BUILT_IN)
def test_predicted_passes_are_those_counted(name: str) -> None:
    config = longer(name)
    stream = config.data.stream(None, 0)
    assert planned_passes(config, stream).total == pytest.approx(sum(counted(config, stream)), rel=0.05)


@pytest.mark.parametrize(
    "settings", [{"rehearsal": "generative", "wgan.steps": 9, "wgan.width": 4}, {}], ids=["generative", "episodic"]
)
def test_passes_per_epoch_are_told_from_others(settings: dict[str, Any]) -> None:
    """With twice the epochs, the former are twice as many; a generator's steps are not in epochs."""
    config = tiny("ccg", plan__epochs=4, plan__batch=11, **settings)
    stream = config.data.stream(None, 0)
    planned = planned_passes(config, stream)
    twice = tiny("ccg", plan__epochs=8, plan__batch=11, **settings)
    assert planned.fixed > 0
    assert planned.at(2.0) == pytest.approx(sum(counted(twice)), rel=0.02)


def test_validation_after_every_epoch_is_predicted() -> None:
    """Two images in each of eight epochs; the gates stay open, so that nothing else differs."""
    plan = {"learning__plan__epochs": 8, "learning__plan__batch": 11, "attention__initial_mean": 6.0}
    without = tiny("hat", **plan, attention__initial=0.0)
    config = tiny("hat", **plan, attention__initial=0.0, learning__plan__plateau={"patience": 50})
    assert sum(counted(config)) == sum(counted(without)) + 2 * 2 * 8
    assert planned_passes(config, config.data.stream(None, 0)).total == sum(counted(config))


def test_a_preview_fits_nothing_that_runs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("clom.methods.families.masked.fit_to_memory")
    config = tiny("clom+")
    planned_passes(config, config.data.stream(None, 0))


def test_a_preview_builds_the_network_of_a_learned_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built, compact = list[int](), HardAttention.compact

    def recorded(self: HardAttention, task: int) -> Any:
        built.append(task)
        return compact(self, task)

    monkeypatch.setattr(HardAttention, "compact", recorded)
    config = tiny("hat", data__sizes=[2, 2, 2])
    planned_passes(config, config.data.stream(None, 0))
    assert built == [0, 1, 2]


def test_a_prediction_changes_nothing() -> None:
    """Neither the images nor torch's random state."""
    import torch

    config = tiny("derpp")
    stream = config.data.stream(None, 0)
    before, state = [task.train.pixels.clone() for task in stream], torch.get_rng_state()
    planned_passes(config, stream)
    assert all(torch.equal(task.train.pixels, old) for task, old in zip(stream, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("total", "per_epoch"), [(1, 1), (4, 2), (5, 1), (7, 7), (100, 10), (16, 2), (9, None)])
def test_chosen_steps_stand_for_all(total: int, per_epoch: int | None) -> None:
    chosen = _chosen_steps(total, per_epoch)
    assert sum(chosen.values()) == total
    assert max(chosen) < total
    if per_epoch is not None:
        ends = sum(times for step, times in chosen.items() if (step + 1) % per_epoch == 0)
        assert ends == total // per_epoch


# --- allowances ------------------------------------------------------------------------------------------------------


def test_with_passes_fits_the_length_to_the_passes() -> None:
    config = tiny("finetune", plan__epochs=10, plan__schedule={"kind": "steps", "steps": [5.0, 8.0], "warmup": 1.0})
    stream = config.data.stream(None, 0)
    assert sum(counted(config)) == N * 2 * 10 * 3
    shorter = with_passes(config, stream, N * 2 * 4.5 * 3)
    assert shorter.settings["plan"]["epochs"] == 4, "rounded down"
    assert shorter.settings["plan"]["schedule"] == config.settings["plan"]["schedule"] | {
        "steps": pytest.approx([2.25, 3.6]),
        "warmup": pytest.approx(0.45),
    }
    assert shorter.overrides["plan.epochs"] == 4
    assert shorter.overrides["data.train_per_class"] == 12
    assert with_passes(config, stream, N * 2 * 20 * 3).settings["plan"]["epochs"] == 20


def test_with_passes_shortens_other_phases_if_one_cannot_be_shortened() -> None:
    """Half an epoch for the exemplars would fit, but there is no such thing."""
    exemplars = {"exemplars__plan__epochs": 2, "exemplars__plan__batch": 8, "memory__size": 20}
    config = tiny("mnemonics", plan__epochs=20, **exemplars)
    stream = config.data.stream(None, 0)
    allowed = planned_passes(config, stream).total / 4
    shorter = with_passes(config, stream, allowed)
    assert shorter.settings["exemplars"]["plan"]["epochs"] == 1
    assert 1 < shorter.settings["plan"]["epochs"] < 5
    assert sum(counted(shorter)) <= allowed


def test_with_passes_says_when_even_one_epoch_is_too_much() -> None:
    config = tiny("finetune", plan__epochs=3)
    with pytest.raises(UserError, match=r"'finetune' cannot learn digits-5t with 100 .*shortest training takes 132\."):
        with_passes(config, config.data.stream(None, 0), 100)


def test_a_plan_that_exceeds_the_allowance_is_refused_with_both_numbers() -> None:
    config = tiny("finetune", plan__epochs=10)
    stream = config.data.stream(None, 0)
    require_within(N * 2 * 10 * 3, config, stream)
    with pytest.raises(UserError) as refused:
        require_within(1000, config, stream)
    assert str(refused.value) == (
        "'finetune' would use 1,320 training passes on digits-5t, but the allowance is 1,000. With all numbers of "
        "epochs multiplied by 0.75, it would fit."
    )
    with pytest.raises(UserError, match="No number of epochs would be small enough"):
        require_within(1, config, stream)
    Allowed(1000.0).check(config, stream)  # only recorded
    with pytest.raises(UserError):
        Allowed(1000.0, strict=True).check(config, stream)


def test_allowances_are_read_from_text_and_from_experiments() -> None:
    own = read_experiment(EXPERIMENT).at("cpu").allowance
    assert own is not None
    assert parse_allowance(None, EXPERIMENT, "cpu") == Allowed(own)
    assert parse_allowance("none", EXPERIMENT, "cpu") == Allowed(None)
    assert parse_allowance("experiment", EXPERIMENT, "cpu") == Allowed(own, strict=True)
    assert parse_allowance("1,500,000", EXPERIMENT, "cpu") == parse_allowance("1.5e6", EXPERIMENT, "cpu")
    assert parse_allowance("1_000", EXPERIMENT, "smoke") == Allowed(1000.0, strict=True)
    with pytest.raises(UserError, match="digits-5t has no allowance at budget smoke"):
        parse_allowance("experiment", EXPERIMENT, "smoke")
    for wrong in ("much", "-1", "nan", "inf", "0"):
        with pytest.raises(UserError, match="--allowance takes a number of passes"):
            parse_allowance(wrong, EXPERIMENT, "cpu")


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_has_an_allowance_for_the_cpu(name: str) -> None:
    assert (read_experiment(name).at("cpu").allowance or 0) > 0


@pytest.mark.parametrize("name", experiment_names())
def test_an_image_costs_the_same_in_training_and_evaluation(name: str) -> None:
    """Whatever inference may skip: else the unit of passes would not be what training costs."""
    size = size_of(name)
    assert size is not None
    network = Backbone(resolve(name, "finetune", "cpu").unit_net, size.pixels)
    images = torch.zeros(2, 3, size.pixels, size.pixels)
    counter = PassCounter(multiply_adds(network.eval(), images))
    with counting(counter):
        network.train()(images)
    assert counter.total == pytest.approx(2 * 3), "two images, forward and backward"


def test_the_documentation_states_the_allowances_of_the_experiments() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| ([\d,]+) \|", page, re.MULTILINE)
    stated = {name: float(passes.replace(",", "")) for names, passes in rows for name in re.findall("`(.*?)`", names)}
    assert stated == {name: read_experiment(name).at("cpu").allowance for name in experiment_names()}


def test_passes_scale_with_the_length() -> None:
    planned = PlannedPasses(fixed=10.0, per_length=100.0)
    assert (planned.total, planned.at(0.5), planned.factor_for(60.0)) == (110.0, 60.0, 0.5)
    assert planned.factor_for(5.0) == 0.0
    assert PlannedPasses(10.0, 0.0).factor_for(5.0) == 1.0
