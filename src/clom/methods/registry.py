"""The registry of methods. A method is imported when it is first used, so that listing them is instant.

`BUILT_IN` describes the methods of this package without importing them. A plug-in method is a subclass of `Method` that
describes itself: see `register_method`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from clom.errors import UserError
from clom.methods.deviations import DEVIATIONS
from clom.plugins import Registry

if TYPE_CHECKING:
    from clom.methods.families.base import Method

M = TypeVar("M", bound="type[Method]")


@dataclass(frozen=True)
class MethodInfo:
    """Where to import a method from, and its description."""

    place: str
    title: str
    keeps: str
    stores_samples: bool = False
    """Whether it keeps samples of earlier tasks, in its recipes at budget cpu."""
    preset: tuple[tuple[str, Any], ...] = ()
    """Settings, by dotted name, that make this a variant of another method."""
    divisible: bool = True
    """Whether training can be distributed over processes: it trains the experiment's network and nothing else."""
    in_paper: bool = True
    """Whether the paper compares it, or it is one of the two references."""
    deviations: tuple[str, ...] = ()
    """Sentences about how it differs from its publication."""

    @property
    def short(self) -> str:
        """The label in tables and figures, for methods of the paper as in the paper."""
        return self.title.partition(":")[0]


BUILT_IN: dict[str, MethodInfo] = {
    "clom": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM: each task an OOD detector, protected by hard attention",
        "masks, heads, 20 samples per class for calibration",
        stores_samples=True,
        deviations=DEVIATIONS["clom"],
    ),
    "clom-no-calibration": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM(-c): CLOM with uncalibrated outputs",
        "masks, heads",
        preset=(("calibration", "none"),),
        deviations=DEVIATIONS["clom-no-calibration"],
    ),
    "clom-no-ood": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM (w/o OOD): contrastive learning without rotation classes",
        "masks, heads, 20 samples per class for calibration",
        stores_samples=True,
        preset=(("learning.rotations", 1),),
        deviations=DEVIATIONS["clom-no-ood"],
    ),
    "clom-odin": MethodInfo(
        "clom.methods.clom_odin:ClomOdin",
        "CLOM (ODIN): HAT with ODIN as the OOD detector (Liang et al. 2018)",
        "masks, heads, 20 samples per class for calibration",
        stores_samples=True,
        deviations=DEVIATIONS["clom-odin"],
    ),
    "hat": MethodInfo(
        "clom.methods.hat:Hat",
        "HAT: hard attention with an ordinary classifier per task (Serra et al. 2018)",
        "masks, heads, 20 samples per class for calibration",
        stores_samples=True,
        deviations=DEVIATIONS["hat"],
    ),
    "hypernet": MethodInfo(
        "clom.methods.hypernet.method:HyperNet",
        "HyperNet: a hypernetwork generates each task's classifier (von Oswald et al. 2020)",
        "the hypernetwork, a vector and normalisation statistics per task",
        divisible=False,
        deviations=DEVIATIONS["hypernet"],
    ),
    "supsup": MethodInfo(
        "clom.methods.supsup:SupSup",
        "SupSup: a mask per task over frozen random weights (Wortsman et al. 2020)",
        "masks, normalisation statistics, 20 samples per class for calibration",
        stores_samples=True,
        deviations=DEVIATIONS["supsup"],
    ),
    "supsup-ood": MethodInfo(
        "clom.methods.supsup:SupSupOod",
        "SupSup (OOD in CLOM): SupSup's masks with CLOM's learner",
        "masks, heads, normalisation statistics, 20 samples per class for calibration",
        stores_samples=True,
        deviations=DEVIATIONS["supsup-ood"],
    ),
    "owm": MethodInfo(
        "clom.methods.owm:Owm",
        "OWM: updates orthogonal to the inputs of earlier tasks (Zeng et al. 2019)",
        "a projection matrix per layer",
        divisible=False,
        deviations=DEVIATIONS["owm"],
    ),
    "muc": MethodInfo(
        "clom.methods.muc:Muc",
        "MUC: distillation of main and side classifiers (Liu et al. 2020)",
        "side classifiers; auxiliary images are its own in shuffled patches, SVHN at budget paper",
        deviations=DEVIATIONS["muc"],
    ),
    "pass": MethodInfo(
        "clom.methods.pass_:Pass",
        "PASS: noisy prototypes, rotation classes and feature distillation (Zhu et al. 2021)",
        "no images; a mean feature per class and one radius",
        deviations=DEVIATIONS["pass"],
    ),
    "lwf-r": MethodInfo(
        "clom.methods.lwf_r:LwfR",
        "LwF.R: distillation of old outputs with replay (Li and Hoiem 2016, in the version of Liu et al. 2020)",
        "exemplar images",
        stores_samples=True,
        deviations=DEVIATIONS["lwf-r"],
    ),
    "icarl": MethodInfo(
        "clom.methods.icarl:Icarl",
        "iCaRL: nearest mean of exemplars on LwF.R's network (Rebuffi et al. 2017)",
        "exemplar images",
        stores_samples=True,
        deviations=DEVIATIONS["icarl"],
    ),
    "mnemonics": MethodInfo(
        "clom.methods.mnemonics:Mnemonics",
        "Mnemonics: iCaRL with learned exemplars (Liu et al. 2020)",
        "learned exemplars, four bytes per value",
        stores_samples=True,
        deviations=DEVIATIONS["mnemonics"],
    ),
    "bic": MethodInfo(
        "clom.methods.bic:Bic",
        "BiC: replay and distillation, then a bias correction per task (Wu et al. 2019)",
        "exemplars for training and validation, two parameters per task",
        stores_samples=True,
        deviations=DEVIATIONS["bic"],
    ),
    "derpp": MethodInfo(
        "clom.methods.derpp:Derpp",
        "DER++: replay of images with their earlier logits (Buzzega et al. 2020)",
        "a reservoir of images and logits",
        stores_samples=True,
        deviations=DEVIATIONS["derpp"],
    ),
    "a-rps": MethodInfo(
        "clom.methods.a_rps.method:ARps",
        "RPS-Net: random paths through parallel modules, replay, distillation (Rajasegaran et al. 2019)",
        "all modules used so far, exemplars (200 for ten classes, 2000 for more)",
        stores_samples=True,
        divisible=False,
        deviations=DEVIATIONS["a-rps"],
    ),
    "co2l": MethodInfo(
        "clom.methods.co2l:Co2L",
        "Co2L: contrastive features, distillation of similarities, retrained classifier (Cha et al. 2021)",
        "200 training images in total (2000 for a hundred or more classes)",
        stores_samples=True,
        deviations=DEVIATIONS["co2l"],
    ),
    "ccg": MethodInfo(
        "clom.methods.ccg.method:Ccg",
        "CCG: channel gates conditioned on the image, a task classifier with rehearsal (Abati et al. 2020)",
        "gates, heads, normalisation, and for the task classifier 200 or 2000 images (budget paper: a WGAN per task)",
        stores_samples=True,
        divisible=False,
        deviations=DEVIATIONS["ccg"],
    ),
    "finetune": MethodInfo(
        "clom.methods.baselines:FineTune",
        "Fine-tuning: each task in turn, no protection from forgetting; a reference",
        "nothing",
        deviations=DEVIATIONS["finetune"],
    ),
    "joint": MethodInfo(
        "clom.methods.baselines:Joint",
        "Joint training: retrained on all data so far; a reference",
        "every training image",
        stores_samples=True,
        deviations=DEVIATIONS["joint"],
    ),
    "clom+": MethodInfo(
        "clom.methods.clom_plus:ClomPlus",
        "CLOM+: CLOM with outlier exposure, a fused task predictor and other additions of ours",
        "masks, heads, 20 samples per class",
        stores_samples=True,
        in_paper=False,
        deviations=DEVIATIONS["clom+"],
    ),
    "ncm": MethodInfo(
        "clom.methods.ncm:Ncm",
        "NCM: nearest class mean on frozen pretrained features",
        "a mean feature per class",
        divisible=False,
        in_paper=False,
        deviations=DEVIATIONS["ncm"],
    ),
    "slda": MethodInfo(
        "clom.methods.slda:Slda",
        "SLDA: streaming linear discriminant analysis on frozen pretrained features (Hayes and Kanan 2020)",
        "a mean feature per class, one covariance",
        divisible=False,
        in_paper=False,
        deviations=DEVIATIONS["slda"],
    ),
    "klda": MethodInfo(
        "clom.methods.klda:Klda",
        "KLDA: linear discriminant analysis on random Fourier features of frozen ones (Momeni et al. 2025)",
        "a mean feature per class, one covariance, random directions",
        divisible=False,
        in_paper=False,
        deviations=DEVIATIONS["klda"],
    ),
    "ranpac": MethodInfo(
        "clom.methods.ranpac:Ranpac",
        "RanPAC: ridge regression on random ReLU features of frozen ones (McDonnell et al. 2023)",
        "a mean feature per class, one covariance, random directions",
        divisible=False,
        in_paper=False,
        deviations=DEVIATIONS["ranpac"],
    ),
    "experts": MethodInfo(
        "clom.methods.experts:Experts",
        "Experts: a discriminant head per task, which never changes, and a shared task predictor; for photos",
        "a mean feature and a subspace per class, one covariance",
        divisible=False,
        in_paper=False,
        deviations=DEVIATIONS["experts"],
    ),
}

