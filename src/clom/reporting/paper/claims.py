"""The paper's claims, tested on the ledger: which hold here, by how many standard deviations, and which do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clom.methods.registry import method_label
from clom.reporting.paper.ablations import gate_rows, memory_rows, view_rows, views_label
from clom.reporting.paper.distances import CLEAR, Distance, Verdict, too_few, verdict_of
from clom.reporting.paper.numbers import EXPERIMENTS, Number, Results, number_of, paper_number
from clom.reporting.paper.orderings import STAND_INS, Measure
from clom.reporting.paper.rendering import number_text
from clom.reporting.paper.rivals import RIVALS

NOT_RUN = "not run"
OOD_PAIRS = (("clom", "clom-no-ood"), ("clom", "clom-odin"), ("clom", "hat"), ("supsup-ood", "supsup"))
"""Systems that differ in their OOD detection, as in the paper's Table 2; HAT is CLOM (ODIN) without ODIN."""
FEW_SAMPLES = 5
WEAK, STRONG = (False, 1.0), (False, 700.0)
"""Soft gates, and s."""


@dataclass(frozen=True)
class Finding:
    """What the runs of one experiment say of a claim."""

    experiment: str
    verdict: Verdict
    text: str
    deviations: float | None = None
    """By how many standard deviations the claim holds, at the least; negative if it fails."""
    reason: str = ""
    """Why it is not known."""

    @property
    def was_run(self) -> bool:
        return self.text != NOT_RUN


@dataclass(frozen=True)
class Claim:
    name: str
    meaning: str
    findings: tuple[Finding, ...]

    def of(self, verdict: Verdict) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == verdict]


def claims_of(results: Results) -> list[Claim]:
    """All claims, each on the paper's experiments, and on others that have the runs it needs."""
    return [_claim(results, *parts) for parts in _CLAIMS]


def _claim(
    results: Results, name: str, meaning: str, of_paper: Iterable[str], judge: Callable[[Results, str], Finding]
) -> Claim:
    wanted = {*of_paper, *results.experiments()}
    experiments = [*(name for name in EXPERIMENTS if name in wanted), *sorted(wanted - set(EXPERIMENTS))]
    findings = [judge(results, experiment) for experiment in experiments]
    return Claim(name, meaning, tuple(found for found in findings if found.was_run or found.experiment in of_paper))


# --- first of all ----------------------------------------------------------------------------------------------------


def _first(results: Results, experiment: str, method: str, measure: Measure) -> Finding:
    """Whether a system is above all rivals. Rivals of too few seeds count only if one of them is the best."""
    own = results.number(experiment, method, measure)
    numbers = {name: results.number(experiment, name, measure) for name in RIVALS}
    rivals = {name: Distance(own, number) for name, number in numbers.items() if own and number}
    if own is None or not rivals:
        return Finding(experiment, "unknown", NOT_RUN)
    best = min(rivals, key=lambda name: rivals[name].points)
    known = {name: known for name, each in rivals.items() if (known := each.deviations) is not None}
    verdict = verdict_of((*known.values(), rivals[best].deviations))
    missing = [name for name in RIVALS if name not in rivals and _in_paper(experiment, name, measure)]
    closest = min(known, key=lambda name: known[name]) if known and verdict != "unknown" else best
    text = f"{_named(method, own)}; {_standing(rivals, closest)}{_in_words(experiment, method, measure)}"
    reason = too_few([rivals[best]]) if verdict == "unknown" else ""
    if missing and verdict != "fails":
        verdict, reason = "unknown", "1 rival not run" if len(missing) == 1 else f"{len(missing)} rivals not run"
        text += f"; not run: {', '.join(map(method_label, missing))}"
    return Finding(experiment, verdict, text, known.get(closest), reason)


def _standing(rivals: dict[str, Distance], closest: str) -> str:
    """How many rivals are above, and how far away the one is that decides."""
    above = sum(round(each.points, 1) < 0 for each in rivals.values())
    deviations, points = rivals[closest].deviations, rivals[closest].points
    amount = f"{abs(points):.1f} points" if deviations is None else f"{abs(deviations):.1f} standard deviations"
    where = f"{amount} {'below' if points > 0 else 'above'}"
    if amount.startswith("0.0 "):
        where = "equal"
    return f"{above} of {len(rivals)} rivals above; {_named(closest, rivals[closest].second)} is {where}"


