"""Protection x learner x calibration: the family of systems that give every task a mask of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.memory import Memory, per_class
from clom.data.stream import Task
from clom.data.views import average_flipped, rotations, with_flipped
from clom.errors import UserError
from clom.learning.calibration import Affine, CalibrationSettings, fit_to_memory
from clom.learning.context import TrainingContext
from clom.learning.heads import DiscriminantHead
from clom.learning.learners.base import Learner
from clom.learning.loop import generator
from clom.learning.protection.base import Protection
from clom.methods.families.base import Blocks, LearnedTask, Method
from clom.methods.families.graphs import MaskedScores, TaskScores
from clom.nets import NetSettings
from clom.nets.gates import Gates
from clom.nets.networks.adapters import AdapterNet
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

    divisible = True
    settings_type: ClassVar[type[Settings]] = MaskedSettings
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
        if settings.mirror and protection.net.has_frozen_backbone:
            raise UserError("mirror: true is for networks that are trained here; leave it off with a pretrained one.")
        self.protection = protection
        self.exact_memory = protection.exact
        self.learner = learner
        self._portion = 32 if protection.net.has_frozen_backbone else 256  # images at once; photos are large
        self.heads = nn.ModuleList()
        self.memory = Memory()
        self.typical = nn.ParameterList()  # of each task: what `scale` divides by
        self.fitted = nn.ParameterList()  # the memory's scales and shifts (and cross), anew after each task
        self._networks: dict[int, TaskNetwork] = {}  # made when a task is first asked; not part of what is saved
        self.register_load_state_dict_post_hook(_forget_networks)  # type: ignore[no-untyped-call]

    def _apply(self, *args: Any, **options: Any) -> Self:
        self._networks = {}  # made of tensors that are about to move
        moved: Self = super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        return moved

    def capacity(self) -> Mapping[str, Sequence[float]]:
        return self.protection.capacity()

    def n_parameters(self) -> int:
        """Shared weights, and of all tasks: gates, normalisation and heads. The projection g is gone by now."""
        return sum(p.numel() for part in (self.protection, self.heads) for p in part.parameters())

    @property
    def least_classes(self) -> int:
        return 1 if self.learner.rotations > 1 else 2  # a lone class is told from its own rotations, or from nothing

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
        if closed and not self.protection.net.has_frozen_backbone:  # pretrained features remain without the adapter
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

    # --- scores ------------------------------------------------------------------------------------------------------

    def block(self, pixels: Tensor, task: int) -> Tensor:
        return self._blocks(pixels, [task])[0]

    def blocks(self, pixels: Tensor) -> Blocks:
        return self._blocks(pixels, range(len(self.tasks)))

    @torch.no_grad()
    def _blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        if not len(pixels):
            return [torch.empty(0, self.tasks[task].n_classes) for task in tasks]
        parts = [self._batch_blocks(part, tasks) for part in torch.split(pixels, self._portion)]
        return [torch.cat(of_task).cpu() for of_task in zip(*parts, strict=True)]

    def _batch_blocks(self, pixels: Tensor, tasks: Sequence[int]) -> Blocks:
        """The blocks of as many images as are computed at once."""
        views = self._views(pixels)
        return [self._network(task)(views) for task in tasks]

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        return self._network(task)(self._views(images))

    @torch.no_grad()
    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """With discriminant heads an image belongs to a task as much as its features lie in the span of a class."""
        chosen = range(len(self.tasks)) if tasks is None else tasks
        heads = {task: head for task in chosen if isinstance(head := self.heads[task], DiscriminantHead)}
        if not len(pixels) or not heads or len(heads) < len(chosen):
            return super().blocks_and_belonging(pixels, tasks)
        blocks, belonging = [], []
        for part in torch.split(pixels, self._portion):
            views = self._views(part)
            blocks.append([self._network(task)(views) for task in chosen])
            # Of the masked network, not of the compact one, which rounds differently: model files record these numbers.
            similar = [
                head.similarity(self.protection.features(views, task), self.learner.rotations)
                for task, head in heads.items()
            ]
            belonging.append(torch.stack(similar, 1))
        return [torch.cat(of_task).cpu() for of_task in zip(*blocks, strict=True)], torch.cat(belonging).cpu()

    def _views(self, pixels: Tensor) -> Tensor:
        """All rotations as one batch, after the part of the network that is the same for all tasks, if there is one."""
        if pixels.ndim == 3:  # a stored_form
            return pixels.to(self.device).transpose(0, 1).flatten(0, 1)
        images = to_unit(pixels.to(self.device))
        if self.settings.mirror:
            images = with_flipped(images)
        turned = rotations(images, self.learner.rotations).contiguous(memory_format=torch.channels_last)
        return self.protection.net.frozen_features(turned)

    def _network(self, task: int) -> TaskNetwork:
        if task not in self._networks:
            self._networks[task] = TaskNetwork(
                *self.protection.inference_features(task),
                self.heads[task],
                self.learner.rotations,
                self.settings.mirror,
            )
        return self._networks[task]

    @torch.no_grad()
    def stored_form(self, pixels: Tensor) -> Tensor:
        """What the memory keeps of images: where the network begins frozen what that makes of them, which shows no
        picture and stays valid, `[images, rotations, d]`; else the images."""
        if not self.protection.net.has_frozen_backbone or pixels.ndim == 3:
            return pixels
        count = self.learner.rotations
        parts = [self._views(part).view(count, len(part), -1) for part in torch.split(pixels, self._portion)]
        return torch.cat(parts, 1).transpose(0, 1).contiguous()

    def held_out_images(self, task: int) -> Tensor | None:
        own = self.memory.pixels[self.memory.tasks == task]
        return own if len(own) else None

    def gates(self, task: int) -> Gates:
        return self.protection.gates(task)

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        net, rotations, mirror = self.protection.net, self.learner.rotations, self.settings.mirror
        parts = []
        for task in tasks:
            found = self.protection.compact(task)
            if found is None:
                raise UserError(f"{self.name} cannot be exported with soft gates (attention.binary: false).")
            parts.append(TaskScores(*found, self.heads[task], net.n_features, rotations, mirror))
        frozen = net.backbone if isinstance(net, AdapterNet) else None
        return MaskedScores(parts, frozen, rotations, mirror)

    @torch.no_grad()
    def features(self, pixels: Tensor, task: int) -> Tensor:
        """`h(x, k)` of the unrotated images."""
        parts = [self.protection.features(to_unit(part.to(self.device)), task) for part in torch.split(pixels, 256)]
        return torch.cat(parts).cpu()

    @torch.no_grad()
    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, features]` and bias of the head that unrotated images read: its first rows, rotation 0."""
        head, n_classes = self.heads[task], self.tasks[task].n_classes
        n_features, device = self.protection.net.n_features, self.device
        bias = head(torch.zeros(1, n_features, device=device))
        weight = head(torch.eye(n_features, device=device)) - bias  # any linear head, masked ones too
        return weight[:, :n_classes].T.cpu(), bias[0, :n_classes].cpu()

    def calibrations(self) -> dict[str, Affine]:
        n_tasks, cpu = len(self.tasks), torch.device("cpu")
        ways = {
            "memory": Affine(*self.fitted).to(cpu) if self.settings.calibration == "memory" else None,
            "scale": Affine(1 / torch.cat(list(self.typical)).to(cpu), torch.zeros(n_tasks)) if n_tasks else None,
            "none": Affine.identity(n_tasks),
        }
        preferred = self.settings.calibration
        return {name: way for name in (preferred, *ways) if (way := ways[name]) is not None}

    @torch.no_grad()
    def _typical_score(self, task: Task, number: int) -> Tensor:
        """The mean score of the right class on the task's own data: no sample is needed later."""
        # Few photos are known by heart, and each costs a pass through the frozen network: better ask the held-out ones.
        few = self.protection.net.has_frozen_backbone and len(task.validation) > 0
        images = task.validation if few else task.train[slice(0, 2000)]
        own = self.block(images.pixels, number)
        return own.gather(1, images.labels.cpu()[:, None]).mean().clamp(min=1e-6)

    @property
    def calibration_samples(self) -> int | None:
        return self.settings.memory_per_class if self.settings.calibration == "memory" else None

    def recalibrate(self, samples_per_class: int) -> None:
        if self.calibration_samples is None:
            super().recalibrate(samples_per_class)
        self.settings = self.settings.model_copy(update={"memory_per_class": samples_per_class})
        self.memory.shrink(samples_per_class)
        self._fit_to_memory()

    def _fit_to_memory(self) -> None:
        offsets = torch.tensor([0] + [task.n_classes for task in self.tasks]).cumsum(0)
        labels = self.memory.labels.cpu() + offsets[self.memory.tasks.cpu()]
        blocks = self.blocks(self.memory.pixels)
        fitted = fit_to_memory(blocks, labels, self.settings.memory_fit, self._random("calibration"))
        self.set_fitted(fitted)

    def set_fitted(self, fitted: Affine) -> None:
        values = [fitted.scales, fitted.shifts]
        if self.settings.memory_fit.cross is not None:
            n_classes = sum(task.n_classes for task in self.tasks)
            values.append(torch.zeros(len(self.tasks), n_classes) if fitted.cross is None else fitted.cross)
        self.fitted = nn.ParameterList(_constant(value.to(self.device)) for value in values)

    def _random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, len(self.tasks) - 1)


