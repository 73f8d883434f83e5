"""Every OOD score and every task predictor by name, built in or brought; their code is imported when first used."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clom.errors import UserError, unknown
from clom.plugins import Registry

if TYPE_CHECKING:
    from clom.ood.predictors import Predictor
    from clom.ood.scores import Score


def check_score_class(thing: Any) -> None:
    """Refuse what cannot be used as a score."""
    from clom.ood.scores import NEEDS, Score

    _check_class(thing, "score", Score, "__call__(outputs), which returns one number per image")
    if isinstance(thing.needs, str):
        raise UserError(
            f"{thing.__name__}.needs is a tuple of names: write needs = ({thing.needs!r},), with the comma."
        )
    for need in thing.needs:
        if need not in NEEDS:
            raise unknown(f"output that a score may need ({thing.__name__}.needs) called", str(need), NEEDS)


def check_predictor_class(thing: Any) -> None:
    """Refuse what cannot be used as a task predictor."""
    from clom.ood.predictors import Predictor

    _check_class(thing, "predictor", Predictor, "__call__(blocks, scores), which returns [images, tasks]")


def _check_class(thing: Any, kind: str, base: type, contract: str) -> None:
    name = getattr(thing, "__name__", repr(thing))
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise UserError(f"{name} is not a {kind}: derive a class from clom.{base.__name__} and give it {contract}.")
    if inspect.isabstract(thing):
        raise UserError(f"The {kind} {name} is not complete: give it {contract}.")
    try:
        inspect.signature(thing).bind()
    except TypeError as problem:
        raise UserError(f"The {kind} {name} must be constructible without arguments ({problem}).") from None


SCORES: Registry[type[Score]] = Registry(
    "score",
    "clom.scores",
    {
        "msp": "clom.ood.scores:MSP",
        "max-logit": "clom.ood.scores:MaxLogit",
        "energy": "clom.ood.scores:Energy",
        "neg-entropy": "clom.ood.scores:NegEntropy",
        "gen": "clom.ood.scores:GEN",
        "odin": "clom.ood.odin:ODIN",
        "mahalanobis": "clom.ood.scores:Mahalanobis",
        "relative-mahalanobis": "clom.ood.scores:RelativeMahalanobis",
        "knn": "clom.ood.scores:KNN",
        "vim": "clom.ood.scores:ViM",
        "react": "clom.ood.scores:ReAct",
    },
    check_score_class,
)

PREDICTORS: Registry[type[Predictor]] = Registry(
    "predictor",
    "clom.predictors",
    {
        "argmax": "clom.ood.predictors:Argmax",
        "task-then-class": "clom.ood.predictors:TaskThenClass",
        "product": "clom.ood.predictors:Product",
    },
    check_predictor_class,
)


def chosen(registry: Registry[Any], references: Sequence[str] = ()) -> list[str]:
    """The names to use: those given, or else all, and always what is given as FILE.py:Name or package.module:Name."""
    names = [registry.named(reference) for reference in references if ":" not in reference]
    brought = [registry.named(reference) for reference in references if ":" in reference]
    return list(dict.fromkeys([*(names or registry.names()), *brought]))
