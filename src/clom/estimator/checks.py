"""Validation of parameters and labels. As scikit-learn requires: in `fit`, with `ValueError`.

Tested by tests/estimator/test_classifier.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clom.errors import UserError
from clom.machine import choose_device
from clom.methods.registry import METHODS

Array = NDArray[Any]


def check_parameters(estimator: Any) -> None:
    if estimator.method not in METHODS:
        raise ValueError(f"There is no method {estimator.method!r}. Known: {', '.join(METHODS.names())}.")
    try:
        choose_device(estimator.device)
    except UserError as problem:
        raise ValueError(str(problem)) from None
    for name in ("steps", "classes_per_task"):
        value = getattr(estimator, name)
        if value is None and name == "classes_per_task":
            continue
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, not {value!r}.")
    for name in ("validation", "false_rejection"):
        value = getattr(estimator, name)
        if not isinstance(value, int | float | np.number) or not 0 <= value < 1:
            raise ValueError(f"{name} must be a fraction in [0, 1), not {value!r}.")


def check_labels(labels: Array, known: Array | None, announced: Any) -> None:
    """Raise unless all classes are new and of the same kind as the known ones."""
    classes = np.unique(labels)
    if announced is not None and (other := np.setdiff1d(classes, np.asarray(announced))).size:
        raise ValueError(f"y contains the classes {_listed(other)}, which are not among `classes`.")
    if known is None:
        return
    if (known.dtype.kind in "OUS") != (classes.dtype.kind in "OUS"):
        raise ValueError(f"y contains labels such as {classes[0]!r}, but labels such as {known[0]!r} were learned.")
    again = np.intersect1d(classes, known)
    if not again.size:
        return
    if again.size < classes.size:
        advice = "Nothing was learned now. Leave them out: new = ~np.isin(y, clf.classes_), X[new], y[new]."
    else:
        advice = "Give all images of a class in one call, or use fit to start from scratch."
    raise ValueError(f"The classes {_listed(again)} were learned before, and a learned task is never changed. {advice}")


def _listed(classes: Array) -> str:
    return ", ".join(str(label) for label in classes)
