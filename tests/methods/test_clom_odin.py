"""CLOM (ODIN): HAT's network with ODIN's scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from clom.data.images import to_unit
from clom.data.stream import Stream
from clom.experiments.catalogue import BUDGETS, experiment_names
from clom.experiments.config import resolve
from clom.methods.clom_odin import ClomOdin, ClomOdinSettings
from clom.methods.hat import Hat, HatSettings
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.ood.odin import odin_block
from clom.testing import check_method

ALEXNET = AlexNetSettings(channels=(12, 12, 16), hidden=24, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
SETTINGS: dict[str, Any] = {"memory_per_class": 3, "learning": {"plan": {"epochs": 2, "batch": 16}}}


def make(net: NetSettings = ALEXNET, seed: int = 0, **odin: float) -> ClomOdin:
    return ClomOdin(net, ClomOdinSettings.model_validate(SETTINGS | odin), (1, 8, 8), seed)


@pytest.mark.parametrize("net", [ALEXNET, ResNet18Settings(width=8)], ids=["alexnet", "resnet"])
def test_is_a_method(net: NetSettings, tiny_stream: Stream) -> None:
    check_method(lambda seed: make(net, seed), tiny_stream)


def test_is_hat_except_for_the_scores(tiny_stream: Stream) -> None:
    method = make(eps=0.02)
    hat = Hat(ALEXNET, HatSettings.model_validate(SETTINGS), (1, 8, 8), 0)
    for new in list(tiny_stream)[:2]:
        method.learn(new)
        hat.learn(new)
    pixels = tiny_stream.tests[0].pixels
    for task in range(2):
        assert all(torch.equal(a, b) for a, b in zip(method.linear_head(task), hat.linear_head(task), strict=True))
        torch.testing.assert_close(method.task_logits(to_unit(pixels), task), hat.block(pixels, task))
        by_hand = odin_block(partial(hat.task_logits, task=task), to_unit(pixels), 1000.0, 0.02)
        torch.testing.assert_close(method.block(pixels, task), by_hand)
        # Without a perturbation, a large temperature only subtracts the mean.
        unperturbed = odin_block(partial(hat.task_logits, task=task), to_unit(pixels), 1e6, 0.0)
        plain = hat.block(pixels, task)
        torch.testing.assert_close(unperturbed, plain - plain.mean(1, keepdim=True), rtol=1e-3, atol=1e-4)
        # The perturbation raises the score of the predicted class.
        assert (by_hand.amax(1) >= plain.amax(1) - plain.mean(1) - 1e-4).float().mean() > 0.9


@pytest.mark.parametrize("experiment", experiment_names())
@pytest.mark.parametrize("budget", BUDGETS)
def test_shares_the_hand_written_settings_of_hat(experiment: str, budget: str) -> None:
    """Searches are each system's own."""
    hat, odin = (resolve(experiment, name, budget, by_hand=True).settings for name in ("hat", "clom-odin"))
    assert odin == hat | {"temperature": 1000.0, "eps": 0.0014}