PAPER_METHODS = tuple(name for name, info in BUILT_IN.items() if info.in_paper)
"""The systems of the paper, and the two references."""
COMPARED_METHODS = (*PAPER_METHODS, "clom+")
"""The methods of the comparison. Those on pretrained features are left out: the comparison would not be fair."""
TRAINED_METHODS = tuple(name for name in COMPARED_METHODS if name != "clom-no-calibration")
"""The methods that `all` stands for. CLOM(-c) is CLOM without its last step: runs of CLOM are runs of both."""


def _check(thing: object) -> None:
    from clom.methods.families.base import Method

    if not isinstance(thing, type) or not issubclass(thing, Method):
        raise UserError(f"{_described(thing)} is not a method: a method is a subclass of clom.Method.")
    if missing := sorted(getattr(thing, "__abstractmethods__", ())):
        raise UserError(f"{_described(thing)} is not a complete method: it does not define {', '.join(missing)}.")


def _described(thing: object) -> str:
    return f"'{thing.__name__}'" if isinstance(thing, type) else f"{thing!r:.100}"


def _set_name(name: str, method: type[Method]) -> None:
    method.name = name


METHODS: Registry[type[Method]] = Registry(
    "method", "clom.methods", {name: (info.place, info.title) for name, info in BUILT_IN.items()}, _check, _set_name
)
"""All methods: built in, registered, or from installed packages."""


