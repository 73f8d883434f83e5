"""OWM (Zeng et al., Nature Machine Intelligence 2019): gradients keep out of the directions that old inputs excite.

Every layer has a square matrix P, maintained by recursive least squares over the layer's inputs. Each gradient G
becomes G P, so that a new task moves weights only along directions to which earlier inputs hardly respond, and old
outputs hardly move. P is all that is kept: one matrix per layer, through all tasks, never reset.

Two things differ from the published code. It keeps, for every task, the epoch that is best on the test set; here the
last epoch counts. And it allocates the outputs of all classes in advance, here the head grows:

* The last layer's projector depends on the layer's input alone, so growing never touches it. But it also holds for the
  new rows: what they say about old inputs stays what they start with, for ever, and a random start would be noise that
  nothing can remove.
* In the published code the outputs of classes to come are negatives: they learn to stay low on every task before
  theirs. Here one `spare` row plays all of them (`unseen`), and the row of a new class starts as its copy. Outputs that
  start alike and have the same gradient stay alike, so this is the published training with equal initial rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from pydantic import field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.learning.context import TrainingContext
from clom.learning.loop import Plan, shuffled_batches
from clom.learning.optim import OptimiserSettings
from clom.learning.schedule import Schedule
from clom.methods.families.shared import SharedNetwork, SharedSettings
from clom.nets import NetSettings
from clom.nets.plain import Backbone, LinearHead
from clom.settings import Count, Fraction, Positive, PositiveNumber, Settings

Colour = tuple[float, float, float]


class OwmNetSettings(Settings):
    """The published network, which the paper uses for every data set: 5.27 million weights for ten classes."""

    channels: tuple[Positive, Positive, Positive] = (64, 128, 256)
    hidden: tuple[Positive, Positive] = (1000, 1000)
    dropout: Fraction = 0.2
    mean: Colour = (125.3 / 255, 123.0 / 255, 113.9 / 255)
    std: Colour = (63.0 / 255, 62.1 / 255, 66.7 / 255)
    """What is subtracted from the pixels, and what they are divided by; the defaults are CIFAR-10's."""


class OwmSettings(SharedSettings):
    """Defaults are the published code's for CIFAR-10; there is none for CIFAR-100 and Tiny-ImageNet."""

    plan: Plan = Plan(epochs=25, batch=64, schedule=Schedule(kind="constant"))
    optimiser: OptimiserSettings = OptimiserSettings(kind="sgd", lr=0.02, momentum=0.9)
    network: OwmNetSettings = OwmNetSettings()
    update: Literal["batch", "task_end"] = "batch"
    """`batch`, the code: P takes in every batch, so the first task is projected, too. `task_end`, the article (as
    remembered, not verified): P takes in the task when it is over, with the last alphas."""
    alphas: tuple[PositiveNumber, PositiveNumber, PositiveNumber, PositiveNumber] = (1e-5, 1e-4, 1e-2, 1e-1)
    """Of the convolutions, the two hidden layers and the head: what alpha falls to, from 1, over each task."""
    projector_stride: Positive = 2
    """Which patches of a map P takes in; 2 as published, although the patches between are then less protected."""
    clip: PositiveNumber = 10.0
    """Longest projected gradient, over all layers."""
    unseen: Count = 1
    """How many classes to come the spare row stands for; 0: new classes were never negatives."""

    @field_validator("optimiser")
    @classmethod
    def _stays_in_the_subspace(cls, value: OptimiserSettings) -> OptimiserSettings:
        if value.kind != "sgd" or value.weight_decay:
            raise ValueError("owm needs kind sgd and weight_decay 0: all else moves weights along protected directions")
        return value


class OwmNet(Backbone):
    """Three times border, 2x2 convolution, ReLU, dropout, max-pool; two hidden layers. No biases, no normalisation."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: OwmNetSettings, image_size: int) -> None:
        nn.Module.__init__(self)  # its own layers instead of the experiment's network
        self.register_buffer("mean", torch.tensor(settings.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(settings.std).view(3, 1, 1), persistent=False)
        widths = [3, *settings.channels]
        self.convs = nn.ModuleList(nn.Conv2d(n_in, n_out, 2, bias=False) for n_in, n_out in pairwise(widths))
        for _ in self.convs:
            image_size = (image_size + 1) // 2
        widths = [widths[-1] * image_size**2, *settings.hidden]
        self.hidden = nn.ModuleList(nn.Linear(n_in, n_out, bias=False) for n_in, n_out in pairwise(widths))
        for weight in self.hidden.parameters():
            nn.init.xavier_normal_(weight)
        self.dropout, self.n_features = settings.dropout, settings.hidden[-1]

    def forward(self, images: Tensor) -> Tensor:
        values = (images - self.mean) / self.std
        for conv in self.convs:
            values = F.relu(conv(F.pad(values, (1, 1, 1, 1), mode="replicate")))
            values = F.max_pool2d(F.dropout(values, self.dropout, self.training), 2)
        values = values.flatten(1)
        for layer in self.hidden:
            values = F.relu(layer(values))
        return values


class SpareHead(LinearHead):
    """A head without biases whose new rows start as copies of a row that learned to be none of the old classes."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features, bias=False)
        # Zero: a random row that all outputs have in common would cancel in the softmax and in every comparison.
        self.spare = nn.Parameter(torch.zeros(1, n_features))

    @torch.no_grad()
    def grow(self, n_outputs: int) -> None:
        super().grow(n_outputs)
        for weight in self.parts[-1].parameters():
            weight.copy_(self.spare.expand_as(weight))

    def unseen(self, features: Tensor, count: int) -> Tensor:
        """One output that weighs in a softmax as much as `count` outputs, of which the spare row is each."""
        row = (
            self.spare.detach() + (self.spare - self.spare.detach()) / count
        )  # the gradient of one of them, not of all
        return F.linear(features, row) + math.log(count)


