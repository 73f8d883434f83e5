"""What tables and figures call things. Names of methods are the registry's: `clom.methods.registry.method_label`."""

from __future__ import annotations

_CALIBRATIONS = {"memory": "calibrated on memory", "scale": "no stored samples", "none": "not calibrated"}


def cil_label(calibration: str) -> str:
    """The CIL accuracy with one of a method's calibrations."""
    return f"CIL, {_CALIBRATIONS.get(calibration, calibration)}"
