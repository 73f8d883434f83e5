"""A recorded search gets the length of training that fits its allowance today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clom.cli import main
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.config import resolve
from clom.experiments.tuning.adoption import plain
from clom.experiments.tuning.plans import SearchPlan, plan_search, recipe_of
from clom.experiments.tuning.refit import refit
from clom.files import read_json, write_json

CHOSEN = {"start": "by hand", "length": 0.5, "choices": {"optimiser.lr": 2.0, "plan.batch": 32}}


@pytest.fixture(scope="module")
def stream() -> Stream:
    return resolve("digits-5t", "finetune", "smoke", by_hand=True).data.stream(None, 0)


def recorded(folder: Path, plan: SearchPlan, **changes: Any) -> Path:
    """The record of a search whose second trial was the best, with the recipe of another length."""
    path = folder / "digits-5t-finetune.json"
    unused = {"start": "published", "length": 1.0, "choices": {}}
    recipe = {"digits-5t": {"search": "digits-5t-finetune", "smoke": {"plan": {"epochs": 999}}}}
    content = {"search": "digits-5t-finetune", **plain(plan.conditions())}
    write_json(path, content | {"best": 2, "trials": [unused, CHOSEN], "recipe": recipe} | changes)
    return path


def test_the_length_is_that_of_the_best_trials_choices(tmp_path: Path, stream: Stream) -> None:
    plan = plan_search("digits-5t", "finetune", stream, budget="smoke", allowance="20000")
    path = recorded(tmp_path, plan)
    with pytest.raises(SystemExit) as ended:
        main(["recipes", "--searches", str(tmp_path), "--out", str(tmp_path), "--refit", "digits-5t-finetune"])
    assert not ended.value.code
    record = read_json(path)
    expected = recipe_of({**CHOSEN["choices"], "start": "by hand", "length": 0.5}, plan, [])  # type: ignore[dict-item]
    assert record["recipe"] == plain(expected)
    assert record["recipe"]["digits-5t"]["smoke"]["plan"]["epochs"] < 999
    assert record["trials"] == [{"start": "published", "length": 1.0, "choices": {}}, CHOSEN]


def test_choices_made_under_other_conditions_are_refused(tmp_path: Path, stream: Stream) -> None:
    plan = plan_search("digits-5t", "finetune", stream, budget="smoke", allowance="20000")
    path = recorded(tmp_path, plan, space={})
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"searched under other conditions \(space\)"):
        refit(path)
    assert path.read_bytes() == before


def test_an_unknown_search_gets_a_suggestion(
    tmp_path: Path, stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, plan_search("digits-5t", "finetune", stream, budget="smoke", allowance="20000"))
    with pytest.raises(SystemExit):
        main(["recipes", "--searches", str(tmp_path), "--out", str(tmp_path), "--refit", "digits-5t-finetun"])
    assert "Did you mean 'digits-5t-finetune'?" in capsys.readouterr().err
