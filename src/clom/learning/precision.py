"""Which precision a network is trained in: chosen by name, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, get_args

import torch

from clom.errors import UserError, unknown
from clom.nets import Net, NetSettings
from clom.nets.plain import Backbone, set_layout
from clom.nets.precision import network_dtype

Precision = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[Precision, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_WORTH = 0.9  # what bfloat16 may take of the time of float32 to be chosen
_SHORT = (
    0.03  # seconds of processor time of a training pass below which rounding is all that lower precision would change
)
_SECONDS, _ROUNDS = 1.0, 3

TrainingPass = Callable[[torch.dtype | None], None]
"""One forward and backward pass of the network with this dtype."""


def network_pass(net: NetSettings, image_size: int, batch: int = 128) -> TrainingPass | None:
    """A training pass of a network of these settings on random images, to be measured; None if it starts from frozen
    features, so that training it hardly takes time."""
    with torch.random.fork_rng(devices=[]):
        backbone = Backbone(net, image_size).train()
        set_layout(backbone)
        images = torch.rand(batch, 3, image_size, image_size).contiguous(memory_format=torch.channels_last)
    frozen = isinstance(backbone.net, Net) and backbone.net.has_frozen_backbone
    if frozen or not any(parameter.requires_grad for parameter in backbone.parameters()):
        return None

    def training_pass(dtype: torch.dtype | None) -> None:
        with network_dtype(dtype), torch.random.fork_rng(devices=[]):
            backbone(images).square().mean().backward()

    return training_pass


def choose_precision(name: str, device: torch.device, training_pass: TrainingPass | None = None) -> Precision:
    """The precision called `name`. `auto` takes bfloat16 where the device computes it faster than float32: on a GPU
    that supports it, and on a CPU if `training_pass`, measured for about a second, says so."""
    if name != "auto":
        if name not in DTYPES:
            raise unknown("precision", name, ("auto", *get_args(Precision)))
        if name == "float16" and device.type == "cpu":
            raise UserError("float16 is for GPUs: on a CPU use --precision bfloat16, float32 or auto.")
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    if device.type != "cpu" or training_pass is None or not cpu_has_bfloat16():
        return "float32"
    return "bfloat16" if _bfloat16_pays(training_pass) else "float32"


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; without that, autocast is slower than float32."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, probe, lambda: False)()) for probe in probes)


def _bfloat16_pays(training_pass: TrainingPass) -> bool:
    """Compares the shortest passes, in processor time and interleaved, so that other work does not decide."""
    times: dict[torch.dtype | None, list[float]] = {None: [], torch.bfloat16: []}
    for dtype in times:
        training_pass(dtype)  # the first pass prepares kernels and memory
    began = time.process_time()
    while len(times[None]) < _ROUNDS or time.process_time() - began < _SECONDS:
        for dtype, taken in times.items():
            started = time.process_time()
            training_pass(dtype)
            taken.append(time.process_time() - started)
        if min(times[None]) < _SHORT and len(times[None]) >= _ROUNDS:
            return False
    return min(times[torch.bfloat16]) < _WORTH * min(times[None])
