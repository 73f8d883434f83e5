"""Numbers as the page prints them."""

from __future__ import annotations

from clom.reporting.report.sections import decimal, points


def test_numbers() -> None:
    assert [decimal(value) for value in (-0.04, 0.0, 12.345, -3.0)] == ["0.0", "0.0", "12.3", "−3.0"]
    assert [points(value) for value in (1.0, -0.01, -2.5)] == ["+1.0", "0.0", "−2.5"]
