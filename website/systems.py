"""The pages of the systems: the equations in docs/systems, with what the registry, recipes, ledger and paper say."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clom.experiments.ledger import Row
from clom.methods.deviations import COMMON
from clom.methods.registry import BUILT_IN, MethodInfo
from clom.reporting.paper.groups import by_group, group_of
from clom.reporting.paper.numbers import (
    EXPERIMENTS,
    Results,
    budgets_of,
    experiment_label,
    number_of,
    paper_number,
)
from clom.reporting.paper.published import paper_experiments
from clom.reporting.paper.rendering import number_text
from website.settings_table import settings_table


def system_page(name: str, written: str, rows: Sequence[Row]) -> str:
    """A system's page; `written` has its heading and its equations."""
    heading, _, text = written.partition("\n")
    return "\n".join(
        [
            heading,
            "",
            summary(name, BUILT_IN[name]),
            text.strip(),
            "",
            "## Settings",
            "",
            _settings(name),
            "## Results",
            "",
            results(name, rows),
            "## Differences from the publication",
            "",
            differences(BUILT_IN[name]),
        ]
    )


def index_page() -> str:
    """The list of all systems, in the groups of the tables."""
    lines = [
        "# Systems\n",
        "Every system of the paper's comparison, two references, and two methods on pretrained features. Each page has "
        "the system's equations, its settings in every experiment, its recorded runs, and how it differs from its "
        "publication.\n",
    ]
    group = ""
    for name in by_group(list(BUILT_IN)):
        if group_of(name) != group:
            group = group_of(name)
            lines += [f"\n## {_sentence(group)}\n", "| system | name | stored between tasks |", "| --- | --- | --- |"]
        info = BUILT_IN[name]
        lines.append(f"| [{info.short}]({name}.md): {_what(info)} | `{name}` | {info.keeps} |")
    return "\n".join(lines) + "\n"


def summary(name: str, info: MethodInfo) -> str:
    """What the registry says."""
    what = _what(info)
    known = paper_experiments(info.short)
    module = info.place.partition(":")[0].replace(".", "/")
    facts = {
        "Run it": f"`clom run mnist-5t --method {name}`"
        if info.in_paper
        else f"`clom learn my.model photos --method {name}`",
        "Stored between tasks": info.keeps,
        "Distributed training": "yes" if info.divisible else "no",
        "Numbers in the paper": "all six experiments" if len(known) == len(EXPERIMENTS) else _list(known) or "none",
        "Its own settings": ", ".join(f"`{option}: {json.dumps(value)}`" for option, value in info.preset),
        "Code": f"`src/{module}.py`",
    }
    lines = [f"- {fact}: {value}" for fact, value in facts.items() if value]
    return f"{_sentence(what)}.\n\n" + "\n".join(lines) + "\n"


def results(name: str, rows: Sequence[Row]) -> str:
    """The system's rows of the ledger, by experiment and budget, beside the paper's numbers."""
    lines = [
        "| experiment | budget | seeds | TIL | CIL | paper's TIL | paper's CIL | forgetting | recipe | commit |",
        "| --- | --- | --- | --: | --: | --: | --: | --: | --- | --- |",
    ]
    changed = []
    for budget in budgets_of(rows):
        found = Results(rows, budget)
        for experiment in found.experiments():
            if runs := found.plain(experiment, name):
                theirs = [paper_number("final_accuracy", experiment, name, measure) for measure in ("til", "cil")]
                cells = [
                    experiment_label(experiment),
                    f"`{budget}`",
                    _seeds(runs),
                    *(number_text(number_of(runs, figure)) for figure in ("til", "cil")),
                    *map(number_text, theirs),
                    number_text(number_of(runs, "forgetting")),
                    _list(sorted({run.search or "by hand" for run in runs})),
                    _list(sorted({run.commit or "unknown" for run in runs})),
                ]
                lines.append(f"| {' | '.join(cells)} |")
        changed += [row for row in found.rows if row.method == name and row.overrides]
    if len(lines) == 2 and not changed:
        return "No run is recorded yet.\n"
    text = (
        "In percent, mean ± standard deviation over seeds, from `results/ledger.jsonl`.\n\n" + "\n".join(lines) + "\n"
    )
    return text if not changed else f"{text}\n{_changed(changed)}"


def _changed(rows: Sequence[Row]) -> str:
    """Runs with other settings than the recipe's."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        groups.setdefault((row.experiment, row.budget, json.dumps(row.overrides, sort_keys=True)), []).append(row)
    lines = ["| experiment | budget | changed settings | seeds | TIL | CIL |", "| --- | --- | --- | --- | --: | --: |"]
    for (experiment, budget, _), runs in groups.items():
        settings = "<br>".join(f"`{name}={json.dumps(value)}`" for name, value in sorted(runs[0].overrides.items()))
        figures = " | ".join(number_text(number_of(runs, figure)) for figure in ("til", "cil"))
        lines.append(f"| {experiment_label(experiment)} | `{budget}` | {settings} | {_seeds(runs)} | {figures} |")
    return "Runs with changed settings:\n\n" + "\n".join(lines) + "\n"


def differences(info: MethodInfo) -> str:
    own = "".join(f"- {sentence}\n" for sentence in info.deviations) or "- None of its own.\n"
    return f"{own}\nOf all systems:\n\n" + "".join(f"- {sentence}\n" for sentence in COMMON)


def _settings(name: str) -> str:
    table = settings_table(name)
    if not table:
        return "It has none.\n"
    return (
        "`--set NAME=VALUE` changes one. The default is that of the class; the recipes of the experiments set the "
        f"values of each budget.\n\n{table}"
    )


def _what(info: MethodInfo) -> str:
    return info.title.partition(": ")[2]


def _sentence(text: str) -> str:
    """With a capital at the start, and names within as they are."""
    return text[0].upper() + text[1:]


def _seeds(rows: Sequence[Row]) -> str:
    return _list([str(seed) for seed in sorted({row.seed for row in rows})])


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)
