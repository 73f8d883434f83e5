"""Experts, the default for photos: a linear head per task that never changes, and a task predictor for all tasks.

Both are the mean of two linear classifiers, each in closed form and at the same scale: linear discriminants and ridge
regression. Both follow from the same statistics, the class means and one scatter matrix, and no photo is kept. When a
task is learned, the classifiers of all classes so far are solved. The rows of the task's own classes are kept for ever:
they are its expert, which decides among its classes. The rows of all classes, solved again in every lesson, are the
task predictor, and decide nothing but the task:

    p(class c of task k | x) = p(k | x) p(c | k, x),   p(c | k, x) from the expert,   p(k | x) = sum of the predictor's
                                                                                       probabilities of k's classes

so what is known about one task does not depend on what was learned after it, but which task a photo belongs to does. A
photo's in-distribution score is the cosine to the nearest subspace of a class of the task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clom.learning.calibration import Affine
from clom.learning.heads import mean_classifier, nearest_span
from clom.learning.logit_scale import fit_logit_scale
from clom.methods.families.base import Blocks, LearnedTask, strongest
from clom.methods.families.frozen import FrozenSettings, Outputs, more_rows
from clom.methods.families.graphs import ExpertScores
from clom.methods.streaming import StreamingMethod
from clom.nets import NetSettings
from clom.ood.predictors.base import Decision, TaskOutputs
from clom.settings import Positive, PositiveNumber

_MOST_FOR_SPANS = 400
"""Views of a class that its subspace is computed from."""


class ExpertsSettings(FrozenSettings):
    """Chosen on held-out photos: see docs/photos.md."""

    views: Positive = 2
    shrinkage_rate: PositiveNumber = 0.5
    """k: the covariance of n photos with d features is shrunk by k d / (k d + n)."""
    penalty: PositiveNumber = 1.0
    """Of ridge regression, relative to the mean squared distance of the features from their mean."""
    directions: Positive = 20
    """Dimension of the subspace that describes each class."""


class Experts(StreamingMethod):
    """Exact memory: `weight`, `bias`, `spans` and `scales[:, 0]` of a task change only if photos are added to it."""

    name = "experts"
    settings_type = ExpertsSettings
    settings: ExpertsSettings
    exact_memory = True
    exports_decision = True
    scatter_type = torch.float32
    class_buffers = (*StreamingMethod.class_buffers, "spans", "task_weight", "task_bias")
    scoring_buffers = (*StreamingMethod.scoring_buffers, "spans")
    spans: Tensor
    """Orthogonal directions of each class, `[classes, directions, d]`, as long as the singular values that belong to
    them, so that more photos can be taken in."""
    task_weight: Tensor
    task_bias: Tensor
    """The task predictor: scores of all classes."""
    scales: Tensor
    """Per task: the inverse temperatures of its expert and, when it was learned, of the task predictor."""

    def __init__(self, net: NetSettings, settings: ExpertsSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        d = self.backbone.n_features
        self.register_buffer("spans", torch.empty(0, settings.directions, d))
        self.register_buffer("task_weight", torch.empty(0, d))
        self.register_buffer("task_bias", torch.empty(0))
        self.register_buffer("scales", torch.empty(0, 2))

    def solve(self) -> tuple[Tensor, Tensor]:
        counts = self.counts_or_zeros()
        return mean_classifier(
            self.means, counts, self.scatter.double(), self.settings.shrinkage_rate, self.settings.penalty
        )

    def _open_task(self, task: LearnedTask) -> None:
        super()._open_task(task)
        self.scales = torch.cat([self.scales, torch.ones_like(more_rows(self.scales, 1)[:1])])

    def _fit(self, features: Tensor, rows: Tensor, tasks: Sequence[int]) -> None:
        super()._fit(features, rows, tasks)
        spans = self.spans.clone()
        for row in torch.unique(rows).tolist():
            spans[row] = more_of_span(spans[row], features[rows == row].flatten(0, 1))
        self.spans = spans

    def _fit_cost(self) -> float:
        return 2 * super()._fit_cost()  # two classifiers

    def _renew(self, solved_weight: Tensor, solved_bias: Tensor, tasks: Sequence[int]) -> None:
        super()._renew(solved_weight, solved_bias, tasks)
        self.task_weight, self.task_bias = solved_weight, solved_bias

    def _calibrate(self, task: int, outside: Outputs, labels: Tensor) -> None:
        """Photos that are added later are too few for it: the temperatures of a task stay as they were."""
        own = self.rows(task)
        assert outside.shared is not None
        if len(labels) < int(self.counts_or_zeros()[own].sum()):
            return
        scales = self.scales.clone()
        scales[task, 0] = fit_logit_scale(outside.blocks[task], labels)
        scales[task, 1] = fit_logit_scale(outside.shared, own.start + labels)
        self.scales = scales

    def logit_scale(self, task: int, scores: Tensor, labels: Tensor) -> float:
        return float(self.scales[task, 0])

    def _forget(self, number: int, task: LearnedTask) -> str:
        super()._forget(number, task)
        self.scales = torch.cat([self.scales[:number], self.scales[number + 1 :]])
        return "The covariance, which the task predictor shares among all classes, still includes it."

    def _shared_by_extension(self) -> str:
        return "The task predictor, which all tasks share, was refitted; the experts of other tasks are as they were."

    # --- predictions -------------------------------------------------------------------------------------------------

    def shared_scores(self, features: Tensor) -> Tensor:
        return F.linear(features, self.task_weight, self.task_bias)

    def compare(self, blocks: Blocks, shared: Tensor | None) -> Blocks:
        """`log p(k | x) + log p(c | k, x)`, of all classes."""
        assert shared is not None
        chances = (self.task_scale() * shared.double()).log_softmax(1)
        parts = torch.split(chances, [task.n_classes for task in self.tasks], dim=1)
        return [
            part.logsumexp(1, keepdim=True) + (scale * block.double()).log_softmax(1)
            for part, scale, block in zip(parts, self.scales[:, 0].tolist(), blocks, strict=True)
        ]

    def task_scale(self) -> float:
        """The inverse temperature of the task predictor: the geometric mean of those that each lesson found."""
        return math.exp(float(self.scales[:, 1].double().log().mean()))

    def decisions(self) -> Mapping[str, Affine | Decision]:
        return {"experts": self._decide, **self.calibrations()} if self.tasks else self.calibrations()

    @property
    def decides_by_features(self) -> bool:
        return True

    def outputs(self, pixels: Tensor, task: int, with_features: bool) -> TaskOutputs:
        features = self.embed(pixels)
        (block,) = self._blocks_of(features, [task])
        return TaskOutputs(block, features.cpu()[:, None] if with_features else None)

    def _decide(self, outputs: Sequence[TaskOutputs]) -> list[Tensor]:
        features = outputs[0].need_features()[:, 0].float().to(self.device)
        return self.compare([task.block for task in outputs], self.shared_scores(features).cpu())

    def _belonging_of(self, features: Tensor, tasks: Sequence[int] | None = None) -> Tensor:
        numbers = range(len(self.tasks)) if tasks is None else tasks
        spans = (F.normalize(self.spans[self.rows(task)], dim=2) for task in numbers)
        return strongest([nearest_span(features[None], own[None])[:, None].cpu() for own in spans], len(features))

    def sub_network(self, task: int) -> dict[str, Tensor]:
        return super().sub_network(task) | {"scale": self.scales[task, 0]}

    def scoring_graph(self, tasks: Sequence[int]) -> ExpertScores:
        """One task: its expert's scores. All tasks: the log-probabilities of all classes."""
        spans = [F.normalize(self.spans[self.rows(task)], dim=2) for task in tasks]
        heads = self.class_rows("weight", tasks), self.class_rows("bias", tasks)
        predictor = None
        if len(tasks) > 1 or len(self.tasks) == 1:
            predictor = self.task_scale() * self.task_weight, self.task_scale() * self.task_bias
        return ExpertScores(self.exported_backbone(), heads, predictor, self.scales[list(tasks), 0].tolist(), spans)

    def n_parameters(self) -> int:
        return super().n_parameters() + self.spans.numel() + self.task_weight.numel() + self.task_bias.numel()


def more_of_span(span: Tensor, features: Tensor) -> Tensor:
    """The principal directions of a class, `[directions, d]`, after taking in features `[n, d]` of length one. Rows are
    as long as their singular values, so the former directions stand for the former features."""
    directions = F.normalize(features.double().cpu())
    if len(directions) > _MOST_FOR_SPANS:
        directions = directions[:: math.ceil(len(directions) / _MOST_FOR_SPANS)]
    _, strengths, found = torch.linalg.svd(torch.cat([span.double().cpu(), directions]), full_matrices=False)
    most = min(len(span), len(found))
    new = torch.zeros_like(span, dtype=torch.float64, device="cpu")
    new[:most] = strengths[:most, None] * found[:most]
    return new.to(span)
