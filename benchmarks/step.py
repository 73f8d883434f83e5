"""One contrastive training step against the bare network's forward and backward on the same 8N views.

Variants are interleaved in one process and compared by the median of their ratios: this is fair on a noisy machine.

    python benchmarks/step.py [--images 64] [--rounds 20]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from clom import machine
from clom.data.views import Augmentation, contrastive_views
from clom.learning.contrastive import Projection
from clom.learning.losses import supervised_contrastive
from clom.learning.optim import OptimiserSettings, make_optimiser
from clom.learning.protection import HardAttention, HardAttentionSettings
from clom.methods.base import channels_last
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings, make_net

LIMIT = 1.15
NETS: dict[str, tuple[NetSettings, int]] = {
    "MNIST net": (AlexNetSettings(), 28),
    "ResNet-18, width 16": (ResNet18Settings(width=16), 32),
}


class Steps:
    """Both variants on one network with two old tasks, so that there is something to protect."""

    def __init__(self, settings: NetSettings, size: int, n_images: int) -> None:
        net = make_net(settings, size)
        self.protection = HardAttention(net, HardAttentionSettings())
        for _ in range(3):
            self.protection.add_task()
        channels_last(self.protection)
        self.protection.train()
        self.protection.begin(2)
        self.projection = Projection(net.n_features, 128)
        weights = [*self.protection.weights(2), *self.projection.parameters()]
        self.optimiser = make_optimiser(
            [(OptimiserSettings(), weights), (OptimiserSettings(lr=0.05), self.protection.mask_parameters(2))]
        )
        self.pixels = torch.randint(0, 256, (n_images, 3, size, size), dtype=torch.uint8)
        self.labels = torch.arange(n_images) % 2
        self.randomness = torch.Generator().manual_seed(0)
        self.views = self._views()[0]

    def _views(self) -> tuple[Tensor, Tensor]:
        images, classes = contrastive_views(self.pixels, self.labels, 2, Augmentation(), self.randomness)
        return images.contiguous(memory_format=torch.channels_last), classes

    def bare(self) -> None:
        """The same network without gates, loss or views: what the arithmetic costs."""
        self.optimiser.zero_grad(set_to_none=True)
        self.protection.net(self.views, 2, {}).square().mean().backward()

    def full(self) -> None:
        """Everything a training step does."""
        images, classes = self._views()
        features, penalty = self.protection.training_features(images, 2, 0.5)
        loss = supervised_contrastive(F.normalize(self.projection(features)), classes, 0.07) + penalty
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.protection.before_step()
        self.optimiser.step()
        self.protection.after_step()


def seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64, help="N; a step sees 8N views")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    machine.tune_process()
    for name, (settings, size) in NETS.items():
        steps = Steps(settings, size, options.images)
        for _ in range(2):  # the first rounds fill the allocator
            steps.bare()
            steps.full()
        pairs = [(seconds(steps.bare), seconds(steps.full)) for _ in range(options.rounds)]
        bare, full = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
        ratio = full / bare
        spread = statistics.quantiles([b / a for a, b in pairs], n=4)
        print(
            f"{name}: bare {bare:.0f} ms, step {full:.0f} ms, ratio {ratio:.2f} "
            f"(quartiles {spread[0]:.2f}-{spread[2]:.2f}; limit {LIMIT})"
        )


if __name__ == "__main__":
    main()
