"""The short results table of the project's README: a few systems, and where CLOM is not first."""

from __future__ import annotations

from collections.abc import Sequence

from clom.errors import UserError
from clom.experiments.ledger import Row
from clom.methods.registry import method_label
from clom.reporting.paper.numbers import REFERENCES, Results, budgets_of, experiment_label
from clom.reporting.paper.protocol import how_many, is_counted, is_searched
from clom.reporting.paper.rendering import number_text

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EXPERIMENTS = ("mnist-5t", "cifar10-5t", "digits-5t")
"""The experiments shown, if the ledger has any of them; otherwise all of the ledger's."""
ALWAYS_SHOWN = ("clom", "clom-no-calibration", "hat")
OTHERS_SHOWN = 3
_MEASURES = {"cil": "CIL", "til": "TIL"}


def render_digest(rows: Sequence[Row], page: str = "results/README.md") -> str:
    """The text between the markers: a small table and its caveats for every budget but `smoke`."""
    parts = []
    for budget in budgets_of(rows):
        results = Results(rows, budget)
        known = [name for name in results.experiments() if results.methods(name)]
        experiments = [name for name in EXPERIMENTS if name in known] or known
        if budget != "smoke" and experiments:
            parts.append(_table(results, experiments))
            parts.append(_caveats(results, experiments))
            parts.append(_fairness(results, experiments))
    parts.append(f"All systems, seeds, settings and the paper's numbers: [{page}]({page}).\n")
    return "\n".join(parts)


def with_digest(text: str, digest: str, where: object = "the file") -> str:
    """`text` with `digest` between the two markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{where} must contain the lines '{BEGIN}' and '{END}' once each, in this order.")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{digest}{END}{rest.partition(END)[2]}"


def _table(results: Results, experiments: Sequence[str]) -> str:
    columns = [(experiment, measure) for experiment in experiments for measure in _MEASURES]
    heads = [f"{experiment_label(experiment)} {_MEASURES[measure]}" for experiment, measure in columns]
    lines = [["method", *heads], ["---", *("--:" for _ in heads)]]
    for method in _shown(results, experiments):
        numbers = [number_text(results.number(experiment, method, measure)) for experiment, measure in columns]
        lines.append([method_label(method), *numbers])
    title = f"Accuracy after the last task in percent, budget `{results.budget}`, mean ± standard deviation over seeds:"
    return f"{title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(results: Results, experiments: Sequence[str]) -> list[str]:
    """CLOM, CLOM(-c), HAT, the other systems with the highest mean CIL, and joint training."""
    measured = [name for name in _competitors(results) if name not in ALWAYS_SHOWN]
    scored = {name: _mean_cil(results, experiments, name) for name in measured}
    ranked = sorted((name for name in measured if scored[name] is not None), key=lambda name: -(scored[name] or 0.0))
    wanted = (*ALWAYS_SHOWN, *ranked[:OTHERS_SHOWN], "joint")
    return [name for name in wanted if name in results.all_methods()]


def _competitors(results: Results) -> list[str]:
    return sorted(results.all_methods() - REFERENCES)


def _mean_cil(results: Results, experiments: Sequence[str], method: str) -> float | None:
    numbers = [results.number(experiment, method, "cil") for experiment in experiments]
    means = [number.mean for number in numbers if number is not None]
    return sum(means) / len(means) if len(means) == len(experiments) else None


def _caveats(results: Results, experiments: Sequence[str]) -> str:
    """CLOM's rank among all systems, and how to read joint training and numbers without a deviation."""
    sentences = []
    for measure, label in _MEASURES.items():
        ranks = [text for experiment in experiments if (text := _rank(results, experiment, measure))]
        if ranks:
            sentences.append(f"Rank of CLOM by {label}: {'; '.join(ranks)}.")
    if "joint" in results.all_methods():
        sentences.append("Joint training sees all classes at once; it is a reference, not an upper bound.")
    sentences.append("Numbers without ± are from a single seed.")
    return "\n".join(sentences) + "\n"


def _fairness(results: Results, experiments: Sequence[str]) -> str:
    """Whether the runs were made under the rules of a fair comparison."""
    runs = [row for row in results.rows if row.experiment in experiments and not row.overrides]
    counted, searched = (how_many(sum(map(follows, runs)), len(runs)) for follows in (is_counted, is_searched))
    text = (
        f"Equal work: {counted} counted [training passes](docs/protocol.md). "
        f"Equal search: {searched} a recipe from a [recorded search](docs/tuning.md).\n"
    )
    if not all(is_counted(row) and is_searched(row) for row in runs):
        text += "Runs without them were made before these rules, so equal work and equal tuning are not shown.\n"
    return text


def _rank(results: Results, experiment: str, measure: str) -> str | None:
    """For example `2 of 19 on MNIST-5T (below BiC)`; equal to one decimal counts as equal, and only CIL gets names."""
    numbers = {name: results.number(experiment, name, measure) for name in _competitors(results)}
    means = {name: round(number.mean, 1) for name, number in numbers.items() if number is not None}
    if "clom" not in means or len(means) < 2:
        return None
    better = sorted((name for name in means if means[name] > means["clom"]), key=lambda name: -means[name])
    above = f" (below {', '.join(map(method_label, better))})" if better and measure == "cil" else ""
    return f"{len(better) + 1} of {len(means)} on {experiment_label(experiment)}{above}"
