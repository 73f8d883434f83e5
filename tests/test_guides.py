"""The code in the guides and the README works as it stands there; commands have options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import clom
from clom.cli import COMMANDS, make_app, take_plugins
from clom.data.stream import Stream
from clom.errors import UserError

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
HERE = ("README.md", "docs/distributed.md", "docs/index.md", "docs/predictors.md", "docs/research.md")
"""Pages whose Python code is run by this file."""
ELSEWHERE = {
    "docs/estimator.md": "tests/photos/test_docs.py",
    "docs/export.md": "tests/photos/test_docs.py",
    "docs/extending.md": "tests/test_examples.py",
    "docs/networks.md": "tests/nets/test_docs.py",
    "docs/own-data.md": "tests/cli/test_own_data.py",
    "docs/serving.md": "tests/serve/test_docs.py",
}
"""Pages whose Python code is run by another test."""


def code_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page].read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_code_of_every_page_is_tested() -> None:
    with_code = {
        page for page, path in PAGES.items() if re.search(r"^```python|^    >>> ", path.read_text(), re.MULTILINE)
    }
    assert with_code == {*HERE, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", HERE)
def test_it_runs(page: str, tiny_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = clom.make_method("clom", "digits-5t", "smoke", learning__plan__epochs=1)
    for task in tiny_stream[:2]:
        saved.learn(task)
    clom.save_model("digits.safetensors", saved)
    found = code_of(page)
    assert found
    names: dict[str, Any] = {}
    for code in found:
        # What takes minutes at the usual budget is run at that of seconds, on two tasks.
        quick = re.sub(r'"digits-5t"\)', '"digits-5t", "smoke")', code)
        quick = re.sub(r"in (stream|clom\.load_stream\(.*\)):", r"in \1[:2]:", quick)
        exec(compile(quick, page, "exec"), names)
    if "result" in names:
        assert 0 <= names["result"].preferred.cil <= names["result"].til <= 1
        assert names["result"].n_tasks == 2
    if "method" in names:
        assert names["method"].uses_predictor


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_of(path: Path) -> list[str]:
    """The lines of indented or fenced code that call `clom`, with continued lines joined and comments removed."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    return [
        shlex.join(shlex.split(line.removesuffix("(and so on)"), comments=True))
        for line in text.splitlines()
        if re.match(r"(    )?(torchrun .*-m )?clom [a-z]", line)
    ]


SHOWN = sorted({(page, line) for page, path in PAGES.items() for line in commands_of(path)})


def test_commands_are_found() -> None:
    shown = {line for _, line in SHOWN}
    assert {"clom verify my.model --against old.model", "clom list methods", "clom learn my.model flowers/"} <= shown
    assert any(line.startswith("torchrun") for line in shown)


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_commands_have_options_that_exist(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, _ = take_plugins(shlex.split(line.partition("clom ")[2]))
    assert words[0] in COMMANDS
    for _ in words:
        try:
            make_app().parse_args(words, exit_on_error=False, print_error=False)
            return
        except UserError as problem:
            make_what_is_missing(str(problem))
    make_app().parse_args(words, exit_on_error=False, print_error=False)


def make_what_is_missing(problem: str) -> None:
    """The file, folder or run that a command of a guide is about."""
    found = re.match(r"There is no (file|folder) (\S+)\.( |$)", problem)
    if run := re.match(r"(\S+) is not the folder of a run", problem):
        Path(run[1]).mkdir(parents=True)
        (Path(run[1]) / "config.yaml").touch()
    elif data := re.match(r"The folder of data sets (\S+) does not exist", problem):
        Path(data[1]).mkdir(parents=True)
    elif found is not None and found[1] == "folder":
        Path(found[2]).mkdir(parents=True)
    else:
        assert found is not None, problem
        Path(found[2]).parent.mkdir(parents=True, exist_ok=True)
        Path(found[2]).touch()
