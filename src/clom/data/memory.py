"""The replay buffer: the few samples a method stores between tasks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clom.data.images import Images


class Memory(nn.Module):
    """Stored images with their task and their class within it. A module, so that it is saved with the model.

    The images of a class stay in the order in which they were added; callers may add the most representative first.
    Pixels are uint8 or floats in [0, 1], as added; or features instead of images, `[n, views, d]`.
    """

    pixels: Tensor
    labels: Tensor
    tasks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pixels", torch.empty(0, 0, 0, 0, dtype=torch.uint8))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("tasks", torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_bytes(self) -> int:
        return self.pixels.numel() * self.pixels.element_size()

    def add(self, task: int, pixels: Tensor, labels: Tensor) -> None:
        """Store images of one task."""
        self.pixels = torch.cat([self.pixels, pixels]) if len(self) else pixels.clone()
        self.labels = torch.cat([self.labels, labels])
        self.tasks = torch.cat([self.tasks, torch.full_like(labels, task)])

    def shrink(self, count: int) -> None:
        """Drop all but the first `count` images of every class."""
        self._keep_first(count, torch.stack([self.tasks, self.labels], 1))

    def shrink_tasks(self, count: int) -> None:
        """Drop all but the first `count` images of every task."""
        self._keep_first(count, self.tasks[:, None])

    def _keep_first(self, count: int, groups: Tensor) -> None:
        kept = torch.zeros(len(self), dtype=torch.bool, device=self.labels.device)
        for group in torch.unique(groups, dim=0):
            kept[(groups == group).all(1).nonzero().flatten()[:count]] = True
        self.select(kept)

    def forget(self, task: int) -> None:
        """Remove the images of a task; the numbers of later tasks decrease by one."""
        self.select(self.tasks != task)
        self.tasks = self.tasks - (self.tasks > task).long()

    def select(self, kept: Tensor) -> None:
        """Keep only these images, given by row indices or a mask."""
        self.pixels, self.labels, self.tasks = self.pixels[kept], self.labels[kept], self.tasks[kept]

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: object) -> None:
        pixels, labels, tasks = (state.get(prefix + name) for name in ("pixels", "labels", "tasks"))
        if pixels is not None and labels is not None and tasks is not None:
            kinds = {(value.dtype, value.shape) for value in (labels, tasks)}
            if pixels.ndim not in (3, 4) or kinds != {(torch.int64, pixels.shape[:1])}:
                raise ValueError(f"{prefix}labels and {prefix}tasks do not match the stored images")
        # The size of the buffer is part of its state.
        for name in ("pixels", "labels", "tasks"):
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name], device=self.labels.device))
        super()._load_from_state_dict(state, prefix, *args)


def per_class(images: Images, count: int, randomness: torch.Generator) -> Images:
    """`count` random images of every class, or all of them if it has fewer."""
    chosen = []
    for label in torch.unique(images.labels):
        index = (images.labels == label).nonzero().flatten()
        chosen.append(index[torch.randperm(len(index), generator=randomness)[:count].to(index.device)])
    return images[torch.cat(chosen)]
