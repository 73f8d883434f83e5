"""Counting passes: the unit of training work in which systems are compared.

One image forward through the experiment's own network costs 1, backward 2 more. Other networks cost in proportion to
their multiply-adds. Networks count themselves when they run (`CountedNetwork`), so teachers, replayed images, inner
loops and extracted features are included without any effort of a method. Not counted are linear heads and everything
that is not a network, such as solvers and herding, except OWM's projectors (`count_multiply_adds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from clom.nets.data_parallel import rows_of_batch

BACKWARD = 2.0
"""Passes of the gradients of one image; a forward pass is 1."""

_counter: ContextVar[PassCounter | None] = ContextVar("pass counter", default=None)


class PassCounter:
    """The passes counted so far; see `counting`."""

    def __init__(self, unit: float) -> None:
        """`unit` is the number of multiply-adds of one pass: of the experiment's network for one image."""
        self.unit = unit
        self._multiply_adds = 0.0  # a whole number, so that the order of additions makes no difference
        self._lock = RLock()  # tasks answer on several threads
        self._costs = WeakKeyDictionary[nn.Module, dict[torch.Size, float]]()

    @property
    def total(self) -> float:
        return self._multiply_adds / (self.unit or 1.0)

    @total.setter
    def total(self, passes: float) -> None:
        self._multiply_adds = float(round(passes * (self.unit or 1.0))) if math.isfinite(passes) else passes

    def run(self, network: nn.Module, forward: Callable[..., Any], images: Tensor, *args: Any, **options: Any) -> Any:
        """The outputs of `forward`, which runs `network`, after counting the passes of `images`."""
        with self._lock:
            measures = images.shape[1:] not in self._costs.setdefault(network, {})
            outputs = self._measured(network, forward, images, *args, **options) if measures else None
        if not measures:
            outputs = self._forward(forward, images, *args, **options)
        self.count(network, images, 1.0 + BACKWARD * _has_gradient(outputs))
        return outputs

    def _measured(
        self, network: nn.Module, forward: Callable[..., Any], images: Tensor, *args: Any, **options: Any
    ) -> Any:
        """The outputs of `forward`, and the cost of images of this size from now on."""
        with _multiply_adds(network) as measured:
            outputs = self._forward(forward, images, *args, **options)
        # Without convolutions and linear layers to measure, all networks count alike.
        cost = sum(measured) / max(1, self._rows(images)) if self.unit else 1.0
        self._costs[network][images.shape[1:]] = cost
        return outputs

    def count(self, network: nn.Module, images: Tensor, passes: float) -> None:
        """Count so many `passes` of each image through a network that has run before."""
        if torch._C._current_graph_task_id() == -1:  # else activations are computed again during the backward pass
            with self._lock:
                self._multiply_adds += rows_of_batch(images) * self._costs[network][images.shape[1:]] * passes

    def add(self, multiply_adds: int) -> None:
        """Count work that is not a network's."""
        if self.unit:
            with self._lock:
                self._multiply_adds += multiply_adds

    def _forward(self, forward: Callable[..., Any], images: Tensor, *args: Any, **options: Any) -> Any:
        return forward(images, *args, **options)

    def _rows(self, images: Tensor) -> int:
        """The number of images that `_forward` computes."""
        return len(images)


@contextmanager
def counting(counter: PassCounter | None) -> Iterator[None]:
    """Within the context, networks count their passes in `counter`; with None, they count nothing."""
    scope = _counter.set(counter)
    try:
        yield
    finally:
        _counter.reset(scope)


class CountedNetwork(nn.Module):
    """A network that counts its passes. Networks inside it are part of it."""

    def __call__(self, images: Tensor, *args: Any, **options: Any) -> Any:
        counter = _counter.get()
        if counter is None:
            return super().__call__(images, *args, **options)
        scope = _counter.set(None)
        try:
            return counter.run(self, super().__call__, images, *args, **options)
        finally:
            _counter.reset(scope)


def count_again(network: nn.Module, images: Tensor, passes: float) -> None:
    """Count further passes of each image through a network that has just run, such as second derivatives."""
    counter = _counter.get()
    if counter is not None:
        counter.count(network, images, passes)


def count_multiply_adds(number: int) -> None:
    """Count work outside networks that a method spends most of its time on."""
    counter = _counter.get()
    if counter is not None:
        counter.add(number)


def multiply_adds(network: nn.Module, images: Tensor) -> float:
    """Multiply-adds of convolutions and linear layers for one of the images."""
    with torch.no_grad(), counting(None), _multiply_adds(network) as measured:
        network(images)
    return sum(measured) / len(images)


@contextmanager
def _multiply_adds(network: nn.Module) -> Iterator[list[float]]:
    """A list of the multiply-adds of each layer that runs within the context. They are computed from shapes: torch's
    FlopCounterMode would see how a layer is computed, which differs between training and inference."""
    measured: list[float] = []

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
        measured.append((inputs[0] if transposed else output).numel() * _per_output(layer))

    modules = list(network.modules())
    layers = [module for module in modules if _per_output(module)]
    handles = [layer.register_forward_hook(measure) for layer in layers]
    compiled = any(module._compiled_call_impl is not None for module in modules)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():  # hooks would be compiled as well
            yield measured
    finally:
        for handle in handles:
            handle.remove()


def _per_output(layer: nn.Module) -> int:
    """Multiply-adds per output (per input of a transposed convolution); 0 for layers that are not counted."""
    if isinstance(layer, nn.modules.conv._ConvNd | nn.Linear):
        return layer.weight[0].numel()
    return int(getattr(layer, "multiply_adds_per_output", 0))


def _has_gradient(outputs: Any) -> bool:
    if isinstance(outputs, Tensor):
        return outputs.requires_grad
    return any(isinstance(output, Tensor) and output.requires_grad for output in tree_leaves(outputs))
