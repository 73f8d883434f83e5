"""What every system is: something that learns one task after another and scores images for each of them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from clom.data.images import to_unit
from clom.data.stream import Task
from clom.errors import UserError, unknown
from clom.learning.calibration import Affine
from clom.learning.context import TrainingContext
from clom.learning.loop import generator
from clom.learning.random_states import fork_random_states
from clom.methods.families.task_record import TaskRecord
from clom.nets import NetSettings
from clom.nets.data_parallel import broadcast_state
from clom.nets.gates import Gates
from clom.nets.plain import Backbone
from clom.ood.odin import odin_block
from clom.settings import Settings

Capability = Literal["features", "linear_head", "task_logits"]
"""Optional methods of a system that have no default: see `Method.offers`."""
Blocks = list[Tensor]
"""One tensor `[images, classes of the task]` of scores for every learned task; high = belongs."""


@dataclass(frozen=True)
class LearnedTask:
    """What is remembered of a task besides numbers."""

    name: str
    class_names: tuple[str, ...]
    record: TaskRecord | None = None
    """When and from what it was learned, where somebody noted it."""

    @property
    def n_classes(self) -> int:
        return len(self.class_names)


class Method(nn.Module, ABC):
    """A continual learner. `learn` may be called for ever; nothing is announced in advance.

    A system implements `_open_task`, which grows whatever a new task needs (and is all that loading a file needs), and
    `_learn`, which trains it. All its state is in parameters and buffers, so saving and loading are the same for all.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """Its name in print, a colon, what it is."""
    keeps: ClassVar[str] = "not stated"
    """What it stores between tasks."""
    divisible: ClassVar[bool] = False
    """Whether several processes can share its work: it trains the experiment's network and nothing else."""
    settings_type: ClassVar[type[Settings]] = Settings
    exact_memory: bool = False
    """Whether old blocks stay bit-identical for ever, so that scores never need computing twice."""
    needs_pretrained: ClassVar[bool] = False
    """Whether it works on pretrained features only."""

    def __init__(self, net: NetSettings, settings: Settings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__()
        channels, height, width = image_shape
        if height != width:
            raise UserError(f"Images must be square, these are {height} x {width}. Crop or resize them first.")
        self.net_settings, self.settings = net, settings
        self.image_shape = (channels, height, width)
        self.seed = seed
        self.tasks: list[LearnedTask] = []

    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        """Learn one more task. If that fails or is interrupted, the method is as it was before.

        If `context` has checkpoints, an interrupted call with the same task is resumed, and the result is bit-identical
        to that of an uninterrupted one.
        """
        self._check(task)
        task = task.to(self.device)
        before = copy.deepcopy(self)
        context = context or TrainingContext()
        context.attach(self)
        try:
            with seeded(self.seed, "learn", len(self.tasks), device=self.device):
                self.open_task(LearnedTask(task.name, task.class_names))
                self._learn(task, context)
            broadcast_state(self)
            self._check_numbers(task)
            self.zero_grad(set_to_none=True)  # gradients of finished tasks would be kept for ever
        except BaseException:
            self.__dict__.update(before.__dict__)
            raise
        return self

    def forget(self, number: int) -> str:
        """Remove a task; the scores of the others stay as they are to the last bit.

        Returns what of it cannot be taken back, as a sentence, or nothing. If it fails, the method is as it was.
        """
        before = copy.deepcopy(self)
        try:
            forgotten = self.tasks.pop(number)
            with seeded(self.seed, "forget", number):
                return self._forget(number, forgotten)
        except BaseException:
            self.__dict__.update(before.__dict__)
            raise

    def _forget(self, number: int, task: LearnedTask) -> str:
        """Drop what belongs to task `number`, which has just left `self.tasks`."""
        raise UserError(f"{self.name} cannot forget a task: all of its tasks share the same numbers.")

    @property
    def device(self) -> torch.device:
        """Where the method computes; `to` moves it. Images may come from anywhere, scores are returned on the CPU."""
        return next((value.device for value in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    def open_task(self, task: LearnedTask) -> None:
        """Make room for a task without learning it: the first half of `learn`, and how a stored model is rebuilt."""
        self.tasks.append(task)
        device = self.device
        self._open_task(task)  # new parts start on the CPU, so that their initial values do not depend on the device
        place(self, device)

    @abstractmethod
    def _open_task(self, task: LearnedTask) -> None:
        """Grow for `task`, the last of `self.tasks`."""

    @abstractmethod
    def _learn(self, task: Task, context: TrainingContext) -> None:
        """Train on the last of `self.tasks`, whose room was just made."""

    @abstractmethod
    def blocks(self, pixels: Tensor) -> Blocks:
        """Raw scores of images (bytes, or numbers in [0, 1]) for every learned task."""

    def block(self, pixels: Tensor, task: int) -> Tensor:
        """The scores of one task."""
        return self.blocks(pixels)[task]

    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """The blocks of these tasks, by default of all, and how much each image looks like each task's own images,
        `[images, tasks]`; high = belongs.

        Each task's numbers have a scale of their own: compare them with those of its own held-out images
        (`clom.ood.rejection`). A column depends on its task alone, so later tasks never change it.
        """
        blocks = self.blocks(pixels) if tasks is None else [self.block(pixels, task) for task in tasks]
        return blocks, strongest(blocks, len(pixels))

    def belonging(self, pixels: Tensor) -> Tensor:
        """The second of `blocks_and_belonging`, for all tasks."""
        return self.blocks_and_belonging(pixels)[1]

    def task_number(self, name: str) -> int:
        """The position of the task of this name."""
        names = [task.name for task in self.tasks]
        if name not in names:
            raise unknown("task", name, names)
        return names.index(name)

    def sub_network(self, task: int) -> dict[str, Tensor]:
        """Every number that the task's scores are computed from, by name; names do not tell the task's position.

        Two models with equal ones answer alike for the task. Methods whose tasks share everything give everything.
        """
        return dict(self.state_dict())

    @property
    def calibration_name(self) -> str:
        """The name of the preferred calibration."""
        return next(iter(self.calibrations()))

    @property
    def calibration(self) -> Affine:
        """The preferred calibration: the one that predictions use."""
        return self.calibrations()[self.calibration_name]

    # --- optional: what a system may offer besides; callers do without what it does not ------------------------------

    def offers(self, capability: Capability) -> bool:
        """Whether this system implements one of the optional methods that have no default."""
        return getattr(type(self), capability) is not getattr(Method, capability)

    @property
    def least_classes(self) -> int:
        """The fewest classes that a task may have."""
        return 1

    def calibrations(self) -> Mapping[str, Affine]:
        """Ways of making the blocks comparable, the preferred one first; none changes a prediction within a task."""
        return {"none": Affine.identity(len(self.tasks))}

    @property
    def calibration_samples(self) -> int | None:
        """Samples per class that the calibration was fitted to; None for a system that stores none for that."""
        return None

    def recalibrate(self, samples_per_class: int) -> None:
        """Drop stored samples beyond so many per class and fit the calibration again: as if it had been trained with
        that setting."""
        raise UserError(f"{self.name} stores no samples for calibration.")

    def held_out_images(self, task: int) -> Tensor | None:
        """Stored images of a task that it was not trained on, in a form that `blocks` takes; None if there are none."""
        return None

    def gates(self, task: int) -> Gates:
        """Gate group -> gate of each of its units, in [0, 1]; empty for systems without gates."""
        return {}

    def capacity(self) -> Mapping[str, Sequence[float]]:
        """Gate group -> fraction of its units in use after each task; empty for systems without gates."""
        return {}

    def features(self, pixels: Tensor, task: int) -> Tensor:
        """`[images, d]`: what the task's head reads."""
        raise UserError(f"{self.name} offers no features for each task.")

    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, d]` and bias of the linear layer that reads the task's features."""
        raise UserError(f"{self.name} offers no linear heads.")

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        """The task's block of images that are numbers in [0, 1] with three channels, differentiable in the images."""
        raise UserError(f"{self.name} offers no differentiable logits.")

    def odin_block(self, pixels: Tensor, task: int) -> Tensor:
        """The task's ODIN block, by `task_logits`."""
        logits_of = partial(self.task_logits, task=task)
        return torch.cat([odin_block(logits_of, to_unit(part)) for part in torch.split(pixels, 256)])

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        """What export writes: a module from images in [0, 1], `[n, channels, height, width]`, to the raw scores of
        these tasks side by side, `[n, classes]`, and their `belonging`, `[n, tasks]`; in operations that torch.export
        can trace for any n."""
        raise UserError(
            f"{self.name} cannot be exported: it does not say how to compute its scores as one graph "
            "(Method.scoring_graph)."
        )

    def n_parameters(self) -> int:
        """Numbers that inference needs."""
        return sum(p.numel() for p in self.parameters())

    @property
    def memory_bytes(self) -> int:
        """Bytes of training or validation samples kept between tasks."""
        return 0

    def _check_numbers(self, task: Task) -> None:
        """The last step of all can ruin the weights without any loss that shows it."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters()):
            raise UserError(
                f"Learning task '{task.name}' diverged: some weights are no numbers any more. What was learned before "
                "is intact. A smaller learning rate usually helps."
            )

    def _check(self, task: Task) -> None:
        shape = tuple(task.train.pixels.shape[1:])
        if shape != self.image_shape:
            raise UserError(f"Task '{task.name}' has images of shape {shape}, this model learns {self.image_shape}.")
        if task.n_classes < 1 or len(task.train) == 0:
            raise UserError(f"Task '{task.name}' has nothing to learn: {task.n_classes} classes, no images.")
        known = {name for learned in self.tasks for name in learned.class_names}
        again = known.intersection(task.class_names)
        if again:
            raise UserError(f"Task '{task.name}' brings classes that were learned before: {', '.join(sorted(again))}.")
        missing = set(range(task.n_classes)) - set(task.train.labels.tolist())
        if missing:
            names = ", ".join(task.class_names[label] for label in sorted(missing))
            raise UserError(f"Task '{task.name}' has no training images of: {names}.")


def strongest(blocks: Blocks, n_images: int) -> Tensor:
    """The highest score of every block, `[images, tasks]`."""
    return torch.stack([block.max(1).values for block in blocks], 1) if blocks else torch.empty(n_images, 0)


def place(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device, in the memory layout in which convolutions are fastest; values do not change."""
    module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for part in module.modules():
        if isinstance(part, Backbone) and part.is_plain:
            part.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextmanager
def seeded(seed: int, *path: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Torch's own randomness (initial weights, dropout), of the CPU and of `device`, from this seed inside, and
    undisturbed outside."""
    with fork_random_states(device):
        torch.manual_seed(generator(seed, *path).initial_seed())
        yield