def _in_paper(experiment: str, method: str, measure: str) -> Number | None:
    return paper_number("final_accuracy", STAND_INS.get(experiment, experiment), method, measure)


def _in_words(experiment: str, method: str, measure: str) -> str:
    """Whether the claim holds in the paper's own table; empty for an experiment that the paper does not have."""
    own = None if experiment in STAND_INS else _in_paper(experiment, method, measure)
    others = {name: number for name in RIVALS if (number := _in_paper(experiment, name, measure)) is not None}
    if own is None or not others:
        return ""
    best = max(others, key=lambda name: others[name].mean)
    gap = own.mean - others[best].mean
    sign = ">" if gap > 0 else "<" if gap < 0 else "="
    return f" (the paper: {own.mean:.1f} {sign} {_named(best, Number(others[best].mean))})"


def _named(method: str, number: Number) -> str:
    return f"{method_label(method)} {number_text(number)}"


def _first_in_cil(results: Results, experiment: str) -> Finding:
    return _first(results, experiment, "clom", "cil")


def _first_in_til(results: Results, experiment: str) -> Finding:
    return _first(results, experiment, "clom", "til")


def _first_without_calibration(results: Results, experiment: str) -> Finding:
    return _first(results, experiment, "clom-no-calibration", "cil")


# --- ablations -------------------------------------------------------------------------------------------------------


def _better_ood(results: Results, experiment: str) -> Finding:
    """Whether of two systems the one with the clearly higher AUC has the clearly higher CIL."""
    texts, support, missing, unclear = list[str](), list[float | None](), list[str](), list[Distance]()
    for pair in OOD_PAIRS:
        auc, cil = (_between(results, experiment, pair, figure) for figure in ("auc_maxlogit", "cil"))
        name = f"{method_label(pair[0])} against {method_label(pair[1])}"
        if auc is None or cil is None:
            missing.append(name)
            continue
        texts.append(f"{name}: AUC {auc}, CIL {cil}")
        apart, gained = auc.deviations, cil.deviations
        if apart is None or gained is None:
            support.append(None)
            unclear += [auc, cil]
        elif abs(apart) >= CLEAR:  # else neither detects better
            support.append(gained if apart > 0 else -gained)
    if not texts:
        return Finding(experiment, "unknown", NOT_RUN)
    verdict = verdict_of(support) if support else "undecided"
    reason = too_few(unclear) if verdict == "unknown" else ""
    if missing and verdict != "fails":
        verdict, reason = "unknown", "some systems not run"
    texts += [f"not run: {', '.join(missing)}"] if missing else []
    return Finding(experiment, verdict, "; ".join(texts), _least(support), reason)


def _between(results: Results, experiment: str, pair: tuple[str, str], figure: str) -> Distance | None:
    first, second = (results.number(experiment, method, figure) for method in pair)
    return None if first is None or second is None else Distance(first, second)


def _least(deviations: Iterable[float | None]) -> float | None:
    return min((distance for distance in deviations if distance is not None), default=None)


def _few_samples(results: Results, experiment: str) -> Finding:
    """Whether few samples per class are less than one standard deviation worse than all."""
    rows = memory_rows(results, experiment)
    cil = {count: number for count in rows if (number := number_of(rows[count], "cil")) is not None}
    most = max(cil, default=0)
    if FEW_SAMPLES not in cil or most <= FEW_SAMPLES:
        return Finding(experiment, "unknown", NOT_RUN)
    lost = Distance(cil[most], cil[FEW_SAMPLES])
    text = ", ".join(f"{count}: {number_text(number)}" for count, number in sorted(cil.items()))
    text = f"CIL by samples per class {text}; {most} instead of {FEW_SAMPLES} give {lost}"
    text += f", {FEW_SAMPLES} instead of none {Distance(cil[FEW_SAMPLES], cil[0])}" if 0 in cil else ""
    if lost.deviations is None:
        return Finding(experiment, "unknown", text, reason=too_few([lost]))
    return Finding(experiment, "holds" if lost.deviations < CLEAR else "fails", text, -lost.deviations)


