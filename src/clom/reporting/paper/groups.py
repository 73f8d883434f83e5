"""The groups that tables divide systems into, so that like stands beside like."""

from __future__ import annotations

from collections.abc import Iterable

from clom.methods.registry import BUILT_IN
from clom.reporting.paper.numbers import REFERENCES

OF_CLOM = frozenset({"clom", "clom-no-calibration", "clom-no-ood", "clom-odin", "supsup-ood"})
"""The paper's CLOM, and the systems that the paper makes from its parts."""
GROUPS = (
    "CLOM and its ablations",
    "With stored samples",
    "Without stored samples",
    "References",
    "Additions and plug-ins",
)
"""As short as the systems' labels, so that tables fit narrow screens."""


def group_of(method: str) -> str:
    clom, with_samples, without_samples, references, additions = GROUPS
    info = BUILT_IN.get(method)
    if info is None or not info.in_paper:
        return additions
    if method in REFERENCES:
        return references
    if method in OF_CLOM:
        return clom
    return with_samples if info.stores_samples else without_samples


def by_group(methods: Iterable[str]) -> list[str]:
    """In the order of the groups, and within each in the given order."""
    return sorted(methods, key=lambda method: GROUPS.index(group_of(method)))
