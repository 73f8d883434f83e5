"""`check_network`: ours pass, plain and gated, and every broken one is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clom.nets import AdapterSettings, AlexNetSettings, NetSettings, PooledConvSettings, ResNet18Settings, make_net
from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, GatedJoin, GatedLinear, Net
from clom.nets.plain import Backbone
from clom.nets.pretrained.efficientnet_lite import EfficientNetLite
from clom.testing import check_network

ALEXNET = AlexNetSettings(channels=(5, 6, 7), hidden=9, paddings=(1, 1, 0), pools=(2, 2, 1))
NETS: dict[str, NetSettings] = {
    "alexnet": ALEXNET,
    "alexnet without bias": ALEXNET.model_copy(update={"bias": False}),
    "resnet18": ResNet18Settings(width=3),
    "resnet18, not affine": ResNet18Settings(width=3, affine=False),
    "pooled-conv": PooledConvSettings(channels=(5, 6, 7), hidden=9),
    "efficientnet-lite0 with adapters": AdapterSettings(weights="random", width=0.05, hidden=12),
}


@pytest.mark.parametrize("name", NETS)
def test_every_network(name: str) -> None:
    check_network(lambda: make_net(NETS[name], 8), image_size=8)


@pytest.mark.parametrize("name", NETS)
def test_the_same_without_gates(name: str) -> None:
    check_network(lambda: Backbone(NETS[name], 8), image_size=8)


def test_the_frozen_network() -> None:
    check_network(lambda: EfficientNetLite(AdapterSettings(weights="random", width=0.05)), image_size=16)


def test_plain_modules() -> None:
    check_network(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()), image_size=8)
    check_network(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(144, 5)), 8)


# --- broken plain networks -------------------------------------------------------------------------------------------


class Plain(nn.Module):
    n_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).amax((2, 3))  # type: ignore[no-any-return]


class ReturnsMaps(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images)  # type: ignore[no-any-return]


class ReturnsTuple(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images), images  # type: ignore[return-value]


class WrongWidth(Plain):
    n_features = 5


class Doubles(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).double()


class Overflows(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return (1e6 * super().forward(images)).exp()


class Constant(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(images))


class AlwaysDrops(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(super().forward(images))


class UsesBatch(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - images.mean(0))


class InPlace(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.clamp_(max=0.5))


class Unused(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)


class Breaks(Plain):
    """A gradient of 0 * infinity where features are zero."""

    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        return features + (features - features.detach()).abs().sqrt()


class Outside(Plain):
    """What it computes with is not in its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.rand(())

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * super().forward(images)


class Changing(Plain):
    """As many layers as chance wants: nothing can be loaded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1 + int(torch.randint(1, 1000, ())) % 7)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: "a string", r"not a torch.nn.Module"),
        (ReturnsMaps, r"shape \(6, 4, 6, 6\) for 6 images.*features \[images, d\]"),
        (ReturnsTuple, "returned tuple"),
        (WrongWidth, "n_features is 5, but the network returned 4"),
        (Doubles, "torch.float64"),
        (Overflows, "NaN or infinite"),
        (Constant, "All images have the same features"),
        (AlwaysDrops, "deterministic in evaluation mode"),
        (UsesBatch, "in the same batch"),
        (InPlace, "changes the images"),
        (Unused, "No gradient reaches head.weight, head.bias"),
        (Breaks, "gradient of conv.weight, conv.bias is NaN"),
        (Outside, "other features.*state_dict holds everything"),
        (Changing, "state_dict does not load"),
    ],
)
def test_a_broken_network_is_named(make: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){told}"):
        check_network(make, image_size=8)


# --- broken gated networks -------------------------------------------------------------------------------------------


class Gated(Net):
    """A correct one: convolution with normalisation, a residual block, a linear layer."""

    feature_group: str | None = "fc"
    n_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.first = GatedConv2d(3, 4, 3, padding=1, gate_in=None, gate_out="first", norm=True)
        self.second = GatedConv2d(4, 4, 3, padding=1, gate_in="first", gate_out="second")
        self.join = GatedJoin(gate_in="first", gate_out="second")
        self.fc = GatedLinear(4, 6, gate_in="second", gate_out="fc")

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values = F.relu(self.first(images, task, gates))
        values = F.relu(self.second(values, task, gates) + self.join(values, task, gates))
        return F.relu(self.fc(values.mean((2, 3)), gates))


class UnknownGroup(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.fc = GatedLinear(4, 6, gate_in="third", gate_out="fc")


class WrongSpread(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.fc = GatedLinear(4, 6, gate_in="second", gate_out="fc", spread=2)


class UnequalJoin(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.join = GatedJoin(gate_in="first", gate_out="fc")


class WrongFeatureGroup(Gated):
    feature_group = "second"


class SharedNorm(Gated):
    """A normalisation that all tasks share cannot be protected."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return self.norm(super().forward(images, task, gates))  # type: ignore[no-any-return]


class SharedStatistics(SharedNorm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, affine=False)


class IgnoresGates(Gated):
    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return super().forward(images, task, {})


class IgnoresOneGate(Gated):
    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return super().forward(images, task, {group: gate for group, gate in gates.items() if group != "first"})


class OpensWithSigmoid(Gated):
    """A closed unit puts out a half."""

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values = torch.sigmoid(self.first(images, task, gates))
        values = F.relu(self.second(values, task, gates) + self.join(values, task, gates))
        return F.relu(self.fc(values.mean((2, 3)), gates))


class FollowsMemory(Gated):
    """Reads images in the order of memory, which is another one for channels_last."""

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        ordered = images.as_strided(images.shape, images.contiguous().stride())
        return super().forward(ordered, task, gates)


class NoJoin(Gated):
    """The shortcut brings units back that the gate closed."""

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values = F.relu(self.first(images, task, gates))
        values = F.relu(self.second(values, task, gates) + values)
        return F.relu(self.fc(values.mean((2, 3)), gates))


class Ungated(Gated):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.fc = nn.Linear(192, 6)  # type: ignore[assignment]

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return self.fc(images.flatten(1))  # type: ignore[no-any-return]


class PlainLayerInside(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 6)

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        return self.last(super().forward(images, task, gates))  # type: ignore[no-any-return]


def test_a_gated_network_of_ones_own() -> None:
    check_network(Gated, image_size=8)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Ungated, "no gated layer"),
        (UnknownGroup, "'fc' names the gate group 'third', which no layer has"),
        (WrongSpread, "'second' has 4 units, each for 2 inputs, but what reads them has 4 inputs"),
        (UnequalJoin, "'join' joins 4 units to 6"),
        (WrongFeatureGroup, "feature_group is 'second' with 4 units, n_features is 6"),
        (SharedNorm, r"norm.weight, norm.bias.*nothing else could be protected"),
        (SharedStatistics, "Features of task 0 change when task 1 is trained"),
        (PlainLayerInside, "last.weight, last.bias"),
        (FollowsMemory, "laid out as channels_last"),
        (IgnoresGates, "closed units are up to.*exactly zero"),
        (IgnoresOneGate, "Weights into or out of closed units change the features"),
        (OpensWithSigmoid, "Weights into or out of closed units change the features"),
        (NoJoin, "Weights into or out of closed units|compact network"),
    ],
)
def test_a_broken_gated_network_is_named(make: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){told}"):
        check_network(make, image_size=8)
