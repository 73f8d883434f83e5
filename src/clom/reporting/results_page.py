"""The results page, generated from the ledger and the paper's numbers; never edit it by hand."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clom.errors import UserError
from clom.experiments.catalogue import BUDGETS, read_experiment
from clom.experiments.ledger import Row
from clom.files import write_atomically
from clom.methods.deviations import COMMON
from clom.methods.registry import BUILT_IN, method_deviations, method_label
from clom.reporting.figures.readme_curves import draw_readme_curves
from clom.reporting.labels import cil_label
from clom.reporting.paper.ablations import changed_settings
from clom.reporting.paper.claims_section import claims_section
from clom.reporting.paper.groups import by_group
from clom.reporting.paper.numbers import Results, budgets_of, experiment_label, figure_of, number_of
from clom.reporting.paper.orderings import Measure, Orderings, Pair, orderings
from clom.reporting.paper.protocol import NO_TRIALS, earlier_runs, protocol_counts, read_trials
from clom.reporting.paper.rendering import DASH, number_text, to_markdown
from clom.reporting.paper.tables import make_table
from clom.reporting.readme_block import CURVES, digest_curves, render_digest, with_digest

_ABLATIONS = {
    "memory": {"memory_per_class"},
    "scale": {"attention.s_max", "attention.binary"},
    "augmentation": {
        "learning.augmentation.flip",
        "learning.augmentation.colour",
        "learning.augmentation.crop",
        "learning.rotations",
    },
}
_BUDGETS: dict[str, str] = {
    str(name): text for name, text in BUDGETS.items()
}  # a ledger may contain budgets that no longer exist
_MEASURES: dict[Measure, str] = {"til": "TIL", "cil": "CIL"}


def render_page(rows: Sequence[Row], trials: Mapping[str, int] = NO_TRIALS) -> str:
    """The content of `results/README.md`; `trials` are those of each search, by its name."""
    parts, budgets = [_introduction(rows), _protocol(rows)], budgets_of(rows)
    parts += [claims_section(Results(rows, budget)) for budget in budgets if budget != "smoke"]
    for budget in budgets:
        results = Results(rows, budget)
        parts.append(f"## Budget `{budget}`: {_BUDGETS.get(budget, 'no longer exists')}\n")
        for experiment in results.experiments():
            parts += _experiment(results, experiment, trials)
        parts += _all_experiments(results)
    return "\n".join([*parts, _differences(rows)])


# --- parts -----------------------------------------------------------------------------------------------------------


def _introduction(rows: Sequence[Row]) -> str:
    return (
        "# Results\n\n"
        f"Written by `make results` from the {len(rows)} runs in [ledger.jsonl](ledger.jsonl); do not edit by hand.\n"
        "TIL is the accuracy when the task of an image is given, CIL when it is not. Accuracies, AUC, task detection "
        "(TaskDR) and forgetting are in percent,\n"
        "mean ± standard deviation (n - 1) over seeds. A dash: not measured. [How the systems differ from their "
        "publications](#how-the-systems-differ-from-their-publications) is at the end.\n"
    )


def _protocol(rows: Sequence[Row]) -> str:
    """How many runs were made under the rules of a fair comparison, by experiment."""
    text = (
        "## Are the runs comparable?\n\n"
        "A fair comparison gives every system the same work, counted in [training passes](../docs/protocol.md), and "
        "the same [search](../docs/tuning.md) for its recipe.\n"
        "Runs without counted passes or a recorded search were made before these rules, with recipes found by hand. As "
        "soon as an experiment has runs\nunder the rules, only these count; the others stay in the ledger.\n\n"
    )
    for budget in budgets_of(rows):
        results = Results(rows, budget)
        for experiment in results.experiments():
            found = [row for row in results.rows if row.experiment == experiment]
            earlier = sum(row.experiment == experiment for row in results.earlier)
            others = f"; {earlier} from before the protocol are in no table" if earlier else ""
            text += f"- `{experiment}`, budget `{budget}`: {protocol_counts(found)}{others}\n"
    return text


def _differences(rows: Sequence[Row]) -> str:
    """What the registry says of the systems in the ledger; what several have in common is said once."""
    found = {method for budget in budgets_of(rows) for method in Results(rows, budget).all_methods()}
    methods = by_group([*(name for name in BUILT_IN if name in found), *sorted(found - set(BUILT_IN))])
    systems: dict[str, list[str]] = {}
    for method in methods:
        for sentence in method_deviations(method):
            systems.setdefault(sentence, []).append(method_label(method))
    sentences: dict[str, list[str]] = {"All systems": list(COMMON)}
    for sentence, labels in systems.items():
        sentences.setdefault(", ".join(labels), []).append(sentence)
    parts = [f"- {who}:\n" + "".join(f"  - {text}\n" for text in texts) for who, texts in sentences.items()]
    introduction = "In the present version; runs of earlier commits may differ in other ways, too."
    return f"## How the systems differ from their publications\n\n{introduction}\n\n{''.join(parts)}"


def _experiment(results: Results, experiment: str, trials: Mapping[str, int]) -> list[str]:
    parts = [f"### {experiment}: {_title(experiment)}\n"]
    methods = results.methods(experiment)
    if methods:
        table = make_table("main", results.rows, results.budget, [experiment])
        known = tuple(line for line in table.lines if any(entry.ours or entry.paper for entry in line.entries))
        parts.append(to_markdown(replace(table, lines=known)))
        parts += [_details(results, experiment, by_group(methods), trials), _how_to(results, experiment)]
    if left_out := earlier_runs([row for row in results.earlier if row.experiment == experiment]):
        parts.append(f"{left_out}\n")
    parts += _ablations(results, experiment)
    parts.append(_origin([row for row in results.rows if row.experiment == experiment]))
    found = [orderings(results, experiment, measure) for measure in _MEASURES]
    return parts + [_against_paper(one) for one in found if one.pairs]


def _title(experiment: str) -> str:
    try:
        return read_experiment(experiment).title
    except UserError:
        return "not an experiment of this version"


_COLUMNS = {
    "TIL": "til",
    "CIL": "cil",
    cil_label("scale"): "cil.scale",
    cil_label("none"): "cil.none",
    "AUC": "auc_maxlogit",
    "TaskDR": "task_detection",
    "forgetting": "forgetting",
    "avg. incr. TIL": "average_incremental_til",
    "avg. incr. CIL": "average_incremental_cil",
}


def _details(results: Results, experiment: str, methods: Sequence[str], trials: Mapping[str, int]) -> str:
    lines = [
        ["method", "seeds", *_COLUMNS, "samples kept", "parameters", *_COSTS, "recipe", "commit"],
        ["---", *("--:" for _ in range(len(_COLUMNS) + len(_COSTS) + 3)), "---", "---"],
    ]
    for method in methods:
        rows = [row for row in results.rows if row.experiment == experiment and row.method == method]
        rows = sorted((row for row in rows if not row.overrides), key=lambda row: row.seed)
        lines.append(
            [
                f"`{method}`",
                ", ".join(str(row.seed) for row in rows),
                *(number_text(number_of(rows, figure)) for figure in _COLUMNS.values()),
                _bytes(_mean(rows, "memory_bytes")),
                _count(_mean(rows, "parameters")),
                *_costs(rows),
                ", ".join(sorted({_recipe(row, trials) for row in rows})),
                ", ".join(sorted({row.commit or "unknown" for row in rows})),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _recipe(row: Row, trials: Mapping[str, int]) -> str:
    """Where the recipe comes from."""
    known = trials.get(row.search)
    return (row.search + (f" ({known} trials)" if known else "")) or "by hand"


_COSTS = ("passes (thousands)", "minutes", "core minutes")


def _costs(rows: Sequence[Row]) -> list[str]:
    passes = _mean(rows, "passes")
    thousands = DASH if passes is None else f"{passes / 1000:,.0f}"
    return [thousands, *(number_text(number_of(rows, figure)) for figure in ("minutes", "cpu_minutes"))]


def _mean(rows: Iterable[Row], figure: str) -> float | None:
    number = number_of(rows, figure)
    return None if number is None else number.mean


def _bytes(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.0f} B" if value < 1000 else f"{value / 1000:.0f} kB" if value < 1e6 else f"{value / 1e6:.1f} MB"


def _count(value: float | None) -> str:
    return DASH if value is None else f"{value / 1e6:.2f} M"


def _how_to(results: Results, experiment: str) -> str:
    start = f"clom run {experiment} --method METHOD --budget {results.budget} --seed SEED"
    folder = f"runs/{experiment}-METHOD-{results.budget}-sSEED"
    return f"To reproduce a row, for each seed: `{start}`, then `clom record {folder}`.\n"


def command_of(row: Row) -> str:
    """The command that repeats a run."""
    words = ["clom", "run", row.experiment, "--method", row.method, "--budget", row.budget, "--seed", str(row.seed)]
    for name, value in sorted(row.overrides.items()):
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def _ablations(results: Results, experiment: str) -> list[str]:
    changed = [row for row in results.rows if row.experiment == experiment and row.overrides]
    parts = []
    for name, settings in _ABLATIONS.items():
        if any(row.method == "clom" and changed_settings(row) and changed_settings(row) <= settings for row in changed):
            table = make_table(name, results.rows, results.budget, [experiment])
            parts.append(f"{table.title}:\n\n{to_markdown(table)}")
    if changed:
        parts.append(_changed(changed))
    return parts


_TABLES = ("average-incremental", "forgetting", "parameters")
_FIGURES = ("til-curves", "cil-curves", "forgetting")


def _all_experiments(results: Results) -> list[str]:
    """What the paper's appendix has: tables of all experiments beside each other."""
    experiments = [name for name in results.experiments() if results.methods(name)]
    if not experiments:
        return []
    parts = ["### All experiments\n"]
    for name in _TABLES:
        table = make_table(name, results.rows, results.budget, experiments)
        notes = tuple(note for note in table.notes if not note.startswith("Equal "))  # above, by experiment
        parts.append(f"{table.title}:\n\n{to_markdown(replace(table, notes=notes))}")
    figures = ", ".join(f"`clom figure {name} --budget {results.budget}`" for name in _FIGURES)
    parts.append(f"TIL and CIL after every task and forgetting, as figures: {figures}.\n")
    return parts


