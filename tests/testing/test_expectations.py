"""How a check fails."""

from __future__ import annotations

import pytest
import torch

from clom.errors import UserError
from clom.testing.expectations import all_close, all_equal, refused, require


def test_what_is_wrong_and_the_contract() -> None:
    require(True, "nothing", "nothing")
    with pytest.raises(AssertionError, match=r"^It is odd\. The contract: it is even\.$"):
        require(False, "It is odd", "it is even")


def fail(problem: Exception) -> None:
    raise problem


def test_a_refusal_says_what_is_wrong() -> None:
    with refused("Nonsense", "nonsense"):
        fail(UserError("This is nonsense."))
    with pytest.raises(AssertionError, match="does not mention sense"), refused("Nonsense", "sense"):
        fail(UserError("No."))
    with pytest.raises(AssertionError, match="Nonsense is accepted"), refused("Nonsense"):
        pass
    with pytest.raises(AssertionError, match="Nonsense raises ValueError: no"), refused("Nonsense"):
        fail(ValueError("no"))


def test_equal_and_close() -> None:
    one = [torch.tensor([1.0, 2.0])]
    near, far = [one[0] + 1e-5], [one[0] + 1]
    assert all_equal(one, [one[0].clone()])
    assert not all_equal(one, near)
    assert all_close(one, near)
    assert not all_close(one, far)
    assert not all_close(one, [])
    assert not all_close(one, [torch.ones(3)])
