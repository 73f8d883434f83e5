"""Every system by name; a system's code is imported when it is first used, so that listing them is instant."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from clom.errors import unknown

if TYPE_CHECKING:
    from clom.methods.families.base import Method


@dataclass(frozen=True)
class Entry:
    """Where a system lives and what a person choosing one wants to know."""

    place: str
    title: str
    keeps: str
    preset: tuple[tuple[str, Any], ...] = ()
    """Settings that make a variant of another system, as dotted names."""
    divisible: bool = True
    """Whether several processes can share its work: it trains the experiment's network."""
    of_the_paper: bool = True
    """Whether "all" systems include it. What starts from pretrained features is no fair comparison with the others."""

    @property
    def short(self) -> str:
        """The system's name in print, which for those of the paper is the paper's."""
        return self.title.partition(":")[0]


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
    "clom-odin": Entry(
        "clom.methods.clom_odin:ClomOdin",
        "CLOM (ODIN): HAT's classifiers, told apart by ODIN (Liang et al. 2018)",
        "masks, heads, 20 samples a class for calibration",
    ),
    "hat": Entry(
        "clom.methods.hat:Hat",
        "HAT: hard attention with an ordinary classifier per task (Serra et al. 2018)",
        "masks, heads, 20 samples a class for calibration",
    ),
    "hypernet": Entry(
        "clom.methods.hypernet.method:HyperNet",
        "HyperNet: a network that generates each task's classifier (von Oswald et al. 2020)",
        "the generating network, a vector and normalisation statistics per task",
        divisible=False,
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
    "owm": Entry(
        "clom.methods.owm:Owm",
        "OWM: gradients orthogonal to what earlier inputs excite (Zeng et al. 2019)",
        "a projector per layer",
        divisible=False,
    ),
    "muc": Entry(
        "clom.methods.muc:Muc",
        "MUC: main and side classifiers of the last task distilled (Liu et al. 2020)",
        "side classifiers; needs unlabelled other images",
    ),
    "pass": Entry(
        "clom.methods.pass_:Pass",
        "PASS: noisy prototypes, rotation classes and feature distillation (Zhu et al. 2021)",
        "no images; a mean feature of every class and one radius, which are numbers of the model",
    ),
    "lwf-r": Entry(
        "clom.methods.lwf_r:LwfR",
        "LwF.R: distillation of old outputs with replay (Li and Hoiem 2016, as run by Liu et al. 2020)",
        "exemplar images",
    ),
    "icarl": Entry(
        "clom.methods.icarl:Icarl",
        "iCaRL: nearest mean of exemplars on LwF.R's network (Rebuffi et al. 2017)",
        "exemplar images",
    ),
    "mnemonics": Entry(
        "clom.methods.mnemonics:Mnemonics",
        "Mnemonics: iCaRL with learned exemplars (Liu et al. 2020)",
        "learned exemplars, four bytes a value",
    ),
    "bic": Entry(
        "clom.methods.bic:Bic",
        "BiC: replay and distillation, then a bias correction per task (Wu et al. 2019)",
        "exemplars to train and to validate, two numbers a task",
    ),
    "derpp": Entry(
        "clom.methods.derpp:Derpp",
        "DER++: replay of images with the outputs they once had (Buzzega et al. 2020)",
        "a reservoir of images and outputs",
    ),
    "a-rps": Entry(
        "clom.methods.a_rps.method:ARps",
        "A-RPS: random paths through parallel modules, replay, distillation (Rajasegaran et al. 2019)",
        "every module used, exemplars (200 for ten classes, 2000 for more)",
        divisible=False,
    ),
    "co2l": Entry(
        "clom.methods.co2l:Co2L",
        "Co2L: contrastive features kept by distilling similarities, classifier made anew (Cha et al. 2021)",
        "training images, 200 in all (2000 for a hundred or more classes)",
    ),
    "ccg": Entry(
        "clom.methods.ccg.method:Ccg",
        "CCG: channels gated for each image, a task classifier with rehearsal (Abati et al. 2020)",
        "gates, heads, normalisation, 200 or 2000 images (or a generator per task) for the task classifier",
        divisible=False,
    ),
    "finetune": Entry(
        "clom.methods.baselines:FineTune",
        "Fine-tuning: each task in turn, nothing protected; the lower bound",
        "nothing",
    ),
    "joint": Entry(
        "clom.methods.baselines:Joint",
        "Joint training: a new network for all data so far; the upper bound",
        "every training image",
    ),
    "ncm": Entry(
        "clom.methods.ncm:Ncm",
        "NCM: the nearest class mean on frozen pretrained features",
        "a mean feature of every class",
        divisible=False,
        of_the_paper=False,
    ),
    "slda": Entry(
        "clom.methods.slda:Slda",
        "SLDA: streaming linear discriminant analysis on frozen pretrained features (Hayes and Kanan 2020)",
        "a mean feature of every class, one covariance",
        divisible=False,
        of_the_paper=False,
    ),
}

PAPER_METHODS = tuple(name for name, entry in METHODS.items() if entry.of_the_paper)
"""What "all" systems are."""


def entry(name: str) -> Entry:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def method_class(name: str) -> type[Method]:
    module, _, attribute = entry(name).place.partition(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found