def _changed(rows: Sequence[Row]) -> str:
    """Runs with overridden settings; each group with the command of its first seed."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        groups.setdefault((row.method, json.dumps(row.overrides, sort_keys=True)), []).append(row)
    lines = [["seeds", "TIL", "CIL", "forgetting", *_COSTS, "command"], ["---", *["--:"] * (3 + len(_COSTS)), "---"]]
    for group in sorted(groups.values(), key=lambda group: group[0].key):
        group.sort(key=lambda row: row.seed)
        figures = [number_text(number_of(group, figure)) for figure in ("til", "cil", "forgetting")]
        lines.append([", ".join(str(row.seed) for row in group), *figures, *_costs(group), f"`{command_of(group[0])}`"])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"Runs with overridden settings:\n\n{table}"


def _origin(rows: Sequence[Row]) -> str:
    """Commits, versions, machines and total time."""
    commits = Counter(row.commit or "unknown" for row in rows)
    versions = sorted({", ".join(f"{name} {value}" for name, value in sorted(row.versions.items())) for row in rows})
    machines = sorted({row.machine or "unknown" for row in rows})
    minutes = sum(figure_of(row, "minutes") or 0.0 for row in rows)
    counts = ", ".join(f"{commit} ({count} runs)" for commit, count in sorted(commits.items()))
    return (
        f"Computed in {minutes / 60:.1f} hours in total. Commits: {counts}. Versions: {'; '.join(versions)}. "
        f"Machines: {'; '.join(machines)}.\n"
    )


# --- against the paper -----------------------------------------------------------------------------------------------


def _summary(found: Orderings) -> str:
    holds, reversed_, ties = found.of("holds"), found.of("reversed"), found.of("tie")
    other = found.against != found.experiment
    whose = f"the paper's {experiment_label(found.against)} (another data set; the paper has no {found.experiment})"
    text = (
        f"{_MEASURES[found.measure]} on {found.experiment} against {whose if other else 'the paper'}: of the "
        f"{len(found.pairs)} pairs of systems that the paper orders and that were run here, {len(holds)} are ordered "
        f"the same way ({len(found.of('holds', True))} by more than the standard deviations, in the paper and here), "
        f"{len(reversed_)} the opposite way ({len(found.of('reversed', True))} by more than the standard deviations)"
    )
    return text + (f"; equal here: {len(ties)}." if ties else ".") + _of_clom(found)


def _of_clom(found: Orderings) -> str:
    """The paper's claim for CLOM in one sentence."""
    pairs = [pair for pair in found.pairs if pair.methods[0] == "clom"]
    if not pairs:
        return ""
    beaten = [pair for pair in pairs if pair.verdict == "holds"]
    others = [method_label(pair.methods[1]) for pair in pairs if pair.verdict != "holds"]
    text = f" In the paper CLOM beats {len(pairs)} of the other systems; here it beats {len(beaten)}"
    return text + (f", but not {', '.join(others)}." if others else ".")


