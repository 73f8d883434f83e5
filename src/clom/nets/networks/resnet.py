"""ResNet-18 for 32-pixel images, of any width, with a gate after every activation and per-task batch norm."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from clom.nets.gates import Gates
from clom.nets.layers import GatedConv2d, GatedJoin, Net
from clom.nets.net_settings import NetSettings
from clom.settings import Positive


class ResNet18Settings(NetSettings):
    """Width 64 on CIFAR-10 and 128 on CIFAR-100 and Tiny-ImageNet in the paper."""

    kind: Literal["resnet18"] = "resnet18"
    width: Positive = 64
    stem_stride: Literal[1, 2] = 1
    """2 halves the resolution after the first convolution: four times as many views in the same time."""
    affine: bool = True
    """Whether batch norm has a learned scale and shift (supermask networks do not)."""
    final_relu: bool = True
    """False allows negative features, for cosine classifiers. Gated methods need True."""


class Block(nn.Module):
    """conv-norm-ReLU, conv-norm plus the shortcut, ReLU; a gate after each ReLU."""

    def __init__(self, n_in: int, n_out: int, stride: int, name: str, gate_in: str, affine: bool) -> None:
        super().__init__()
        self.inner, self.outer = f"{name}.1", f"{name}.2"
        self.final_relu = True

        def conv(n: int, kernel: int, stride: int, padding: int, before: str, after: str) -> GatedConv2d:
            return GatedConv2d(
                n,
                n_out,
                kernel,
                stride=stride,
                padding=padding,
                gate_in=before,
                gate_out=after,
                bias=False,
                norm=True,
                affine=affine,
            )

        self.conv1 = conv(n_in, 3, stride, 1, gate_in, self.inner)
        self.conv2 = conv(n_out, 3, 1, 1, self.inner, self.outer)
        # The shortcut ends in the block's second gate; an identity needs no protection, since its input is gated.
        self.shortcut: nn.Module = (
            conv(n_in, 1, stride, 0, gate_in, self.outer)
            if stride > 1 or n_in != n_out
            else GatedJoin(gate_in=gate_in, gate_out=self.outer)
        )

    def forward(self, values: Tensor, task: int, gates: Gates) -> Tensor:
        inner = self.conv1(values, task, gates, relu=True)
        shortcut = self.shortcut(values, task, gates)
        outer: Tensor = self.conv2(inner, task, gates, added=shortcut, relu=self.final_relu)
        return outer


class ResNet18(Net):
    """Stem of one 3x3 convolution, four stages of two blocks, global average pooling."""

    def __init__(self, settings: ResNet18Settings) -> None:
        super().__init__()
        width, affine = settings.width, settings.affine
        self.stem = GatedConv2d(
            3,
            width,
            3,
            stride=settings.stem_stride,
            padding=1,
            gate_in=None,
            gate_out="stem",
            bias=False,
            norm=True,
            affine=affine,
        )
        self.blocks = nn.ModuleList()
        n_in, gate_in = width, "stem"
        for stage in range(4):
            for position in range(2):
                n_out, stride = width * 2**stage, 2 if stage > 0 and position == 0 else 1
                block = Block(n_in, n_out, stride, f"stage{stage + 1}.{position}", gate_in, affine)
                self.blocks.append(block)
                n_in, gate_in = n_out, block.outer
        block.final_relu = settings.final_relu
        self.feature_group = gate_in
        self.n_features = n_in

    def forward(self, images: Tensor, task: int, gates: Gates) -> Tensor:
        values: Tensor = self.stem((images - 0.5) / 0.5, task, gates, relu=True)
        for block in self.blocks:
            values = block(values, task, gates)
        return values.mean((2, 3))
