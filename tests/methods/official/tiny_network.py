"""A tiny network and tasks of two classes, for steps of methods that share one network between tasks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import clom
from clom.data.images import Images
from clom.data.stream import Task
from clom.nets import NetSettings
from clom.nets.networks.kinds import read_net_settings
from methods.official.recording import fixed_pixels

SHAPE = (3, 8, 8)


class TinyNetwork(nn.Module):
    """Two convolutions with batch norm, ReLU between them, and global average pooling: six features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4, momentum=1.0),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(6, momentum=1.0),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def tiny_network() -> NetSettings:
    clom.register_network("tiny")(TinyNetwork)
    return read_net_settings({"kind": "tiny"})


def numbered_task(number: int, per_class: int = 10) -> Task:
    """Task 0, 1, ...: two classes of so many images, with labels in turn and pixels between 20 and 220."""
    pixels = 20 + fixed_pixels(2 * per_class, *SHAPE[:2], first=10_000 * number) // 5 * 4
    train, none = Images(pixels, torch.arange(2 * per_class) % 2), Images(pixels[:0], torch.arange(0))
    return Task(f"task {number}", (f"class {2 * number}", f"class {2 * number + 1}"), train, none)
