"""Classifiers on frozen pretrained features, fitted in closed form: nothing is trained by gradient descent.

| name | classifier | stores |
|---|---|---|
| `experts` | a discriminant head per task, and a task predictor for all of them | means, one covariance, subspaces |
| `ncm` | nearest class mean, as in iCaRL (Rebuffi et al. 2017), but over all training images | a mean per class |
| `slda` | streaming linear discriminant analysis (Hayes and Kanan 2020) | the means and one covariance |
| `klda` | the same on random Fourier features (Momeni et al. 2025) | the same, and the random directions |
| `ranpac` | ridge regression on random ReLU features (McDonnell et al. 2023) | the same, and the random directions |

All of them read the same features of the same photos.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import UserError, unknown
from clom.learning.context import OutOfFold, TrainingContext
from clom.learning.logit_scale import fit_logit_scale
from clom.learning.loop import generator
from clom.learning.nearest_mean import neg_squared_distance
from clom.learning.progress import Progress
from clom.methods.families.base import Blocks, LearnedTask, seeded, strongest
from clom.methods.families.extension import Extension
from clom.methods.families.frozen_features import FrozenFeatures
from clom.methods.families.frozen_features import FrozenSettings as FrozenSettings
from clom.methods.families.graphs import FeatureScores, NearestMeans
from clom.nets import NetSettings


@dataclass(frozen=True)
class Outputs:
    """What a method says about photos: the blocks and in-distribution scores of all tasks, and the scores of all
    classes by its task predictor, if it has one."""

    blocks: Blocks
    belonging: Tensor
    shared: Tensor | None

    def rows(self, index: Tensor) -> Outputs:
        shared = None if self.shared is None else self.shared[index]
        return Outputs([block[index] for block in self.blocks], self.belonging[index], shared)

    @staticmethod
    def join(parts: Sequence[Outputs]) -> Outputs:
        blocks = [torch.cat(blocks) for blocks in zip(*(part.blocks for part in parts), strict=True)]
        shared = [part.shared for part in parts if part.shared is not None]
        return Outputs(blocks, torch.cat([part.belonging for part in parts]), torch.cat(shared) if shared else None)


class FrozenMethod(FrozenFeatures):
    """Base of classifiers on frozen features; blocks are slices of the scores of all classes so far.

    A subclass keeps its numbers in buffers and implements `_fit`, which takes in the features of photos, and `scores`.

    **Out-of-fold outputs.** A lesson learns from all its photos. With `context.folds`, it is also fitted without each
    fold of them, and what these fits say about the photos that they did not see is appended to `context.out_of_fold`.
    It stands for new photos: accuracies, confidences and rejection thresholds are taken from it.

    **More photos of known classes.** `extend(images, class_names)` makes known classes better from more photos, without
    the earlier ones. Only numbers of the tasks of these classes change: all that other tasks' scores are computed from
    (`sub_network`) stays bit-identical, even in methods that refit every task in every lesson. What all tasks share
    (the covariance, the task predictor) takes in the photos, too. `Extension` says what changed.
    """

    class_buffers: ClassVar[tuple[str, ...]]
    """Names of the buffers with one row per class."""
    scoring_buffers: ClassVar[tuple[str, ...]]
    """Those of them that scores are computed from."""
    means: Tensor
    """The mean feature of each class, `[classes of all tasks, d]`."""
    counts: Tensor | None
    """The number of training photos of each class; None in files of earlier versions."""

    def __init__(self, net: NetSettings, settings: FrozenSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.register_buffer("counts", torch.empty(0, dtype=torch.int64))

    # --- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        """`[n, classes]`, for the classes in `rows`."""

    @abstractmethod
    def _fit(self, features: Tensor, rows: Tensor, tasks: Sequence[int]) -> None:
        """Take in the features `[photos, views, d]` of photos of the classes `rows`, then renew the numbers of `tasks`.
        Buffers must be replaced, never written to: out-of-fold fits start from the same ones."""

    def _prepare(self, features: Tensor, rows: Tensor) -> None:
        """Called once before the fits of a lesson."""

    def _calibrate(self, task: int, outside: Outputs, labels: Tensor) -> None:
        """Called after the fits with the out-of-fold outputs for the photos of a task."""

    def shared_scores(self, features: Tensor) -> Tensor | None:
        """Scores of all classes by a task predictor; None without one."""
        return None

    def compare(self, blocks: Blocks, shared: Tensor | None) -> Blocks:
        """The blocks of all tasks as CIL compares them."""
        return blocks

    def logit_scale(self, task: int, scores: Tensor, labels: Tensor) -> float:
        """The inverse temperature for the task's record, from comparable scores of out-of-fold photos."""
        return fit_logit_scale(scores, labels)

    def _shared_by_extension(self) -> str:
        """The sentence of `Extension.shared`."""
        return ""

    # --- learning ----------------------------------------------------------------------------------------------------

    def _open_task(self, task: LearnedTask) -> None:
        for name in self.class_buffers:
            if (values := getattr(self, name)) is not None:
                setattr(self, name, more_rows(values, task.n_classes))

    def _learn(self, task: Task, context: TrainingContext) -> None:
        last = len(self.tasks) - 1
        rows = task.train.labels + self.rows(last).start
        self._take_in(task.train.pixels, rows, [last] if self.exact_memory else range(last + 1), context)

    def extend(self, images: Images, class_names: Sequence[str], context: TrainingContext | None = None) -> Extension:
        """Improve known classes from more photos, whose labels are indices into `class_names`: see the class. If that
        fails or is interrupted, the method is unchanged."""
        known = {name: row for row, name in enumerate(name for task in self.tasks for name in task.class_names)}
        for name in class_names:
            if name not in known:
                raise unknown("class", name, known)
        if self.counts is None:
            raise UserError(
                "This model was learned by an earlier version, which did not count the photos of each class, so none "
                "can be added. Learn it again."
            )
        if tuple(images.pixels.shape[1:]) != self.image_shape:
            raise UserError(f"Photos must have the shape {self.image_shape}, not {tuple(images.pixels.shape[1:])}.")
        images, context, before = images.to(self.device), context or TrainingContext(), copy.deepcopy(self)
        rows = torch.tensor([known[name] for name in class_names]).to(self.device)[images.labels]
        tasks = self._tasks_of(rows)
        context.attach(self)
        try:
            with seeded(self.seed, "extend", device=self.device):
                self._take_in(images.pixels, rows, tasks, context)
        except BaseException:
            self.__dict__.update(before.__dict__)
            raise
        added = torch.bincount(images.labels.cpu(), minlength=len(class_names)).tolist()
        photos = {name: count for name, count in zip(class_names, added, strict=True) if count}
        return Extension(photos, tuple(tasks), self._shared_by_extension())

    @torch.no_grad()
    def _take_in(self, pixels: Tensor, rows: Tensor, tasks: Sequence[int], context: TrainingContext) -> None:
        if not len(rows):
            raise UserError("There are no photos to learn from.")
        fewest = int(torch.unique(rows, return_counts=True)[1].min())
        folds = min(context.folds, fewest) if min(context.folds, fewest) > 1 else 0
        fit_cost = self._fit_cost()
        work = _Work(context, len(self.tasks) - 1, len(pixels) * self.settings.views, (folds + 1) * fit_cost)
        features = self.embed_views(pixels, work.done)
        if not bool(torch.isfinite(features).all()):
            raise UserError("The backbone returns NaN or infinite features for these photos.")
        self._prepare(features, rows)
        fold, outside = _dealt(rows, folds, generator(self.seed, "folds", len(self.tasks))), []
        for number in range(folds):
            twin = self._twin()
            twin._fit(features[fold != number], rows[fold != number], tasks)
            outside.append(twin._outputs(features[fold == number, 0]))
            work.done(fit_cost)
        self._fit(features, rows, tasks)
        work.done(fit_cost)
        if outside:
            order = torch.cat([(fold == number).nonzero()[:, 0] for number in range(folds)])
            self._record(Outputs.join(outside), order.cpu(), rows[order].cpu(), context)

    def _fit_cost(self) -> float:
        """The time of a fit, as a number of photos whose features take as long: for the estimated time left."""
        return 30 * (self.means.shape[1] / 2048) ** 3

    def _record(self, outside: Outputs, photos: Tensor, rows: Tensor, context: TrainingContext) -> None:
        """Append the out-of-fold outputs for the photos of each task to the context."""
        for task in self._tasks_of(rows):
            own = self.rows(task)
            mine = ((rows >= own.start) & (rows < own.stop)).nonzero()[:, 0]
            said, labels = outside.rows(mine), rows[mine] - own.start
            self._calibrate(task, said, labels)
            scores = torch.cat(self.compare(said.blocks, said.shared), 1)
            scale = self.logit_scale(task, scores, own.start + labels)
            context.out_of_fold.append(
                OutOfFold(
                    task, photos[mine], labels, said.blocks[task], said.belonging[:, task], scores, own.start, scale
                )
            )

    def _twin(self) -> Self:
        """A copy to be fitted to other photos. It shares its buffers, which `_fit` replaces."""
        twin = copy.copy(self)
        twin.__dict__["_buffers"] = dict(self._buffers)
        return twin

    def _forget(self, number: int, task: LearnedTask) -> str:
        start = sum(learned.n_classes for learned in self.tasks[:number])
        for name in self.class_buffers:
            if (values := getattr(self, name)) is not None:
                setattr(self, name, torch.cat([values[:start], values[start + task.n_classes :]]))
        return ""

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: Any) -> None:
        if f"{prefix}counts" not in state:
            self.counts = None
        super()._load_from_state_dict(state, prefix, *args)

    # --- predictions -------------------------------------------------------------------------------------------------

    def rows(self, task: int) -> slice:
        """The rows of a task's classes among all classes."""
        start = sum(learned.n_classes for learned in self.tasks[:task])
        return slice(start, start + self.tasks[task].n_classes)

    def _tasks_of(self, rows: Tensor) -> list[int]:
        """The tasks of classes, in order."""
        ends = [self.rows(task).stop for task in range(len(self.tasks))]
        return sorted({bisect_right(ends, row) for row in set(rows.tolist())})

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        return self._blocks_of(self.embed(pixels))

    @torch.no_grad()
    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self.scores(self.embed(pixels), self.rows(task)).cpu()

    @torch.no_grad()
    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        features = self.embed(pixels)
        return self._blocks_of(features, tasks), self._belonging_of(features, tasks)

    def comparable_blocks(self, pixels: Tensor) -> Blocks:
        return self.comparable_and_belonging(pixels)[0]

    @torch.no_grad()
    def comparable_and_belonging(self, pixels: Tensor) -> tuple[Blocks, Tensor]:
        said = self._outputs(self.embed(pixels))
        return self.compare(said.blocks, said.shared), said.belonging

    def _outputs(self, features: Tensor) -> Outputs:
        shared = self.shared_scores(features)
        return Outputs(
            self._blocks_of(features), self._belonging_of(features), None if shared is None else shared.cpu()
        )

    def _blocks_of(self, features: Tensor, tasks: Sequence[int] | None = None) -> Blocks:
        """One product per task: a single one for all classes may round differently once there are more classes."""
        numbers = range(len(self.tasks)) if tasks is None else tasks
        return [self.scores(features, self.rows(task)).cpu() for task in numbers]

    def _belonging_of(self, features: Tensor, tasks: Sequence[int] | None = None) -> Tensor:
        """The in-distribution score is the proximity to the nearest class mean of the task."""
        numbers = range(len(self.tasks)) if tasks is None else tasks
        return strongest([self.near(features, self.rows(task)).cpu() for task in numbers], len(features))

    def near(self, features: Tensor, rows: slice) -> Tensor:
        """Negative squared distance of features to the class means in `rows`, `[n, classes]`."""
        return neg_squared_distance(features, F.normalize(self.means[rows]).float())

    def sub_network(self, task: int) -> dict[str, Tensor]:
        own = {name: getattr(self, name)[self.rows(task)] for name in self.scoring_buffers}
        return own | {f"backbone.{name}": value for name, value in self.backbone.state_dict().items()}

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        near = NearestMeans(F.normalize(self.class_rows("means", tasks)).float())
        return FeatureScores(self.exported_backbone(), near, [self.tasks[task].n_classes for task in tasks])

    def class_rows(self, name: str, tasks: Sequence[int]) -> Tensor:
        """The rows of these tasks' classes in a class buffer."""
        values: Tensor = getattr(self, name)
        return torch.cat([values[self.rows(task)] for task in tasks])


class _Work:
    """The progress of a lesson, in photos: of reading features first, then of fits."""

    def __init__(self, context: TrainingContext, task: int, n_photos: int, fits: float) -> None:
        self._context, self._task, self._photos, self._total = context, task, n_photos, n_photos + fits
        self._done = 0.0

    def done(self, amount: float) -> None:
        self._done += amount
        phase = "photos" if self._done <= self._photos else "fitting"
        self._context.report(Progress(self._task, phase, max(1, round(self._done)), max(1, round(self._total))))


def more_rows(values: Tensor, count: int) -> Tensor:
    """Append rows of zeros for new classes."""
    return torch.cat([values, values.new_zeros(count, *values.shape[1:])])


def _dealt(rows: Tensor, folds: int, randomness: torch.Generator) -> Tensor:
    """A fold for every photo; the photos of a class are dealt out in turn, in random order."""
    fold = torch.zeros_like(rows)
    for row in torch.unique(rows) if folds else ():
        own = (rows == row).nonzero()[:, 0]
        turn = torch.randperm(len(own), generator=randomness) % folds
        fold[own] = turn.to(fold.device)
    return fold
