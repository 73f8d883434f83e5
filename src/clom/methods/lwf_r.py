"""LwF.R: learning without forgetting (Li and Hoiem 2016) with replay, as in Liu et al.'s code, which the paper used.

One network with a cosine head is trained on the new images and on herded exemplars, with distillation from the network
before the task. iCaRL is the same trained network with another classifier (icarl.py). In the original the head has an
old and a new half; here it has one part per task, and all but the last form the old half.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.distillation import soft_kl, teacher_of
from clom.learning.nearest_mean import Herding, herd
from clom.methods.families.replay import ReplayMethod, ReplaySettings
from clom.nets.plain import Backbone, CosineHead, LinearHead
from clom.settings import NonNegative, PositiveNumber, Settings


class LwfRSettings(ReplaySettings):
    temperature: PositiveNumber = 2.0
    """tau, of both softmaxes."""
    beta: NonNegative = 0.25
    """The weight of distillation is `tau^2 beta`: 1 as published."""
    herding: Herding = "exclude"
    """`exclude` always fills the memory; `rank`, the original, stores fewer images of a class with duplicates."""
    final_relu: bool = False
    """The original network has no final ReLU, so that cosines may be negative; the paper does not say."""


class LwfR(ReplayMethod):
    """Cross-entropy over all classes plus distillation of the old ones, both on new images and exemplars."""

    name = "lwf-r"
    settings_type: ClassVar[type[Settings]] = LwfRSettings
    settings: LwfRSettings
    head: CosineHead | LinearHead

    def _make_backbone(self) -> Backbone:
        net = self.net_settings
        if "final_relu" in type(net).model_fields:
            net = net.model_copy(update={"final_relu": self.settings.final_relu})
        return Backbone(net, self.image_shape[-1])

    def _make_head(self, n_features: int) -> CosineHead | LinearHead:
        return CosineHead(n_features)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        # The teacher already has rows for the new classes; its old outputs do not depend on them.
        teacher, n_old = teacher_of(nn.Sequential(self.backbone, self.head)), self.n_old
        self._start_head(task)

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            old_outputs = teacher(images)[:, :n_old] if n_old else None
            return self._loss(self.logits(images), old_outputs, labels)

        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.train_on(*self.new_and_stored(task), loss_of, trained, context)
        self._keep_exemplars(task, context)

    def _start_head(self, task: Task) -> None:
        """Freeze the old rows and initialise each new one with the mean direction of its class."""
        if self.n_old and isinstance(self.head, CosineHead):
            for rows in list(self.head.parts)[:-1]:
                rows.requires_grad_(False)
            self.head.imprint(self.embed(task.train.pixels), task.train.labels)

    def _loss(self, outputs: Tensor, old_outputs: Tensor | None, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, labels)  # L_ce, over all classes seen
        if old_outputs is None:
            return loss
        # L_kd = tau^2 beta KL(q || p), with both softmaxes over the old classes only.
        tau, n_old = self.settings.temperature, old_outputs.shape[1]
        return loss + tau**2 * self.settings.beta * soft_kl(outputs[:, :n_old], old_outputs, tau)

    def _keep_exemplars(self, task: Task, context: TrainingContext) -> None:
        self.keep(task, self.herded(task))

    def herded(self, task: Task) -> list[Tensor]:
        """The rows of each new class's exemplars, best first."""
        features = self.embed(task.train.pixels)
        rows_of = [(task.train.labels == label).nonzero().flatten() for label in range(task.n_classes)]
        return [rows[herd(features[rows], self.quota, self.settings.herding)] for rows in rows_of]
