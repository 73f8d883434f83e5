"""Protection x learner x calibration: the family of systems that give every task a mask of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.memory import Memory, per_class
from clom.data.stream import Task
from clom.data.views import rotations, with_mirrored, without_mirrored
from clom.errors import UserError
from clom.learning.calibration import Affine, CalibrationSettings, fit_to_memory
from clom.learning.context import TrainingContext
from clom.learning.heads import DiscriminantHead
from clom.learning.learners.base import Learner
from clom.learning.loop import generator
from clom.learning.protection.base import Protection
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.nets import NetSettings
from clom.settings import Count, Settings


class MaskedSettings(Settings):
    """What all masked systems share."""

    calibration: Literal["memory", "scale", "none"] = "memory"
    """`memory` (Eq. 9-11) keeps `memory_per_class` validation samples; `scale` keeps none; `none` is CLOM(-c)."""
    memory_per_class: Count = 20
    memory_fit: CalibrationSettings = CalibrationSettings()
    mirror: bool = False
    """Ask about the mirror image as well and average, for images that may be mirrored in training. The paper does not;
    an answer costs twice the work."""


class MaskedMethod(Method):
    """One network behind a protection, one head per task, scores averaged over rotations, blocks side by side."""

    settings: MaskedSettings

    def __init__(
        self,
        net: NetSettings,
        settings: MaskedSettings,
        image_shape: Sequence[int],
        seed: int,
        protection: Protection,
        learner: Learner,
    ) -> None:
        super().__init__(net, settings, image_shape, seed)
        if settings.mirror and protection.net.begins_frozen:
            raise UserError("mirror: true is for networks that are trained here; leave it off with a pretrained one.")
        self.protection = protection
        self.exact_memory = protection.exact
        self.learner = learner
        self._portion = 32 if protection.net.begins_frozen else 256  # images at once; photos are large
        self.heads = nn.ModuleList()
        self.memory = Memory()
        self.typical = nn.ParameterList()  # of each task: what `scale` divides by
        self.fitted = nn.ParameterList()  # the memory's scales and shifts (and cross), anew after each task
        self._networks: dict[int, _TaskNetwork] = {}  # made when a task is first asked; not part of what is saved
        self.register_load_state_dict_post_hook(_forget_networks)  # type: ignore[no-untyped-call]

    def capacity(self) -> Mapping[str, Sequence[float]]:
        return self.protection.capacity()

    def n_parameters(self) -> int:
        """Shared weights, and of all tasks: gates, normalisation and heads. The projection g is gone by now."""
        return sum(p.numel() for part in (self.protection, self.heads) for p in part.parameters())

    @property
    def memory_bytes(self) -> int:
        return self.memory.n_bytes

    def _open_task(self, task: LearnedTask) -> None:
        self._networks = {}
        self.protection.add_task()
        self.heads.append(self.learner.make_head(self.protection, len(self.tasks) - 1, task.n_classes))
        self.typical.append(_constant(torch.ones(1)))
        self.set_fitted(Affine.identity(len(self.tasks)))
        self.eval()

    def _learn(self, task: Task, context: TrainingContext) -> None:
        number = len(self.tasks) - 1
        self.requires_grad_(False)  # nothing of the old tasks, but the shared weights again
        for parameter in (*self.protection.weights(number), *self.protection.mask_parameters(number)):
            parameter.requires_grad_(True)
        self.heads[number] = self.learner.learn(self.protection, number, task, self.seed, context)
        self.protection.finish(number, self.heads[number])
        self.eval().requires_grad_(False)
        closed = self.protection.closed_groups(number)
        if closed and not self.protection.net.begins_frozen:  # without its adapter a task still has the frozen features
            warnings.warn(
                f"Task '{task.name}' closed every unit of {', '.join(closed)}: it may have learned nothing. A lower "
                "sparsity (attention.sparsity_first, attention.sparsity_rest) or a wider network helps.",
                stacklevel=3,
            )
        self.typical[number].copy_(self._typical_score(task, number))
        if self.settings.calibration == "memory":
            kept = per_class(task.validation, self.settings.memory_per_class, self._random("memory"))
            self.memory.add(number, self.stored_form(kept.pixels), kept.labels)
            self._fit_to_memory()

    def _forget(self, number: int, task: LearnedTask) -> str:
        self._networks = {}
        untouched = type(self)(self.net_settings, self.settings, self.image_shape, self.seed)  # type: ignore[call-arg]
        self.protection.forget(number, untouched.protection.net)
        del self.heads[number]
        self.typical = nn.ParameterList(value for at, value in enumerate(self.typical) if at != number)
        self.memory.forget(number)
        if not self.tasks:
            self.fitted = nn.ParameterList()
        elif self.settings.calibration == "memory":
            self._fit_to_memory()
        else:
            self.set_fitted(Affine.identity(len(self.tasks)))
        return "Units that other tasks use as well keep what they learned from it." if self.capacity() else ""

    def sub_network(self, task: int) -> dict[str, Tensor]:
        head = {f"head.{name}": value for name, value in self.heads[task].state_dict().items()}
        asked = {"rotations": torch.tensor(self.learner.rotations)}
        if self.settings.mirror:
            asked["mirror"] = torch.tensor(True)
        return self.protection.sub_network(task) | head | asked

    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self._blocks(pixels, [task])[0]

    def blocks(self, pixels: Tensor) -> Blocks:
        return self._blocks(pixels, range(len(self.tasks)))

    @torch.no_grad()
    def _blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        if not len(pixels):
            return [torch.empty(0, self.tasks[task].n_classes) for task in tasks]
        parts = [self._scores(part, tasks) for part in torch.split(pixels, self._portion)]
        return [torch.cat(of_task) for of_task in zip(*parts, strict=True)]

    @torch.no_grad()
    def answers(self, pixels: Tensor) -> tuple[Blocks, Tensor]:
        if not len(pixels) or not self.heads or not isinstance(self.heads[0], DiscriminantHead):
            return super().answers(pixels)
        kept = self.stored_form(pixels)
        similarity = [self._similarities(part) for part in torch.split(kept, self._portion)]
        return self.blocks(kept), torch.cat(similarity)

    def _similarities(self, pixels: Tensor) -> Tensor:
        turned, columns = self._turned(pixels), []
        for task, head in enumerate(self.heads):
            assert isinstance(head, DiscriminantHead)
            columns.append(head.similarity(self.protection.features(turned, task), self.learner.rotations))
        return torch.stack(columns, 1)

    def _scores(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        turned = self._turned(pixels)
        return [self._averaged(turned, task) for task in tasks]

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        return self._averaged(self._turned(images), task)

    def _turned(self, pixels: Tensor) -> Tensor:
        """All rotations as one batch, after the part of the network that is the same for all tasks, if there is one."""
        if pixels.ndim == 3:  # a stored_form
            return pixels.transpose(0, 1).flatten(0, 1)
        images = with_mirrored(to_unit(pixels)) if self.settings.mirror else to_unit(pixels)
        turned = rotations(images, self.learner.rotations).contiguous(memory_format=torch.channels_last)
        return self.protection.net.frozen(turned)

    @torch.no_grad()
    def stored_form(self, pixels: Tensor) -> Tensor:
        """What the memory keeps of images: where the network begins frozen what that makes of them, which shows no
        picture and stays valid, `[images, rotations, d]`; else the images."""
        if not self.protection.net.begins_frozen or pixels.ndim == 3:
            return pixels
        count = self.learner.rotations
        parts = [self._turned(part).view(count, len(part), -1) for part in torch.split(pixels, self._portion)]
        return torch.cat(parts, 1).transpose(0, 1).contiguous()

    def _averaged(self, turned: Tensor, task: int) -> Tensor:
        """Eq. 6: rotation r of the image reads block r of the head."""
        count = self.learner.rotations
        by_rotation = self._network(task)(turned).view(count, -1, count, self.tasks[task].n_classes)
        own: Tensor = by_rotation.diagonal(dim1=0, dim2=2)  # [images, classes, rotations]
        scores = own.mean(-1)
        return without_mirrored(scores) if self.settings.mirror else scores

    def _network(self, task: int) -> Callable[[Tensor], Tensor]:
        """Images to head outputs, on the task's open units alone."""
        if task not in self._networks:
            features_of, kept = self.protection.frozen(task)
            self._networks[task] = _TaskNetwork(features_of, self.heads[task], kept)
        return self._networks[task]

    @torch.no_grad()
    def features(self, pixels: Tensor, task: int) -> Tensor:
        """`h(x, k)` of the unrotated images."""
        parts = [self.protection.features(to_unit(part), task) for part in torch.split(pixels, 256)]
        return torch.cat(parts)

    @torch.no_grad()
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, features]` and bias of the head that unrotated images read: its first rows, rotation 0."""
        head, n_classes = self.heads[task], self.tasks[task].n_classes
        bias = head(torch.zeros(1, self.protection.net.n_features))
        weight = head(torch.eye(self.protection.net.n_features)) - bias  # any linear head, masked ones too
        return weight[:, :n_classes].T, bias[0, :n_classes]

    def calibrations(self) -> dict[str, Affine]:
        n_tasks = len(self.tasks)
        ways = {
            "memory": Affine(*self.fitted) if self.settings.calibration == "memory" else None,
            "scale": Affine(1 / torch.cat(list(self.typical)), torch.zeros(n_tasks)) if n_tasks else None,
            "none": Affine.identity(n_tasks),
        }
        preferred = self.settings.calibration
        return {name: way for name in (preferred, *ways) if (way := ways[name]) is not None}

    @torch.no_grad()
    def _typical_score(self, task: Task, number: int) -> Tensor:
        """The mean score of the right class on the task's own data: no sample is needed later."""
        # Few photos are known by heart, and each costs a pass through the frozen network: better ask the held-out ones.
        few = self.protection.net.begins_frozen and len(task.validation) > 0
        images = task.validation if few else task.train[slice(0, 2000)]
        own = self.block(images.pixels, number)
        return own.gather(1, images.labels[:, None]).mean().clamp(min=1e-6)

    def recalibrate(self, memory_per_class: int) -> None:
        """Keep only so many of the stored samples: then everything is as if it had been learned with that setting."""
        self.settings = self.settings.model_copy(update={"memory_per_class": memory_per_class})
        self.memory.shrink(memory_per_class)
        self._fit_to_memory()

    def _fit_to_memory(self) -> None:
        offsets = torch.tensor([0] + [task.n_classes for task in self.tasks]).cumsum(0)
        labels = self.memory.labels + offsets[self.memory.tasks]
        blocks = self.blocks(self.memory.pixels)
        fitted = fit_to_memory(blocks, labels, self.settings.memory_fit, self._random("calibration"))
        self.set_fitted(fitted)

    def set_fitted(self, fitted: Affine) -> None:
        values = [fitted.scales, fitted.shifts]
        if self.settings.memory_fit.cross is not None:
            n_classes = sum(task.n_classes for task in self.tasks)
            values.append(torch.zeros(len(self.tasks), n_classes) if fitted.cross is None else fitted.cross)
        self.fitted = nn.ParameterList(_constant(value) for value in values)

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)


def _forget_networks(method: nn.Module, _: object) -> None:
    """Loaded weights are other weights."""
    assert isinstance(method, MaskedMethod)
    method._networks = {}


class _TaskNetwork:
    """A task's features and its head, both without what is always zero."""

    def __init__(self, features_of: Callable[[Tensor], Tensor], head: nn.Module, kept: Tensor) -> None:
        self.features_of, self.head = features_of, head
        if isinstance(head, nn.Linear) and len(kept) < head.in_features:
            self.head = nn.Linear(len(kept), head.out_features)
            self.head.weight = nn.Parameter(head.weight.detach()[:, kept].contiguous(), requires_grad=False)
            self.head.bias = head.bias

    def __call__(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features_of(images))
        return outputs


def _constant(values: Tensor) -> nn.Parameter:
    """A number that is saved with the model and never trained by a gradient."""
    return nn.Parameter(values, requires_grad=False)
