"""The model file: bit-identical round trips, atomic writes, and safe loading of any content."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from clom.data.images import DataSet, Images
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.files import write_atomically
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.task_record import TaskRecord, now
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.storage.model_file import load_model, save_model
from clom.storage.tensors import read_tensors

SMALL_ALEXNET = AlexNetSettings(
    channels=(4, 4, 6), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=10, dropout=(0.0, 0.0)
)


def small_stream(side: int = 8, channels: int = 1) -> Stream:
    """Three tasks of 2, 3 and 1 classes of noise images that differ in brightness."""
    randomness = torch.Generator().manual_seed(0)

    def images(per_class: int) -> Images:
        labels = torch.arange(6).repeat_interleave(per_class)
        noise = torch.randint(0, 60, (len(labels), channels, side, side), generator=randomness)
        return Images((noise + 30 * labels[:, None, None, None]).to(torch.uint8), labels)

    names = tuple(f"kind {label}" for label in range(6))
    return split(DataSet("noise", names, images(8), images(3)), sizes=(2, 3, 1))


def learned(
    stream: Stream, net: NetSettings, calibration: Literal["memory", "scale", "none"] = "memory", n_tasks: int = 2
) -> Clom:
    learning = ContrastiveSettings(plan=Plan(epochs=1, batch=8), head=HeadSettings(views=1, iterations=3))
    settings = ClomSettings(calibration=calibration, memory_per_class=1, learning=learning)
    method = Clom(net, settings, stream.image_shape, seed=3)
    for task in stream[:n_tasks]:
        method.learn(task)
    return method


@pytest.fixture(scope="module")
def stream() -> Stream:
    return small_stream()


@pytest.fixture(scope="module")
def method(stream: Stream) -> Clom:
    return learned(stream, SMALL_ALEXNET)


@pytest.fixture
def file(method: Clom, tmp_path: Path) -> Path:
    save_model(tmp_path / "a.safetensors", method)
    return tmp_path / "a.safetensors"


def same_predictions(one: Clom, two: Any, pixels: Tensor) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.blocks(pixels), two.blocks(pixels), strict=True))


def test_round_trip_is_bit_identical(method: Clom, stream: Stream, file: Path) -> None:
    again = load_model(file)
    pixels = torch.cat([test.pixels for test in stream.tests])
    assert isinstance(again, Clom)
    assert same_predictions(method, again, pixels)
    assert torch.equal(method.features(pixels, 1), again.features(pixels, 1))
    assert again.tasks == method.tasks
    assert (again.seed, again.image_shape) == (3, (1, 8, 8))
    assert again.settings == method.settings
    assert again.net_settings == method.net_settings
    assert again.memory_bytes == method.memory_bytes == 5 * 64
    assert not again.training
    for name, calibration in method.calibrations().items():
        assert torch.equal(calibration.scales, again.calibrations()[name].scales)
        assert torch.equal(calibration.shifts, again.calibrations()[name].shifts)
    assert list(again.calibrations()) == list(method.calibrations())


def test_a_loaded_model_learns_like_one_in_memory(stream: Stream, file: Path) -> None:
    in_memory = learned(stream, SMALL_ALEXNET, n_tasks=3)
    again = load_model(file).learn(stream[2])
    assert same_predictions(in_memory, again, stream.tests[2].pixels)


@pytest.mark.parametrize("calibration", ["scale", "none"])
def test_round_trip_without_memory(stream: Stream, tmp_path: Path, calibration: Literal["scale", "none"]) -> None:
    method = learned(stream, SMALL_ALEXNET, calibration, n_tasks=1)
    save_model(tmp_path / "m", method)
    again = load_model(tmp_path / "m")
    assert again.calibration_name == calibration
    assert same_predictions(method, again, stream.tests[0].pixels)


def test_round_trip_of_a_residual_network(tmp_path: Path) -> None:
    stream = small_stream(side=32, channels=3)
    method = learned(stream, ResNet18Settings(width=4))
    save_model(tmp_path / "m", method)
    assert same_predictions(method, load_model(tmp_path / "m"), stream.tests[1].pixels)


def test_records_of_tasks_round_trip(method: Clom, tmp_path: Path) -> None:
    record = TaskRecord(
        learned=now(),
        images=(4, 5),
        validation_images=(1, 2),
        accuracy=2 / 3,
        logit_scale=1.7,
        belonging=(-0.1, 1 / 3, 2.0),
        fingerprint="ab" * 32,
    )
    recorded = copy.deepcopy(method)
    recorded.tasks[0] = replace(recorded.tasks[0], record=record)
    save_model(tmp_path / "m", recorded)
    again = load_model(tmp_path / "m")
    assert again.tasks == recorded.tasks
    assert [task.record for task in again.tasks] == [record, None]


def test_saving_a_loaded_model_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "again", load_model(file))
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_round_trip_of_an_untrained_model(tmp_path: Path) -> None:
    save_model(tmp_path / "m", Clom(SMALL_ALEXNET, ClomSettings(), (1, 8, 8)))
    assert load_model(tmp_path / "m").tasks == []


def test_saving_creates_the_folder(method: Clom, tmp_path: Path) -> None:
    save_model(tmp_path / "a" / "b" / "model.safetensors", method)
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == ["model.safetensors"]


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "kept"
    write_atomically(target, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(target, b"new and longer")
    assert target.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_the_content_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []
    target = tmp_path / "kept"
    write_atomically(target, b"old")

    def record(descriptor: int) -> None:
        (other,) = [file for file in tmp_path.iterdir() if file != target]
        seen.append((target.read_bytes(), other.read_bytes()))

    monkeypatch.setattr(os, "fsync", record)
    write_atomically(target, b"new")
    assert seen == [(b"old", b"new")]
    assert target.read_bytes() == b"new"


# --- invalid files ---------------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(UserError) as problem:
        load_model(path)
    assert str(path) in str(problem.value)
    return str(problem.value)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path / "absent.safetensors")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0", b"hello, this is not a model at all", b"\xff" * 64, b"{}" * 20])
def test_unreadable_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    refused(tmp_path / "x")


def test_truncated_files(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    cuts = {0, 1, 7, 8, 9, 100, len(content) - 1, *range(0, len(content), len(content) // 40)}
    for length in sorted(cuts):
        (tmp_path / "cut").write_bytes(content[:length])
        refused(tmp_path / "cut")


class _Payload:
    """A malicious pickle: loading it would create a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_is_rejected_and_not_run(tmp_path: Path, kind: str) -> None:
    trap = tmp_path / "executed"
    file = tmp_path / "model.safetensors"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(_Payload(trap)))
    else:
        torch.save({"x": _Payload(trap)}, file)
    refused(file)
    assert not trap.exists()


