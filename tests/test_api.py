"""From a stream to a model file, as in the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clom import api
from clom.errors import UserError

SMALL: dict[str, Any] = {"net__channels": [12, 12, 16], "net__hidden": 24, "learning__plan__epochs": 1}


def test_from_a_stream_to_a_model_file(tmp_path: Path) -> None:
    stream = api.load_stream("digits-5t", "smoke")
    model = api.make_method("clom", "digits-5t", "smoke", seed=1, **SMALL)
    for task in stream[:2]:
        model.learn(task)
    result = api.evaluate(model, stream.tests)
    assert result.n_tasks == 2
    assert 0 <= result.preferred.cil <= result.til <= 1
    api.save_model(tmp_path / "digits.safetensors", model)
    loaded = api.load_model(str(tmp_path / "digits.safetensors"))
    pixels = stream.tests[0].pixels
    assert all(torch.equal(one, two) for one, two in zip(model.blocks(pixels), loaded.blocks(pixels), strict=True))


def test_settings_of_the_experiment_can_be_changed() -> None:
    model = api.make_method("hat", "mnist-5t", "smoke", image_shape=(1, 32, 32), attention__s_max=5.0)
    assert model.image_shape == (1, 32, 32)
    assert model.settings.model_dump()["attention"]["s_max"] == 5.0
    with pytest.raises(UserError, match="Did you mean"):
        api.make_method("clom", "digits-5t", lerning__plan__epochs=3)
