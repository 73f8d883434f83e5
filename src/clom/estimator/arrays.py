"""Convert feature rows of scikit-learn to the square uint8 images that methods learn from."""

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
"""Smaller images are upscaled by an integer factor: the networks downsample two or three times."""


@dataclass(frozen=True)
class Layout:
    """Channels, height and width of a row, and whether it is an image or a reshaped vector."""

    shape: Shape
    picture: bool = True

    @property
    def side(self) -> int:
        """Side of the square images in pixels."""
        longest = max(self.shape[1:])
        return longest * math.ceil(SMALLEST_SIDE / longest)

    def images(self, rows: NDArray[np.uint8]) -> Tensor:
        """`[n, channels, side, side]`; short rows and non-square images are padded with zeros."""
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
    """Channels, height and width if X holds images; None for flat rows."""
    numbers = np.shape(X) if isinstance(X, list | tuple) else tuple(getattr(X, "shape", ()))
    if len(numbers) == 3:
        return 1, int(numbers[1]), int(numbers[2])
    return (int(numbers[1]), int(numbers[2]), int(numbers[3])) if len(numbers) == 4 else None


def layout_of(n_features: int, image_shape: Sequence[int] | None) -> Layout:
    """The layout given by `image_shape`, or inferred from the number of features.

    A square number is a grey image, three times a square (from 8 x 8) a colour image with channels first; anything else
    is a vector, padded to the next square.
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
    """The values mapped to black and white. uint8 data is used unchanged."""

    low: float
    high: float

    @staticmethod
    def of(values: NDArray[np.generic]) -> Range:
        if values.dtype == np.uint8:
            return Range(0.0, 255.0)
        return Range(float(values.min()), float(values.max()))

    def bytes(self, values: NDArray[np.generic]) -> NDArray[np.uint8]:
        """Map `low` to `high` linearly to 0 to 255, rounded and clipped."""
        spread = self.high - self.low
        units = (values.astype(np.float64) - self.low) / (spread if spread > 0 else 1.0)
        return np.rint(255.0 * np.clip(units, 0.0, 1.0)).astype(np.uint8)

    def share_outside(self, values: NDArray[np.generic]) -> float:
        return float(np.mean((values < self.low) | (values > self.high)))  # type: ignore[operator]