def _forget_networks(method: nn.Module, _: object) -> None:
    """Loaded weights are other weights."""
    assert isinstance(method, MaskedMethod)
    method._networks = {}


class TaskNetwork:
    """A finished task's scores from views: its features and its head, both without what is always zero."""

    def __init__(
        self, features_of: Callable[[Tensor], Tensor], kept: Tensor, head: nn.Module, rotations: int, mirror: bool
    ) -> None:
        self.features_of, self.head, self.rotations, self.mirror = features_of, head, rotations, mirror
        if isinstance(head, nn.Linear) and len(kept) < head.in_features:
            self.head = nn.Linear(len(kept), head.out_features)
            self.head.weight = nn.Parameter(head.weight.detach()[:, kept].contiguous(), requires_grad=False)
            self.head.bias = head.bias

    def __call__(self, views: Tensor) -> Tensor:
        """Eq. 6: rotation r of the image reads block r of the head, and the blocks are averaged."""
        outputs = self.head(self.features_of(views))
        by_rotation = outputs.view(self.rotations, -1, self.rotations, outputs.shape[1] // self.rotations)
        own: Tensor = by_rotation.diagonal(dim1=0, dim2=2)  # [images, classes, rotations]
        scores = own.mean(-1)
        return average_flipped(scores) if self.mirror else scores


def _constant(values: Tensor) -> nn.Parameter:
    """A number that is saved with the model and never trained by a gradient."""
    return nn.Parameter(values, requires_grad=False)
