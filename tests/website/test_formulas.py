"""Formulas as MathML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website.formulas import with_mathml

PAGES = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))


def test_formulas_in_the_text_and_on_lines_of_their_own() -> None:
    page = (
        '<p>if <span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\n\\[ \\frac{1}{2} \\]\n</div>'
    )
    shown = with_mathml(page.replace("\n", ""))
    assert re.fullmatch(
        r'<p>if <span class="arithmatex"><math [^>]*display="inline"[^>]*>.*</math></span></p>'
        r'<div class="arithmatex"><math [^>]*display="block"[^>]*>.*<mfrac>.*</math></div>',
        shown,
    )
    assert "\\" not in shown
    assert "<mo>&lt;</mo>" in shown or "<mo>&#x0003C;</mo>" in shown


def test_other_text_stays_as_it_is() -> None:
    assert with_mathml("<p>\\(no formula\\)</p>") == "<p>\\(no formula\\)</p>"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_formula_is_understood(page: Path) -> None:
    """Unknown commands would be shown as they are written."""
    for formula in re.findall(r"\$\$(.+?)\$\$", page.read_text(encoding="utf-8"), re.DOTALL):
        shown = with_mathml(f'<div class="arithmatex">\\[{formula}\\]</div>')
        assert "<math" in shown
        assert not re.search(r"\\[a-zA-Z]", shown), formula
