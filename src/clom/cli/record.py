"""`clom record`: finished runs into the ledger.

Tested by tests/experiments/test_earlier_run.py.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def record_command(
    run: Path,
    /,
    *runs: Path,
    memory: tuple[int, ...] = (),
    data: Path | None = None,
    ledger: Path = Path("results/ledger.jsonl"),
) -> None:
    """Add finished runs to the ledger; a run that is there already is replaced.

    Parameters
    ----------
    run
        A run's folder; more may follow.
    memory
        Also what the runs give with this many stored samples per class (may be repeated). Nothing is learned again.
    data
        Folder with the data sets, for `--memory`; otherwise CLOM_DATA or the download cache.
    ledger
        The ledger's file.
    """
    from clom.experiments.ledger import Row, add, read

    folders = (run, *runs)
    rows = [Row.of_run(folder) for folder in folders]
    if memory:
        from clom.experiments.analysis.recalibration import with_fewer_samples

        rows += [row for folder in folders for row in with_fewer_samples(folder, memory, data)]
    add(ledger, rows)
    Console().print(f"{ledger} holds {len(read(ledger))} runs.", highlight=False, soft_wrap=True)
