"""What all tests share: one thread, so that they run beside other work, and a few real images."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from clom import testing
from clom.data.catalog import SETS
from clom.data.formats import read_digits
from clom.data.images import DataSet
from clom.data.stream import Stream
from clom.methods.registry import METHODS
from clom.nets.networks.registry import NETS
from clom.ood.registry import PREDICTORS, SCORES
from clom.plugins import loading
from clom.testing.simulated_device import simulated_device

simulated_device()  # before any test computes a gradient: torch counts devices once, in the first backward pass

if (_worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    # A core for each worker and whatever it starts: threads that wait for one another on a busy core take for ever.
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_worker.removeprefix("gw")) % len(_cores)]})


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    """Commands that are tried within this process tune it for good."""
    yield
    _untune()


def _untune() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    torch.use_deterministic_algorithms(False)


_untune()  # fixtures of a module or session are made before those of a test


@pytest.fixture(autouse=True)
def same_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards."""
    for registry in (METHODS, NETS, SETS, SCORES, PREDICTORS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(loading, "_loaded", dict(loading._loaded))


@pytest.fixture(scope="session")
def digits() -> DataSet:
    """scikit-learn's digits, 8 x 8 pixels."""
    return read_digits()


@pytest.fixture(scope="session")
def tiny_stream() -> Stream:
    """Three tasks of two digits, 12 training images and 4 validation images of each class."""
    return testing.tiny_stream()
