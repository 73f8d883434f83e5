"""Forgetting a task: it is gone, its units are free, and the others do not change by a bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from clom.api import make_method
from clom.errors import UserError
from clom.methods.clom import Clom
from clom.methods.families.base import LearnedTask, Method
from clom.methods.families.masked import MaskedMethod
from clom.photos.forget import forget
from clom.photos.teach import learn_pictures
from clom.storage.fingerprint import fingerprint, probes
from clom.storage.model_file import load_model, save_model
from photos.pictures import MAKERS, clom_residual, pictures

NAMES = {"first": ("red", "green"), "second": ("blue",), "third": ("grey", "violet")}


@pytest.fixture(scope="module", params=MAKERS)
def taught(request: pytest.FixtureRequest) -> Method:
    method = MAKERS[request.param]()
    for name, classes in NAMES.items():
        learn_pictures(method, pictures(*classes), name)
    return method


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_others_do_not_change_by_a_bit(taught: Method, number: int, tmp_path: Path) -> None:
    images = probes(taught.image_shape)
    blocks, belonging = taught.blocks(images), taught.belonging(images)
    prints = [fingerprint(taught, task) for task in range(3)]
    kept = [task for task in range(3) if task != number]
    method = copy.deepcopy(taught)
    method.forget(number)
    save_model(tmp_path / "m", method)
    for model in (method, load_model(tmp_path / "m")):
        assert [task.name for task in model.tasks] == [list(NAMES)[task] for task in kept]
        assert all(torch.equal(one, blocks[old]) for one, old in zip(model.blocks(images), kept, strict=True))
        assert torch.equal(model.belonging(images), belonging[:, kept])
        assert [fingerprint(model, task) for task in range(2)] == [prints[task] for task in kept]
        calibration = model.calibration
        assert len(calibration(model.blocks(images))) == 2


def test_a_forgotten_task_can_be_learned_again(taught: Method) -> None:
    method = copy.deepcopy(taught)
    method.forget(0)
    images = probes(method.image_shape)
    old = method.block(images, 0)
    learn_pictures(method, pictures(*NAMES["first"]), "first")
    assert [task.name for task in method.tasks] == ["second", "third", "first"]
    if method.exact_memory:
        assert torch.equal(method.block(images, 0), old)


def test_all_can_be_forgotten(taught: Method, tmp_path: Path) -> None:
    method = copy.deepcopy(taught)
    for _ in range(3):
        method.forget(0)
    save_model(tmp_path / "m", method)
    empty = load_model(tmp_path / "m")
    assert empty.tasks == []
    assert empty.memory_bytes == 0
    fresh = type(method)(method.net_settings, method.settings, method.image_shape, method.seed)
    assert set(empty.state_dict()) == set(fresh.state_dict())
    learn_pictures(empty, pictures("red", "green"), "again")


def test_units_are_free_and_their_weights_as_if_never_used() -> None:
    method = clom_residual()
    untouched = copy.deepcopy(method)
    learn_pictures(method, pictures("red", "green"), "only")
    assert sum(used[-1] for used in method.capacity().values()) > 0
    stays = method.forget(0)
    assert "other tasks" in stays
    assert isinstance(method, Clom)
    for layer, fresh in zip(method.protection.net.gated_layers(), untouched.protection.net.gated_layers(), strict=True):
        assert torch.equal(layer.weight, fresh.weight)
    assert method.capacity() == {group: [] for group in method.capacity()}
    assert len(method.memory) == 0


def test_capacity_is_that_of_the_tasks_that_stay(taught: Method) -> None:
    method = copy.deepcopy(taught)
    if not method.capacity():
        pytest.skip("nothing is used up")
    assert isinstance(method, MaskedMethod)
    open_in_last = {group: gate.mean().item() for group, gate in method.gates(2).items()}
    method.forget(0)
    method.forget(0)
    assert {group: used[-1] for group, used in method.capacity().items()} == pytest.approx(open_in_last, abs=1e-4)


def test_units_that_only_the_forgotten_task_knew_are_gone(tmp_path: Path) -> None:
    """Freed units are counted as a fraction of those before."""
    method = clom_residual()
    method.open_task(LearnedTask("first", ("a", "b")))
    sizes = {group: 2 * counts[0] for group, counts in method.unit_counts().items()}
    method.open_task(LearnedTask("second", ("c",), units=sizes))
    used = {
        group: [share * n for share, n in zip(method.capacity()[group], counts, strict=True)]
        for group, counts in method.unit_counts().items()
    }
    save_model(tmp_path / "m", method)
    freed = forget(tmp_path / "m", "second").freed
    expected = {group: (both - first) / sizes[group] for group, (first, both) in used.items()}
    assert freed == pytest.approx(expected, abs=1e-3)
    assert min(freed.values()) > 0


def test_what_stays_is_said(taught: Method) -> None:
    said = copy.deepcopy(taught).forget(1)
    stays = {"slda": "covariance", "experts": "covariance", "clom": "other tasks", "hat": "other tasks"}
    assert stays.get(taught.name, "") in said
    assert bool(said) == (taught.name in stays)


def test_a_failure_leaves_it_as_it_was(taught: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    method = copy.deepcopy(taught)
    images = probes(method.image_shape)
    before = method.blocks(images)

    def fail(method: Method, number: int, task: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(method), "_forget", fail)
    with pytest.raises(KeyboardInterrupt):
        method.forget(1)
    assert [task.name for task in method.tasks] == list(NAMES)
    assert all(torch.equal(one, two) for one, two in zip(before, method.blocks(images), strict=True))


def test_the_file(taught: Method, tmp_path: Path) -> None:
    path = tmp_path / "my.model"
    save_model(path, taught)
    larger = path.stat().st_size
    gone = forget(path, "second")
    assert (gone.task, gone.class_names) == ("second", ("blue",))
    assert all(share >= 0 for share in gone.freed.values())
    assert [task.name for task in load_model(path).tasks] == ["first", "third"]
    assert path.stat().st_size < larger
    content = path.read_bytes()
    with pytest.raises(UserError, match="Did you mean 'third'"):
        forget(path, "thrid")
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["my.model"]


def test_methods_that_share_everything_refuse() -> None:
    method = make_method("finetune", "digits-5t", "smoke")
    method.open_task(LearnedTask("only", ("a", "b")))
    with pytest.raises(UserError, match="finetune cannot forget"):
        method.forget(0)
    assert len(method.tasks) == 1
