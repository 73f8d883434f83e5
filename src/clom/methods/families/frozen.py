"""Class statistics on frozen pretrained features: the baselines that trained adapters have to beat.

| name | classifier | stores |
|---|---|---|
| `ncm` | nearest class mean, as in iCaRL (Rebuffi et al. 2017), but over all training images | a mean per class |
| `slda` | streaming linear discriminant analysis (Hayes and Kanan 2020) | the means and one covariance |

Nothing is trained by gradient descent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.nearest_mean import neg_squared_distance
from clom.learning.progress import Progress
from clom.methods.families.base import Blocks, LearnedTask, Method, seeded, strongest
from clom.methods.families.graphs import FeatureScores, NearestMeans
from clom.nets import NetSettings
from clom.nets.pretrained.efficientnet_lite import EfficientNetLite0, PretrainedSettings
from clom.settings import Settings


class FrozenMethod(Method):
    """Base of classifiers on frozen features; blocks are slices of the scores of all classes so far."""

    needs_pretrained = True
    class_buffers: ClassVar[tuple[str, ...]]
    """Names of the buffers with one row per class."""
    scoring_buffers: ClassVar[tuple[str, ...]]
    """Those of them that scores are computed from."""
    means: Tensor
    """The mean feature of each class, `[classes of all tasks, d]`; learned means never change."""

    def __init__(self, net: NetSettings, settings: Settings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        if not isinstance(net, PretrainedSettings):
            raise UserError(f"{self.name} needs pretrained features: set net.kind to 'efficientnet-lite0'.")
        with seeded(seed, "network"):
            self.backbone = EfficientNetLite0(net)

    @abstractmethod
    def scores(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        """`[n, classes]`, for the classes in `rows`."""

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        """One product per task: a single one for all classes may round differently once there are more classes."""
        features = self.embed(pixels)
        return [self.scores(features, self.rows(task)).cpu() for task in range(len(self.tasks))]

    @torch.no_grad()
    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self.scores(self.embed(pixels), self.rows(task)).cpu()

    def rows(self, task: int) -> slice:
        """The rows of a task's classes among all classes."""
        start = sum(learned.n_classes for learned in self.tasks[:task])
        return slice(start, start + self.tasks[task].n_classes)

    def _class_rows(self, name: str, tasks: Sequence[int]) -> Tensor:
        """The rows of these tasks' classes in a class buffer."""
        values: Tensor = getattr(self, name)
        return torch.cat([values[self.rows(task)] for task in tasks])

    def scoring_graph(self, tasks: Sequence[int]) -> FeatureScores:
        near = NearestMeans(F.normalize(self._class_rows("means", tasks)).float())
        return FeatureScores(self.backbone, near, [self.tasks[task].n_classes for task in tasks])

    def sub_network(self, task: int) -> dict[str, Tensor]:
        own = {name: getattr(self, name)[self.rows(task)] for name in self.scoring_buffers}
        return own | {f"backbone.{name}": value for name, value in self.backbone.state_dict().items()}

    def _forget(self, number: int, task: LearnedTask) -> str:
        start = sum(learned.n_classes for learned in self.tasks[:number])
        for name in self.class_buffers:
            values = getattr(self, name)
            setattr(self, name, torch.cat([values[:start], values[start + task.n_classes :]]))
        return ""

    @torch.no_grad()
    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """The in-distribution score is the proximity to the nearest class mean of the task."""
        features = self.embed(pixels)
        rows = [self.rows(task) for task in (range(len(self.tasks)) if tasks is None else tasks)]
        blocks = [self.scores(features, own).cpu() for own in rows]
        return blocks, strongest([self.near(features, own).cpu() for own in rows], len(pixels))

    def near(self, features: Tensor, rows: slice) -> Tensor:
        """Negative squared distance of features to the class means in `rows`, `[n, classes]`."""
        return neg_squared_distance(features, F.normalize(self.means[rows]).float())

    @torch.no_grad()
    def embed(self, pixels: Tensor, context: TrainingContext | None = None, batch: int = 64) -> Tensor:
        """The frozen features of images."""
        batches = torch.split(pixels, batch) if len(pixels) else ()
        device = self.device
        features = [torch.empty(0, self.backbone.n_features, device=device)]
        for done, images in enumerate(batches, start=1):
            features.append(self.backbone(to_unit(images.to(device)).contiguous(memory_format=torch.channels_last)))
            if context is not None:
                context.report(Progress(len(self.tasks) - 1, "features", done, len(batches)))
        return torch.cat(features)

    def features(self, pixels: Tensor, task: int) -> Tensor:
        """The same for every task."""
        return self.embed(pixels).cpu()


def more_rows(values: Tensor, count: int) -> Tensor:
    """Append rows of zeros for new classes."""
    return torch.cat([values, values.new_zeros(count, *values.shape[1:])])
