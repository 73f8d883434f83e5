"""Build the sdist and the wheel, and try the wheel in an empty environment, outside the checkout: `make dist`.

    python3 release/make_dist.py

It needs nothing but Python, and makes the environments it needs in a temporary folder. The wheel is installed without
extras. It is tried from an empty folder: the demo, the Python API, the estimator, the paper's numbers, and the types of
the public API under mypy --strict.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
MOST_BYTES = 3_000_000
"""A larger wheel has something in it that does not belong there."""
ONLY = ("clom/", "clom_learn-")
"""What the names of all files in the wheel start with: the package and its metadata."""


def main() -> None:
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="clom-dist-") as folder:
        place = Path(folder)
        wheel = build(place / "builder", target)
        problems = check_content(wheel)
        if problems:
            sys.exit("The wheel is not as it should be:\n" + "\n".join(problems))
        try_wheel(wheel, place)
    for path in sorted(target.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def build(environment: Path, target: Path) -> Path:
    """Build the sdist, and the wheel from the sdist; returns the wheel."""
    python = make_environment(environment)
    pip_install(python, ["build"])
    say("Building the sdist and the wheel")
    run([python, "-m", "build", "--outdir", str(target), str(ROOT)], environment, quiet=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def check_content(wheel: Path) -> list[str]:
    """What is wrong with the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    n_bytes = wheel.stat().st_size
    say(f"{wheel.name}: {len(names)} files, {n_bytes:,} bytes")
    problems = [f"{name} does not belong into it" for name in names if not name.startswith(ONLY)]
    problems += [f"{name} is missing" for name in expected_files() if name not in names]
    return problems + ([f"it has {n_bytes:,} bytes, more than {MOST_BYTES:,}"] if n_bytes > MOST_BYTES else [])


def expected_files() -> list[str]:
    """Every file of the package, which has no others than its own."""
    source = ROOT / "src"
    files = (path for path in sorted((source / "clom").rglob("*")) if path.is_file() and path.suffix != ".pyc")
    return [path.relative_to(source).as_posix() for path in files]


def try_wheel(wheel: Path, place: Path) -> None:
    """Install the wheel without extras and use it from an empty folder."""
    python = make_environment(place / "user")
    clom = str(Path(python).with_name("clom"))
    pip_install(python, [str(wheel)])
    folder = place / "empty"
    folder.mkdir()
    say("Running the demo")
    run([clom, "--version"], folder)
    run([clom, "demo", "--budget", "smoke"], folder)
    run([clom, "table", "main"], folder)
    say("Using the Python API and the estimator")
    shutil.copy(ROOT / "release" / "public_api.py", folder)
    run([python, "public_api.py"], folder)
    say("Checking its types with mypy --strict")
    pip_install(python, ["mypy"])
    run([python, "-m", "mypy", "--strict", "public_api.py"], folder)


# --- environments -----------------------------------------------------------------------------------------------------


def make_environment(folder: Path) -> str:
    """An environment with nothing but pip; returns the path of its Python."""
    say(f"Making the environment {folder.name}")
    venv.create(folder, with_pip=True)
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def pip_install(python: str, what: Sequence[str]) -> None:
    run([python, "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), *what], Path(python).parent)


def run(command: Sequence[str], folder: Path, quiet: bool = False) -> None:
    """Run a command that must succeed, in `folder`, without anything of the checkout's environment.

    With `quiet`, its output is shown only if it fails.
    """
    print("  $ " + " ".join([Path(command[0]).name, *command[1:]]), flush=True)
    done = subprocess.run(command, cwd=folder, env=outside(os.environ), capture_output=quiet, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}{done.stderr or ''}It failed with exit code {done.returncode}.")


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a user who knows nothing of the checkout."""
    return {
        name: value for name, value in environment.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "CLOM_DATA")
    }


def say(text: str) -> None:
    print(f"* {text}", flush=True)


if __name__ == "__main__":
    main()
