"""Every system by name; a system's code is imported when it is first used, so that listing them is instant."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from clom.errors import unknown

if TYPE_CHECKING:
    from clom.methods.base import Method


@dataclass(frozen=True)
class Entry:
    """Where a system lives and what a person choosing one wants to know."""

    place: str
    title: str
    keeps: str
    preset: tuple[tuple[str, Any], ...] = ()
    """Settings that make a variant of another system, as dotted names."""


METHODS: dict[str, Entry] = {
    "clom": Entry(
        "clom.methods.clom:Clom",
        "CLOM: each task an OOD detector, protected by hard attention",
        "masks, heads, 20 samples a class for calibration",
    ),
    "clom-no-calibration": Entry(
        "clom.methods.clom:Clom",
        "CLOM(-c): CLOM with uncalibrated outputs",
        "masks, heads",
        preset=(("calibration", "none"),),
    ),
    "clom-no-ood": Entry(
        "clom.methods.clom:Clom",
        "CLOM (w/o OOD): contrastive learning without rotation classes",
        "masks, heads, 20 samples a class for calibration",
        preset=(("learning.rotations", 1),),
    ),
    "hat": Entry(
        "clom.methods.hat:Hat",
        "HAT: hard attention with an ordinary classifier per task (Serra et al. 2018)",
        "masks, heads, 20 samples a class for calibration",
    ),
    "supsup": Entry(
        "clom.methods.supsup:SupSup",
        "SupSup: a mask per task over frozen random weights (Wortsman et al. 2020)",
        "masks, normalisation statistics, 20 samples a class for calibration",
    ),
    "supsup-ood": Entry(
        "clom.methods.supsup:SupSupOod",
        "SupSup (OOD in CLOM): SupSup's masks with CLOM's learner",
        "masks, heads, normalisation statistics, 20 samples a class for calibration",
    ),
    "ccg": Entry(
        "clom.methods.ccg:Ccg",
        "CCG: channels gated for each image, a task classifier with rehearsal (Abati et al. 2020)",
        "gates, heads, normalisation, 200 or 2000 images (or a generator per task) for the task classifier",
    ),
    "finetune": Entry(
        "clom.methods.bounds:FineTune",
        "Fine-tuning: each task in turn, nothing protected; the lower bound",
        "nothing",
    ),
    "joint": Entry(
        "clom.methods.bounds:Joint",
        "Joint training: a new network for all data so far; the upper bound",
        "every training image",
    ),
}


def entry(name: str) -> Entry:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def method_class(name: str) -> type[Method]:
    module, _, attribute = entry(name).place.partition(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found
