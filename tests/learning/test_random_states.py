"""Saving and restoring torch's random states."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from clom.learning.random_states import fork_random_states, get_random_states, set_random_states

CPU = torch.device("cpu")


@pytest.mark.parametrize("device", [None, CPU])
def test_restoring_repeats_the_draws(device: torch.device | None) -> None:
    states = get_random_states(device)
    first = torch.rand(3)
    set_random_states(states, device)
    assert torch.equal(torch.rand(3), first)


def test_seeding_inside_a_fork_has_no_effect_outside() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with fork_random_states():
        torch.manual_seed(7)
    assert torch.equal(torch.rand(2), expected)


def test_an_accelerator_has_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.tensor([5], dtype=torch.uint8)

    def set_state(value: Tensor, device: torch.device) -> None:
        state.copy_(value)

    generator = SimpleNamespace(get_rng_state=lambda device: state.clone(), set_rng_state=set_state)
    monkeypatch.setattr(torch, "xpu", generator)
    device = torch.device("xpu")
    states = get_random_states(device)
    assert isinstance(states, list)
    state.fill_(9)
    set_random_states(states, device)
    assert state.item() == 5
    state.fill_(9)
    set_random_states(get_random_states(CPU), device)
    assert state.item() == 9, "restoring a CPU state changed the accelerator's"