def _weak_protection(results: Results, experiment: str) -> Finding:
    """Whether soft gates with a small s forget more and end lower."""
    rows = gate_rows(results, experiment)
    if not {WEAK, STRONG} <= set(rows):
        return Finding(experiment, "unknown", NOT_RUN)
    pairs = {}
    for figure in ("forgetting", "cil"):
        weak, strong = (number_of(rows[kind], figure) for kind in (WEAK, STRONG))
        if weak is None or strong is None:
            return Finding(experiment, "unknown", NOT_RUN)
        pairs[figure] = Distance(weak, strong) if figure == "forgetting" else Distance(strong, weak)
    by_s = ", ".join(
        f"s = {s:g}: {number_text(number_of(rows[soft, s], 'forgetting'))} and "
        f"{number_text(number_of(rows[soft, s], 'cil'))}"
        for soft, s in sorted(rows)
        if not soft
    )
    text = (
        f"forgetting and CIL with {by_s}; s = 1 instead of 700 forgets {pairs['forgetting']}, CIL loses {pairs['cil']}"
    )
    distances = [pair.deviations for pair in pairs.values()]
    verdict = verdict_of(distances)
    reason = too_few(pairs.values()) if verdict == "unknown" else ""
    return Finding(experiment, verdict, text, _least(distances), reason)


def _rotation(results: Results, experiment: str) -> Finding:
    """Whether rotations raise the CIL: of the recipe, and with other augmentations as far as there are enough seeds."""
    found = {}
    recipe = _between(results, experiment, ("clom", "clom-no-ood"), "cil")
    if recipe is not None:
        found["the recipes (CLOM against CLOM (w/o OOD))"] = recipe
    rows = view_rows(results, experiment)
    for used in sorted({used for used, _ in rows}, key=views_label):
        both = [rows.get((used, rotations), []) for rotations in (4, 1)]
        numbers = [number_of(some, "cil") for some in both]
        changed = any(row.overrides for some in both for row in some)
        if changed and numbers[0] is not None and numbers[1] is not None:
            found[views_label(used)] = Distance(numbers[0], numbers[1])
    if not found:
        return Finding(experiment, "unknown", NOT_RUN)
    text = "CIL gained with " + ", ".join(f"{name}: {distance}" for name, distance in found.items())
    known = [known for distance in found.values() if (known := distance.deviations) is not None]
    verdict = verdict_of((*known, None if recipe is None else recipe.deviations))
    reason = too_few([recipe]) if recipe is not None else "no runs of both recipes"
    return Finding(experiment, verdict, text, _least(known), reason if verdict == "unknown" else "")


_CLAIMS: tuple[tuple[str, str, tuple[str, ...], Callable[[Results, str], Finding]], ...] = (
    (
        "CLOM is first in CIL",
        "among the systems of the comparison, without its own variants, references and additions",
        tuple(EXPERIMENTS),
        _first_in_cil,
    ),
    ("CLOM is first in TIL", "among the same systems", tuple(EXPERIMENTS), _first_in_til),
    (
        "CLOM(-c) is above all rivals",
        "in CIL, without stored samples for calibration",
        tuple(EXPERIMENTS),
        _first_without_calibration,
    ),
    (
        "Better OOD detection, better CIL",
        "of two systems that differ in their OOD detection, the one with the clearly higher AUC has the higher CIL",
        ("cifar10-5t", "cifar100-10t"),
        _better_ood,
    ),
    (
        "Few stored samples suffice",
        f"with {FEW_SAMPLES} samples per class, CIL is less than one standard deviation below that with all (the table "
        "says how far below)",
        ("cifar100-10t", "cifar100-20t"),
        _few_samples,
    ),
    (
        "Weak protection, low CIL",
        "soft gates with s = 1 forget more than with s = 700, and their CIL is lower",
        ("cifar10-5t",),
        _weak_protection,
    ),
    (
        "Rotation helps",
        "CIL is higher with rotations than without",
        ("cifar10-5t", "cifar100-10t"),
        _rotation,
    ),
)
