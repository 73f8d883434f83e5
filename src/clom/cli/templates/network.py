"""A network of my own.

Check it:  python my_network.py
Use it:    clom run digits-5t --budget smoke --plugin my_network.py --set net.kind=my-network
"""

from __future__ import annotations

from torch import Tensor, nn

import clom


@clom.register_network("my-network")
class MyNetwork(nn.Module):
    """Two convolutions and a linear layer."""

    # Plain PyTorch. Methods that protect old tasks by masks (clom, hat, supsup) turn it into a gated network by
    # themselves if it is made of convolutions, linear layers, batch normalisation, activations, pooling, dropout and
    # sums, as sequential and residual networks are; if not, they say which part cannot be protected.
    #
    # The arguments are its settings: --set net.width=32. `image_size` is given by whoever builds the network.

    def __init__(self, image_size: int, width: int = 16, n_features: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * (image_size // 4) ** 2, n_features),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """RGB images in [0, 1], [images, 3, image_size, image_size], to features [images, n_features]."""
        features: Tensor = self.layers(images)
        return features


if __name__ == "__main__":
    from clom.nets import to_gated
    from clom.testing import check_network

    check_network(lambda: MyNetwork(image_size=8), image_size=8)
    check_network(lambda: to_gated(MyNetwork(image_size=8), (3, 8, 8)), image_size=8)  # what masked methods make of it
    print("my-network keeps the contract of a network.")
