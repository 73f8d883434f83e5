"""A learned task's sub-network and head, for inference.

Tested by tests/methods/families/test_task_network.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from clom.data.views import average_flipped
from clom.nets.passes import counting
from clom.threads import Workers


class TaskNetwork:
    """A learned task's scores from views, by the compact network and head: closed units are cut off.

    `features_of` computes the features at the indices `kept`; the others are always zero.
    """

    def __init__(
        self, features_of: Callable[[Tensor], Tensor], kept: Tensor, head: nn.Module, rotations: int, flip_tta: bool
    ) -> None:
        self.features_of, self.head, self.rotations, self.flip_tta = features_of, head, rotations, flip_tta
        if isinstance(head, nn.Linear) and len(kept) < head.in_features:
            self.head = nn.Linear(len(kept), head.out_features)
            self.head.weight = nn.Parameter(head.weight.detach()[:, kept].contiguous(), requires_grad=False)
            self.head.bias = head.bias
        self._same_in_chunks: dict[tuple[torch.Size, int], bool] = {}

    def __call__(self, views: Tensor) -> Tensor:
        """Eq. 6: rotation r of the image reads block r of the head, and the blocks are averaged."""
        return self.outputs(views)[0]

    def outputs(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """The scores, and the features of every rotation, `[images, rotations, d]`; not those of flipped images."""
        return self.read(self.features_of(views))

    def read(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """`outputs`, from the features of all views."""
        return self._scores(self.head(features)), self._by_image(features)

    def has_same_bits_in_chunks(self, shape: torch.Size, chunks: int) -> bool:
        """Whether the features of views of this shape are the same if they are computed in equal chunks: so far always
        true of convolutions, while sums in matrix products may depend on the number of rows. Tried out once."""
        if (shape, chunks) not in self._same_in_chunks:
            (same,) = Workers().run_on_one_thread_each([partial(self._compare_chunks, shape, chunks)])
            self._same_in_chunks[shape, chunks] = same
        return self._same_in_chunks[shape, chunks]

    @torch.no_grad()
    def _compare_chunks(self, shape: torch.Size, chunks: int) -> bool:
        views = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        views = views.contiguous(memory_format=torch.channels_last) if views.ndim == 4 else views
        with counting(None):
            divided = [self.features_of(chunk) for chunk in views.chunk(chunks)]
            return torch.equal(torch.cat(divided), self.features_of(views))

    def _by_image(self, features: Tensor) -> Tensor:
        by_rotation = features.view(self.rotations, -1, features.shape[1]).transpose(0, 1)
        return by_rotation[: len(by_rotation) // 2] if self.flip_tta else by_rotation

    def _scores(self, outputs: Tensor) -> Tensor:
        by_rotation = outputs.view(self.rotations, -1, self.rotations, outputs.shape[1] // self.rotations)
        own: Tensor = by_rotation.diagonal(dim1=0, dim2=2)  # [images, classes, rotations]
        scores = own.mean(-1)
        return average_flipped(scores) if self.flip_tta else scores
