"""Optional capabilities of methods: defaults, and what the families implement."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from clom.data.stream import Stream
from clom.errors import UserError
from clom.methods.families.base import Method
from clom.methods.hat import Hat, HatSettings
from clom.nets import AlexNetSettings
from methods.minimal import minimal
from photos.pictures import ADAPTER, MAKERS, SHAPE, coloured, pictures

DIGITS_NET = AlexNetSettings(channels=(6, 6, 8), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=12, dropout=(0.0, 0.0))


def taught(method: Method) -> Method:
    method.learn(pictures("red", "green").task("one"))
    return method.learn(pictures("blue", "grey", "odd").task("two"))


@pytest.fixture(scope="module")
def plain() -> Method:
    return taught(minimal(SHAPE))


def test_defaults_of_optional_capabilities(plain: Method) -> None:
    assert plain.calibration_name == "none"
    assert plain.calibration.scales.tolist() == [1.0, 1.0]
    assert plain.calibration_samples is None
    assert plain.held_out_images(0) is None
    assert plain.gates(0) == plain.capacity() == {}
    assert plain.least_classes == 1
    assert not plain.needs_pretrained
    with pytest.raises(UserError, match="minimal stores no samples for calibration"):
        plain.recalibrate(1)
    with pytest.raises(UserError, match=r"minimal cannot be exported: .*Method\.scoring_graph"):
        plain.scoring_graph([0])


@pytest.mark.parametrize("make", [lambda: minimal(SHAPE), *MAKERS.values()], ids=["minimal", *MAKERS])
def test_selected_tasks_score_as_all_tasks_do(make: Callable[[], Method]) -> None:
    method, images = taught(make()), torch.cat([coloured("red", 20), coloured("violet", 20)])
    blocks, belonging = method.blocks_and_belonging(images)
    assert [block.shape[1] for block in blocks] == [2, 3]
    assert torch.equal(belonging, method.belonging(images))
    for number, block in enumerate(method.blocks(images)):
        (one,), column = method.blocks_and_belonging(images, [number])
        assert torch.equal(blocks[number], block)
        assert torch.equal(one, block)
        assert torch.equal(column, belonging[:, [number]])


def test_a_task_is_found_by_its_name(plain: Method) -> None:
    assert [plain.task_number(name) for name in ("one", "two")] == [0, 1]
    with pytest.raises(UserError, match="Did you mean 'two'"):
        plain.task_number("tow")


def test_the_preferred_calibration_is_the_first(tiny_stream: Stream) -> None:
    plan = {"learning": {"plan": {"epochs": 1, "batch": 16}}, "memory_per_class": 2}
    for preferred in ("memory", "scale", "none"):
        settings = HatSettings.model_validate({**plan, "calibration": preferred})
        method = Hat(DIGITS_NET, settings, (1, 8, 8)).learn(tiny_stream[0])
        assert method.calibration_name == next(iter(method.calibrations())) == preferred
        assert torch.equal(method.calibration.scales, method.calibrations()[preferred].scales)
        assert method.calibration_samples == (2 if preferred == "memory" else None)
        stored = method.held_out_images(0)
        if preferred == "memory":
            assert stored is not None
            assert len(stored) == 4
            method.recalibrate(1)
            assert method.calibration_samples == 1
            assert len(method.memory) == 2
        else:
            assert stored is None
            with pytest.raises(UserError, match="stores no samples"):
                method.recalibrate(1)


def test_a_single_class_needs_rotations() -> None:
    assert MAKERS["clom from scratch"]().least_classes == 1
    assert MAKERS["hat"]().least_classes == 2
    assert MAKERS["ncm"]().least_classes == 1


def test_methods_that_need_pretrained_features() -> None:
    assert MAKERS["ncm"]().net_settings == ADAPTER
    assert {kind for kind, make in MAKERS.items() if make().needs_pretrained} == {"ncm", "slda", "experts"}


def test_gates_are_those_of_the_protection() -> None:
    method = taught(MAKERS["clom from scratch"]())
    for task in (0, 1):
        gates = method.gates(task)
        assert set(gates) == set(method.capacity())
        assert all(set(gate.tolist()) <= {0.0, 1.0} for gate in gates.values())
    assert taught(MAKERS["supsup"]()).gates(0) == {}


def test_stored_images_are_validation_images_of_their_task(tiny_stream: Stream) -> None:
    settings = HatSettings.model_validate({"learning": {"plan": {"epochs": 1, "batch": 16}}, "memory_per_class": 2})
    method = Hat(DIGITS_NET, settings, (1, 8, 8))
    for task in tiny_stream[:2]:
        method.learn(task)
    for number, task in enumerate(tiny_stream[:2]):
        stored = method.held_out_images(number)
        assert stored is not None
        assert len(stored) == 4
        assert all((task.validation.pixels == image).flatten(1).all(1).any() for image in stored)