class Projector(nn.Module):
    """The matrix P of one layer, with `P^-1 = 1 + sum_i x_i x_i^T / alpha_i` over the inputs x_i taken in so far.

    In double precision: its eigenvalues reach 1e-10, where single precision makes some of them negative.
    """

    matrix: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(size, dtype=torch.float64))

    @torch.no_grad()
    def take_in(self, inputs: Tensor, alpha: float) -> None:
        """`P <- P - P X^T (alpha + X P X^T)^-1 X P` for the rows X: the same as one step for each row."""
        rows = inputs.to(self.matrix.dtype)
        mapped = rows @ self.matrix
        inner = mapped @ rows.T + alpha * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), mapped, upper=False)
        self.matrix.addmm_(half.T, half, alpha=-1)

    def symmetrise(self) -> None:
        self.matrix.copy_((self.matrix + self.matrix.T) / 2)

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        """`rows P`."""
        projected: Tensor = (rows.to(self.matrix.dtype) @ self.matrix).to(rows.dtype)
        return projected


class Guard:
    """Watches one layer while a task is learned: what goes in, and the gradient of what comes out."""

    def __init__(self, layer: nn.Module, projector: Projector, alpha: float, stride: int) -> None:
        self.layer, self.projector, self.alpha, self.stride = layer, projector, alpha, stride
        self.handle = layer.register_forward_hook(self._see)

    def _see(self, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        self.inputs = inputs[0].detach()
        if isinstance(layer, nn.Linear) and output.requires_grad:
            output.register_hook(self._see_gradient)  # type: ignore[no-untyped-call]

    def _see_gradient(self, gradient: Tensor) -> None:
        self.delta = gradient

    def take_in(self, progress: float) -> None:
        """The mean input of the batch; of a map every patch. Means protect means: opposite inputs may cancel."""
        mean = self.inputs.mean(0, keepdim=True)
        if isinstance(self.layer, nn.Conv2d):
            mean = F.unfold(mean, 2, stride=self.stride)[0].T
        self.projector.take_in(mean, self.alpha**progress)

    def project(self) -> None:
        """`G <- G P`."""
        for weight in self.layer.parameters():
            if weight.grad is None:
                continue
            if isinstance(self.layer, nn.Linear) and len(self.delta) < len(weight):
                # The same for G = delta^T H, with a product of as many rows as images instead of as many as outputs.
                weight.grad = self.delta.T @ self.projector(self.inputs)
            else:
                weight.grad = self.projector(weight.grad.flatten(1)).view_as(weight)


class Owm(SharedNetwork):
    """Its own network without biases; the experiment's is not used."""

    name = "owm"
    settings_type = OwmSettings
    settings: OwmSettings
    head: SpareHead

    def __init__(self, net: NetSettings, settings: OwmSettings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__(net, settings, image_shape, seed)
        self.projectors = nn.ModuleList(Projector(_fan_in(layer)) for layer in self._layers())

    def _make_backbone(self) -> OwmNet:
        return OwmNet(self.settings.network, self.image_shape[-1])

    def _make_head(self, n_features: int) -> SpareHead:
        return SpareHead(n_features)

    def n_parameters(self) -> int:
        return super().n_parameters() - self.head.spare.numel()

    def _layers(self) -> list[nn.Module]:
        assert isinstance(self.backbone, OwmNet)
        return [*self.backbone.convs, *self.backbone.hidden, self.head]

    def _guards(self) -> list[Guard]:
        conv, *others = self.settings.alphas
        stride, alphas = self.settings.projector_stride, [conv, conv, conv, *others]
        guards = []
        for layer, projector, alpha in zip(self._layers(), self.projectors, alphas, strict=True):
            assert isinstance(projector, Projector)
            guards.append(Guard(layer, projector, alpha, stride))
        return guards

    def _learn(self, task: Task, context: TrainingContext) -> None:
        guards, parameters, plan = self._guards(), list(self.parameters()), self.settings.plan
        n_steps, done = plan.epochs * max(1, round(len(task.train) / plan.batch)), torch.tensor(0)

        def project() -> None:
            for guard in guards:
                if self.settings.update == "batch":
                    guard.take_in(done.item() / n_steps)
                guard.project()
            nn.utils.clip_grad_norm_(parameters, self.settings.clip)
            done.add_(1)

        self.train_on(*self.new_data(task), self._loss, parameters, context, state=[done], before_step=project)
        if self.settings.update == "task_end":
            self._take_in(task, guards)
        for guard in guards:
            guard.projector.symmetrise()
            guard.handle.remove()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over all outputs, those of classes to come included."""
        features = self.backbone(images)
        outputs = self.head(features)
        if self.settings.unseen:
            outputs = torch.cat([outputs, self.head.unseen(features, self.settings.unseen)], 1)
        return F.cross_entropy(outputs, labels)

    @torch.no_grad()
    def _take_in(self, task: Task, guards: Sequence[Guard]) -> None:
        for index in shuffled_batches(len(task.train), self.settings.plan.batch, self.random("projector")):
            self.logits(to_unit(task.train.pixels[index]))
            for guard in guards:
                guard.take_in(1.0)


def _fan_in(layer: nn.Module) -> int:
    if isinstance(layer, SpareHead):
        return layer.n_features
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight[0].numel()
