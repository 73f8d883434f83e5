"""A second device without a GPU: proves that code puts every tensor where it belongs, and counts waits for the device.

`simulated_device()` gives a `torch.device` that behaves like an accelerator of its own. Every operation on it is
computed by the CPU, so a training run on it must end bit-equal to one on the CPU; an operation that mixes a tensor of
the CPU with one of the device raises an error that names the operation, as CUDA would.

    device = simulated_device()
    model = clom.make_method("clom", "digits-5t", device=device)

Call `simulated_device()` before the first backward pass of the process: torch counts devices then, once. It relies on
an experimental interface of torch (2.13) and is meant for tests alone.

Tested by tests/methods/test_devices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

NAME = "simulated"
_aten = torch.ops.aten
_libraries: list[torch.library.Library] = []
"""Registrations last as long as these objects: kept for the life of the process, as torch keeps device types."""


@dataclass
class Waits:
    """How often the host had to wait for the device: values read, tensors copied back."""

    count: int = 0


_waits = Waits()


def simulated_device() -> torch.device:
    """The simulated accelerator; registered with torch when first asked for."""
    if not _libraries:
        _register()
    return torch.device(NAME, 0)


@contextmanager
def counting_waits() -> Iterator[Waits]:
    """Inside, `count` tells how often anything was read from the device."""
    before = _waits.count
    counted = Waits()
    try:
        yield counted
    finally:
        counted.count = _waits.count - before


def waits_so_far() -> int:
    return _waits.count


class DeviceTensor(Tensor):
    """A tensor of the simulated device: a tensor of the CPU behind a wall that only operations pass."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=torch.device(NAME, 0),
        )
        assert isinstance(made, cls)
        return made

    def __init__(self, on_cpu: Tensor) -> None:
        super().__init__()
        self.on_cpu = on_cpu

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"{self.on_cpu!r} on {NAME}"

    def tolist(self) -> Any:
        _waits.count += 1
        return self.on_cpu.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func is _aten._to_copy.default:
        return _converted(args[0], kwargs)
    if func is _aten.copy_.default:
        return _copied(*args)
    if func is _aten._local_scalar_dense.default:
        _waits.count += 1
        return func(_inner(args[0]))
    flat, structure = pytree.tree_flatten((args, dict(kwargs)))
    own = [value for value in flat if isinstance(value, DeviceTensor)]
    strangers = [value for value in flat if isinstance(value, Tensor) and not isinstance(value, DeviceTensor)]
    if own and any(value.ndim for value in strangers):  # numbers may come from anywhere, as with CUDA
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} got tensors of {NAME}:0 and cpu.")
    if func is _aten.nonzero.default or (func in _INDEXING and any(value.dtype == torch.bool for value in own[1:])):
        _waits.count += 1  # the shape of the result depends on values
    inner_args, inner_kwargs = pytree.tree_unflatten([_inner(value) for value in flat], structure)
    wrapped = {id(value.on_cpu): value for value in own}  # operations in place give back what they were given

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return wrapped[id(value)] if id(value) in wrapped else DeviceTensor(value)

    return pytree.tree_map(wrap, func(*inner_args, **inner_kwargs))


_INDEXING = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten.masked_select.default}


def _inner(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.on_cpu
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _converted(tensor: Tensor, options: Mapping[str, Any]) -> Tensor:
    target = torch.device(options.get("device") or tensor.device)
    result = _aten._to_copy.default(_inner(tensor), **{**options, "device": torch.device("cpu"), "pin_memory": None})
    if target.type == NAME:
        return DeviceTensor(result)
    _waits.count += 1
    return result  # type: ignore[no-any-return]


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(source, DeviceTensor) and not isinstance(target, DeviceTensor):
        _waits.count += 1
    _aten.copy_.default(_inner(target), _inner(source), non_blocking)
    return target


class _Backend:
    """What torch asks of a kind of device: one device, always available, without a random state of its own."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are drawn by the CPU."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _register() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, _Backend())
    everything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    everything.fallback(lambda op, *args, **kwargs: _compute(op, args, kwargs), "PrivateUse1")  # type: ignore[no-untyped-call]
    factories = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # These fill a tensor whose size torch changes behind the wall; computed as a whole instead.
    for name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace"):
        factories.impl(name, _factory(name), "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.extend([everything, factories])


def _factory(name: str) -> Callable[..., Tensor]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(_aten, packet), overload or "default")

    def make(*args: Any, **options: Any) -> Tensor:
        given = {key: value for key, value in options.items() if key in ("dtype", "layout")}
        return DeviceTensor(operation(*args, **given, device=torch.device("cpu")))

    return make
