"""One name for each calibration, everywhere."""

from __future__ import annotations

import pytest

from clom.reporting.labels import cil_label


@pytest.mark.parametrize(
    ("calibration", "label"),
    [
        ("memory", "CIL, calibrated on memory"),
        ("scale", "CIL, no stored samples"),
        ("none", "CIL, not calibrated"),
        ("bias correction", "CIL, bias correction"),
    ],
)
def test_every_calibration_has_a_label(calibration: str, label: str) -> None:
    assert cil_label(calibration) == label
