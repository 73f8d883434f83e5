"""How long an experiment would take here: a few steps are timed, the rest is counted."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from clom.experiments.config import RunConfig
from clom.experiments.names import image_shape_of, read_experiment
from clom.learning.contrastive import SgdHeadSettings
from clom.methods.base import LearnedTask
from clom.methods.clom import Clom, ClomSettings

_SIZES = (8, 64)  # a small batch first: the widest networks need no more on a small machine


@dataclass(frozen=True)
class Rates:
    """Images per second through a network."""

    training: float
    inference: float


def estimate_seconds(config: RunConfig, rates: Rates) -> float:
    """Learning and evaluating all tasks once with CLOM."""
    size = read_experiment(config.experiment)["size"]
    settings = ClomSettings.model_validate(config.settings)
    learning = settings.learning
    available = min(size["train_per_class"], config.data.train_per_class or size["train_per_class"])
    trained = (1 - config.data.validation) * available * size["classes"]
    tested = min(size["test_per_class"], config.data.test_per_class or size["test_per_class"]) * size["classes"]
    n_tasks = size["classes"] // (config.data.classes_per_task or size["classes"])
    head = learning.head
    head_views = head.plan.epochs if isinstance(head, SgdHeadSettings) else head.views
    step_one = 2 * learning.rotations * trained * learning.plan.epochs
    inference = learning.rotations * (head_views * trained + n_tasks * tested)
    seconds: float = step_one / rates.training + inference / rates.inference
    return seconds


def measure(config: RunConfig) -> Rates:
    """Time the network of `config` on this machine, with as many images as take a noticeable but short time."""
    settings = ClomSettings.model_validate(config.settings)
    shape = image_shape_of(config.experiment)
    method = Clom(config.net, settings, shape)
    method.open_task(LearnedTask("timing", ("a", "b")))
    method.protection.begin(0)
    for n_images in _SIZES:
        images = torch.rand(n_images, 3, *shape[1:]).contiguous(memory_format=torch.channels_last)
        training = min(_training_seconds(method, images) for _ in range(2))
        if training > 0.1:
            break
    return Rates(n_images / training, n_images / min(_inference_seconds(method, images) for _ in range(2)))


def _training_seconds(method: Clom, images: Tensor) -> float:
    method.protection.train()
    started = time.perf_counter()
    features, penalty = method.protection.training_features(images, 0, 0.5)
    (features.square().mean() + penalty).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


@torch.no_grad()
def _inference_seconds(method: Clom, images: Tensor) -> float:
    method.protection.eval()
    started = time.perf_counter()
    method.protection.features(images, 0)
    return time.perf_counter() - started
