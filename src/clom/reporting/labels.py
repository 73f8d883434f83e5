"""Labels for tables and figures. For those of methods see `clom.methods.registry.method_label`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CALIBRATIONS = {"memory": "calibrated on memory", "scale": "no stored samples", "none": "not calibrated"}


def cil_label(calibration: str) -> str:
    """The label of CIL accuracy under one calibration."""
    return f"CIL, {_CALIBRATIONS.get(calibration, calibration)}"


def work_label(summary: Mapping[str, Any]) -> str:
    """The training passes that a run used, and its allowance; empty if they were not counted."""
    passes, allowance = summary.get("passes"), summary.get("allowance")
    if passes is None:
        return ""
    allowed = "" if allowance is None else f" of {allowance:,.0f} allowed ({100 * passes / allowance:.0f}%)"
    return f"{passes:,.0f} training passes{allowed}"
