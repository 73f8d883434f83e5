"""Two classes for one: answers have one name, and no number changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.export.onnx import metadata
from clom.methods.families.base import Method
from clom.photos.changes.merge import merge_classes
from clom.photos.competitors import Competitors
from clom.photos.forget import forget
from clom.photos.predict import Predictor
from clom.photos.previous import undo
from clom.photos.teach import learn_pictures
from clom.photos.verify import verify
from clom.storage.describe import describe
from clom.storage.model_file import load_model, save_model
from photos.pictures import coloured, mean_colour, ncm, pictures


def taught(method: Method, path: Path) -> Path:
    learn_pictures(method, pictures("red", "green"), "leaves")
    learn_pictures(method, pictures("blue", "grey"), "sea")
    save_model(path, method)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return taught(ncm(), tmp_path / "my.model")


def merged(path: Path) -> list[dict[str, str]]:
    return [dict(task.merged) for task in load_model(path).tasks]


def test_no_number_changes_and_verify_says_so(path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.model"
    old.write_bytes(path.read_bytes())
    assert merge_classes(path, "grey", "blue") == "blue"
    assert merged(path) == [{}, {"grey": "blue"}]
    first, second = verify(path, old)
    assert (first.verdict, second.verdict) == ("identical", "changed")
    assert second.reason == "its scores are the same, but other classes are merged"
    assert [check.verdict for check in verify(path)] == ["identical", "identical"]
    assert describe(path)["tasks"][1]["merged"] == {"grey": "blue"}
    undo(path)
    assert path.read_bytes() == old.read_bytes()


def test_photos_of_both_are_answered_by_one_name(tmp_path: Path) -> None:
    method = mean_colour()
    path = taught(method, tmp_path / "my.model")
    merge_classes(path, "grey", "green")
    method.tasks[:] = load_model(path).tasks
    photos = torch.cat([coloured(name, 1, 7) for name in ("grey", "green", "red")])
    answers = Predictor(method)(photos, top=9, false_rejection=0)
    assert [(answer.best.class_name, answer.best.task) for answer in answers] == [
        ("green", "sea"),
        ("green", "leaves"),
        ("red", "leaves"),
    ]
    assert all({guess.class_name for guess in answer.guesses} == {"red", "green", "blue"} for answer in answers)
    assert all(sum(guess.confidence for guess in answer.guesses) == pytest.approx(1) for answer in answers)
    (within,) = Predictor(method)(photos[:1], task="sea", top=9)
    assert {guess.class_name for guess in within.guesses} == {"blue", "green"}


def test_probabilities_are_added(path: Path) -> None:
    merge_classes(path, "grey", "red")
    competitors = Competitors(load_model(path).tasks, [0, 1])
    assert competitors.names == ("red", "green", "blue")
    chances = torch.tensor([[0.2, 0.4, 0.1, 0.3], [0.3, 0.35, 0.15, 0.2]])
    first, second = competitors.most_likely(chances, 2)
    assert [(name, task, round(chance, 6)) for name, task, chance in first] == [("red", 1, 0.5), ("green", 0, 0.4)]
    assert [(name, task, round(chance, 6)) for name, task, chance in second] == [("red", 0, 0.5), ("green", 0, 0.35)]


def test_what_was_merged_into_a_merged_class_follows(path: Path) -> None:
    merge_classes(path, "grey", "blue")
    assert merge_classes(path, "blue", "red") == "red"
    assert merged(path) == [{}, {"grey": "red", "blue": "red"}]
    assert merge_classes(path, "green", "grey") == "red", "the class that grey is answered as"
    assert merged(path)[0] == {"green": "red"}


def test_a_class_stands_alone_again_when_the_other_is_forgotten(path: Path) -> None:
    merge_classes(path, "grey", "red")
    forget(path, "leaves")
    assert merged(path) == [{}]


def test_exported_models_answer_by_the_same_names(path: Path) -> None:
    merge_classes(path, "grey", "red")
    assert metadata(load_model(path), [0, 1])["classes"] == '["red", "green", "blue", "red"]'


@pytest.mark.parametrize(
    ("name", "into", "expected"),
    [
        ("grey", "grey", "one class already"),
        ("gray", "blue", "Did you mean 'grey'"),
        ("grey", "blu", "Did you mean 'blue'"),
        ("sea", "blue", "no class 'sea'"),
    ],
)
def test_mistakes_cost_nothing(path: Path, name: str, into: str, expected: str) -> None:
    content = path.read_bytes()
    with pytest.raises(UserError, match=expected):
        merge_classes(path, name, into)
    assert path.read_bytes() == content


@pytest.mark.parametrize(("name", "into"), [("grey", "blue"), ("blue", "grey")])
def test_what_is_one_class_cannot_be_merged_again(path: Path, name: str, into: str) -> None:
    merge_classes(path, "grey", "blue")
    with pytest.raises(UserError, match="one class already"):
        merge_classes(path, name, into)


@pytest.mark.parametrize("wrong", [{"grey": "nothing"}, {"red": "blue"}, {"grey": "blue", "blue": "grey"}, {"grey": 3}])
def test_files_with_merges_that_make_no_sense_are_refused(path: Path, wrong: dict[str, str]) -> None:
    method = load_model(path)
    method.tasks[1] = replace(method.tasks[1], merged=wrong)
    save_model(path, method)
    with pytest.raises(UserError, match="is damaged"):
        load_model(path)
