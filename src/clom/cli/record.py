"""`clom record`: add finished runs to the ledger.

Tested by tests/experiments/test_earlier_run.py.
"""

from __future__ import annotations

from pathlib import Path

from clom.cli.console import Console
from clom.cli.options import DataFolder, RunFolder


def record_command(
    run: RunFolder,
    /,
    *runs: RunFolder,
    memory: tuple[int, ...] = (),
    data: DataFolder | None = None,
    ledger: Path = Path("results/ledger.jsonl"),
) -> None:
    """Add finished runs to the ledger, replacing existing rows of the same runs.

    Parameters
    ----------
    run
        Folder of a finished run; more may follow.
    memory
        Also record the results with this many stored samples per class (repeatable). Nothing is retrained.
    data
        Folder with the data sets, for `--memory`; by default CLOM_DATA or the download cache.
    ledger
        The ledger file.
    """
    from clom.experiments.ledger import Row, add, read

    folders = (run, *runs)
    rows = [Row.of_run(folder) for folder in folders]
    if memory:
        from clom.experiments.analysis.recalibration import with_fewer_samples

        rows += [row for folder in folders for row in with_fewer_samples(folder, memory, data)]
    add(ledger, rows)
    Console().print(f"{ledger} contains {len(read(ledger))} runs.", highlight=False, soft_wrap=True)
