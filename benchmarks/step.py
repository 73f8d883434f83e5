"""One contrastive training step against the bare network's forward and backward on the same 8N views.

The total is taken from the training loop itself, through its progress reports; the bare network and an
instrumented step run between its steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import Figure, figure, now, ratios, scaled, seconds
from benchmarks.models import Subject, random_task, short_settings, subject, untrained
from clom.data.views import contrastive_views
from clom.learning.context import TrainingContext
from clom.learning.learners.contrastive import ContrastiveSettings, Projection
from clom.learning.losses import supervised_contrastive
from clom.learning.optim import make_optimiser
from clom.learning.progress import Progress
from clom.methods.clom import ClomSettings

PARTS = ("augmentation", "network", "loss", "update")
WARMUP = 2
_PER_EPOCH = 4


@dataclass(frozen=True)
class Case:
    """N images, 8N views per step."""

    name: str
    images: int
    rounds: int
    limit: float | None


CASES = (
    Case("MNIST net", 64, 20, 1.05),
    Case("ResNet-18, width 16", 64, 20, 1.05),
    Case("ResNet-18, width 64", 8, 6, None),  # 64 images would take a quarter of a minute a step
)


class Steps:
    """A network learning its third task, so that two earlier tasks are protected."""

    def __init__(self, what: Subject, images: int, rounds: int) -> None:
        epochs = math.ceil((rounds + WARMUP) / _PER_EPOCH)
        self.model = untrained(what, 3, settings=short_settings(images, epochs))
        self.task = random_task(what, images * _PER_EPOCH)
        self.batch = self.task.train[slice(0, images)]
        self.protection = self.model.protection
        self.model.requires_grad_(False)
        weights, gates = self.protection.weights(2), self.protection.mask_parameters(2)
        for parameter in (*weights, *gates):
            parameter.requires_grad_(True)
        how = self.how
        self.projection = Projection(self.protection.net.n_features, how.projection)
        self.optimiser = make_optimiser(
            [(how.optimiser, [*weights, *self.projection.parameters()]), (how.gates_optimiser, gates)]
        )
        self.randomness = torch.Generator().manual_seed(0)
        self.views = self._views()[0]
        self.times: dict[str, list[float]] = {name: [] for name in ("step", "bare", *PARTS)}
        self.started = 0.0

    @property
    def how(self) -> ContrastiveSettings:
        settings = self.model.settings
        assert isinstance(settings, ClomSettings)
        return settings.learning

    def run(self) -> dict[str, list[float]]:
        """Seconds by part, one of each per round."""
        self.started = now()
        self.model.learner.learn(self.protection, 2, self.task, 0, TrainingContext(self._after_step))
        return self.times

    def _after_step(self, progress: Progress) -> None:
        """Called by the training loop after every step; time spent here does not count."""
        if progress.phase != "features":
            return
        taken = {"step": now() - self.started, "bare": seconds(self.bare), **self.parts()}
        if progress.done > WARMUP:
            for name, value in taken.items():
                self.times[name].append(value)
        self.started = now()

    def bare(self) -> None:
        """The same network without gates, loss or views: the cost of the arithmetic."""
        self.optimiser.zero_grad(set_to_none=True)
        self.protection.net(self.views, 2, {}).square().mean().backward()

    def parts(self) -> dict[str, float]:
        """The learner's step, split at the features to time forward and backward of network and loss separately."""
        clock = [now()]

        def lap() -> None:
            clock.append(now())

        images, classes = self._views()
        lap()
        features, penalty = self.protection.training_features(images, 2, 0.5)
        lap()
        cut = features.detach().requires_grad_()
        self.optimiser.zero_grad(set_to_none=True)
        z = F.normalize(self.projection(cut))
        supervised_contrastive(z, classes, self.how.temperature).backward()  # type: ignore[no-untyped-call]
        lap()
        torch.autograd.backward([features, penalty], [cut.grad, None])
        lap()
        self.protection.before_step()
        self.optimiser.step()
        self.protection.after_step()
        lap()
        views, forward, loss, backward, update = (b - a for a, b in pairwise(clock))
        return {"augmentation": views, "network": forward + backward, "loss": loss, "update": update}

    def _views(self) -> tuple[Tensor, Tensor]:
        how = self.how.augmentation
        classes = self.task.n_classes
        images, labels = contrastive_views(self.batch.pixels, self.batch.labels, classes, how, self.randomness)
        return images.contiguous(memory_format=torch.channels_last), labels


def figures(quick: bool = False) -> list[Figure]:
    found: list[Figure] = []
    for case in CASES:
        images, rounds = (2, 3) if quick else (case.images, case.rounds)
        times = Steps(subject(case.name, quick), images, rounds).run()
        group = f"training step, {case.name}, {images} images ({8 * images} views)"
        step = times["step"]
        found.append(figure(group, "whole step / bare network", ratios(step, times["bare"]), "x", at_most=case.limit))
        note = "" if case.images == 64 else "fewer images than 64: those would take a quarter of a minute a step"
        found.append(figure(group, "whole step, in the training loop", scaled(step, 1000), "ms", note=note))
        found.append(figure(group, "bare network, forward and backward", scaled(times["bare"], 1000), "ms"))
        found.extend(figure(group, f"part: {name}", scaled(times[name], 1000), "ms") for name in PARTS)
        share = scaled(ratios(times["augmentation"], step), 100)
        found.append(figure(group, "share of data and augmentation", share, "%"))
    return found