def register_method(name: str, *, title: str | None = None, keeps: str | None = None) -> Callable[[M], M]:
    """A class decorator that registers a method under `name`, which becomes its `name` attribute.

    `clom list` shows `title`, "Label: short description", and `keeps`, what the method stores between tasks. Both can
    also be class attributes, and so can `divisible`, whether torchrun can distribute its training, and `deviations`,
    sentences about how it differs from its publication, which `clom list methods --long` shows.
    """

    register = METHODS.register(name)

    def decorate(method: M) -> M:
        register(method)
        if title is not None:
            method.title = title
        if keeps is not None:
            method.keeps = keeps
        return method

    return decorate


def method_class(name: str) -> type[Method]:
    return METHODS.get(name)


def method_info(name: str) -> MethodInfo:
    """The description of a method: from the table if it is built in, otherwise from its class."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = method_class(name)
    title = vars(found).get("title") or f"{name}: {METHODS.description(name)}"
    keeps, divisible, deviations = (_declared(found, what) for what in ("keeps", "divisible", "deviations"))
    place = METHODS.entry(name).place
    return MethodInfo(place, title, keeps, divisible=divisible, in_paper=False, deviations=tuple(deviations))


def method_title(name: str) -> str:
    """The label and short description of a method; its name if the plug-in that defines it is missing."""
    try:
        return method_info(name).title
    except UserError:
        return name


def method_label(name: str) -> str:
    """The label of a method in tables and figures."""
    return method_title(name).partition(":")[0]


def method_deviations(name: str) -> tuple[str, ...]:
    """How a method differs from its publication; empty if the plug-in that defines it is missing."""
    try:
        return method_info(name).deviations
    except UserError:
        return ()


def _declared(method: type[Method], attribute: str) -> Any:
    """An attribute of a class or its closest base that declares it; built-in classes declare it in the table."""
    by_place = {info.place: info for info in BUILT_IN.values() if not info.preset}
    for base in method.__mro__:
        if attribute in vars(base):
            return vars(base)[attribute]
        if (info := by_place.get(f"{base.__module__}:{base.__qualname__}")) is not None:
            return getattr(info, attribute)
    raise AssertionError(f"Method declares {attribute}")