def test_safetensors_of_another_program(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "x")
    assert "not a model of this program" in refused(tmp_path / "x")
    save_file({"weight": torch.zeros(2)}, tmp_path / "y", metadata={"format": "pt"})
    assert "not a model of this program" in refused(tmp_path / "y")


Change = Callable[[dict[str, Tensor], dict[str, str]], None]


def changed(file: Path, change: Change) -> Path:
    """The same file with changed content."""
    tensors, header = read_tensors(file)
    change(tensors, header)
    target = file.with_name("changed")
    save_file(tensors, target, metadata=header)
    return target


def describing(**values: Any) -> Change:
    def change(tensors: dict[str, Tensor], header: dict[str, str]) -> None:
        header["description"] = json.dumps(json.loads(header["description"]) | values)

    return change


def header_with(**values: str) -> Change:
    return lambda tensors, header: header.update(values)


def without_tensor(tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    del tensors["heads.0.weight"]


def without_description(tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    del header["description"]


def with_wrong_shape(tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    tensors["heads.0.weight"] = torch.zeros(3, 3)


def with_extra_tensor(tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    tensors["heads.9.weight"] = torch.zeros(3, 3)


def test_rewriting_without_a_change_is_accepted(file: Path) -> None:
    assert load_model(changed(file, lambda tensors, header: None)).tasks


@pytest.mark.parametrize("version", ["2", "99"])
def test_a_newer_version(file: Path, version: str) -> None:
    text = refused(changed(file, header_with(version=version)))
    assert version in text
    assert "Update" in text


@pytest.mark.parametrize("version", ["", "one", "-1", "1.5", "²"])
def test_an_invalid_version(file: Path, version: str) -> None:
    refused(changed(file, header_with(version=version)))


OTHER_RECORD = {
    "learned": "2026-01-01T00:00:00Z",
    "images": [1, 2],
    "validation_images": [1, 1],
    "accuracy": 1,
    "fingerprint": "",
}
UNFIT: dict[str, Change] = {
    "tensor missing": without_tensor,
    "tensor of another shape": with_wrong_shape,
    "tensor too many": with_extra_tensor,
    "no description": without_description,
    "not json": header_with(description="{not json"),
    "a list": header_with(description="[]"),
    "a number": header_with(description="3"),
    "empty": header_with(description="{}"),
    "method that would be code": describing(method="os.system"),
    "method no name": describing(method=["clom"]),
    "unknown network": describing(net={"kind": "vgg"}),
    "no network": describing(net=None),
    "impossible network": describing(net={"kind": "alexnet", "hidden": -1}),
    "unknown setting": describing(settings={"calibration": "magic"}),
    "settings no names": describing(settings=[]),
    "two dimensions": describing(image_shape=[1, 8]),
    "not square": describing(image_shape=[1, 8, 9]),
    "too small": describing(image_shape=[1, 2, 2]),
    "shape as text": describing(image_shape="1x8"),
    "no shape": describing(image_shape=None),
    "sides as text": describing(image_shape=[1, "8", "8"]),
    "no tasks": describing(tasks=[]),
    "other tasks": describing(tasks=[{"name": "a", "class_names": ["x"]}]),
    "task without classes": describing(tasks=[{"name": "a"}]),
    "tasks a number": describing(tasks=7),
    "record of nothing": describing(tasks=[{"name": "a", "class_names": ["x", "y"], "record": {}}]),
    "record no names": describing(tasks=[{"name": "a", "class_names": ["x", "y"], "record": 3}]),
    "record of other classes": describing(tasks=[{"name": "a", "class_names": ["x"], "record": OTHER_RECORD}]),
    "tasks texts": describing(tasks=["a", "b"]),
}


@pytest.mark.parametrize("what", UNFIT)
def test_an_invalid_description(file: Path, what: str) -> None:
    assert "damaged" in refused(changed(file, UNFIT[what]))


def test_the_error_names_an_unknown_method(file: Path) -> None:
    assert "newest-method" in refused(changed(file, describing(method="newest-method")))


def test_the_error_names_a_mismatched_tensor(file: Path) -> None:
    assert "heads.0.weight" in refused(changed(file, with_wrong_shape))
    assert "heads.0.weight" in refused(changed(file, without_tensor))
