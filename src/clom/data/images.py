"""Labelled images and data sets, stored as uint8 and converted to float per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Images:
    """`pixels` is uint8 `[n, channels, height, width]`, `labels` int64 `[n]`."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 [n, c, h, w], got {self.pixels.dtype} {tuple(self.pixels.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels must be int64 [{len(self.pixels)}], got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: Tensor | slice) -> Images:
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))

    def labels_to(self, device: torch.device) -> Images:
        """Labels on `device`, pixels as they are: for images that do not fit on it, read by `fetch`."""
        return Images(self.pixels, self.labels.to(device))

    @property
    def on_one_device(self) -> bool:
        return self.pixels.device == self.labels.device

    def fetch(self, rows: Tensor | slice) -> Tensor:
        """The pixels of these rows on the device of the labels.

        A copy to a GPU goes through pinned memory and does not wait: while the GPU computes, the CPU gathers the
        next batch. For that, `rows` must be where the pixels are; from elsewhere they are moved first.
        """
        rows = rows.to(self.pixels.device) if isinstance(rows, Tensor) else rows
        pixels, device = self.pixels[rows], self.labels.device
        if device.type == "cuda" and not self.on_one_device:
            pixels = pixels.pin_memory()
        return pixels.to(device, non_blocking=True)

    @staticmethod
    def join(parts: Sequence[Images]) -> Images:
        return Images(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named data set: class names (labels are indices into them), training and test images."""

    name: str
    class_names: tuple[str, ...]
    train: Images
    test: Images
    groups: tuple[tuple[str, ...], ...] | None = None
    """The classes of each task, in order, if the data define tasks."""
    notes: tuple[str, ...] = ()
    """Messages for the user about how the images were read, a sentence each."""

    def __post_init__(self) -> None:
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError(f"two classes of {self.name} have the same name")
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            shapes = [list(images.pixels.shape[1:]) for images in (self.train, self.test)]
            raise ValueError(f"training and test images must have the same shape, got {shapes[0]} and {shapes[1]}")
        for images in (self.train, self.test):
            if len(images) and not 0 <= int(images.labels.min()) <= int(images.labels.max()) < len(self.class_names):
                raise ValueError(
                    f"labels must be from 0 to {len(self.class_names) - 1}, one number for each class name"
                )


@dataclass(frozen=True)
class Outline:
    """What is known about images without reading them."""

    pixels: int | None
    """The shorter side; None if they differ in size."""
    n_train: int
    n_classes: int


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1] with three channels (grey is repeated), the input of every network.

    Floating-point pixels are assumed to be in [0, 1] already.
    """
    if pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    return pixels.to(torch.float32).div_(255.0) if pixels.dtype == torch.uint8 else pixels


def resized(pixels: Tensor, shape: Sequence[int]) -> Tensor:
    """uint8 pixels with the channels and size of `shape`: bilinear with antialiasing; colours averaged, grey
    repeated."""
    channels, height, width = shape
    if tuple(pixels.shape[1:]) == (channels, height, width):
        return pixels
    values = pixels.float()
    if values.shape[1] != channels:
        values = values.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if values.shape[2:] != (height, width):
        values = functional.interpolate(values, (height, width), mode="bilinear", antialias=True)
    return values.round().clamp(0, 255).to(torch.uint8)


def resized_images(images: Images, shape: Sequence[int]) -> Images:
    """Images with `resized` pixels."""
    return Images(resized(images.pixels, shape), images.labels)


def middle_square(images: Images, side: int) -> Images:
    """The largest centred square of each image, resized."""
    height, width = images.pixels.shape[2:]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    square = images.pixels[:, :, top : top + shorter, left : left + shorter]
    return resized_images(Images(square, images.labels), (square.shape[1], side, side))


def without_colour(*parts: Images) -> tuple[Images, ...]:
    """Convert to one channel if every image of every part is grey."""
    if not all(torch.equal(part.pixels, part.pixels[:, :1].expand_as(part.pixels)) for part in parts):
        return parts
    return tuple(Images(part.pixels[:, :1].contiguous(), part.labels) for part in parts)


def evenly_spaced(images: Images, count: int) -> Images:
    """At most `count` images, at evenly spaced positions."""
    if len(images) <= count:
        return images
    return images[torch.arange(count) * len(images) // count]
