"""The section of claims says what was found, in its table and in words."""

from __future__ import annotations

from clom.reporting.paper.claims_section import claims_section
from clom.reporting.paper.distances import EXPLANATION
from clom.reporting.paper.numbers import Results
from reporting.paper.test_claims import around, compared, memory
from reporting.paper.test_rivals import under_protocol


def lines_of(text: str) -> dict[str, list[str]]:
    """The cells of the overview by claim."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}


def test_the_overview_has_every_claim_under_its_verdict() -> None:
    rows = [*compared(96, {"bic": around(93)}), *memory({5: around(58), 20: around(60)})]
    text = claims_section(Results(rows, "cpu"))
    cells = lines_of(text)
    assert cells["claim"] == ["holds", "undecided", "does not hold", "not known", "not run"]
    others = "CIFAR10-5T, CIFAR100-10T, CIFAR100-20T, T-ImageNet-5T, T-ImageNet-10T"
    assert cells["CLOM is first in CIL"] == ["MNIST-5T (3.0)", "–", "–", "–", others]
    assert cells["Few stored samples suffice"] == ["–", "–", "CIFAR100-10T (-2.0)", "–", "CIFAR100-20T"]
    assert cells["Weak protection, low CIL"] == ["–", "–", "–", "–", "CIFAR10-5T"]
    assert EXPLANATION in text
    assert "- CIFAR100-10T, does not hold: CIL by samples per class 5: 58.0 ± 1.0" in text
    assert "- Not run: CIFAR100-20T.\n" in text


def test_it_counts_what_was_found() -> None:
    rows = [*compared(96, {"bic": around(93)}), *memory({5: around(58), 20: around(60)})]
    text = claims_section(Results(rows, "cpu"))
    # Three claims on six experiments, two ablations on two, samples on two, gates on one: 18 + 4 + 2 + 1 = 25; and on
    # MNIST, which Table 2 does not have, CLOM and HAT are one of its four pairs. TIL is the same for all.
    assert "of 26, 1 hold, 1 do not, 1 undecided, 1 not known, 22 not run. None holds on all of them yet." in text
    assert "Shown on none of them, and refuted on some: Few stored samples suffice." in text


def test_why_something_is_not_known() -> None:
    text = claims_section(Results(compared(96, {}, seeds=1), "cpu"))
    assert "- MNIST-5T, not known (one seed, no deviation known): CLOM 96.0; 0 of 14 rivals above" in text


def test_runs_from_before_the_protocol_are_named() -> None:
    rows = compared(96, {})
    assert "equal tuning are not shown: MNIST-5T.\n" in claims_section(Results(rows, "cpu"))
    assert "not shown" not in claims_section(Results(map(under_protocol, rows), "cpu"))
