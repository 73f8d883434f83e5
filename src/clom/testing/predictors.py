"""`check_predictor`, on three tasks that are made up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clom.ood.predictors.base import StoredSamples, TaskOutputs, TaskPredictor
from clom.ood.predictors.statistics import TaskStatistics, measure
from clom.ood.registry import check_predictor_class
from clom.testing.expectations import is_finite, require
from clom.testing.scores import accept, called

CLASSES = (2, 3, 2)
_ROTATIONS, _FEATURES = 4, 6


def check_predictor(make: Callable[[], TaskPredictor]) -> None:
    """`make()`, for example the class itself, gives a fresh task predictor.

    It must give every task a score for each image, `[images, tasks]`, need nothing that it does not declare, and follow
    the evidence where logits, features and OOD scores agree. What it learned from samples must suffice to restore it.
    """
    predictor = make()
    accept(check_predictor_class, type(predictor))
    statistics, samples = made_up_tasks()
    images, tasks, _ = made_up_images(seed=2)
    images = [only(outputs, predictor.needs) for outputs in images]
    given = replace(samples, outputs=[only(outputs, predictor.needs) for outputs in samples.outputs])
    own = statistics if "statistics" in predictor.needs else []
    fitted = called("fit", lambda: predictor.fit(own, given if "samples" in predictor.needs else None))
    require(fitted is predictor, f"fit returned {fitted!r:.80}", "fit returns the predictor itself")
    scores = called("the call", lambda: predictor(images))
    shape = (len(tasks), len(CLASSES))
    require(
        isinstance(scores, Tensor) and scores.shape == shape,
        f"The call returned {scores!r:.80} for {shape[0]} images and {shape[1]} tasks",
        "a score of each task for each image, [images, tasks]",
    )
    require(is_finite(scores), "The call returned NaN or infinity", "scores are finite")
    require(torch.equal(scores, predictor(images)), "A second call differs", "a function of its inputs")
    part = predictor([outputs.rows(slice(0, 3)) for outputs in images])
    require(
        torch.allclose(part.double(), scores[:3].double(), rtol=1e-4, atol=1e-6),
        "An image's task depends on which images are predicted together with it",
        "each image is judged by itself",
    )
    restored = make()
    restored.learned = dict(predictor.learned)
    restored.fit(own, None)
    require(
        torch.equal(restored(images), scores),
        "A predictor with the same statistics and the same `learned` differs",
        "all that is learned from samples is in `learned`, which is saved with the model",
    )
    right = float((predictor.tasks(images) == tasks).double().mean())
    require(
        right > 0.5,
        f"Where logits, features and OOD scores point to one of three tasks, it is found for {100 * right:.0f}%",
        "the task with the highest score is the predicted one",
    )


def only(outputs: TaskOutputs, needs: Collection[str]) -> TaskOutputs:
    """The block and what is needed of the rest."""
    return TaskOutputs(
        outputs.block,
        outputs.features if "features" in needs else None,
        outputs.score if "score" in needs else None,
    )


def made_up_tasks() -> tuple[list[TaskStatistics], StoredSamples]:
    """The statistics of three tasks with 2, 3 and 2 classes, and stored samples."""
    trained, train_tasks, train_labels = made_up_images(seed=0, count=120)
    held_out, held_tasks, held_labels = made_up_images(seed=1, count=60)
    statistics = []
    for task in range(len(CLASSES)):
        own, held = train_tasks == task, held_tasks == task
        statistics.append(
            measure(trained[task].rows(own), train_labels[own], held_out[task].rows(held), held_labels[held])
        )
    return statistics, StoredSamples(held_out, held_tasks, held_labels)


def made_up_images(seed: int, count: int = 30) -> tuple[Sequence[TaskOutputs], Tensor, Tensor]:
    """Outputs of the models of three tasks for images of all of them, the images' tasks, and their labels within.

    A task's model maps the images of its classes to clusters of features, a cluster for each rotation, and other images
    to points between them.
    """
    randomness = torch.Generator().manual_seed(seed)
    tasks = torch.arange(count) % len(CLASSES)
    labels = (torch.arange(count) // len(CLASSES)) % torch.tensor(CLASSES)[tasks]
    outputs = []
    for task, n_classes in enumerate(CLASSES):
        own = (tasks == task)[:, None, None]
        centres = torch.randn(_ROTATIONS, n_classes, _FEATURES, generator=torch.Generator().manual_seed(100 + task))
        noise = torch.randn(count, _ROTATIONS, _FEATURES, generator=randomness)
        clusters = 6 * centres.transpose(0, 1)[labels.clamp(max=n_classes - 1)]
        features = torch.where(own, clusters, torch.zeros(())) + noise
        block = 0.2 * torch.randn(count, n_classes, generator=randomness)
        block[torch.arange(count), labels.clamp(max=n_classes - 1)] += torch.where(tasks == task, 6.0, 0.0)
        score = torch.randn(count, generator=randomness) + torch.where(tasks == task, 4.0, 0.0)
        outputs.append(TaskOutputs(block, features, score.double()))
    return outputs, tasks, labels
