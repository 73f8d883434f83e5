"""A training step of the halved ResNet-18 of `cifar10-5t`, budget cpu: convolutions of 2x2 pixels as dense products
against plain convolutions, alternating. Not part of `make bench`: half a minute.

python -m benchmarks.four_pixels [--rounds 30]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import figure, interleaved, ratios
from clom import machine
from clom.methods.families.base import place
from clom.nets import ResNet18Settings, layers, make_net


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What dense products on 2x2 pixels save.")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(arguments)
    machine.tune_process(1)
    torch.manual_seed(0)
    net = make_net(ResNet18Settings(width=16, stem_stride=2), 32)
    place(net, torch.device("cpu"))
    net.add_task()
    images = torch.rand(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)

    def dense() -> None:
        net.zero_grad()
        net(images, 0, {}).square().mean().backward()

    def plain() -> None:
        with patch.object(layers, "_conv_2x2_pixels", _convolved):
            dense()

    times = interleaved({"dense": dense, "plain": plain}, options.rounds)
    found = figure("step", "dense / plain", ratios(times["dense"], times["plain"]), "x")
    print(f"a step with dense products takes {found.value:.2f} [{found.low:.2f}-{found.high:.2f}] of a plain one")


def _convolved(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(values, weight, bias, padding=1)


if __name__ == "__main__":
    main()