def _against_paper(found: Orderings) -> str:
    text = f"**{_MEASURES[found.measure]}: is the order of the systems the same?** {_summary(found)}\n"
    clear, close = found.of("reversed", True), found.of("reversed", False)
    if clear:
        text += "\nReversed by more than the standard deviations:\n\n" + _disagreements(clear)
    if close:
        pairs = ", ".join(f"{method_label(pair.methods[0])} > {method_label(pair.methods[1])}" for pair in close)
        text += (
            "\nReversed, but within the standard deviations of the paper or of these runs, or these are unknown "
            f"(a single seed): {pairs}.\n"
        )
    return text


def _disagreements(pairs: Sequence[Pair]) -> str:
    lines = ["| order in the paper | the paper | here |", "| --- | --- | --- |"]
    for pair in pairs:
        first, second = map(method_label, pair.methods)
        theirs, ours = (
            " > ".join(number_text(number) for number in pair.paper),
            " < ".join(number_text(number) for number in pair.ours),
        )
        lines.append(f"| {first} > {second} | {theirs} | {ours} |")
    return "".join(f"{line}\n" for line in lines)


# --- files -----------------------------------------------------------------------------------------------------------


def write_results(rows: Sequence[Row], page: Path, readme: Path | None) -> list[Path]:
    """Write the page, and into `readme` the digest, whose picture is written beside the page; return the files written.

    Searches are those recorded beside the page.
    """
    trials = read_trials(page.parent / "searches")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, render_page(rows, trials).encode())
    if readme is None:
        return [page]
    text = readme.read_text(encoding="utf-8")
    write_atomically(readme, with_digest(text, render_digest(rows, trials), readme).encode())
    picture, curves = readme.parent / CURVES, digest_curves(rows)
    if not curves:
        return [page, readme]
    picture.parent.mkdir(parents=True, exist_ok=True)
    return [page, readme, draw_readme_curves(curves, picture)]
