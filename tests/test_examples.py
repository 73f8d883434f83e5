"""Every example runs, quickly and alone, and shows what it promises."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
SHOWS = {
    "own_data": r"after A B: TIL \d+%.*\nafter C: .*\nafter D E: ",
    "own_experiment": r"\| method .*\n.*\n\| DER\+\+ \| .*± .*\n\| Fine-tuning ",
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
