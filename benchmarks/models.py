"""The benchmarked networks, and untrained CLOM models of them with half of all gates open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from clom.data.images import Images
from clom.data.stream import Task
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import LearnedTask, seeded
from clom.methods.families.task_network import TaskNetwork
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings


@dataclass(frozen=True)
class Subject:
    """A network, the images it takes and the classes of one of its tasks."""

    name: str
    net: NetSettings
    pixels: int
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (3, self.pixels, self.pixels)


MNIST_NET = Subject("MNIST net", AlexNetSettings(), 28, 2)
RESNET_16 = Subject("ResNet-18, width 16", ResNet18Settings(width=16), 32, 10)
RESNET_64 = Subject("ResNet-18, width 64", ResNet18Settings(width=64), 32, 10)
SUBJECTS = {subject.name: subject for subject in (MNIST_NET, RESNET_16, RESNET_64)}

# Small networks of the same kinds, for quick runs.
_SMALL: dict[str, NetSettings] = {
    "alexnet": AlexNetSettings(channels=(8, 8, 8), hidden=16),
    "resnet18": ResNet18Settings(width=4),
}


def subject(name: str, quick: bool) -> Subject:
    found = SUBJECTS[name]
    return Subject(found.name, _SMALL[found.net.kind], found.pixels, 2) if quick else found


class Masked(Clom):
    """The same model, with inference by the full gated network instead of each task's compact network."""

    def _network(self, task: int) -> TaskNetwork:
        every_feature = torch.arange(self.protection.net.n_features)
        features_of = partial(self.protection.features, task=task)
        return TaskNetwork(features_of, every_feature, self.heads[task], self.learner.rotations, self.settings.flip_tta)


def short_settings(batch: int, epochs: int = 1) -> ClomSettings:
    """Settings with every training stage, as short as possible."""
    learning = ContrastiveSettings(plan=Plan(epochs=epochs, batch=batch), head=HeadSettings(views=1, iterations=1))
    return ClomSettings(calibration="scale", learning=learning)


def untrained(what: Subject, n_tasks: int, kind: type[Clom] = Clom, settings: ClomSettings | None = None) -> Clom:
    """A model with room for `n_tasks` tasks. Embeddings start as N(0, 1), so half of all gates are open."""
    with seeded(0, "benchmark"):
        model = kind(what.net, settings or ClomSettings(), what.shape)
        for task in range(n_tasks):
            model.open_task(LearnedTask(f"task {task}", tuple(f"{task}.{label}" for label in range(what.classes))))
        for layer in model.protection.net.gated_layers():
            for norm in (norm for task in range(n_tasks) for norm in layer.norms_of(task)):
                assert norm.running_mean is not None
                assert norm.running_var is not None
                norm.running_mean.normal_()  # as after learning: not the identity
                norm.running_var.uniform_(0.5, 2)
    return model


def random_pixels(what: Subject, count: int, seed: int = 0) -> Tensor:
    randomness = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *what.shape), dtype=torch.uint8, generator=randomness)


def random_task(what: Subject, count: int, number: int = 0) -> Task:
    """Random images and labels; speed does not depend on them."""
    images = Images(random_pixels(what, count, number), torch.arange(count) % what.classes)
    return Task(f"task {number}", tuple(f"{number}.{label}" for label in range(what.classes)), images, images)
