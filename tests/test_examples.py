"""Every example runs, quickly and alone, shows what it promises, and stands in docs/extending.md as it is."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = sorted(EXAMPLES.glob("*.py"))
SHOWS = {
    "own_data": r"after A B: TIL \d+%.*\nafter C: .*\nafter D E: ",
    "own_experiment": r"\| method .*\n.*\n.*samples.*\n\| DER\+\+ \| .*± .*\n.*\n\| Fine-tuning ",
    "own_method": r"strength 0.0: TIL [\d.]+%.*\nstrength 0.03: TIL ",
    "own_network": r"derpp: \d+ parameters, TIL [\d.]+%\nclom: \d+ parameters, TIL ",
    "own_score": r"Cosine: AUC [\d.]+%\nMaxLogit: AUC ",
    "photos": r"learned shapes: circles, squares, stars\n(.*\n)*new/circles/00.png: circles \(\d+%\)\n(.*\n)*"
    r"other/00.png: unknown\n(.*\n)*left: shapes",
    "sklearn_pipeline": r"six digits: [\d.]+% right\n(.*\n)*called unknown: \d+% of random pixels\nall ten digits: ",
}


def test_every_example_is_known() -> None:
    assert [file.stem for file in FILES] == sorted(SHOWS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_runs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOM_DATA", str(tmp_path))
    runpy.run_path(str(file), run_name="__main__")
    assert re.search(SHOWS[file.stem], capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == [], "an example cleans up"


@pytest.mark.parametrize("file", sorted(EXAMPLES.iterdir()), ids=lambda file: file.name)
def test_it_is_short(file: Path) -> None:
    if file.suffix in (".py", ".yaml"):
        assert len(file.read_text().splitlines()) < 60


# --- docs/extending.md -----------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("file", [*FILES, EXAMPLES / "own_experiment.yaml"], ids=lambda file: file.name)
def test_the_page_shows_it(file: Path) -> None:
    shown = blocks("python" if file.suffix == ".py" else "yaml")
    assert file.read_text(encoding="utf-8") in shown, f"copy examples/{file.name} into docs/extending.md"


def test_the_page_s_other_code_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = [file.read_text(encoding="utf-8") for file in FILES]
    others = [code for code in blocks("python") if code not in files]
    assert len(others) == 3
    for code in others:
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(code, "docs/extending.md", "exec"), names)
        for name, test in names.items():
            if name.startswith("test_") and callable(test):
                test()


def test_the_page_s_package_is_the_one_in_the_tests() -> None:
    (shown,) = blocks("toml")
    package = ROOT / "tests" / "plugin_package" / "pyproject.toml"
    points = tomllib.loads(package.read_text(encoding="utf-8"))["project"]["entry-points"]
    assert tomllib.loads(shown)["project"]["entry-points"] == points
