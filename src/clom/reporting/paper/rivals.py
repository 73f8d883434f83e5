"""CLOM's rivals: the systems that the paper compares it with, other than its own variants and the references.

`python -m clom.reporting.paper.rivals` prints the grid of further seeds of the best ones, by what the ledger has of
seed 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clom.errors import UserError
from clom.experiments.ledger import Row, read
from clom.methods.registry import PAPER_METHODS
from clom.reporting.paper.groups import OF_CLOM
from clom.reporting.paper.numbers import EXPERIMENTS, REFERENCES, Results, figure_of
from clom.reporting.paper.protocol import follows_protocol

RIVALS = tuple(name for name in PAPER_METHODS if name not in OF_CLOM and name not in REFERENCES)
FURTHER_SEEDS = (1, 2)
REPEATED: Mapping[str, int] = {name: 6 if name in ("mnist-5t", "cifar10-5t") else 2 for name in EXPERIMENTS}
"""Experiment -> how many of its best rivals are run with further seeds."""


def by_mean_rank(results: Results, experiments: Iterable[str]) -> list[str]:
    """The rivals with runs, by their rank in CIL, averaged over the experiments; those that were not run on an
    experiment come after those that were."""
    ranks: dict[str, list[int]] = {}
    for experiment in experiments:
        numbers = {name: results.number(experiment, name, "cil") for name in RIVALS}
        means = {name: round(number.mean, 1) for name, number in numbers.items() if number is not None}
        for name in RIVALS:
            better = [mean for mean in means.values() if name not in means or mean > means[name]]
            ranks.setdefault(name, []).append(1 + len(better))
    run = [name for name in RIVALS if any(results.plain(experiment, name) for experiment in results.experiments())]
    return sorted((name for name in run if name in ranks), key=lambda name: sum(ranks[name]))


def best_of_seed(results: Results, experiment: str, count: int, seed: int = 0) -> list[str]:
    """The rivals with the highest CIL in the runs of one seed under the protocol; none before all of them were run."""
    found: dict[str, float] = {}
    for name in RIVALS:
        for row in results.plain(experiment, name):
            value = figure_of(row, "cil")
            if row.seed == seed and follows_protocol(row) and value is not None:
                found[name] = value
    return sorted(found, key=lambda name: -found[name])[:count] if len(found) == len(RIVALS) else []


def rivals_grid(rows: Sequence[Row], budget: str = "cpu") -> str:
    """The grid file of further seeds of the best rivals."""
    results, blocks, seeds = Results(rows, budget), "", ", ".join(map(str, FURTHER_SEEDS))
    for experiment, count in REPEATED.items():
        if best := best_of_seed(results, experiment, count):
            blocks += f"  - experiments: [{experiment}]\n    methods: [{', '.join(best)}]\n    seeds: [{seeds}]\n"
    if not blocks:
        raise UserError("No experiment has a run of seed 0 under the protocol for each of the rivals.")
    return (
        "# Further seeds of CLOM's best rivals in CIL, by seed 0. Written from the ledger by\n"
        f"# `python -m clom.reporting.paper.rivals`; see main-table.yaml.\nblocks:\n{blocks}"
    )


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("results/ledger.jsonl")
    try:
        print(rivals_grid(read(path)), end="")
    except UserError as problem:
        sys.exit(f"clom: {problem}")
