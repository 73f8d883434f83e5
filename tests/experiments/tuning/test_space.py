"""Search spaces are validated, and mistakes in them are explained in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from clom.errors import UserError
from clom.experiments.catalogue import read_experiment
from clom.experiments.tuning.space import Parameter, Space, check_names, default_space, read_space, rounded, space_of

DIGITS = read_experiment("digits-5t")


def written(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_holds_one_space_or_one_for_each_experiment(tmp_path: Path) -> None:
    alone = read_space(written(tmp_path, "space: {alpha: {values: [0.1, 0.5]}}\nkeep: [network]"), DIGITS)
    assert alone == Space(space={"alpha": Parameter(values=(0.1, 0.5))}, keep=("network",))
    several = """
        search:
          default:
            space: {alpha: {times: [0.5, 2]}, beta: {range: [0, 1]}, gamma: {values: [1, 2]}}
            fixed: {a: 1, b: 2}
          digits-5t: {space: {beta: {values: [0, 1]}, gamma: null}, fixed: {b: 3}}
          mnist-5t: {published: cifar10-5t}
    """
    found = read_space(written(tmp_path, several), DIGITS)
    assert found.space == {"alpha": Parameter(times=(0.5, 2)), "beta": Parameter(values=(0, 1))}
    assert (found.fixed, found.published) == ({"a": 1, "b": 3}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: {lr: {tmes: [1, 2]}}", "There is no setting 'space.lr.tmes'. Did you mean 'times'?"),
        ("space: {lr: {times: [1, 2], values: [1, 2]}}", "give one of times, range and values, not times and values"),
        ("space: {lr: {}}", "not none of them"),
        ("space: {lr: {range: [2, 1]}}", "the first of two limits must be the smaller one"),
        ("space: {lr: {range: [0, 1], log: true}}", "log is for a range of positive numbers"),
        ("space: {lr: {times: [2, 3]}}", "factors must include 1"),
        ("space: {lr: {values: [1]}}", "at least two different values"),
        ("spaces: {}", "Did you mean 'space'?"),
        ("default: 3", "the search space of 'default' is 3, not a group"),
        ("default: {}\ndigits-5: {}", "There is no experiment 'digits-5'. Did you mean 'digits-5t'?"),
        ("- 1", "is not a search space"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as problem:
        read_space(written(tmp_path, text), DIGITS)
    assert message in str(problem.value)


def test_a_misspelt_setting_gets_a_suggestion() -> None:
    space = Space(space={"alpha": Parameter(times=(0.5, 2), also=("bets",))})
    with pytest.raises(UserError, match=r"^here: There is no setting 'bets'\. Did you mean 'beta'\?"):
        check_names(space, ["alpha", "beta"], "here")
    check_names(Space(space={"length": Parameter(values=(0.5, 1.0))}), [], "here")


def test_a_method_without_a_space_has_its_learning_rate_searched() -> None:
    settings = {"plan": {"epochs": 3}, "optimiser": {"lr": 0.1}, "side": {"optimiser": {"lr": 0.2}}}
    assert space_of("mine", "mine", DIGITS, settings).space == {"optimiser.lr": Parameter(times=(0.2, 5.0))}
    assert default_space({"plan": {"epochs": 3}}).space == {}


def test_a_variant_has_a_space_of_its_own_or_that_of_its_method() -> None:
    cifar = read_experiment("cifar10-5t")
    assert space_of("clom", "clom", cifar, {}).by_hand == {}
    assert space_of("clom-no-ood", "clom", cifar, {}).by_hand == {"learning.plan.batch": 64}
    assert space_of("clom-no-calibration", "clom", cifar, {}) == space_of("clom", "clom", cifar, {})
    assert space_of("clom-odin", "clom-odin", cifar, {}) == space_of("hat", "hat", cifar, {})


def test_searched_numbers_are_short() -> None:
    assert [rounded(value) for value in (0.0123456, 1234.56, 0.5)] == [0.0123, 1230.0, 0.5]
