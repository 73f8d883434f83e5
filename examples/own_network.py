"""A network of your own: plain PyTorch, for methods with and without masks.

python examples/own_network.py
clom run digits-5t --budget smoke --plugin examples/own_network.py --set net.kind=small-residual --set net.width=16
"""

from torch import Tensor, nn
from torch.nn import functional as F

import clom
from clom.nets import to_gated
from clom.testing import check_network


class Residual(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, values: Tensor) -> Tensor:
        return F.relu(values + self.second(F.relu(self.first(values))))


@clom.register_network("small-residual")
class SmallResidual(nn.Module):
    """Images [n, 3, h, w] in [0, 1] to features [n, width]. The arguments of __init__ are its settings: net.width."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(Residual(width), nn.MaxPool2d(2), Residual(width))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(F.relu(self.stem(images))).mean((2, 3))
        return features


def main() -> None:
    check_network(SmallResidual, image_size=8)
    # Masked methods make a gated network of it by themselves: units that are added share their gates, and so on.
    check_network(lambda: to_gated(SmallResidual(), (3, 8, 8)), image_size=8)

    stream = clom.load_stream("digits-5t", budget="smoke")[:2]
    for method in ("derpp", "clom"):
        model = clom.make_method(method, "digits-5t", budget="smoke", net__kind="small-residual", net__width=16)
        for task in stream:
            model.learn(task)
        result = clom.evaluate(model, stream.tests)
        print(f"{method}: {model.n_parameters()} parameters, TIL {result.til:.1%}")


if __name__ == "__main__":
    main()
