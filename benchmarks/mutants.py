"""Do the tests notice a mistake? One essential line of a system is changed at a time, and that system's tests are run.

python -m benchmarks.mutants [--only lwf-r-weight,bic-teacher]

Lines are changed in a temporary copy, never in the tree itself. A mutant is noticed if its tests fail, which pass
without it. A line that has moved on is an error: the table in `essential_lines.py` has to follow the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.essential_lines import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=chosen, default=MUTANTS, help="names of mutants, separated by commas")
    mutants = parser.parse_args(arguments).only
    with copied_tree() as tree:
        survived = report(tree, mutants)
    raise SystemExit(f"{len(survived)} survived: {', '.join(survived)}" if survived else 0)


def chosen(text: str) -> list[Mutant]:
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in text.split(",") if name not in by_name]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in text.split(",")]


def report(tree: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Print each mutant's fate; returns the names of those that survived."""
    survived: list[str] = []
    known: set[str] = set()
    for mutant in mutants:
        if mutant.tests not in known and not passes(tree, mutant.tests):
            raise SystemExit(f"The tests of {mutant.name} fail without the mutant: pytest tests/{mutant.tests}")
        known.add(mutant.tests)
        started = time.monotonic()
        with mutated(tree, mutant):
            noticed = not passes(tree, mutant.tests)
        survived += [] if noticed else [mutant.name]
        print(
            f"{'noticed' if noticed else 'SURVIVED':8} {mutant.name} ({time.monotonic() - started:.0f} s)", flush=True
        )
    print(f"{len(mutants) - len(survived)} of {len(mutants)} noticed")
    return survived


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A temporary copy of everything that tests read."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in COPIED:
            place, copy = ROOT / name, Path(folder) / name
            if place.is_dir():
                shutil.copytree(place, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(place, copy)
        yield Path(folder)


@contextmanager
def mutated(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / "src" / "clom" / mutant.file
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.original)) != 1:
        raise SystemExit(
            f"{mutant.file} has {count} times, not once: {mutant.original}. Update benchmarks/essential_lines.py."
        )
    path.write_text(text.replace(mutant.original, mutant.mutated), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def passes(tree: Path, tests: str) -> bool:
    """Whether the tests pass; anything but failed tests is an error."""
    file, *options = tests.split(" ", 1)
    more = options[0].split() if options else []
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(Path("tests") / file), *more]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"pytest tests/{tests} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 0


if __name__ == "__main__":
    main()
