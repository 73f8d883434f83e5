"""The results of the project's README: the main table in small, what each of its rows cost, and where CLOM ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clom.errors import UserError
from clom.experiments.ledger import Row
from clom.methods.registry import method_label
from clom.reporting.figures.readme_curves import Curves, readme_curves
from clom.reporting.paper.numbers import EXPERIMENTS as OF_PAPER
from clom.reporting.paper.numbers import REFERENCES, Results, budgets_of, experiment_label, figure_of, number_of
from clom.reporting.paper.protocol import NO_TRIALS, earlier_runs, follows_protocol, how_many, is_counted, is_searched
from clom.reporting.paper.rendering import DASH, number_text
from clom.reporting.paper.rivals import by_mean_rank

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EXPERIMENTS = (*OF_PAPER, "digits-5t")
"""The experiments shown as far as the ledger has runs of them; if of none, all of the ledger's."""
RIVALS_SHOWN, RIVALS_NAMED = 3, 3
CURVES = "results/cil-curves.png"
_MEASURES = {"cil": "CIL", "til": "TIL"}


def render_digest(rows: Sequence[Row], trials: Mapping[str, int] = NO_TRIALS, page: str = "results/README.md") -> str:
    """The text between the markers: two small tables, a picture and caveats for every budget but `smoke`.

    `trials` are those of each search, by its name.
    """
    parts = []
    for results, experiments in _parts(rows):
        methods = _shown(results, experiments)
        parts += [_cil_table(results, experiments, methods, trials), _til_table(results, experiments, methods)]
        if not any(CURVES in part for part in parts) and readme_curves(results, experiments, methods):
            parts.append(f"![CIL after each task, for the systems of the table]({CURVES})\n")
        parts += [_caveats(results, experiments), _fairness(results, experiments)]
    claims = "which of the paper's claims hold here"
    parts.append(f"All systems, seeds, settings, the paper's numbers, and {claims}: [{page}]({page}).\n")
    return "\n".join(parts)


def digest_curves(rows: Sequence[Row]) -> Curves:
    """The curves of the picture; none if there is nothing to draw."""
    for results, experiments in _parts(rows):
        if curves := readme_curves(results, experiments, _shown(results, experiments)):
            return curves
    return {}


def with_digest(text: str, digest: str, where: object = "the file") -> str:
    """`text` with `digest` between the two markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{where} must contain the lines '{BEGIN}' and '{END}' once each, in this order.")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{digest}{END}{rest.partition(END)[2]}"


def _parts(rows: Sequence[Row]) -> list[tuple[Results, list[str]]]:
    """The budgets shown, each with the experiments shown."""
    found = []
    for budget in budgets_of(rows):
        results = Results(rows, budget)
        known = [name for name in results.experiments() if results.methods(name)]
        experiments = [name for name in EXPERIMENTS if name in known] or known
        if budget != "smoke" and experiments:
            found.append((results, experiments))
    return found


def _shown(results: Results, experiments: Sequence[str]) -> list[str]:
    """CLOM, CLOM+, the three best rivals, and joint training."""
    wanted = ("clom", "clom+", *by_mean_rank(results, experiments)[:RIVALS_SHOWN], "joint")
    return [name for name in wanted if any(results.plain(experiment, name) for experiment in experiments)]


# --- tables ----------------------------------------------------------------------------------------------------------


def _cil_table(results: Results, experiments: Sequence[str], methods: Sequence[str], trials: Mapping[str, int]) -> str:
    lines = [
        [method_label(method), *_accuracies(results, experiments, method, "cil"), *costs]
        for method in methods
        if (costs := _costs(results, experiments, method, trials))
    ]
    heads = ["CIL", *map(experiment_label, experiments), "trials", "passes", "core minutes"]
    fair = [name for name in experiments if any(map(follows_protocol, _all_plain(results, name, methods)))]
    where = (
        "" if len(fair) == len(experiments) else f" on {', '.join(map(experiment_label, fair))} alone" if fair else ""
    )
    title = (
        f"Accuracy after the last task in percent, budget `{results.budget}`, mean ± standard deviation over seeds, "
        f"with the {RIVALS_SHOWN} rivals that have the best mean rank in CIL.\nWhat each row cost{where}: trials of "
        "the search for its recipe, training passes in percent of those allowed, core minutes of a run (mean over the "
        "experiments).\n\n"
    )
    return title + _markdown(heads, lines)


def _til_table(results: Results, experiments: Sequence[str], methods: Sequence[str]) -> str:
    lines = [[method_label(method), *_accuracies(results, experiments, method, "til")] for method in methods]
    return _markdown(["TIL", *map(experiment_label, experiments)], lines)


def _accuracies(results: Results, experiments: Sequence[str], method: str, measure: str) -> list[str]:
    return [number_text(results.number(experiment, method, measure)) for experiment in experiments]


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---", *("--:" for _ in heads[1:])], *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _all_plain(results: Results, experiment: str, methods: Sequence[str]) -> list[Row]:
    return [row for method in methods for row in results.plain(experiment, method)]


def _costs(results: Results, experiments: Sequence[str], method: str, trials: Mapping[str, int]) -> list[str]:
    """Trials, passes and core minutes of the runs under the protocol; a dash for what was not recorded."""
    runs = [[row for row in results.plain(name, method) if follows_protocol(row)] for name in experiments]
    rows = [row for some in runs for row in some]
    counts = sorted({trials[row.search] for row in rows if row.search in trials})
    work = [(figure_of(row, "passes"), figure_of(row, "allowance")) for row in rows]
    shares = [100 * passes / allowance for passes, allowance in work if passes is not None and allowance]
    minutes = [number_of(some, "cpu_minutes") for some in runs if some]
    known = [number.mean for number in minutes if number is not None]
    return [
        _range(counts, ""),
        _range([round(share) for share in shares], "%"),
        f"{sum(known) / len(known):.1f}" if known and len(known) == len(minutes) else DASH,
    ]


def _range(values: Sequence[int], unit: str) -> str:
    if not values:
        return DASH
    low, high = min(values), max(values)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


# --- caveats ---------------------------------------------------------------------------------------------------------


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
    left_out = earlier_runs([row for row in results.earlier if row.experiment in experiments])
    return text + (f"{left_out}\n" if left_out else "")


def _rank(results: Results, experiment: str, measure: str) -> str | None:
    """For example `2 of 19 on MNIST-5T (below BiC)`; equal to one decimal counts as equal, and only CIL gets names."""
    competitors = sorted(results.all_methods() - REFERENCES)
    numbers = {name: results.number(experiment, name, measure) for name in competitors}
    means = {name: round(number.mean, 1) for name, number in numbers.items() if number is not None}
    if "clom" not in means or len(means) < 2:
        return None
    better = sorted((name for name in means if means[name] > means["clom"]), key=lambda name: -means[name])
    names, more = [method_label(name) for name in better[:RIVALS_NAMED]], len(better) - RIVALS_NAMED
    above = f" (below {', '.join(names)}{f' and {more} more' if more > 0 else ''})" if better else ""
    return f"{len(better) + 1} of {len(means)} on {experiment_label(experiment)}{above if measure == 'cil' else ''}"
