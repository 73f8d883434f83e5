"""`clom record`: finished runs into the ledger."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def record_command(run: Path, /, *runs: Path, ledger: Path = Path("results/ledger.jsonl")) -> None:
    """Add finished runs to the ledger; a run that is there already is replaced.

    Parameters
    ----------
    run
        A run's folder; more may follow.
    ledger
        The ledger's file.
    """
    from clom.experiments.ledger import Row, add, read

    add(ledger, [Row.of_run(folder) for folder in (run, *runs)])
    Console().print(f"{ledger} holds {len(read(ledger))} runs.", highlight=False, soft_wrap=True)
