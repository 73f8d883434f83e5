"""`check_method` on methods that break one rule each. That ours keep them is tested beside each of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.calibration import Affine
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.methods.registry import register_method
from clom.nets import AlexNetSettings
from clom.settings import Settings
from clom.testing import check_method


class LinearSettings(Settings):
    steps: int = 4


class Linear(Method):
    """A linear classifier of pixels for each task, with a training loop of its own; correct."""

    name = "linear-test"
    settings_type = LinearSettings
    settings: LinearSettings
    exact_memory = True

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.heads = nn.ModuleList()

    def _open_task(self, task: LearnedTask) -> None:
        self.heads.append(nn.Linear(3 * self.image_shape[1] ** 2, task.n_classes))

    def _learn(self, task: Task, context: TrainingContext) -> None:
        optimiser = torch.optim.Adam(self.heads[-1].parameters(), lr=0.01)
        images, labels = to_unit(task.train.pixels).flatten(1), task.train.labels
        for step in context.steps(self.settings.steps, optimiser):
            rows = torch.randperm(len(labels))[:8]
            optimiser.zero_grad()
            F.cross_entropy(self.heads[-1](images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            context.report(Progress(len(self.tasks) - 1, "learning", step + 1, self.settings.steps))

    @torch.no_grad()
    def blocks(self, pixels: Tensor) -> Blocks:
        return [head(to_unit(pixels).flatten(1)) for head in self.heads]

    def features(self, pixels: Tensor, task: int) -> Tensor:
        return to_unit(pixels).flatten(1)

    @torch.no_grad()
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head.weight.clone(), head.bias.clone()

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        logits: Tensor = self.heads[task](images.flatten(1))
        return logits

    def _forget(self, number: int, task: LearnedTask) -> str:
        del self.heads[number]
        return ""


def check(kind: type[Linear], *, deterministic: bool = False) -> None:
    register_method(kind.name)(kind)
    check_method(lambda seed: kind(AlexNetSettings(), LinearSettings(), (1, 8, 8), seed), deterministic=deterministic)


def test_a_correct_method() -> None:
    check(Linear)


# --- one broken rule each --------------------------------------------------------------------------------------------


class Reseeds(Linear):
    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        torch.manual_seed(7)
        return super().learn(task, context)


class ReturnsNothing(Linear):
    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        super().learn(task, context)
        return None  # type: ignore[return-value]


class Silent(Linear):
    def _learn(self, task: Task, context: TrainingContext) -> None:
        super()._learn(task, TrainingContext())


class Unfinished(Linear):
    def _learn(self, task: Task, context: TrainingContext) -> None:
        context.report(Progress(0, "learning", 1, 2))


class OneForAll(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [torch.cat(super().blocks(pixels), 1)]


class Probabilities(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [block.double().softmax(1) for block in super().blocks(pixels)]


class WithGradients(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [head(to_unit(pixels).flatten(1)) for head in self.heads]


class NotANumber(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [block / 0 for block in super().blocks(pixels)]


class Blind(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return super().blocks(torch.zeros_like(pixels))


class OtherBlock(Linear):
    def block(self, pixels: Tensor, task: int) -> Tensor:
        return super().block(pixels, task) + 1


class ByBatch(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [block - block.mean() if len(block) else block for block in super().blocks(pixels)]


class BytesOnly(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return [head(pixels.expand(-1, 3, -1, -1).flatten(1) / 255.0).detach() for head in self.heads]


class NeedsImages(Linear):
    def blocks(self, pixels: Tensor) -> Blocks:
        return super().blocks(pixels) if len(pixels) else []


class ForgetsItsSeed(Linear):
    def _learn(self, task: Task, context: TrainingContext) -> None:
        torch.manual_seed(0)
        for parameter in self.heads[-1].parameters():
            nn.init.zeros_(parameter)
        super()._learn(task, context)


class OwnRandomness(Linear):
    calls = 0

    def _learn(self, task: Task, context: TrainingContext) -> None:
        type(self).calls += 1
        torch.manual_seed(self.calls)
        super()._learn(task, context)


class LearnsAnything(Linear):
    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        with suppress(UserError):
            super().learn(task, context)
        return self


class Swallows(Linear):
    def _learn(self, task: Task, context: TrainingContext) -> None:
        try:
            super()._learn(task, context)
        except KeyboardInterrupt:
            return


class OutsideTheState(Linear):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.offset = torch.zeros(1)

    def _learn(self, task: Task, context: TrainingContext) -> None:
        super()._learn(task, context)
        self.offset = task.train.pixels.float().mean().view(1)

    def blocks(self, pixels: Tensor) -> Blocks:
        return [block + self.offset for block in super().blocks(pixels)]


class Forgets(Linear):
    def _learn(self, task: Task, context: TrainingContext) -> None:
        super()._learn(task, context)
        for parameter in self.heads[0].parameters():
            parameter.data.mul_(0.9)


class HiddenProgress(Linear):
    """Its batches come from a generator that checkpoints do not know."""

    def _learn(self, task: Task, context: TrainingContext) -> None:
        randomness = torch.Generator().manual_seed(self.seed)
        optimiser = torch.optim.Adam(self.heads[-1].parameters(), lr=0.01)
        images, labels = to_unit(task.train.pixels).flatten(1), task.train.labels
        for step in context.steps(self.settings.steps, optimiser):
            rows = torch.randperm(len(labels), generator=randomness)[:8]
            optimiser.zero_grad()
            F.cross_entropy(self.heads[-1](images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            context.report(Progress(0, "learning", step + 1, self.settings.steps))


class Inverts(Linear):
    def calibrations(self) -> Mapping[str, Affine]:
        n_tasks = len(self.tasks)
        return {"none": Affine.identity(n_tasks), "mine": Affine(-torch.ones(n_tasks), torch.zeros(n_tasks))}


class NoneIsMissing(Linear):
    def calibrations(self) -> Mapping[str, Affine]:
        return {"mine": Affine.identity(len(self.tasks))}


class WrongFeatures(Linear):
    def features(self, pixels: Tensor, task: int) -> Tensor:
        return to_unit(pixels)


class WrongHead(Linear):
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        weight, bias = super().linear_head(task)
        return weight.T, bias


class NoGradient(Linear):
    def task_logits(self, images: Tensor, task: int) -> Tensor:
        return super().task_logits(images.detach(), task)


class ForgetsTheWrongOne(Linear):
    def _forget(self, number: int, task: LearnedTask) -> str:
        del self.heads[number - 1]
        return ""


class Shrinks(Linear):
    def capacity(self) -> Mapping[str, list[float]]:
        return {"fc": [0.5, 0.4]}


BROKEN: dict[type[Linear], str] = {
    Reseeds: "global generator.*the caller's randomness",
    ReturnsNothing: "learn returns self",
    Silent: "Progress is never reported",
    Unfinished: "reported, but not to its end",
    OneForAll: r"shapes \[\(16, 4\)\] instead of \[\(16, 2\), \(16, 2\)\]",
    Probabilities: "block of task 0 is torch.float64",
    WithGradients: "carries gradients",
    NotANumber: "NaN or infinity",
    Blind: "the same for every image",
    OtherBlock: r"block\(pixels, 0\) differs",
    ByBatch: "first image alone",
    BytesOnly: r"numbers in \[0, 1\] have other scores",
    NeedsImages: "none included",
    ForgetsItsSeed: "Another seed gives the same scores",
    OwnRandomness: "the same seed gives the same result",
    LearnsAnything: "A task with images of another shape (raises|is accepted).*UserError",
    Swallows: "KeyboardInterrupt from the progress display is swallowed",
    OutsideTheState: "a loaded model is the saved one",
    Forgets: "first task's block changed.*exact_memory",
    HiddenProgress: "resumed ends as if it had never been interrupted",
    Inverts: "'mine' has scales",
    NoneIsMissing: "'none' is one of the calibrations",
    WrongFeatures: r"features returned shape \(16, 3, 8, 8\)",
    WrongHead: r"linear_head returned shapes \(192, 2\)",
    NoGradient: "no finite gradient",
    ForgetsTheWrongOne: r"After forget\(0\)",
    Shrinks: r"capacity of 'fc' is \[0.5, 0.4\]",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_method_is_named(kind: type[Linear]) -> None:
    with pytest.raises(AssertionError, match=f"(?s){BROKEN[kind]}"):
        check(kind)


def test_a_method_that_is_not_registered_is_told_so() -> None:
    with pytest.raises(AssertionError, match=r"'linear-test'.*clom\.register_method"):
        check_method(lambda seed: Linear(AlexNetSettings(), LinearSettings(), (1, 8, 8), seed))


def test_a_method_without_randomness() -> None:
    check(ForgetsItsSeed, deterministic=True)
