"""Small learners and pictures for the tests of everything around the model file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from clom.data.folders import Pictures
from clom.data.images import Images, to_unit
from clom.learning.heads import HeadSettings
from clom.learning.learners.contrastive import ContrastiveSettings
from clom.learning.loop import Plan
from clom.learning.protection.hard_attention import HardAttentionSettings
from clom.methods.clom import Clom, ClomSettings
from clom.methods.experts import Experts, ExpertsSettings
from clom.methods.families.base import Method
from clom.methods.hat import Hat, HatSettings
from clom.methods.ncm import Ncm, NcmSettings
from clom.methods.slda import Slda, SldaSettings
from clom.methods.supsup import SupSup, SupSupSettings
from clom.nets import AdapterSettings, NetSettings, PooledConvSettings, ResNet18Settings

SIDE = 32
ADAPTER = AdapterSettings(weights="random", width=0.05, hidden=12)
RESNET = ResNet18Settings(width=8)
CONV = PooledConvSettings(channels=(8, 8, 8), hidden=12)
SHAPE = (3, SIDE, SIDE)


def ncm(seed: int = 0) -> Ncm:
    return Ncm(ADAPTER, NcmSettings(), SHAPE, seed)


class MeanColour(Ncm):
    """Sees nothing but the average colour, and is therefore never wrong about coloured pictures."""

    def embed(self, pixels: torch.Tensor, view: str = "plain") -> torch.Tensor:
        features = torch.zeros(len(pixels), self.backbone.n_features)
        features[:, :3] = to_unit(pixels).mean((2, 3))
        return features


def mean_colour(seed: int = 0) -> MeanColour:
    return MeanColour(ADAPTER, NcmSettings(), SHAPE, seed)


def experts(seed: int = 0) -> Experts:
    return Experts(ADAPTER, ExpertsSettings(directions=3), SHAPE, seed)


def slda(seed: int = 0) -> Slda:
    return Slda(ADAPTER, SldaSettings(), SHAPE, seed)


def clom(seed: int = 0, net: NetSettings = ADAPTER, epochs: int = 1) -> Clom:
    learning = ContrastiveSettings(plan=Plan(epochs=epochs, batch=8), head=HeadSettings(views=1, iterations=5))
    dense = HardAttentionSettings(sparsity_first=0.1, sparsity_rest=0.1)
    return Clom(net, ClomSettings(learning=learning, attention=dense, memory_per_class=1), SHAPE, seed)


def clom_from_scratch(seed: int = 0) -> Clom:
    return clom(seed, CONV)


def clom_residual(seed: int = 0) -> Clom:
    return clom(seed, RESNET)


def hat(seed: int = 0) -> Hat:
    settings = HatSettings.model_validate({"learning": {"plan": {"epochs": 1, "batch": 8}}, "calibration": "scale"})
    return Hat(CONV, settings, SHAPE, seed)


def supsup(seed: int = 0) -> SupSup:
    settings = SupSupSettings.model_validate({"learning": {"plan": {"epochs": 1, "batch": 8}}, "memory_per_class": 1})
    return SupSup(CONV, settings, SHAPE, seed)


MAKERS: dict[str, Callable[[], Method]] = {
    "ncm": ncm,
    "slda": slda,
    "experts": experts,
    "clom with adapters": clom,
    "clom from scratch": clom_from_scratch,
    "clom with normalisation": clom_residual,
    "hat": hat,
    "supsup": supsup,
}

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (20, 40, 210), "grey": (120, 120, 120)}


def coloured(name: str, count: int, seed: int = 0, side: int = SIDE) -> torch.Tensor:
    """Noisy pictures of one colour."""
    randomness = torch.Generator().manual_seed(seed + sum(name.encode()))
    noise = torch.randint(-20, 21, (count, 3, side, side), generator=randomness)
    colour = torch.tensor(COLOURS.get(name, (90, 10, 90)))[:, None, None]
    return (noise + colour).clamp(0, 255).to(torch.uint8)


def pictures(*names: str, count: int = 6, seed: int = 0) -> Pictures:
    """A class for each colour."""
    pixels = torch.cat([coloured(name, count, seed) for name in names])
    labels = torch.arange(len(names)).repeat_interleave(count)
    paths = tuple(Path(name) / f"{number}.png" for name in names for number in range(count))
    return Pictures(tuple(names), Images(pixels, labels), paths, ())


def write_pictures(folder: Path, *names: str, count: int = 6, seed: int = 0) -> Path:
    """The same as files, `folder/colour/number.png`."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(coloured(name, count, seed)):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name / f"{number}.png")
    return folder
