"""Every method by name; a method's code is imported when it is first used, so that listing them is instant.

`BUILT_IN` tells about those of this package without importing them. What others bring is a class derived from `Method`
that tells about itself: see `register_method`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from clom.errors import UserError
from clom.plugins import Registry

if TYPE_CHECKING:
    from clom.methods.families.base import Method

M = TypeVar("M", bound="type[Method]")


@dataclass(frozen=True)
class MethodInfo:
    """Where a method lives and what a person choosing one wants to know."""

    place: str
    title: str
    keeps: str
    preset: tuple[tuple[str, Any], ...] = ()
    """Settings that make a variant of another method, as dotted names."""
    divisible: bool = True
    """Whether several processes can share its work: it trains the experiment's network."""
    of_the_paper: bool = True
    """Whether "all" methods include it. What starts from pretrained features is no fair comparison with the others."""

    @property
    def short(self) -> str:
        """The method's name in print, which for those of the paper is the paper's."""
        return self.title.partition(":")[0]


BUILT_IN: dict[str, MethodInfo] = {
    "clom": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM: each task an OOD detector, protected by hard attention",
        "masks, heads, 20 samples a class for calibration",
    ),
    "clom-no-calibration": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM(-c): CLOM with uncalibrated outputs",
        "masks, heads",
        preset=(("calibration", "none"),),
    ),
    "clom-no-ood": MethodInfo(
        "clom.methods.clom:Clom",
        "CLOM (w/o OOD): contrastive learning without rotation classes",
        "masks, heads, 20 samples a class for calibration",
        preset=(("learning.rotations", 1),),
    ),
    "clom-odin": MethodInfo(
        "clom.methods.clom_odin:ClomOdin",
        "CLOM (ODIN): HAT's classifiers, told apart by ODIN (Liang et al. 2018)",
        "masks, heads, 20 samples a class for calibration",
    ),
    "hat": MethodInfo(
        "clom.methods.hat:Hat",
        "HAT: hard attention with an ordinary classifier per task (Serra et al. 2018)",
        "masks, heads, 20 samples a class for calibration",
    ),
    "hypernet": MethodInfo(
        "clom.methods.hypernet.method:HyperNet",
        "HyperNet: a network that generates each task's classifier (von Oswald et al. 2020)",
        "the generating network, a vector and normalisation statistics per task",
        divisible=False,
    ),
    "supsup": MethodInfo(
        "clom.methods.supsup:SupSup",
        "SupSup: a mask per task over frozen random weights (Wortsman et al. 2020)",
        "masks, normalisation statistics, 20 samples a class for calibration",
    ),
    "supsup-ood": MethodInfo(
        "clom.methods.supsup:SupSupOod",
        "SupSup (OOD in CLOM): SupSup's masks with CLOM's learner",
        "masks, heads, normalisation statistics, 20 samples a class for calibration",
    ),
    "owm": MethodInfo(
        "clom.methods.owm:Owm",
        "OWM: gradients orthogonal to what earlier inputs excite (Zeng et al. 2019)",
        "a projector per layer",
        divisible=False,
    ),
    "muc": MethodInfo(
        "clom.methods.muc:Muc",
        "MUC: main and side classifiers of the last task distilled (Liu et al. 2020)",
        "side classifiers; needs unlabelled other images",
    ),
    "pass": MethodInfo(
        "clom.methods.pass_:Pass",
        "PASS: noisy prototypes, rotation classes and feature distillation (Zhu et al. 2021)",
        "no images; a mean feature of every class and one radius, which are numbers of the model",
    ),
    "lwf-r": MethodInfo(
        "clom.methods.lwf_r:LwfR",
        "LwF.R: distillation of old outputs with replay (Li and Hoiem 2016, as run by Liu et al. 2020)",
        "exemplar images",
    ),
    "icarl": MethodInfo(
        "clom.methods.icarl:Icarl",
        "iCaRL: nearest mean of exemplars on LwF.R's network (Rebuffi et al. 2017)",
        "exemplar images",
    ),
    "mnemonics": MethodInfo(
        "clom.methods.mnemonics:Mnemonics",
        "Mnemonics: iCaRL with learned exemplars (Liu et al. 2020)",
        "learned exemplars, four bytes a value",
    ),
    "bic": MethodInfo(
        "clom.methods.bic:Bic",
        "BiC: replay and distillation, then a bias correction per task (Wu et al. 2019)",
        "exemplars to train and to validate, two numbers a task",
    ),
    "derpp": MethodInfo(
        "clom.methods.derpp:Derpp",
        "DER++: replay of images with the outputs they once had (Buzzega et al. 2020)",
        "a reservoir of images and outputs",
    ),
    "a-rps": MethodInfo(
        "clom.methods.a_rps.method:ARps",
        "A-RPS: random paths through parallel modules, replay, distillation (Rajasegaran et al. 2019)",
        "every module used, exemplars (200 for ten classes, 2000 for more)",
        divisible=False,
    ),
    "co2l": MethodInfo(
        "clom.methods.co2l:Co2L",
        "Co2L: contrastive features kept by distilling similarities, classifier made anew (Cha et al. 2021)",
        "training images, 200 in all (2000 for a hundred or more classes)",
    ),
    "ccg": MethodInfo(
        "clom.methods.ccg.method:Ccg",
        "CCG: channels gated for each image, a task classifier with rehearsal (Abati et al. 2020)",
        "gates, heads, normalisation, 200 or 2000 images (or a generator per task) for the task classifier",
        divisible=False,
    ),
    "finetune": MethodInfo(
        "clom.methods.baselines:FineTune",
        "Fine-tuning: each task in turn, nothing protected; the lower bound",
        "nothing",
    ),
    "joint": MethodInfo(
        "clom.methods.baselines:Joint",
        "Joint training: a new network for all data so far; the upper bound",
        "every training image",
    ),
    "ncm": MethodInfo(
        "clom.methods.ncm:Ncm",
        "NCM: the nearest class mean on frozen pretrained features",
        "a mean feature of every class",
        divisible=False,
        of_the_paper=False,
    ),
    "slda": MethodInfo(
        "clom.methods.slda:Slda",
        "SLDA: streaming linear discriminant analysis on frozen pretrained features (Hayes and Kanan 2020)",
        "a mean feature of every class, one covariance",
        divisible=False,
        of_the_paper=False,
    ),
}

