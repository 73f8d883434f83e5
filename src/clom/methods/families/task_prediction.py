"""What a masked method keeps for its task predictor: statistics of every task, and what was fitted to stored samples.

Tested by tests/methods/families/test_task_prediction.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.ood.predictors.base import NEEDS, StoredSamples, TaskOutputs, TaskPredictor, joint
from clom.ood.predictors.statistics import TaskStatistics, size_of_triangle
from clom.ood.registry import PREDICTORS


class TaskPrediction(nn.Module):
    """A module, so that it is saved with the model. Statistics of learned tasks never change; only what was learned
    from the samples is fitted again after each task."""

    def __init__(self, name: str | None, has_samples: bool) -> None:
        super().__init__()
        self.statistics = nn.ModuleList()
        self.learned = NamedTensors()
        self._predictor: TaskPredictor | None = None
        self.use(name, has_samples)

    def use(self, name: str | None, has_samples: bool) -> None:
        """Choose another predictor, or none, which must then be fitted. Raises UserError if it cannot work."""
        needs = () if name is None else PREDICTORS.get(name).needs
        if "score" in needs:
            raise UserError(f"The predictor '{name}' needs {NEEDS['score']}: it is for 'clom scores' only.")
        if "samples" in needs and not has_samples:
            raise UserError(
                f"The predictor '{name}' needs stored samples: set calibration to memory and memory_per_class above "
                "0, or choose a predictor that needs none."
            )
        if "statistics" in needs:
            self.all_statistics()  # raises if there are none
        self.name, self._predictor = name, None

    @property
    def needs(self) -> tuple[str, ...]:
        """What the chosen predictor needs; nothing without one."""
        return () if self.name is None else tuple(PREDICTORS.get(self.name).needs)

    @property
    def n_bytes(self) -> int:
        """Bytes of the statistics of all tasks and of what was fitted."""
        parts = [*self.statistics.buffers(), *self.learned.buffers()]
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def kept_bytes(self) -> int:
        """The part of it that the chosen predictor uses."""
        parts = [*self.learned.buffers(), *(self.statistics.buffers() if "statistics" in self.needs else [])]
        return sum(part.numel() * part.element_size() for part in parts)

    def open_task(self) -> None:
        self.statistics.append(NamedTensors())

    def forget(self, task: int) -> None:
        del self.statistics[task]
        self._predictor = None

    def record(self, task: int, statistics: TaskStatistics, device: torch.device) -> None:
        """Store the statistics of a task that was just learned, on the method's device."""
        self._of(task).set(vars(statistics), device)

    def has_statistics(self, task: int) -> bool:
        return bool(self._of(task).get())

    def all_statistics(self) -> list[TaskStatistics]:
        """The statistics of all tasks, on the CPU."""
        found = [self._of(task).get() for task in range(len(self.statistics))]
        if not all(found):
            raise UserError(
                "This model has no statistics of its tasks' data, which the task predictor needs: it was learned by an "
                "earlier version, or with statistics: false."
            )
        return [TaskStatistics(**tensors) for tensors in found]

    @torch.no_grad()
    def fit(self, samples: StoredSamples | None, device: torch.device) -> None:
        """Fit the chosen predictor after a task was learned or forgotten."""
        self._predictor = None  # what was learned is rounded to float32 first, as after loading
        learned = {}
        if self.name is not None and len(self.statistics):
            learned = PREDICTORS.get(self.name)().fit(self._used_statistics(), samples).learned
        self.learned.set({name: value.float() for name, value in learned.items()}, device)

    def _used_statistics(self) -> list[TaskStatistics]:
        return self.all_statistics() if "statistics" in self.needs else []

    def __call__(self, outputs: Sequence[TaskOutputs]) -> list[Tensor]:
        """The blocks of all tasks, made comparable by the predictor's scores."""
        return joint([task.block for task in outputs], self.predictor()(outputs))

    def predictor(self) -> TaskPredictor:
        """The fitted predictor; after loading it is restored on first use."""
        if self._predictor is None:
            assert self.name is not None
            predictor = PREDICTORS.get(self.name)()
            predictor.learned = self.learned.get()
            self._predictor = predictor.fit(self._used_statistics(), None)
        return self._predictor

    def _of(self, task: int) -> NamedTensors:
        found = self.statistics[task]
        assert isinstance(found, NamedTensors)
        return found

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: object) -> None:
        self._predictor = None
        for task in range(len(self.statistics)):
            _check_statistics({name: state.get(f"{prefix}statistics.{task}.{name}") for name in _STATISTICS})
        super()._load_from_state_dict(state, prefix, *args)


_STATISTICS = ("means", "covariance", "usual")


def _check_statistics(tensors: Mapping[str, Tensor | None]) -> None:
    """Raise unless there are no statistics, as in files of earlier versions, or they fit together."""
    means, covariance, usual = (tensors[name] for name in _STATISTICS)
    if means is None and covariance is None and usual is None:
        return
    if means is None or covariance is None or usual is None or means.ndim != 3 or usual.shape[1:] != (2,):
        raise ValueError("the statistics of a task are incomplete")
    if covariance.ndim != 1 or size_of_triangle(len(covariance)) != means.shape[2]:
        raise ValueError("the statistics of a task do not fit together")


class NamedTensors(nn.Module):
    """Tensors by name; which ones there are, and their shapes, is part of the state."""

    def set(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Replace all tensors."""
        for name in list(self._buffers):
            delattr(self, name)
        for name, value in sorted(tensors.items()):
            self.register_buffer(name, value.detach().clone().to(device))

    def get(self) -> dict[str, Tensor]:
        """All tensors, on the CPU, where predictors compute in float64."""
        return {name: value.cpu() for name, value in self.named_buffers()}

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: object) -> None:
        names = [name.removeprefix(prefix) for name in state if name.startswith(prefix)]
        device = next((value.device for value in self.buffers()), torch.device("cpu"))
        self.set({name: torch.empty_like(state[prefix + name]) for name in names}, device)
        super()._load_from_state_dict(state, prefix, *args)
