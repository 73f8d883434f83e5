"""How a check fails: one sentence for what is wrong, one for the contract that it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from clom.errors import UserError


def require(condition: object, problem: str, contract: str) -> None:
    if not condition:
        raise AssertionError(f"{problem}. The contract: {contract}.")


@contextmanager
def refused(what: str, *words: str) -> Iterator[None]:
    """Whatever is done inside must raise a `UserError` whose text contains all `words`."""
    contract = f"{what} is refused with a clom.errors.UserError that says what is wrong"
    try:
        yield
    except UserError as problem:
        missing = [word for word in words if word not in str(problem)]
        require(not missing, f"{what} is refused, but '{problem}' does not mention {', '.join(missing)}", contract)
        return
    except Exception as problem:
        raise AssertionError(
            f"{what} raises {type(problem).__name__}: {problem}. The contract: {contract}."
        ) from problem
    raise AssertionError(f"{what} is accepted. The contract: {contract}.")


def is_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def all_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """The same tensors, bit by bit."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def all_close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """The same tensors up to the rounding that batches of another size bring."""
    return len(some) == len(others) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(some, others, strict=True)
    )
