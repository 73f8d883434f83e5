"""The size of a network is limited while it is built, before memory is allocated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clom.errors import UserError
from clom.nets.packed import PackedConv2d
from clom.nets.size_limit import ComputeLimit, SizeLimit, TooMuch


def test_elements_are_counted_exactly() -> None:
    with SizeLimit(4 * 3 + 3, 10, "too large"):
        nn.Linear(4, 3)  # 12 weights and 3 biases
    with pytest.raises(UserError, match="too large"), SizeLimit(4 * 3 + 2, 10, "too large"):
        nn.Linear(4, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(10**12),
        lambda: torch.zeros(10**6, 10**6),
        lambda: torch.zeros((10**6, 10**6)),
        lambda: torch.ones(size=(10**6, 10**6)),
        lambda: torch.randn(10**12),
        lambda: torch.full((10**12,), 1.0),
        lambda: torch.eye(10**6),
        lambda: torch.eye(10**3, 10**9),
        lambda: torch.zeros(1).new_zeros(10**6, 10**6),
        lambda: torch.zeros(1).new_empty((10**12,)),
        lambda: torch.randperm(10**12),
        lambda: nn.Linear(10**6, 10**6),
        lambda: nn.Conv2d(10**3, 10**3, 10**3),
        lambda: nn.Linear(10**15, 10**15),
    ],
)
def test_nothing_is_allocated_beyond_the_limit(make: object) -> None:
    assert callable(make)
    with pytest.raises(UserError, match="too large"), SizeLimit(10**6, 100, "too large"):
        make()


def test_tensors_are_counted() -> None:
    with SizeLimit(100, 5, "too many"):
        for _ in range(5):
            torch.zeros(1)
    with pytest.raises(UserError, match="too many"), SizeLimit(100, 5, "too many"):
        nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))


def test_discarded_tensors_do_not_count_if_the_holder_is_set() -> None:
    kept = nn.Linear(5, 2)  # 12 elements
    with SizeLimit(30, 1000, "too large") as limit:
        limit.holder = kept
        for _ in range(100):
            torch.zeros(18)  # 12 + 18 = 30
        with pytest.raises(UserError, match="too large"):
            torch.zeros(19)
    with pytest.raises(UserError, match="too large"), SizeLimit(30, 1000, "too large"):
        nn.Sequential(nn.Linear(17, 1), nn.Linear(17, 1))


def test_a_file_allows_a_network_of_twice_its_size() -> None:
    limit = SizeLimit.for_file({"a": torch.zeros(10, 10), "b": torch.zeros(5)})
    assert limit.numbers == 2 * 105 + 1_000_000
    assert limit.tensors == 2 * 12 + 500


def test_nothing_is_counted_outside_the_context() -> None:
    with SizeLimit(1, 1, "too large"):
        pass
    assert len(torch.zeros(100)) == 100


# --- what a network computes -----------------------------------------------------------------------------------------


def computed(elements: int, multiply_adds: float, compute: Callable[[], object]) -> bool:
    try:
        with torch.no_grad(), ComputeLimit(elements, multiply_adds, "too much"):
            compute()
    except TooMuch:
        return False
    return True


IMAGES = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("compute", "elements", "multiply_adds"),
    [
        (lambda: nn.Conv2d(3, 5, 3, padding=1)(IMAGES), 2 * 5 * 64, 2 * 5 * 64 * 27),
        (lambda: nn.Conv2d(3, 6, 3, stride=2, groups=3)(IMAGES), 2 * 6 * 9, 2 * 6 * 9 * 9),
        (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2)(IMAGES), 2 * 4 * 256, 2 * 3 * 64 * 16),
        (lambda: PackedConv2d(torch.ones(5, 3, 3, 3), None, 1, 1)(IMAGES, 0, {}), 2 * 5 * 64, 2 * 5 * 64 * 27),
        (lambda: nn.Linear(8, 50)(IMAGES[0, 0]), 8 * 50, 8 * 8 * 50),
        (lambda: IMAGES[0] @ torch.zeros(3, 8, 40), 3 * 8 * 40, 3 * 8 * 8 * 40),
        (lambda: F.pad(IMAGES, (1, 2, 3, 4)), 2 * 3 * 11 * 15, 0),
        (lambda: IMAGES.expand(4, 2, 3, 8, 8).contiguous(), 4 * 384, 0),
    ],
)
def test_elements_and_multiply_adds_are_known_exactly(
    compute: Callable[[], object], elements: int, multiply_adds: int
) -> None:
    assert computed(elements, multiply_adds, compute)
    assert not computed(elements - 1, multiply_adds, compute)
    assert not computed(elements, multiply_adds - 1, compute)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.conv2d(IMAGES, torch.zeros(1, 3, 1, 1), padding=10**6),
        lambda: F.conv_transpose2d(IMAGES, torch.zeros(3, 1, 1, 1), stride=10**6),
        lambda: F.pad(IMAGES, (10**6,) * 4),
        lambda: torch.zeros(10**6, 1) @ torch.zeros(1, 10**6),
        lambda: torch.zeros(1, 10**6, 1) @ torch.zeros(1, 1, 10**6),
    ],
)
def test_nothing_is_allocated_for_what_is_too_large(compute: Callable[[], object]) -> None:
    assert not computed(10**7, 1e15, compute)  # each would need terabytes
