"""Registries of OOD scores and task predictors, built in or from plug-ins; their code is imported lazily."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from clom.errors import UserError, unknown
from clom.plugins import Registry

if TYPE_CHECKING:
    from clom.ood.predictors.base import TaskPredictor
    from clom.ood.scores import Score

S = TypeVar("S", bound="type[Score]")
P = TypeVar("P", bound="type[TaskPredictor]")


def check_score_class(thing: Any) -> None:
    """Raise unless `thing` can be used as a score."""
    from clom.ood.scores import NEEDS, Score

    _check_class(thing, "score", Score, "__call__(outputs), which returns one number per image")
    _check_needs(thing, NEEDS, "a score")


def _check_needs(thing: Any, known: Collection[str], kind: str) -> None:
    if isinstance(thing.needs, str):
        raise UserError(
            f"{thing.__name__}.needs must be a tuple of names: write needs = ({thing.needs!r},), with the comma."
        )
    for need in thing.needs:
        if need not in known:
            raise unknown(f"output that {kind} may need ({thing.__name__}.needs) called", str(need), known)


def check_predictor_class(thing: Any) -> None:
    """Raise unless `thing` can be used as a task predictor."""
    from clom.ood.predictors.base import NEEDS, TaskPredictor

    _check_class(thing, "predictor", TaskPredictor, "__call__(outputs), which returns [images, tasks]")
    _check_needs(thing, NEEDS, "a predictor")


def _check_class(thing: Any, kind: str, base: type, contract: str) -> None:
    name = getattr(thing, "__name__", repr(thing))
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise UserError(f"{name} is not a {kind}: derive a class from clom.{base.__name__} and give it {contract}.")
    if inspect.isabstract(thing):
        raise UserError(f"The {kind} {name} is abstract: give it {contract}.")
    try:
        inspect.signature(thing).bind()
    except TypeError as problem:
        raise UserError(f"The {kind} {name} must be constructible without arguments ({problem}).") from None


BUILT_IN_SCORES = {
    "msp": ("clom.ood.scores:MSP", "maximum softmax probability (Hendrycks and Gimpel 2017)"),
    "max-logit": ("clom.ood.scores:MaxLogit", "largest entry of the block, as compared in CIL by argmax"),
    "energy": ("clom.ood.scores:Energy", "logsumexp of the block (Liu et al. 2020)"),
    "neg-entropy": ("clom.ood.scores:NegEntropy", "negative entropy of the softmax probabilities"),
    "gen": ("clom.ood.scores:GEN", "generalised entropy (Liu et al. 2023)"),
    "odin": ("clom.ood.odin:ODIN", "temperature and input perturbation (Liang et al. 2018)"),
    "mahalanobis": ("clom.ood.scores:Mahalanobis", "distance to the nearest class mean (Lee et al. 2018)"),
    "relative-mahalanobis": (
        "clom.ood.scores:RelativeMahalanobis",
        "the same, minus the distance to the task's mean (Ren et al. 2021)",
    ),
    "knn": ("clom.ood.scores:KNN", "distance to the k-th nearest training feature (Sun et al. 2022)"),
    "vim": ("clom.ood.scores:ViM", "energy minus a virtual logit (Wang et al. 2022)"),
    "react": ("clom.ood.scores:ReAct", "energy of clipped features (Sun et al. 2021)"),
}
"""Name -> location and description, available without importing it."""

_PREDICTORS = "clom.ood.predictors"
BUILT_IN_PREDICTORS = {
    "argmax": (f"{_PREDICTORS}.rules:Argmax", "the task with the largest logit, not calibrated: CLOM(-c)"),
    "task-then-class": (f"{_PREDICTORS}.rules:TaskThenClass", "the task with the highest OOD score"),
    "product": (f"{_PREDICTORS}.rules:Product", "the task with the highest class times task probability"),
    "calibration": (f"{_PREDICTORS}.calibrated:Calibrated", "the largest calibrated logit (Eq. 9-11): CLOM"),
    "cross-task": (
        f"{_PREDICTORS}.calibrated:CrossTask",
        "the same with shifts by all tasks' logits; ours",
    ),
    "scale": (f"{_PREDICTORS}.calibrated:Scaled", "the largest logit over its usual value; no samples; ours"),
    "wptp": (f"{_PREDICTORS}.factorised:Wptp", "within-task times task probability; no samples (Kim et al. 2022)"),
    "more": (f"{_PREDICTORS}.factorised:More", "confidence times inverse distance; no samples (MORE, Kim et al. 2022)"),
    "row": (f"{_PREDICTORS}.row:Row", "confidence, a head for other tasks, distance (ROW, Kim et al. 2023)"),
    "row-no-samples": (f"{_PREDICTORS}.row:RowWithoutSamples", "ROW without its head for other tasks; no samples"),
    "tpl": (f"{_PREDICTORS}.tpl:Tpl", "likelihood ratio and logit, soft minimum (TPL, Lin et al. 2024)"),
    "tpl-max": (f"{_PREDICTORS}.tpl:TplSoftMaximum", "TPL with the soft maximum of its Eq. 9"),
    "mahalanobis": (f"{_PREDICTORS}.fusion:Mahalanobis", "distance over rotation classes; no samples; ours"),
    "fusion-no-samples": (f"{_PREDICTORS}.fusion:FusionWithoutSamples", "logit and distance; no samples; ours"),
    "other-head": (f"{_PREDICTORS}.fusion:OtherHead", "a head with one output for all other tasks; ours"),
    "fusion": (f"{_PREDICTORS}.fusion:Fusion", "calibrated logit, other heads and distance; ours"),
}

SCORES: Registry[type[Score]] = Registry("score", "clom.scores", BUILT_IN_SCORES, check_score_class)
PREDICTORS: Registry[type[TaskPredictor]] = Registry(
    "predictor", "clom.predictors", BUILT_IN_PREDICTORS, check_predictor_class
)


def register_score(name: str) -> Callable[[S], S]:
    """A class decorator that registers a `Score` as `name`."""
    register = SCORES.register(name)

    def decorate(score: S) -> S:
        register(score)
        return score

    return decorate


def register_predictor(name: str) -> Callable[[P], P]:
    """A class decorator that registers a `TaskPredictor` as `name`."""
    register = PREDICTORS.register(name)

    def decorate(predictor: P) -> P:
        register(predictor)
        return predictor

    return decorate


def chosen(registry: Registry[Any], references: Sequence[str] = ()) -> list[str]:
    """The given names, or else all names, plus those given as FILE.py:Name or package.module:Name."""
    names = [registry.named(reference) for reference in references if ":" not in reference]
    from_code = [registry.named(reference) for reference in references if ":" in reference]
    return list(dict.fromkeys([*(names or registry.names()), *from_code]))
