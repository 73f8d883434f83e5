"""`clom results`: the results page, written from the ledger.

Tested by tests/reporting/test_results_page.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console


def results_command(
    *,
    ledger: Path = Path("results/ledger.jsonl"),
    out: Path = Path("results/README.md"),
    readme: Path = Path("README.md"),
) -> None:
    """Write the results page from the ledger, and a short table into the README between its markers.

    Parameters
    ----------
    ledger
        The ledger file.
    out
        The results page.
    readme
        A file with the lines `<!-- results:begin -->` and `<!-- results:end -->`; not changed if it has neither.
    """
    from clom.experiments.ledger import read
    from clom.reporting.paper.tables import check_rows
    from clom.reporting.readme_block import BEGIN, END
    from clom.reporting.results_page import write_results

    rows = read(ledger)
    check_rows(rows, ledger)
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    written = write_results(rows, out, readme if BEGIN in text or END in text else None)
    Console().print(f"Written from {len(rows)} runs: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
