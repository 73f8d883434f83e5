"""Labels for tables and figures. For those of methods see `clom.methods.registry.method_label`."""

from __future__ import annotations

_CALIBRATIONS = {"memory": "calibrated on memory", "scale": "no stored samples", "none": "not calibrated"}


def cil_label(calibration: str) -> str:
    """The label of CIL accuracy under one calibration."""
    return f"CIL, {_CALIBRATIONS.get(calibration, calibration)}"
