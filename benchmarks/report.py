"""Benchmark results as JSON and Markdown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure
from clom import machine
from clom.files import write_atomically


def write(folder: Path, figures: Sequence[Figure], minutes: float, quick: bool) -> tuple[Path, Path]:
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "quick": quick,
        "minutes": round(minutes, 1),
        "machine": machine.describe(),
    }
    content = {**about, "figures": [figure.to_json() for figure in figures]}
    paths = folder / "benchmarks.json", folder / "benchmarks.md"
    write_atomically(paths[0], (json.dumps(content, indent=1) + "\n").encode())
    write_atomically(paths[1], markdown(about, figures).encode())
    return paths


def commit() -> str:
    """The commit, with a plus sign if the working tree differs from it."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def markdown(about: dict[str, Any], figures: Sequence[Figure]) -> str:
    where = about["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    kept = [figure for figure in figures if figure.limit is not None]
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on {about['date']}, commit {about['commit']}, in {about['minutes']} minutes.",
        f"{where['processor']}, {where['threads']} threads, {where['memory_gb']} GB of memory, "
        f"GPU: {where['gpu'] or 'none'}; Python {where['python']}, {packages}.",
        "",
        "Medians, with quartiles over n measurements in brackets. Variants take turns in one process and ratios are",
        "taken round by round. With one thread, times are the processor's; with several, those of a clock. The",
        "allocator is tuned (`clom.machine`) for both sides of every comparison. Images and weights are random: speed",
        "does not ask what is on an image.",
        *(["", "**A quick run: small networks, few rounds. These figures mean nothing.**"] if about["quick"] else []),
        "",
        "## Limits",
        "",
        *table(kept, with_group=True),
        "",
        "## All figures",
    ]
    for group, members in groupby(figures, key=lambda figure: figure.group):
        lines += ["", f"### {group[0].upper()}{group[1:]}", "", *table(list(members), with_group=False)]
    return "\n".join(lines) + "\n"


def table(figures: Sequence[Figure], with_group: bool) -> list[str]:
    head = ["what", "median [quartiles], n", *(["limit", "of the limit", ""] if with_group else ["note"])]
    rows = [head, ["---"] * len(head)]
    for figure in figures:
        if with_group:
            sign = "<=" if figure.at_most is not None else ">="
            share = "" if figure.of_limit is None else f"{figure.of_limit:.2f}"
            limit = f"{sign} {number(figure.limit or 0)} {figure.unit}"
            rows.append([f"{figure.group}: {figure.name}", measured(figure), limit, share, figure.verdict])
        else:
            rows.append([figure.name, measured(figure), figure.note])
    return ["| " + " | ".join(row) + " |" for row in rows]


def measured(figure: Figure) -> str:
    """Median and unit; the quartiles and their number where there was more than one measurement."""
    spread = f" [{number(figure.low)} - {number(figure.high)}], {figure.n}" if figure.n > 1 else ""
    return f"{number(figure.value)} {figure.unit}{spread}"


def number(value: float) -> str:
    """At most three significant digits."""
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"