PAPER_METHODS = tuple(name for name, info in BUILT_IN.items() if info.of_the_paper)
"""What "all" methods are."""


def _check(thing: object) -> None:
    from clom.methods.families.base import Method

    if not isinstance(thing, type) or not issubclass(thing, Method):
        raise UserError(f"{_described(thing)} is not a method: a method is a class derived from clom.Method.")
    if missing := sorted(getattr(thing, "__abstractmethods__", ())):
        raise UserError(f"{_described(thing)} is not a method yet: it does not define {', '.join(missing)}.")


def _described(thing: object) -> str:
    return f"'{thing.__name__}'" if isinstance(thing, type) else f"{thing!r:.100}"


def _set_name(name: str, method: type[Method]) -> None:
    method.name = name


METHODS: Registry[type[Method]] = Registry(
    "method", "clom.methods", {name: info.place for name, info in BUILT_IN.items()}, _check, _set_name
)
"""All methods: built in, registered, of installed packages."""


def register_method(name: str, *, title: str | None = None, keeps: str | None = None) -> Callable[[M], M]:
    """A class decorator that makes a method known by `name`, which becomes its `name`.

    `title` and `keeps` are what `clom list` tells about it: "Name in print: what it is", and what it stores between
    tasks. They may as well be attributes of the class, and so may `divisible`: whether torchrun can divide its work.
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
    """What is known about a method: of the table if it is built in, else of its class."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    found = method_class(name)
    title = vars(found).get("title") or f"{name}: {_first_line(found)}"
    keeps, divisible = (_declared(found, what) for what in ("keeps", "divisible"))
    return MethodInfo(METHODS.entry(name).place, title, keeps, (), divisible, of_the_paper=False)


def method_title(name: str) -> str:
    """What to call a method in print, and what it is; its name if a plug-in brought it that is not here."""
    try:
        return method_info(name).title
    except UserError:
        return name


def method_label(name: str) -> str:
    """The same without what it is."""
    return method_title(name).partition(":")[0]


def _declared(method: type[Method], attribute: str) -> Any:
    """What a class, or the closest of its bases, says about itself; a built-in one says it in the table."""
    by_place = {info.place: info for info in BUILT_IN.values() if not info.preset}
    for base in method.__mro__:
        if attribute in vars(base):
            return vars(base)[attribute]
        if (info := by_place.get(f"{base.__module__}:{base.__qualname__}")) is not None:
            return getattr(info, attribute)
    raise AssertionError(f"Method itself has {attribute}")


def _first_line(method: type[Method]) -> str:
    return (method.__doc__ or "").strip().partition("\n")[0] or "no description"
