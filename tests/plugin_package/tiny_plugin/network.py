"""A network: plain PyTorch, which masked methods convert into a gated one."""

from __future__ import annotations

from torch import Tensor, nn


class TwoLayers(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self, image_size: int, channels: int = 6, hidden: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(channels * (image_size // 2) ** 2, hidden),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features
