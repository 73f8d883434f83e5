"""A fingerprint changes if and only if the values that determine a task's predictions do."""

from __future__ import annotations

import copy
import hashlib
import random

import pytest
import torch

from clom.methods.families.base import Method
from clom.photos.teach import learn_pictures
from clom.storage.fingerprint import fingerprint, probes
from photos.pictures import MAKERS, pictures


@pytest.fixture(scope="module", params=MAKERS)
def taught(request: pytest.FixtureRequest) -> tuple[Method, Method]:
    """A model of one task, and a copy that learned another."""
    method = MAKERS[request.param]()
    learn_pictures(method, pictures("red", "green"), "first")
    before = copy.deepcopy(method)
    learn_pictures(method, pictures("blue", "grey"), "second")
    return before, method


def test_a_later_task_does_not_change_the_fingerprint_of_exact_methods(taught: tuple[Method, Method]) -> None:
    before, after = taught
    assert (fingerprint(before, 0) == fingerprint(after, 0)) == after.exact_memory
    assert fingerprint(after, 0) != fingerprint(after, 1)


def test_changing_a_prediction_changes_the_fingerprint(taught: tuple[Method, Method]) -> None:
    """Random tensors of the model are changed one at a time: if predictions change, so must the fingerprint."""
    _, method = taught
    images = probes(method.image_shape, 4)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    block, expected = method.block(images, 0), fingerprint(method, 0)
    n_changed = 0
    changed = copy.deepcopy(method)
    for name in random.Random(0).sample(sorted(state), min(30, len(state))):
        changed.load_state_dict(state | {name: state[name] + 1})
        if not torch.equal(changed.block(images, 0), block):
            n_changed += 1
            assert fingerprint(changed, 0) != expected, name
    assert n_changed >= 2


def test_class_names_matter(taught: tuple[Method, Method]) -> None:
    method = copy.deepcopy(taught[0])
    before = fingerprint(method, 0)
    object.__setattr__(method.tasks[0], "class_names", ("red", "lime"))
    assert fingerprint(method, 0) != before


def test_memory_layout_does_not_matter(taught: tuple[Method, Method]) -> None:
    method = copy.deepcopy(taught[0])
    before = fingerprint(method, 0)
    assert fingerprint(method.to(memory_format=torch.contiguous_format), 0) == before  # type: ignore[call-overload]


def test_probes_never_change() -> None:
    images = probes((3, 12, 12))
    assert (images.shape, images.dtype) == ((16, 3, 12, 12), torch.uint8)
    assert hashlib.sha256(images.numpy().tobytes()).hexdigest()[:12] == "1341c234ea6a"
    assert len(torch.unique(images[0])) > 100
    assert len(torch.unique(images[-1])) <= 48
