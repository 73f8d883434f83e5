"""Ordinary PyTorch networks, written without gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Sequential(nn.Sequential):
    """A plain `nn.Sequential`."""

    def __init__(self, width: int = 8, dropout: float = 0.2) -> None:
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Dropout2d(dropout),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width, eps=1e-3, momentum=None),
            nn.GELU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 16, 12),
            nn.LeakyReLU(0.1),
        )


class Perceptron(nn.Module):
    """An MLP whose images are normalised by a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3])[:, None, None])
        self.hidden = nn.Linear(3 * 8 * 8, 20)
        self.last = nn.Linear(20, 10, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        values = ((images - self.mean) / 0.5).view(images.size(0), -1)
        return F.relu(self.last(F.dropout(torch.tanh(self.hidden(values)), 0.1, self.training)))


class Block(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride > 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, values: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(values)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(values)
        result: Tensor = self.relu(out)
        return result


class Residual(nn.Module):
    """ResNet-18 with `blocks` blocks in each of `stages` stages."""

    def __init__(self, width: int = 8, blocks: int = 2, stages: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        parts, n_in = list[nn.Module](), width
        for stage in range(stages):
            for position in range(blocks):
                n_out = width * 2**stage
                parts.append(Block(n_in, n_out, 2 if stage and not position else 1))
                n_in = n_out
        self.blocks = nn.Sequential(*parts)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        values = F.relu(self.bn1(self.conv1((images - 0.5) / 0.5)))
        features: Tensor = self.pool(self.blocks(values)).flatten(1)
        return features


class Branches(nn.Module):
    """Sums of every kind: of two layers, of three, of a layer and a value with other readers, of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 6, 3, padding=1) for _ in range(3))
        self.d, self.e = (nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, images: Tensor) -> Tensor:
        first = F.relu(self.a(images)) + torch.add(self.b(images), self.c(images))
        second = F.max_pool2d(first, 2)
        third = self.d(second).relu() + second
        fourth = third + second * 0.5
        features = (self.e(fourth) + third).mean((2, 3))
        result: Tensor = torch.relu(self.one(features) + features) + self.two(features)
        return result


NETWORKS: dict[str, tuple[type[nn.Module], int]] = {
    "sequential": (Sequential, 8),
    "perceptron": (Perceptron, 8),
    "residual": (Residual, 16),
    "branches": (Branches, 8),
}
"""Each with the side of its images."""
