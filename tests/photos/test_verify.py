"""Verification passes if nothing changed, and detects a single flipped bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clom.methods.families.base import Blocks, Method
from clom.photos.teach import learn_pictures
from clom.photos.verify import verify
from clom.storage.fingerprint import probes
from clom.storage.model_file import load_model, save_model
from photos.pictures import MAKERS, ncm, pictures, slda


@pytest.fixture
def old(tmp_path: Path) -> Path:
    method = ncm()
    learn_pictures(method, pictures("red", "green"), "first")
    learn_pictures(method, pictures("blue", "grey"), "second")
    save_model(tmp_path / "old", method)
    return tmp_path / "old"


def later(old: Path) -> tuple[Method, Path]:
    """The same model after another task, and a path for saving it."""
    method = load_model(old)
    learn_pictures(method, pictures("violet", "pink"), "third")
    return method, old.with_name("new")


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "slda"])
def test_tasks_of_exact_methods_are_identical(kind: str, tmp_path: Path) -> None:
    method = MAKERS[kind]()
    learn_pictures(method, pictures("red", "green"), "first")
    save_model(tmp_path / "old", method)
    learn_pictures(method, pictures("blue", "grey"), "second")
    save_model(tmp_path / "new", method)
    assert [check.verdict for check in verify(tmp_path / "new", tmp_path / "old")] == ["identical", "new"]
    assert [check.verdict for check in verify(tmp_path / "new")] == ["identical", "identical"]


def test_a_method_that_changes_old_predictions_is_detected(tmp_path: Path) -> None:
    method = slda()
    learn_pictures(method, pictures("red", "green"), "first")
    save_model(tmp_path / "old", method)
    learn_pictures(method, pictures("blue", "grey"), "second")
    save_model(tmp_path / "new", method)
    assert [check.verdict for check in verify(tmp_path / "new", tmp_path / "old")] == ["changed", "new"]
    assert [check.verdict for check in verify(tmp_path / "new")] == ["changed", "identical"]


def test_one_bit(old: Path) -> None:
    method, path = later(old)
    means = method.get_buffer("means")
    bits = means.view(torch.int32)
    bits[1, 3] ^= 1
    save_model(path, method)
    checks = {check.task: check for check in verify(path, old)}
    assert [check.verdict for check in checks.values()] == ["changed", "identical", "new"]
    assert "bit-identical" in checks["first"].reason
    assert not checks["first"].good
    assert [check.verdict for check in verify(path)] == ["changed", "identical", "identical"]


@pytest.mark.parametrize("changed", ["blocks", "belonging"])
def test_predictions_are_compared_too(changed: str, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identical parameters are not enough if the code that uses them has changed."""
    method, path = later(old)
    save_model(path, method)
    original = type(method).blocks_and_belonging
    n_tasks = len(method.tasks)

    def other(self: Method, pixels: torch.Tensor, tasks: list[int] | None = None) -> tuple[Blocks, torch.Tensor]:
        blocks, belonging = original(self, pixels, tasks)
        wrong = 1e-6 if len(self.tasks) == n_tasks and tasks == [1] else 0
        return ([block + wrong for block in blocks], belonging) if changed == "blocks" else (blocks, belonging + wrong)

    monkeypatch.setattr(type(method), "blocks_and_belonging", other)
    assert [check.verdict for check in verify(path, old)] == ["identical", "changed", "new"]


@pytest.mark.parametrize("change", [{"task_logit_scale": 0.5}, {"belonging": (-9.0, -8.0)}])
def test_what_a_person_sees_is_compared_too(change: dict[str, object], old: Path) -> None:
    """The same parameters and scores with another temperature, or other thresholds, give other answers."""
    method, path = later(old)
    record = method.tasks[1].record
    assert record is not None
    method.tasks[1] = replace(method.tasks[1], record=record.model_copy(update=change))
    save_model(path, method)
    checks = verify(path, old)
    assert [check.verdict for check in checks] == ["identical", "changed", "new"]
    assert "answers" in checks[1].reason


def test_a_forgotten_task_is_missing(old: Path) -> None:
    method, path = later(old)
    method.forget(0)
    save_model(path, method)
    assert [check.verdict for check in verify(path, old)] == ["missing", "identical", "new"]


def test_changed_class_names(old: Path) -> None:
    method, path = later(old)
    object.__setattr__(method.tasks[0], "class_names", ("red", "lime"))
    save_model(path, method)
    check = verify(path, old)[0]
    assert (check.verdict, check.reason) == ("changed", "its class names differ")


def test_without_a_record_an_older_model_is_needed(old: Path) -> None:
    method = load_model(old)
    for task in method.tasks:
        object.__setattr__(task, "record", None)
    save_model(old, method)
    assert [check.verdict for check in verify(old)] == ["not recorded", "not recorded"]
    assert [check.verdict for check in verify(old, old)] == ["identical", "identical"]


def test_more_classes_than_a_kernel_tile_do_not_change_old_scores() -> None:
    """A larger matrix product may round differently, so tasks are computed separately."""
    method = ncm()
    learn_pictures(method, pictures("red", "green", count=4), "first")
    few = copy.deepcopy(method)
    for number in range(3):
        learn_pictures(method, pictures(*(f"{number}/{name}" for name in range(20)), count=2), f"task {number}")
    images = probes(method.image_shape, 80)
    assert torch.equal(few.block(images, 0), method.blocks(images)[0])
