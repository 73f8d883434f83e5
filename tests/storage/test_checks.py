"""A model file with any bytes, values and description is loaded correctly or rejected with a message."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as to_bytes
from torch import Tensor

from clom.data.stream import Stream
from clom.errors import UserError
from clom.machine import peak_memory_bytes
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import LearnedTask
from clom.nets import AlexNetSettings
from clom.storage import checks
from clom.storage.authors import read_authors
from clom.storage.model_file import load_model, save_model
from clom.storage.tensors import read_tensors

NET = AlexNetSettings(channels=(2, 2, 2), kernels=(3, 3, 2), paddings=(1, 1, 0), pools=(2, 2, 1), hidden=3)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
Parts = tuple[dict[str, Tensor], dict[str, str]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    method = Clom(NET, ClomSettings(), (1, 8, 8), seed=3)
    for number in range(2):
        method.open_task(LearnedTask(f"task {number}", (f"a{number}", f"b{number}")))
        method.memory.add(number, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    path = tmp_path_factory.mktemp("model") / "m"
    save_model(path, method)
    tensors, header = read_tensors(path)
    return {name: value.clone() for name, value in tensors.items()}, header


def outcome(path: Path, content: bytes) -> str:
    """The reason for rejection; empty if the file is accepted."""
    path.write_bytes(content)
    why = ""
    try:
        method = load_model(path)
    except UserError as problem:
        why = str(problem)
    else:
        method.blocks(torch.zeros(1, *method.image_shape, dtype=torch.uint8))
    assert not why or (str(path) in why and len(why) < 1000)
    return why


def described(parts: Parts, **changes: Any) -> bytes:
    description = json.loads(parts[1]["description"]) | changes
    content: bytes = to_bytes(parts[0], metadata=parts[1] | {"description": json.dumps(description)})
    return content


def with_tensors(parts: Parts, **changes: Tensor) -> bytes:
    content: bytes = to_bytes(parts[0] | changes, metadata=parts[1])
    return content


def test_the_unchanged_file_is_accepted(parts: Parts, tmp_path: Path) -> None:
    assert outcome(tmp_path / "m", described(parts)) == ""


@quick
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_any_byte_may_change(parts: Parts, tmp_path: Path, place: int, value: int) -> None:
    content = bytearray(described(parts))
    content[place % len(content)] = value
    outcome(tmp_path / "m", bytes(content))


@quick
@given(name=st.sampled_from(["method", "net", "settings", "image_shape", "seed", "tasks"]), value=anything)
def test_any_value_may_be_in_the_description(parts: Parts, tmp_path: Path, name: str, value: Any) -> None:
    outcome(tmp_path / "m", described(parts, **{name: value}))


@quick
@given(name=st.sampled_from(["channels", "kernels", "paddings", "pools", "hidden"]), size=st.integers(0, 10**20))
def test_networks_larger_than_the_file_are_not_built(parts: Parts, tmp_path: Path, name: str, size: int) -> None:
    net = json.loads(parts[1]["description"])["net"]
    larger = net | {name: size if name == "hidden" else [size, *net[name][1:]]}
    why = outcome(tmp_path / "m", described(parts, net=larger))
    assert why or larger == net


@quick
@given(data=st.data(), bad=st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_one_nan_or_infinite_value_is_rejected(parts: Parts, tmp_path: Path, data: st.DataObject, bad: float) -> None:
    floats = sorted(name for name, value in parts[0].items() if value.is_floating_point())
    name = data.draw(st.sampled_from(floats))
    spoiled = parts[0][name].clone()
    spoiled.view(-1)[data.draw(st.integers(0, spoiled.numel() - 1))] = bad
    assert f"{name} contains NaN" in outcome(tmp_path / "m", with_tensors(parts, **{name: spoiled}))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int32, torch.bool])
def test_tensors_of_another_type_are_rejected(parts: Parts, tmp_path: Path, kind: torch.dtype) -> None:
    changed = with_tensors(parts, **{"heads.0.weight": parts[0]["heads.0.weight"].to(kind)})
    assert f"heads.0.weight has type {kind}, not torch.float32" in outcome(tmp_path / "m", changed)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("memory.labels", torch.tensor([0, 1, 0, 2]), "unknown classes"),
        ("memory.labels", torch.tensor([0, 1, 0, -1]), "unknown classes"),
        ("memory.tasks", torch.tensor([0, 0, 1, 2]), "unknown tasks"),
        ("memory.tasks", torch.tensor([0, 0, 1, -1]), "unknown tasks"),
        ("memory.labels", torch.tensor([0, 1, 0]), "do not match the stored images"),
        ("memory.labels", torch.tensor([0.0, 1.0, 0.0, 1.0]), "do not match the stored images"),
        ("memory.pixels", torch.zeros(3, 1, 8, 8, dtype=torch.uint8), "do not match the stored images"),
    ],
)
def test_an_inconsistent_replay_buffer_is_rejected(
    parts: Parts, tmp_path: Path, name: str, value: Tensor, why: str
) -> None:
    assert why in outcome(tmp_path / "m", with_tensors(parts, **{name: value}))


@pytest.mark.parametrize("version", ["2", "9" * 5000])
def test_a_newer_version_has_a_short_message(parts: Parts, tmp_path: Path, version: str) -> None:
    content = to_bytes(parts[0], metadata=parts[1] | {"version": version})
    assert "Update the program" in outcome(tmp_path / "m", content)


@pytest.mark.parametrize("length", [0, 1, 10**8, 2**40, 2**64 - 1])
def test_headers_with_a_wrong_length(parts: Parts, tmp_path: Path, length: int) -> None:
    assert "cannot be read" in outcome(tmp_path / "m", struct.pack("<Q", length) + described(parts)[8:])


TASK = {"name": "task 0", "class_names": ["a0", "b0"]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"image_shape": [5, 8, 8]}, "1 or 3 channels"),
        ({"image_shape": [3, 4096, 4096]}, "less than or equal to 1024"),
        ({"tasks": [TASK, TASK | {"class_names": ["a1", "b1"]}]}, "task 'task 0' already"),
        ({"tasks": [TASK, {"name": "task 1", "class_names": ["a1", "b0"]}]}, "learned before: b0"),
        ({"tasks": [TASK, {"name": "task 1", "class_names": ["a1", "a1"]}]}, "have the name 'a1'"),
        ({"tasks": [TASK, {"name": "\x1b[2J", "class_names": ["a1", "b1"]}]}, "control characters"),
        ({"tasks": [TASK, {"name": "task 1", "class_names": ["a1", "\u202e"]}]}, "control characters"),
    ],
)
def test_implausible_sizes_and_names(parts: Parts, tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    assert why in outcome(tmp_path / "m", described(parts, **changes))


def test_a_description_longer_than_any_real_one(parts: Parts, tmp_path: Path) -> None:
    assert "longer than 20000000" in outcome(tmp_path / "m", described(parts, surprise="x" * 20_000_000))


def test_a_solver_that_would_keep_forgetting_busy(parts: Parts, tmp_path: Path) -> None:
    settings = json.loads(parts[1]["description"])["settings"]
    endless = settings | {"memory_fit": settings["memory_fit"] | {"solver": "sgd", "iterations": 10**9}}
    assert "less than or equal to 10000" in outcome(tmp_path / "m", described(parts, settings=endless))


@pytest.mark.parametrize("name", ["heads.0.bias", "heads.1.bias", "fitted.0"])
def test_finite_weights_with_infinite_scores(parts: Parts, tmp_path: Path, name: str) -> None:
    """Whichever task they belong to, and if only the calibration is wrong."""
    huge = {name: torch.full_like(parts[0][name], 3e38)}
    if name == "fitted.0":
        huge["heads.1.bias"] = torch.full_like(parts[0]["heads.1.bias"], 1e3)
    assert "NaN or infinite" in outcome(tmp_path / "m", with_tensors(parts, **huge))


def wide(tmp_path: Path, side: int, **net: Any) -> bytes:
    """A file that is consistent, and whose network needs far more for one image than the file contains."""
    method = Clom(NET.model_copy(update=net), ClomSettings(), (3, side, side))
    method.open_task(LearnedTask("one", ("a", "b")))
    save_model(tmp_path / "wide", method)
    return (tmp_path / "wide").read_bytes()


def test_one_image_that_would_take_gigabytes_or_minutes(tmp_path: Path) -> None:
    before = peak_memory_bytes() or 0
    large = wide(tmp_path, 512, channels=(2000, 1, 1), kernels=(3, 3, 2), pools=(8, 8, 4))  # 2 GB per rotation
    assert "more memory or work than is plausible" in outcome(tmp_path / "m", large)
    slow = wide(tmp_path, 200, channels=(60, 4000, 1), pools=(1, 8, 8))
    assert "more memory or work than is plausible" in outcome(tmp_path / "m", slow)
    assert (peak_memory_bytes() or 0) - before < 600e6


def test_the_later_of_many_large_tasks_are_not_looked_at(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_WORK_OF_ALL_TASKS", 1)
    huge = torch.full_like(parts[0]["heads.1.bias"], 3e38)
    (tmp_path / "m").write_bytes(with_tensors(parts, **{"heads.1.bias": huge}))
    method = load_model(tmp_path / "m")  # and when they are used, scores are checked again
    monkeypatch.setattr(checks, "_MOST_WORK", 1)
    with pytest.raises(UserError, match="than is plausible"):
        checks.check_answers(method)


@pytest.mark.slow
def test_more_tasks_than_the_file_holds(parts: Parts, tmp_path: Path) -> None:
    tasks = [{"name": f"a{number}", "class_names": [f"x{number}"]} for number in range(20_000)]
    assert "far more than the file holds" in outcome(tmp_path / "m", described(parts, tasks=tasks))


def test_a_real_model_of_many_tasks_is_accepted(tmp_path: Path, tiny_stream: Stream) -> None:
    method = Clom(NET, ClomSettings(), (1, 8, 8))
    for number in range(60):
        method.open_task(LearnedTask(f"task {number}", (f"a{number}",)))
    save_model(tmp_path / "m", method)
    assert len(load_model(tmp_path / "m").tasks) == 60


# --- checkpoints of the authors --------------------------------------------------------------------------------------


@quick
@given(shape=st.lists(st.integers(0, 40), max_size=4), real=st.booleans())
def test_any_shape_may_be_in_a_checkpoint(tmp_path: Path, shape: list[int], real: bool) -> None:
    value = torch.zeros(shape) if real else torch.zeros(()).expand([side * 10**3 for side in shape])
    torch.save(
        {"conv1.weight": value, "conv2.weight": value, "conv3.weight": value, "fc1.weight": value}, tmp_path / "c"
    )
    with pytest.raises(UserError, match=str(tmp_path / "c")):
        read_authors(tmp_path / "c")


def test_one_value_expanded_to_a_billion(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1).expand(10**9, 3)}, tmp_path / "c")
    with pytest.raises(UserError, match=r"conv1.weight claims more values than the file holds"):
        read_authors(tmp_path / "c")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_in_a_checkpoint(tmp_path: Path, bad: float) -> None:
    torch.save({"conv1.weight": torch.tensor([1.0, bad])}, tmp_path / "c")
    with pytest.raises(UserError, match=r"conv1.weight contains NaN or infinite values"):
        read_authors(tmp_path / "c")
