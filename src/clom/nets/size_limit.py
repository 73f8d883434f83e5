"""Limits on the size of a network, checked while it is built, and on what it computes, before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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


class TooMuch(UserError):
    """A computation needs more memory or more work than it may."""


class ComputeLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the context, limits the elements of each tensor and the multiply-adds of all operations together; both are
    known from shapes before an operation that multiplies sizes is run. Only for the thread that enters the context."""

    def __init__(self, elements: int, multiply_adds: float, why: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements, self.multiply_adds, self.why = elements, multiply_adds, why

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        work = _WORK.get(func)
        if work is not None:
            self._check(*work(args))
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self._check(value.numel(), 0)
        return result

    def _check(self, elements: int, multiply_adds: int) -> None:
        self.multiply_adds -= multiply_adds
        if elements > self.elements or self.multiply_adds < 0:
            raise TooMuch(self.why)


def _of_convolution(args: Sequence[Any]) -> tuple[int, int]:
    """Elements of the output, and multiply-adds."""
    images, weight, _, stride, padding, dilation, transposed, more, groups = args
    kernels = [far * (kernel - 1) + 1 for kernel, far in zip(weight.shape[2:], dilation, strict=True)]
    sides = zip(images.shape[2:], kernels, stride, padding, more, strict=True)
    if transposed:
        outputs = [(side - 1) * step - 2 * pad + kernel + extra for side, kernel, step, pad, extra in sides]
        elements = len(images) * weight.shape[1] * groups * math.prod(outputs)
        return elements, images.numel() * math.prod(weight.shape[1:])
    outputs = [(side + 2 * pad - kernel) // step + 1 for side, kernel, step, pad, _ in sides]
    elements = len(images) * weight.shape[0] * math.prod(outputs)
    return elements, elements * math.prod(weight.shape[1:])


def _of_packed_convolution(args: Sequence[Any]) -> tuple[int, int]:
    images, weight, _, padding, stride, dilation = args[:6]
    return _of_convolution((images, weight, None, stride, padding, dilation, False, [0, 0], 1))


def _of_packed_convolution_and_sum(args: Sequence[Any]) -> tuple[int, int]:
    return _of_packed_convolution([args[0], *args[2:]])


def _of_product(args: Sequence[Any]) -> tuple[int, int]:
    left, right = args[-2:]
    elements = left.shape[:-1].numel() * right.shape[-1]
    return elements, elements * left.shape[-1]


def _of_padding(args: Sequence[Any]) -> tuple[int, int]:
    sides, padding = list(args[0].shape), list(args[1])
    for place, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        sides[-1 - place] += before + after
    return math.prod(sides), 0


aten = torch.ops.aten
_WORK: dict[Any, Callable[[Sequence[Any]], tuple[int, int]]] = {
    aten.convolution.default: _of_convolution,
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.addmm.default), _of_product),
    aten.constant_pad_nd.default: _of_padding,
}
if (packed_convolution := getattr(torch.ops.mkldnn, "_convolution_pointwise", None)) is not None:
    _WORK[packed_convolution.default] = _of_packed_convolution
    _WORK[packed_convolution.binary] = _of_packed_convolution_and_sum
