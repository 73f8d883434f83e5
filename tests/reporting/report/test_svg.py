"""Drawings inside the page."""

from __future__ import annotations

import re

import torch

from clom.reporting.report.svg import Charts


def test_drawings_take_any_scores() -> None:
    charts = Charts()
    same = {"own": torch.ones(5), "other": torch.ones(3)}
    one, two = charts.histogram(same, 'a "label"'), charts.histogram(same, "b", line=0.5, wide=True)
    assert 'aria-label="a &#34;label&#34;"' in one
    assert "var(--accent)" in one
    assert "rejected to the left" in two
    assert not set(re.findall(r'id="([^"]+)"', one)) & set(re.findall(r'id="([^"]+)"', two))
