"""OWM (Zeng et al., Nature Machine Intelligence 2019): updates orthogonal to the inputs of earlier tasks.

Every layer has a square matrix P, computed by recursive least squares over the layer's inputs. Each gradient G is
replaced by G P, so that a new task changes weights only in directions nearly orthogonal to earlier inputs, and old
outputs hardly change. P, one matrix per layer, is never reset and is all that is stored.

Two things differ from the published code. There the best epoch on the test set is used for every task, here the last
one. There the outputs of all classes are allocated in advance, here the head grows:

* The projector of the last layer depends on the layer's input alone, so it need not grow. But it also applies to new
  rows: their outputs for old inputs stay close to the initial ones, and a random initialisation would be noise that
  training cannot remove.
* In the published code, outputs of future classes are negatives: they are trained to stay low on every earlier task.
  Here one `spare` row represents all of them (`n_classes` less those seen), and the row of a new class is initialised
  with a copy of it. Outputs with equal initial rows and equal gradients stay equal, so this is the published training
  with equal initial rows.
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
from clom.methods.families.shared import FullHeadSettings, SharedNetwork
from clom.nets import NetSettings
from clom.nets.passes import count_multiply_adds
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
    """Mean and standard deviation of the pixels; the defaults are those of CIFAR-10."""


class OwmSettings(FullHeadSettings):
    """The defaults are those of the published code for CIFAR-10; there is none for CIFAR-100 and Tiny-ImageNet."""

    plan: Plan = Plan(epochs=25, batch=64, schedule=Schedule(kind="constant"))
    optimiser: OptimiserSettings = OptimiserSettings(kind="sgd", lr=0.02, momentum=0.9)
    network: OwmNetSettings = OwmNetSettings()
    update: Literal["batch", "task_end"] = "batch"
    """`batch`, as in the code: P is updated with every batch, so that the first task is projected as well.
    `task_end`, as in the article (not verified): P is updated after the task, with the final alphas."""
    alphas: tuple[PositiveNumber, PositiveNumber, PositiveNumber, PositiveNumber] = (1e-5, 1e-4, 1e-2, 1e-1)
    """Final alpha of the convolutions, the two hidden layers and the head; during each task it decays from 1."""
    projector_stride: Positive = 2
    """Stride of the patches that update P; 2 as published, although the patches in between are then less protected."""
    clip: PositiveNumber = 10.0
    """Maximum norm of the projected gradient over all layers."""
    unseen: Count = 1
    """Number of future classes that the spare row represents if `n_classes` is unknown; with 0, they are no
    negatives."""

    @field_validator("optimiser")
    @classmethod
    def _stays_in_the_subspace(cls, value: OptimiserSettings) -> OptimiserSettings:
        if value.kind != "sgd" or value.weight_decay:
            raise ValueError("owm needs kind sgd and weight_decay 0: others change weights in protected directions")
        return value


class OwmNet(Backbone):
    """Three blocks of padding, 2x2 convolution, ReLU, dropout, max-pooling; two hidden layers; no biases or norms."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: OwmNetSettings, image_size: int) -> None:
        nn.Module.__init__(self)  # not Backbone's: that would build the experiment's network
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
    """A head without biases whose new rows are initialised with a spare row, trained as a negative of all classes."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features, bias=False)
        # Zero: a random row common to all outputs would cancel in the softmax and in every comparison.
        self.spare = nn.Parameter(torch.zeros(1, n_features))

    @torch.no_grad()
    def grow(self, n_outputs: int) -> None:
        super().grow(n_outputs)
        for weight in self.parts[-1].parameters():
            weight.copy_(self.spare.expand_as(weight))

    def unseen(self, features: Tensor, count: int) -> Tensor:
        """One output that has the weight of `count` equal outputs of the spare row in a softmax."""
        # The value of the spare row, with the gradient of one of these outputs, not of all.
        row = self.spare.detach() + (self.spare - self.spare.detach()) / count
        return F.linear(features, row) + math.log(count)


class Projector(nn.Module):
    """The matrix P of one layer, with `P^-1 = 1 + sum_i x_i x_i^T / alpha_i` over all inputs x_i so far.

    In float64: eigenvalues reach 1e-10, and some would become negative in float32.
    """

    matrix: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, inputs: Tensor, alpha: float) -> None:
        """`P <- P - P X^T (alpha + X P X^T)^-1 X P` for the rows X: equivalent to one update per row."""
        rows = inputs.to(self.matrix.dtype)
        mapped = rows @ self.matrix
        inner = mapped @ rows.T + alpha * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), mapped, upper=False)
        self.matrix.addmm_(half.T, half, alpha=-1)
        count_multiply_adds(2 * len(rows) * self.matrix.numel())

    def symmetrise(self) -> None:
        self.matrix.copy_((self.matrix + self.matrix.T) / 2)

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        """`rows P`."""
        count_multiply_adds(len(rows) * self.matrix.numel())
        projected: Tensor = (rows.to(self.matrix.dtype) @ self.matrix).to(rows.dtype)
        return projected


class LayerProjection:
    """Projects the gradients of one layer while a task is learned; hooks record its inputs and output gradients."""

    def __init__(self, layer: nn.Module, projector: Projector, alpha: float, stride: int) -> None:
        self.layer, self.projector, self.alpha, self.stride = layer, projector, alpha, stride
        self.handle = layer.register_forward_hook(self._record_inputs)

    def _record_inputs(self, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        self.inputs = inputs[0].detach()
        if isinstance(layer, nn.Linear) and output.requires_grad:
            output.register_hook(self._record_gradient)  # type: ignore[no-untyped-call]

    def _record_gradient(self, gradient: Tensor) -> None:
        self.delta = gradient

    def update(self, progress: float) -> None:
        """Update P with the batch's mean input, for convolutions with its patches.

        Means protect means only: opposite inputs may cancel.
        """
        mean = self.inputs.mean(0, keepdim=True)
        if isinstance(self.layer, nn.Conv2d):
            mean = F.unfold(mean, 2, stride=self.stride)[0].T
        self.projector.update(mean, self.alpha**progress)

    def project(self) -> None:
        """`G <- G P`."""
        for weight in self.layer.parameters():
            if weight.grad is None:
                continue
            if isinstance(self.layer, nn.Linear) and len(self.delta) < len(weight):
                # The same, since G = delta^T H, but cheaper: there are fewer images than outputs.
                weight.grad = self.delta.T @ self.projector(self.inputs)
            else:
                weight.grad = self.projector(weight.grad.flatten(1)).view_as(weight)


class Owm(SharedNetwork):
    """Uses its own network without biases instead of the experiment's."""

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

    def _projections(self) -> list[LayerProjection]:
        conv, *others = self.settings.alphas
        stride, alphas = self.settings.projector_stride, [conv, conv, conv, *others]
        projections = []
        for layer, projector, alpha in zip(self._layers(), self.projectors, alphas, strict=True):
            assert isinstance(projector, Projector)
            projections.append(LayerProjection(layer, projector, alpha, stride))
        return projections

    def _learn(self, task: Task, context: TrainingContext) -> None:
        projections, parameters, plan = self._projections(), list(self.parameters()), self.settings.plan
        n_steps, done = plan.epochs * max(1, round(len(task.train) / plan.batch)), torch.tensor(0)

        def project() -> None:
            for projection in projections:
                if self.settings.update == "batch":
                    projection.update(done.item() / n_steps)
                projection.project()
            self._clip(parameters)
            done.add_(1)

        self.train_on(*self.new_data(task), self._loss, parameters, context, state=[done], before_step=project)
        if self.settings.update == "task_end":
            self._update_projectors(task, projections)
        for projection in projections:
            projection.projector.symmetrise()
            projection.handle.remove()

    def _clip(self, parameters: Sequence[nn.Parameter]) -> None:
        """Clip the norm of the gradient, in which the spare row counts once for every class that it represents."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        if self.head.spare.grad is not None:
            squares += (self.n_unseen - 1) * self.head.spare.grad.square().sum()
        scale = (self.settings.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over all outputs, including those of future classes."""
        features = self.backbone(images)
        outputs = self.head(features)
        if self.n_unseen:
            outputs = torch.cat([outputs, self.head.unseen(features, self.n_unseen)], 1)
        return F.cross_entropy(outputs, labels)

    @property
    def n_unseen(self) -> int:
        """Number of future classes."""
        settings = self.settings
        return max(0, settings.n_classes - self.n_seen) if settings.n_classes else settings.unseen

    @torch.no_grad()
    def _update_projectors(self, task: Task, projections: Sequence[LayerProjection]) -> None:
        for index in shuffled_batches(len(task.train), self.settings.plan.batch, self.random("projector")):
            self.logits(to_unit(task.train.pixels[index]))
            for projection in projections:
                projection.update(1.0)


def _fan_in(layer: nn.Module) -> int:
    if isinstance(layer, SpareHead):
        return layer.n_features
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight[0].numel()
