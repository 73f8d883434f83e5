"""The training loop of all methods: shuffled batches, schedule, step, progress. A method supplies its loss."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import SerializerFunctionWrapHandler, model_serializer
from torch import Tensor
from torch.optim import Optimizer

from clom.data.images import Images
from clom.learning.context import State, TrainingContext
from clom.learning.distributed import average_gradients
from clom.learning.progress import Progress
from clom.learning.schedule import Plateau, PlateauTracker, Schedule, Validator
from clom.settings import Positive, Settings


class Plan(Settings):
    """Epochs, batch size and learning-rate schedule of one training phase."""

    epochs: Positive = 30
    batch: Positive = 32
    schedule: Schedule = Schedule()
    plateau: Plateau | None = None
    """Also lower the rate by validation scores; the factors of schedule and plateau multiply."""

    @model_serializer(mode="wrap")
    def _without_plateau(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans without a plateau are written as before the setting existed, so that older runs are recognised."""
        values: dict[str, Any] = dump(self)
        return {name: value for name, value in values.items() if name != "plateau" or value is not None}


@dataclass(frozen=True)
class Batch:
    """The samples of one step, and its position in the epoch (0 at the first batch, always below 1)."""

    index: Tensor
    position: float
    step: int
    rows: Tensor
    """`index` on the CPU."""

    def pixels_of(self, images: Images) -> Tensor:
        """The batch's pixels, on the device of `index`, wherever they are stored."""
        return images.fetch(self.index if images.on_one_device else self.rows)

    def sweep_position(self, sweep: int | None) -> float:
        """Position in [0, 1) within an annealing sweep of `sweep` steps; by default a sweep is an epoch."""
        return self.position if sweep is None else self.step % sweep / sweep


def generator(seed: int, *path: int | str) -> torch.Generator:
    """An independent random generator for each purpose, so that adding one never changes the draws of another."""
    text = "/".join(str(part) for part in (seed, *path))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def shuffled_batches(n: int, batch: int, randomness: torch.Generator) -> tuple[Tensor, ...]:
    """All samples once, in random order, in batches of equal size (a tiny last batch would distort batch
    statistics)."""
    return torch.randperm(n, generator=randomness).tensor_split(max(1, round(n / batch)))


class Batches:
    """Endless epochs of shuffled batches. Resumes within an epoch from the random state at the epoch's start."""

    def __init__(self, n: int, batch: int, randomness: torch.Generator, device: torch.device | None = None) -> None:
        """Indices are drawn on the CPU, identically for every device, and moved to `device` once per epoch."""
        self._device = device or torch.device("cpu")
        self.per_epoch = max(1, round(n / batch))
        self._size, self._randomness = (n, batch), randomness
        self._began = randomness.get_state()
        self._order: tuple[Tensor, ...] = ()
        self._rows: tuple[Tensor, ...] = ()
        self._next = 0

    def _begin(self) -> None:
        self._began = self._randomness.get_state()
        self._rows = shuffled_batches(*self._size, self._randomness)
        self._order = torch.split(torch.cat(self._rows).to(self._device), [len(rows) for rows in self._rows])
        self._next = 0

    def next(self) -> Tensor:
        """Sample indices of the next batch."""
        if self._next == len(self._order):
            self._begin()
        self._next += 1
        return self._order[self._next - 1]

    @property
    def rows(self) -> Tensor:
        """The indices that `next` returned last, on the CPU."""
        return self._rows[self._next - 1]

    @property
    def mean_size(self) -> float:
        return self._size[0] / self.per_epoch

    def state_dict(self) -> dict[str, Any]:
        return {"began": self._began, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._randomness.set_state(state["began"])
        self._begin()
        self._next = state["next"]


def fit(
    loss_of: Callable[[Batch], Tensor],
    optimiser: Optimizer,
    plan: Plan,
    n_samples: int,
    randomness: torch.Generator,
    *,
    state: Sequence[State] = (),
    task: int = 0,
    phase: str = "learning",
    before_step: Callable[[], None] | None = None,
    after_step: Callable[[], None] | None = None,
    validator: Validator | None = None,
    context: TrainingContext | None = None,
) -> None:
    """Minimise `loss_of` over `plan.epochs` epochs of `n_samples` samples.

    `state` is everything else that changes and is not part of the method or passed here: generators that `loss_of`
    draws from, networks outside the method. An interrupted task needs it to resume (`clom.learning.context`).
    `plan.plateau` needs a `validator`, and may end the training before the last epoch.
    """
    context = context or TrainingContext()
    base_rates = [group["lr"] for group in optimiser.param_groups]
    device = optimiser.param_groups[0]["params"][0].device
    batches = Batches(n_samples, plan.batch, randomness, device)
    total = plan.epochs * batches.per_epoch
    # Gradients of float16 underflow unless the loss is scaled; otherwise the scaler does nothing.
    scaler = torch.amp.GradScaler(device.type, enabled=context.precision == "float16")
    more_state: list[State] = [scaler] if scaler.is_enabled() else []
    plateau = None if plan.plateau is None else PlateauTracker(plan.plateau, validator, max(base_rates))
    if plateau is not None:
        more_state.append(plateau)

    def ended() -> bool:
        return plateau is not None and plateau.ended

    for step in context.steps(total, optimiser, batches, *state, *more_state, ended=ended):
        epoch, number = divmod(step, batches.per_epoch)
        position = number / batches.per_epoch
        for group, rate in zip(optimiser.param_groups, base_rates, strict=True):
            group["lr"] = rate * plan.schedule.factor(epoch + position, plan.epochs)
            if plateau is not None:
                group["lr"] *= plateau.factor
        loss = loss_of(Batch(batches.next(), position, step, batches.rows))
        optimiser.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimiser)
        average_gradients(optimiser)
        if before_step is not None:
            before_step()
        scaler.step(optimiser)
        scaler.update()
        if after_step is not None:
            after_step()
        if plateau is not None and number == batches.per_epoch - 1:
            plateau.after_epoch()
        done = total if ended() else step + 1
        rates = tuple(group["lr"] for group in optimiser.param_groups)
        context.report_step(Progress(task, phase, done, total, epoch + 1, plan.epochs, rates=rates), loss)
    if plateau is not None:
        plateau.restore_best()
