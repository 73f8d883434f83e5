"""A learned task's sub-network and head, for inference.

Tested by tests/methods/families/test_task_network.py.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from clom.data.views import average_flipped


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

    def __call__(self, views: Tensor) -> Tensor:
        """Eq. 6: rotation r of the image reads block r of the head, and the blocks are averaged."""
        return self.outputs(views)[0]

    def outputs(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """The scores, and the features of every rotation, `[images, rotations, d]`; not those of flipped images."""
        features = self.features_of(views)
        return self._scores(self.head(features)), self._by_image(features)

    def _by_image(self, features: Tensor) -> Tensor:
        by_rotation = features.view(self.rotations, -1, features.shape[1]).transpose(0, 1)
        return by_rotation[: len(by_rotation) // 2] if self.flip_tta else by_rotation

    def _scores(self, outputs: Tensor) -> Tensor:
        by_rotation = outputs.view(self.rotations, -1, self.rotations, outputs.shape[1] // self.rotations)
        own: Tensor = by_rotation.diagonal(dim1=0, dim2=2)  # [images, classes, rotations]
        scores = own.mean(-1)
        return average_flipped(scores) if self.flip_tta else scores
