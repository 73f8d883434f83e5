"""The paper's claims as a section of the results page: an overview, and the numbers behind each verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from clom.reporting.paper.claims import Claim, Finding, claims_of
from clom.reporting.paper.distances import CLEAR, EXPLANATION, Verdict, one_decimal
from clom.reporting.paper.numbers import Results, experiment_label
from clom.reporting.paper.protocol import follows_protocol
from clom.reporting.paper.rendering import DASH
from clom.reporting.paper.table import SEEDS_FOR_BOLD as ENOUGH_SEEDS

_COLUMNS: Mapping[Verdict, str] = {
    "holds": "holds",
    "undecided": "undecided",
    "fails": "does not hold",
    "unknown": "not known",
}


def claims_section(results: Results) -> str:
    claims = claims_of(results)
    parts = [
        f"## Which of the paper's claims hold here? Budget `{results.budget}`\n",
        f"{EXPLANATION}\n"
        f"A claim holds if it does by at least {CLEAR:g} standard deviation, and does not if the opposite is true by "
        f"as much; in between it is undecided. With fewer than {ENOUGH_SEEDS} seeds on either side, or with rivals of "
        "the paper that were not run, it is not known.\n",
        _overview(claims),
        _overall(claims) + _fairness(results),
        *(_details(claim) for claim in claims),
    ]
    return "\n".join(parts)


def _overview(claims: Sequence[Claim]) -> str:
    lines = [["claim", *_COLUMNS.values(), "not run"], ["---"] * (2 + len(_COLUMNS))]
    for claim in claims:
        cells = [[_in_short(found) for found in claim.of(verdict) if found.was_run] for verdict in _COLUMNS]
        cells.append([experiment_label(found.experiment) for found in claim.findings if not found.was_run])
        lines.append([claim.name, *(", ".join(cell) or DASH for cell in cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_short(finding: Finding) -> str:
    """For example `MNIST-5T (3.2)`, with the standard deviations."""
    label = experiment_label(finding.experiment)
    if finding.verdict == "unknown" or finding.deviations is None:
        return label
    return f"{label} ({one_decimal(finding.deviations)})"


def _overall(claims: Sequence[Claim]) -> str:
    findings = [finding for claim in claims for finding in claim.findings]
    counts = Counter(finding.verdict for finding in findings if finding.was_run)
    always = [claim.name for claim in claims if claim.findings and len(claim.of("holds")) == len(claim.findings)]
    never = [claim.name for claim in claims if claim.of("fails") and not claim.of("holds")]
    text = (
        f"In parentheses: standard deviations. Overall, each claim counted once for each of its experiments: of "
        f"{len(findings)}, {counts['holds']} hold, {counts['fails']} do not, {counts['undecided']} undecided, "
        f"{counts['unknown']} not known, {len(findings) - counts.total()} not run."
    )
    text += f" Shown on all of its experiments: {', '.join(always)}." if always else " None holds on all of them yet."
    return text + (f" Shown on none of them, and refuted on some: {', '.join(never)}." if never else "") + "\n"


def _fairness(results: Results) -> str:
    """The experiments whose runs are no fair comparison yet."""
    runs = {name: [row for row in results.rows if row.experiment == name] for name in results.experiments()}
    before = [experiment_label(name) for name, rows in runs.items() if not all(map(follows_protocol, rows))]
    if not before:
        return ""
    return f"Runs from before the protocol, so that equal work and equal tuning are not shown: {', '.join(before)}.\n"


def _details(claim: Claim) -> str:
    lines = [f"**{claim.name}**: {claim.meaning}.\n\n"]
    for found in claim.findings:
        if found.was_run:
            verdict = _COLUMNS[found.verdict] + (f" ({found.reason})" if found.reason else "")
            lines.append(f"- {experiment_label(found.experiment)}, {verdict}: {found.text}.\n")
    absent = [experiment_label(found.experiment) for found in claim.findings if not found.was_run]
    lines += [f"- Not run: {', '.join(absent)}.\n"] if absent else []
    return "".join(lines)
