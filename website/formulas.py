"""LaTeX formulas as MathML, which browsers show without a script or a font."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<kind>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def with_mathml(page: str) -> str:
    """A page's HTML, with formulas as pymdownx.arithmatex marks them replaced by MathML."""

    def replaced(formula: re.Match[str]) -> str:
        display = "block" if formula["kind"] == "[" else "inline"
        tag = formula["tag"]
        return f'<{tag} class="arithmatex">{convert(html.unescape(formula["latex"]).strip(), display=display)}</{tag}>'

    return _FORMULA.sub(replaced, page)
