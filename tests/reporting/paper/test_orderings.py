"""Which of two systems is better, in the paper and here."""

from __future__ import annotations

from clom.reporting.paper.numbers import Results
from clom.reporting.paper.orderings import orderings
from reporting.paper.test_tables import made_up


def test_orderings_by_hand() -> None:
    # The paper's CIL on MNIST-5T: CLOM 96.9 ± 0.3, iCaRL 96.0 ± 0.42, OWM 95.8 ± 0.13, SupSup 19.5 ± 0.15.
    ours = {"clom": (0.95, 0.951), "icarl": (0.97, 0.971), "owm": (0.97, 0.971), "supsup": (0.3, 0.5)}
    rows = [made_up(name, seed, cil=cil) for name, cils in ours.items() for seed, cil in enumerate(cils)]
    for row in rows:
        row.figures["cil_by_calibration"] = {}
    found = orderings(Results(rows, "cpu"), "mnist-5t", "cil")
    verdicts = {pair.methods: (pair.verdict, pair.clear) for pair in found.pairs}
    assert verdicts == {
        ("clom", "supsup"): ("holds", True),
        ("clom", "owm"): ("reversed", True),
        ("clom", "icarl"): ("reversed", True),
        ("owm", "supsup"): ("holds", True),
        ("icarl", "supsup"): ("holds", True),
        ("icarl", "owm"): ("tie", False),
    }
    assert [pair.methods for pair in found.of("reversed", True)] == [("clom", "owm"), ("clom", "icarl")]


def test_one_seed_is_never_clear_and_ties_of_the_paper_order_nothing() -> None:
    rows = [made_up("clom", til=0.9), made_up("hat", til=0.5), made_up("owm", til=0.1)]
    for row in rows:
        row.figures["cil_by_calibration"] = {}
    found = orderings(Results(rows, "cpu"), "mnist-5t", "til")  # the paper: CLOM and HAT 99.9, OWM 99.7
    assert [pair.methods for pair in found.pairs] == [("clom", "owm"), ("hat", "owm")]
    assert found.ties_in_paper == 1
    assert not any(pair.clear for pair in found.pairs)
