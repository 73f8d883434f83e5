"""Reference points without continual learning: fine-tuning and joint training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from clom.data.memory import Memory
from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.methods.families.base import place, seeded
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings


class FineTune(SharedNetwork):
    """Cross-entropy on each task in turn, with no protection from forgetting; a reference."""

    name = "finetune"
    settings_type = SharedSettings

    def _learn(self, task: Task, context: TrainingContext) -> None:
        self._fit(*self.new_data(task), context)

    def _fit(self, pixels: Tensor, labels: Tensor, context: TrainingContext) -> None:
        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(images), labels)

        self.train_on(pixels, labels, loss_of, list(self.parameters()), context)


class Joint(FineTune):
    """Joint training: retrained on all data so far after every task, which it stores; a reference."""

    name = "joint"
    settings_type = SharedSettings

    def __init__(self, net: NetSettings, settings: SharedSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.memory = Memory()

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    def _learn(self, task: Task, context: TrainingContext) -> None:
        self.memory.add(len(self.tasks) - 1, task.train.pixels, task.train.labels)
        with seeded(self.seed, "network"):
            self.backbone = self._make_backbone()
            self.head = self._make_head(self.backbone.n_features)
            for learned in self.tasks:
                self.head.grow(learned.n_classes)
        place(self, task.train.pixels.device)
        self._fit(self.memory.pixels, self.memory.labels + self.offsets()[self.memory.tasks], context)
