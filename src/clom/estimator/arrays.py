"""Rows of numbers, as scikit-learn passes them around, to the square byte images that methods learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Shape = tuple[int, int, int]
SMALLEST_SIDE = 8
"""Smaller pictures are enlarged by a whole factor: the networks halve them two or three times."""


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a row go: channels, height, width, and whether that is a picture or a vector's mere form."""

    shape: Shape
    picture: bool = True

    @property
    def side(self) -> int:
        """Pixels of the square that methods see."""
        longest = max(self.shape[1:])
        return longest * math.ceil(SMALLEST_SIDE / longest)

    def images(self, rows: NDArray[np.uint8]) -> Tensor:
        """`[n, channels, side, side]`; black fills up short rows, and oblong pictures on both sides."""
        channels, height, width = self.shape
        filled = np.zeros((len(rows), channels * height * width), np.uint8)
        filled[:, : rows.shape[1]] = rows
        longest = max(height, width)
        square = np.zeros((len(rows), channels, longest, longest), np.uint8)
        top, left = (longest - height) // 2, (longest - width) // 2
        square[:, :, top : top + height, left : left + width] = filled.reshape(-1, channels, height, width)
        factor = self.side // longest
        return torch.from_numpy(square.repeat(factor, 2).repeat(factor, 3))


def form_of(X: Any) -> Shape | None:
    """Channels, height and width of images that are given as images; None of rows of numbers."""
    numbers = np.shape(X) if isinstance(X, list | tuple) else tuple(getattr(X, "shape", ()))
    if len(numbers) == 3:
        return 1, int(numbers[1]), int(numbers[2])
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if len(numbers) == 4 else None


def layout_of(n_features: int, image_shape: Sequence[int] | None) -> Layout:
    """What `image_shape` says, or else a guess from the number of features.

    A square number is a grey picture, three times a square (from 8 x 8) a colour picture with its channels first;
    anything else is a vector, which is filled up to the next square.
    """
    if image_shape is not None:
        return Layout(_checked_shape(image_shape, n_features))
    root, third = math.isqrt(n_features), math.isqrt(n_features // 3)
    if root * root == n_features:
        return Layout((1, root, root), picture=root >= SMALLEST_SIDE)
    if 3 * third * third == n_features and third >= SMALLEST_SIDE:
        return Layout((3, third, third))
    return Layout((1, root + 1, root + 1), picture=False)


def _checked_shape(image_shape: Sequence[int], n_features: int) -> Shape:
    numbers = tuple(int(number) for number in image_shape)
    if len(numbers) == 2:
        numbers = (1, *numbers)
    if len(numbers) != 3 or numbers[0] not in (1, 3) or min(numbers) < 1:
        raise ValueError(
            f"image_shape is (height, width) or (channels, height, width) with 1 or 3 channels, not {image_shape}."
        )
    if math.prod(numbers) != n_features:
        raise ValueError(f"image_shape {image_shape} has {math.prod(numbers)} values, but X has {n_features} features.")
    channels, height, width = numbers
    return channels, height, width


@dataclass(frozen=True)
class Range:
    """The values that become black and white. Bytes stay what they are, whichever of them were seen."""

    low: float
    high: float

    @staticmethod
    def of(values: NDArray[np.generic]) -> Range:
        if values.dtype == np.uint8:
            return Range(0.0, 255.0)
        return Range(float(values.min()), float(values.max()))

    def bytes(self, values: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Values between `low` and `high` as 0 to 255, rounded; what lies outside becomes black or white."""
        spread = self.high - self.low
        units = (values.astype(np.float64) - self.low) / (spread if spread > 0 else 1.0)
        return np.rint(255.0 * np.clip(units, 0.0, 1.0)).astype(np.uint8)

    def share_outside(self, values: NDArray[np.generic]) -> float:
        return float(np.mean((values < self.low) | (values > self.high)))  # type: ignore[operator]
