"""Views of photos for frozen networks: horizontal flips and mild crops, the same for every photo.

Tested by tests/methods/families/test_frozen.py.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def _crop(images: Tensor, share: float) -> Tensor:
    """The middle of the images, `share` of their sides, at their former size."""
    side = images.shape[-1]
    inner = max(1, round(share * side))
    start = (side - inner) // 2
    middle = images[:, :, start : start + inner, start : start + inner]
    return F.interpolate(middle, (side, side), mode="bilinear", antialias=True)


PHOTO_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda images: images,
    "flipped": lambda images: images.flip(3),
    "middle": lambda images: _crop(images, 0.85),
    "flipped middle": lambda images: _crop(images, 0.85).flip(3),
}
"""Functions of images `[n, 3, side, side]` in [0, 1], in the order in which they are used."""
