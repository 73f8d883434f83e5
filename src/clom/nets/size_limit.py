"""A limit on the size of a network, checked while it is built, before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clom.errors import UserError


def _of_size(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    size = options.get("size", arguments[0] if arguments and isinstance(arguments[0], Sequence) else arguments)
    return math.prod(max(0, int(side)) for side in size)


def _of_first(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return _of_size(arguments[:1], options)


def _of_new(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return _of_size(arguments[1:], options)


def _of_square(arguments: Sequence[Any], options: Mapping[str, Any]) -> int:
    return int(arguments[0]) * int(arguments[1] if len(arguments) > 1 else arguments[0])


_COUNT: dict[Any, Callable[[Sequence[Any], Mapping[str, Any]], int]] = {
    **dict.fromkeys((torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn), _of_size),
    **dict.fromkeys((torch.full, torch.randperm), _of_first),
    **dict.fromkeys((Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones), _of_new),
    torch.eye: _of_square,
}


class SizeLimit(TorchFunctionMode):
    """Within the context, limits the total number of elements of new tensors, and the number of new tensors.

    Discarded tensors count too, unless `holder` is set: then, when the limit is reached, only what that module holds
    counts.
    """

    def __init__(self, numbers: int, tensors: int, why: str) -> None:
        super().__init__()
        self.numbers, self.tensors, self.why = numbers, tensors, why
        self.holder: nn.Module | None = None
        self._left = numbers

    @staticmethod
    def for_file(tensors: Mapping[str, Tensor]) -> SizeLimit:
        """A limit for a network with these weights, with a margin for temporary tensors."""
        numbers = sum(value.numel() for value in tensors.values())
        return SizeLimit(2 * numbers + 1_000_000, 12 * len(tensors) + 500, "it describes far more than the file holds")

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        count = _COUNT.get(func)
        if count is not None:
            self._take(count(args, options))
        return func(*args, **options)

    def _take(self, numbers: int) -> None:
        self.tensors -= 1
        if numbers > self._left and self.holder is not None:
            self._left = self.numbers - sum(value.numel() for value in self.holder.state_dict().values())
        self._left -= numbers
        if min(self.tensors, self._left) < 0:
            raise UserError(self.why)
