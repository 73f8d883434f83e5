"""The distribution: name, version, data files; and no text that would install an unrelated package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clom
from clom import machine

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clom"
PLACES = (
    *("src", "docs", "tests", "examples", "benchmarks", "release", "results", "website", ".ci", ".github"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "Makefile", "mkdocs.yml", "pyproject.toml"),
)
TEXTS = {".css", ".html", ".ipynb", ".jinja", ".js", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml", ""}

# The name on the index belongs to an unrelated project, and ours is not published.
NAME = r"clom(?:[-_]learn)?(?![\w/-])(?!\.\w)"
INSTALLS_A_STRANGER = re.compile(
    rf"\b(?:install|add)\s+['\"]?{NAME}"  # also across a line break
    rf"|\binstall\b[^\n;&|#`]*[ \t'\"]{NAME}"
    r"|\bclom\\?\[[a-z]"  # an extra of that project
)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def text_files() -> Iterator[Path]:
    for place in PLACES:
        files = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*"))
        for path in files:
            if path.suffix in TEXTS and path.is_file() and not any(part.endswith(".egg-info") for part in path.parts):
                yield path


def joined(text: str) -> str:
    """Join adjacent Python string literals."""
    return re.sub(r"(['\"])\s*\n\s*[fr]*\1", "", text)


def test_no_text_installs_an_unrelated_package() -> None:
    files = list(text_files())
    assert {"README.md", "Makefile", "serving.md", "grid.py", "index.html", "run"} <= {path.name for path in files}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        for match in INSTALLS_A_STRANGER.finditer(joined(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "pip install NAME",
        "python -m pip install -U NAME",
        "pip install --upgrade pip NAME",
        "`pip install NAME`",
        "pip install 'NAME[serve]'",
        "pip install NAME==0.1.0",
        "pip install\nNAME",
        'raise UserError("Type: pip install "\n    f"NAME")',
        r"match=r'the extra NAME\[pretrained\]'",
        "pip install NAME-learn",
        "uv add NAME",
        "uvx NAME[serve]",
    ],
)
def test_such_texts_are_found(text: str) -> None:
    assert INSTALLS_A_STRANGER.search(joined(text.replace("NAME", "clom")))


@pytest.mark.parametrize(
    "text",
    [
        "pip install -e '.[serve]'\nclom demo",
        "pip install -e . && clom demo",
        "pip install dist/clom_learn-*.whl",
        "`pip install -e .` makes the command clom",
        "pip install onnx  # for clom export",
        'clom["til"]',
        "clom-learn[slurm,serve]",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not INSTALLS_A_STRANGER.search(joined(text))


def test_the_name_on_the_index_is_not_the_import_name(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["name"] == "clom-learn"
    assert pyproject["project"]["scripts"] == {"clom": "clom.cli:main"}


def test_the_version_is_written_once_and_read_without_torch(pyproject: dict[str, Any]) -> None:
    assert "version" in pyproject["project"]["dynamic"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "clom.__version__"}
    code = "import sys, clom; print(clom.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [clom.__version__, "False"]
    assert machine.describe()["packages"]["clom"] == clom.__version__, "ledgers compare it under this key"


def test_every_file_is_packaged(pyproject: dict[str, Any]) -> None:
    patterns = pyproject["tool"]["setuptools"]["package-data"]["clom"]
    data = {path for pattern in patterns for path in SOURCE.glob(pattern) if path.is_file()}
    modules = {path for path in SOURCE.rglob("*.py") if (path.parent / "__init__.py").is_file()}
    assert SOURCE / "reporting" / "paper" / "paper.json" in data
    assert {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"} == data | modules
