"""Precision on this CPU, and how often a training step waits for a device (counted on the simulated accelerator)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch

from benchmarks.measure import Figure, figure, interleaved, ratios
from clom.experiments.config import resolve
from clom.learning.context import TrainingContext
from clom.learning.precision import cpu_has_bfloat16, network_pass
from clom.learning.progress import Progress
from clom.nets import NetSettings, ResNet18Settings
from clom.testing.simulated_device import simulated_device, waits_so_far

AIM = 1.4
"""The required speed-up of a step in bfloat16 on CPUs that support it."""


def precision_figures(quick: bool) -> list[Figure]:
    """The time of a forward and backward pass in float32 relative to bfloat16."""
    found = []
    for name, net, pixels, views in _networks(quick):
        training_pass = network_pass(net, pixels, views)
        assert training_pass is not None
        variants = {"float32": partial(training_pass, None), "bfloat16": partial(training_pass, torch.bfloat16)}
        times = interleaved(variants, 2 if quick else 15)
        note = "" if cpu_has_bfloat16() else "this CPU has no bfloat16 arithmetic: auto takes float32"
        at_least = AIM if cpu_has_bfloat16() and not quick else None
        speed = ratios(times["float32"], times["bfloat16"])
        found.append(figure("precision", f"{name}, {views} views", speed, "x", at_least=at_least, note=note))
    return found


def _networks(quick: bool) -> list[tuple[str, NetSettings, int, int]]:
    if quick:
        return [("ResNet-18, width 4", ResNet18Settings(width=4), 16, 8)]
    return [
        ("MNIST network", resolve("mnist-5t").net, 28, 256),
        ("halved ResNet-18, width 16", ResNet18Settings(width=16, stem_stride=2), 32, 128),
        ("ResNet-18, width 64", ResNet18Settings(width=64), 32, 32),
    ]


def waiting_figures(quick: bool) -> list[Figure]:
    """Reads from the device between two steps of CLOM, beyond the loss that each progress report shows."""
    config = resolve("digits-5t", "clom", "smoke", 0, {"learning.plan.epochs": 2 if quick else 6})
    stream = config.data.stream(None, 0)
    method = config.make_method(stream.image_shape).to(simulated_device())
    seen: list[tuple[Progress, int]] = []
    context = TrainingContext(lambda step: seen.append((step, waits_so_far())), seconds_between_reports=0.0)
    method.learn(stream[0], context)
    steps = [(step, waits) for step, waits in seen if step.phase == "features"]
    waits = [float(later - earlier - 1) for (_, earlier), (_, later) in pairwise(steps)]
    return [figure("devices", "waits per training step of CLOM", waits, "waits", at_most=0.0)]
