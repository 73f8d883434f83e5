"""What is shown of the model that answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from clom.errors import UserError
from clom.serve.answers.active_model import RATES, load_active_model, rejection, units
from clom.storage.model_file import load_model, save_model
from serve.running import nearest_mean, slow_learner, warm_model

CPU = torch.device("cpu")


def test_everything_about_the_file(tmp_path: Path) -> None:
    path = warm_model(tmp_path / "m.safetensors")
    active = load_active_model(path, CPU)
    assert active.predictor is not None
    assert (active.size, active.task_names) == (32, ["warm"])
    assert active.task_of_class == {"red": "warm", "green": "warm"}
    assert active.about["file"] == "m.safetensors"
    assert active.about["bytes"] == path.stat().st_size
    assert active.version == load_active_model(path, CPU).version
    save_model(path, nearest_mean())
    empty = load_active_model(path, CPU)
    assert empty.predictor is None
    assert empty.version != active.version


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read"):
        load_active_model(tmp_path / "missing", CPU)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="a pipe or a device"):
            load_active_model(path, CPU)


def test_a_higher_rate_never_costs_less(tmp_path: Path) -> None:
    found = rejection(load_model(warm_model(tmp_path / "m.safetensors")))
    assert found["held_out"] == 20
    assert len(found["costs"]) == len(found["rates"]) == len(RATES)
    assert found["costs"][0] == 0
    assert found["costs"] == sorted(found["costs"])
    assert found["costs"][-1] <= RATES[-1]
    assert rejection(nearest_mean())["costs"] == [0.0] * len(RATES)


@pytest.mark.filterwarnings("ignore:.*closed every unit.*")
def test_units_are_opened_once_and_then_shared(tmp_path: Path) -> None:
    method = load_model(warm_model(tmp_path / "m.safetensors", slow_learner(epochs=1)))
    for layer in units(method):
        (task,) = layer["tasks"]
        assert (task["task"], task["shared"]) == ("warm", 0)
        assert task["opened"] + layer["free"] == layer["units"]
    assert {layer["layer"] for layer in units(method)} == {"conv1", "conv2", "conv3", "fc"}
    assert units(nearest_mean()) == []
