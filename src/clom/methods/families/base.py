"""`Method`, the base class of all continual learners."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from clom.data.images import Images, to_unit
from clom.data.stream import Task
from clom.errors import UserError, unknown
from clom.learning.calibration import Affine
from clom.learning.context import TrainingContext, check_weights
from clom.learning.precision import DTYPES
from clom.machine import device_memory
from clom.methods.families.extension import Extension, cannot_extend
from clom.methods.families.initialisation import move as move
from clom.methods.families.initialisation import place as place
from clom.methods.families.initialisation import seeded as seeded
from clom.methods.families.task_record import LearnedTask as LearnedTask
from clom.methods.families.task_record import check_task
from clom.nets import NetSettings
from clom.nets.compiling import compiled_networks
from clom.nets.data_parallel import broadcast_state
from clom.nets.gates import Gates
from clom.nets.passes import counting
from clom.nets.precision import network_dtype
from clom.ood.odin import odin_block
from clom.ood.predictors.base import Decision, TaskOutputs, decided
from clom.settings import Settings, flatten

Capability = Literal["extend", "features", "linear_head", "task_logits"]
"""Optional functions of a method without a default: see `Method.offers`."""
Blocks = list[Tensor]
"""One score tensor `[images, classes of the task]` per learned task; high = belongs."""


class Method(nn.Module, ABC):
    """A continual learner. `learn` may be called any number of times; the number of tasks is not known in advance.

    A subclass implements `_open_task`, which adds the modules of a new task (loading a file needs nothing else),
    `_learn`, which trains them, and `blocks`. All state is in parameters and buffers, so saving and loading work for
    every subclass.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """The label for tables and figures, a colon, and a short description."""
    keeps: ClassVar[str] = "not stated"
    """What it stores between tasks."""
    work_depends_on_seed: ClassVar[bool] = False
    """Whether runs with different seeds use different numbers of training passes."""
    divisible: ClassVar[bool] = False
    """Whether training can be distributed over processes: it trains the experiment's network and nothing else."""
    deviations: ClassVar[tuple[str, ...]] = ()
    """Sentences about how it differs from its publication."""
    settings_type: ClassVar[type[Settings]] = Settings
    exact_memory: bool = False
    """Whether the blocks of learned tasks stay bit-identical, so that scores can be cached."""
    fetches_batches: ClassVar[bool] = False
    """Whether training images may stay in the CPU's memory, because they are read only by `Images.fetch`."""
    needs_pretrained: ClassVar[bool] = False
    exports_decision: ClassVar[bool] = False
    """Whether `scoring_graph` of all tasks gives comparable scores, although a task predictor decides."""

    def __init__(self, net: NetSettings, settings: Settings, image_shape: Sequence[int], seed: int = 0) -> None:
        super().__init__()
        channels, height, width = image_shape
        if height != width:
            raise UserError(f"Images must be square, but these are {height} x {width}. Crop or resize them first.")
        self.net_settings, self.settings = net, settings
        self.image_shape = (channels, height, width)
        self.seed = seed
        self.tasks: list[LearnedTask] = []

    def learn(self, task: Task, context: TrainingContext | None = None) -> Self:
        """Learn one more task. If that fails or is interrupted, the method is unchanged.

        If `context` has checkpoints, an interrupted call with the same task is resumed, with a bit-identical result.
        """
        check_task(task, self.tasks, self.image_shape)
        task = self._placed(task)
        before = copy.deepcopy(self)
        context = context or TrainingContext()
        context.attach(self)
        try:
            with (
                seeded(self.seed, "learn", len(self.tasks), device=self.device),
                network_dtype(DTYPES[context.precision]),
                counting(context.passes),
            ):
                self.open_task(LearnedTask(task.name, task.class_names, units=self._units_for_next_task()))
                with compiled_networks(self, context.compile_with):
                    self._learn(task, context)
            broadcast_state(self)
            check_weights(self, task.name)
            self.zero_grad(set_to_none=True)  # otherwise gradients of learned tasks would stay in memory
        except BaseException as problem:
            self.__dict__.update(before.__dict__)
            if isinstance(problem, torch.OutOfMemoryError):
                raise self._out_of_memory(task, context) from problem
            raise
        return self

    def _placed(self, task: Task) -> Task:
        """The task on the method's device, but for training images that would take more than a quarter of its memory,
        if the method can fetch them batch by batch."""
        device, memory = self.device, device_memory(self.device)
        if not self.fetches_batches or memory is None or task.train.pixels.nbytes <= memory / 4:
            return task.to(device)
        return replace(task, train=task.train.labels_to(device), validation=task.validation.to(device))

    def _out_of_memory(self, task: Task, context: TrainingContext) -> UserError:
        batches = [value for name, value in flatten(self.settings.model_dump()).items() if name.endswith("plan.batch")]
        batch = f"batches of {batches[0]}" if batches else "its batches"
        return UserError(
            f"The memory of {self.device} does not suffice to learn task '{task.name}' with {batch} in "
            f"{context.precision}. What was learned before is intact. A smaller batch (--set ...plan.batch), a lower "
            "precision (--precision bfloat16) or a narrower network needs less."
        )

    def extend(self, images: Images, class_names: Sequence[str], context: TrainingContext | None = None) -> Extension:
        """Improve known classes from more images, whose labels are indices into `class_names`; `sub_network` of other
        tasks stays bit-identical. If it fails or is interrupted, the method is unchanged."""
        raise cannot_extend(self.name)

    def forget(self, number: int) -> str:
        """Remove a task; the scores of the others stay bit-identical.

        Returns a sentence about traces of the task that remain, or an empty string. If it fails, nothing changes.
        """
        before = copy.deepcopy(self)
        try:
            forgotten = self.tasks.pop(number)
            self.tasks[:] = [task.without_merges_into(forgotten.class_names) for task in self.tasks]
            with seeded(self.seed, "forget", number):
                return self._forget(number, forgotten)
        except BaseException:
            self.__dict__.update(before.__dict__)
            raise

    def _forget(self, number: int, task: LearnedTask) -> str:
        """Drop the modules of task `number`, which has already been removed from `self.tasks`."""
        raise UserError(f"{self.name} cannot forget a task: all its tasks share the same weights.")

    @property
    def device(self) -> torch.device:
        """The device of the method; `to` moves it. Images may be on any device, scores are returned on the CPU."""
        some = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if some is None else some.device

    def open_task(self, task: LearnedTask) -> None:
        """Add the modules of a task without training them: the first step of `learn`, and how a file is loaded."""
        self.tasks.append(task)
        device = self.device
        self._open_task(task)  # initialised on the CPU, so that initial values do not depend on the device
        place(self, device)

    def _units_for_next_task(self) -> Mapping[str, int]:
        return {}

    @abstractmethod
    def _open_task(self, task: LearnedTask) -> None:
        """Add the modules of `task`, the last of `self.tasks`."""

    @abstractmethod
    def _learn(self, task: Task, context: TrainingContext) -> None:
        """Train the last of `self.tasks`, whose modules exist already."""

    @abstractmethod
    def blocks(self, pixels: Tensor) -> Blocks:
        """Uncalibrated scores of images (uint8, or floats in [0, 1]) for every learned task."""

    def block(self, pixels: Tensor, task: int) -> Tensor:
        """The scores of one task."""
        return self.blocks(pixels)[task]

    def blocks_and_belonging(self, pixels: Tensor, tasks: Sequence[int] | None = None) -> tuple[Blocks, Tensor]:
        """The blocks of these tasks (default: all) and each task's in-distribution scores, `[images, tasks]`;
        high = belongs.

        In-distribution scores of different tasks have different scales: compare them with those of the task's held-out
        images (`clom.ood.rejection`). A column depends on its task alone, so later tasks never change it.
        """
        blocks = self.blocks(pixels) if tasks is None else [self.block(pixels, task) for task in tasks]
        return blocks, strongest(blocks, len(pixels))

    def belonging(self, pixels: Tensor) -> Tensor:
        """The in-distribution scores of `blocks_and_belonging`, for all tasks."""
        return self.blocks_and_belonging(pixels)[1]

    def task_number(self, name: str) -> int:
        """The index of the task with this name."""
        names = [task.name for task in self.tasks]
        if name not in names:
            raise unknown("task", name, names)
        return names.index(name)

    def sub_network(self, task: int) -> dict[str, Tensor]:
        """All tensors that the task's scores are computed from, under names that do not depend on the task's index.

        Equal sub-networks give equal scores. By default, for methods whose tasks share all weights, the state dict.
        """
        return dict(self.state_dict())

    @property
    def calibration_name(self) -> str:
        return next(iter(self.calibrations()))

    @property
    def calibration(self) -> Affine:
        """The preferred calibration, which predictions use."""
        return self.calibrations()[self.calibration_name]

    # --- optional ----------------------------------------------------------------------------------------------------

    def offers(self, capability: Capability) -> bool:
        """Whether this method implements an optional function that has no default."""
        return getattr(type(self), capability) is not getattr(Method, capability)

    @property
    def least_classes(self) -> int:
        """The smallest number of classes that a task may have."""
        return 1

    def calibrations(self) -> Mapping[str, Affine]:
        """Calibrations that make blocks comparable, the preferred one first; none changes a TIL prediction."""
        return {"none": Affine.identity(len(self.tasks))}

    def decisions(self) -> Mapping[str, Affine | Decision]:
        """Ways to compare classes of different tasks, the preferred one first: task predictors and calibrations."""
        return self.calibrations()

    def comparable_blocks(self, pixels: Tensor) -> Blocks:
        """The blocks of all tasks as the preferred decision compares them: CIL predicts the class with the largest
        entry."""
        return decided(next(iter(self.decisions().values())), self.all_outputs(pixels, self.decides_by_features))

    def comparable_and_belonging(self, pixels: Tensor) -> tuple[Blocks, Tensor]:
        """`comparable_blocks` and `belonging`, from one pass if possible."""
        outputs = self.all_outputs(pixels, self.decides_by_features)
        compared = decided(next(iter(self.decisions().values())), outputs)
        if not self._belongs_by_scores:
            return compared, self.belonging(pixels)
        return compared, strongest([task.block for task in outputs], len(pixels))

    @property
    def _belongs_by_scores(self) -> bool:
        """Whether the in-distribution score of a task is the largest entry of its block."""
        return type(self).blocks_and_belonging is Method.blocks_and_belonging

    @property
    def uses_predictor(self) -> bool:
        """Whether the preferred decision is a task predictor, so that the calibration alone does not decide."""
        return not isinstance(next(iter(self.decisions().values())), Affine)

    @property
    def decides_by_features(self) -> bool:
        """Whether a decision needs the features of `outputs`."""
        return False

    def outputs(self, pixels: Tensor, task: int, with_features: bool) -> TaskOutputs:
        """The outputs of a task's model that decisions are made from; the features only if they are asked for."""
        return TaskOutputs(self.block(pixels, task))

    def all_outputs(self, pixels: Tensor, with_features: bool) -> list[TaskOutputs]:
        """The outputs of all tasks."""
        if with_features:
            return [self.outputs(pixels, task, with_features) for task in range(len(self.tasks))]
        return [TaskOutputs(block) for block in self.blocks(pixels)]

    @property
    def calibration_samples(self) -> int | None:
        """Stored samples per class that the calibration is fitted to; None if the method stores none."""
        return None

    def recalibrate(self, samples_per_class: int) -> None:
        """Keep this many stored samples per class and refit the calibration, as if trained with that setting."""
        raise UserError(f"{self.name} stores no samples for calibration.")

    def held_out_images(self, task: int) -> Tensor | None:
        """Stored images of a task that were held out from training, as input for `blocks`; None if there are none."""
        return None

    def held_out_labels(self, task: int) -> Tensor | None:
        """The labels of `held_out_images` within the task, on the CPU."""
        return None

    def gates(self, task: int) -> Gates:
        """Gate group -> gate of each unit, in [0, 1]; empty for methods without gates."""
        return {}

    def capacity(self) -> Mapping[str, Sequence[float]]:
        """Gate group -> fraction of the units of the time in use after each task; empty for methods without gates."""
        return {}

    def unit_counts(self) -> Mapping[str, Sequence[int]]:
        """Gate group -> the number of its units when each task was learned; empty if it is not known."""
        return {}

    def training_values(self) -> Mapping[str, float]:
        """What can be followed while the last task is learned, besides losses and rates, by name; read now and then."""
        return {}

    def features(self, pixels: Tensor, task: int) -> Tensor:
        """The input of the task's head, `[images, d]`."""
        raise UserError(f"{self.name} has no features per task.")

    def linear_head(self, task: int) -> tuple[Tensor, Tensor]:
        """Weight `[classes, d]` and bias of the task's linear head."""
        raise UserError(f"{self.name} has no linear heads.")

    def task_logits(self, images: Tensor, task: int) -> Tensor:
        """The task's block for float images in [0, 1] with three channels, differentiable in the images."""
        raise UserError(f"{self.name} has no differentiable logits.")

    def odin_block(self, pixels: Tensor, task: int) -> Tensor:
        """The task's ODIN block, computed from `task_logits`."""
        logits_of = partial(self.task_logits, task=task)
        return torch.cat([odin_block(logits_of, to_unit(batch)) for batch in torch.split(pixels, 256)])

    def scoring_graph(self, tasks: Sequence[int]) -> nn.Module:
        """The module to export: from images in [0, 1], `[n, channels, height, width]`, to the concatenated uncalibrated
        scores of these tasks, `[n, classes]`, and their `belonging`, `[n, tasks]`. torch.export must be able to trace
        it for any n."""
        raise UserError(f"{self.name} cannot be exported: it does not implement Method.scoring_graph.")

    def n_parameters(self) -> int:
        """Parameters needed for inference."""
        return sum(p.numel() for p in self.parameters())

    @property
    def memory_bytes(self) -> int:
        """Bytes of training or validation samples stored between tasks."""
        return 0


def strongest(blocks: Blocks, n_images: int) -> Tensor:
    """The highest score of every block, `[images, tasks]`."""
    return torch.stack([block.max(1).values for block in blocks], 1) if blocks else torch.empty(n_images, 0)
