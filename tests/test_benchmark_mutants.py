"""The table of mutants fits the code, and a mutant's fate is told correctly. The mutants themselves take minutes."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.essential_lines import MUTANTS, Mutant
from benchmarks.mutants import ROOT, chosen, mutated, report
from clom.methods.registry import PAPER_METHODS

TOY = Mutant("toy", "sums.py", "return a + b", "return a - b", "test_sums.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "clom").mkdir(parents=True)
    (tmp_path / "src" / "clom" / "__init__.py").touch()
    (tmp_path / "src" / "clom" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


def write_test(tree: Path, claim: str) -> None:
    text = f"from clom.sums import add\n\n\ndef test_add():\n    assert {claim}\n"
    (tree / "tests" / "test_sums.py").write_text(text)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_table_fits_the_code(mutant: Mutant) -> None:
    text = (ROOT / "src" / "clom" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.original) == 1
    assert mutant.mutated != mutant.original
    assert (ROOT / "tests" / mutant.tests.split(" ")[0]).exists()


def test_there_are_thirty_mutants_of_all_systems() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 30
    systems = {name.removesuffix("-no-calibration").removesuffix("-no-ood") for name in PAPER_METHODS}
    systems -= {"finetune", "joint", "supsup-ood"}  # references, and SupSup's masks with CLOM's learner
    assert [system for system in sorted(systems) if not any(name.startswith(system + "-") for name in names)] == []


def test_a_good_test_notices_and_a_weak_one_does_not(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_test(tree, "add(1, 2) == 3")
    assert report(tree, [TOY]) == []
    assert "noticed  toy" in capsys.readouterr().out
    write_test(tree, "add(1, 0) == 1")
    assert report(tree, [TOY]) == ["toy"]
    assert "SURVIVED toy" in capsys.readouterr().out
    assert "return a + b" in (tree / "src" / "clom" / "sums.py").read_text(), "the line is as before"


def test_a_failing_test_or_a_changed_line_is_an_error(tree: Path) -> None:
    write_test(tree, "add(1, 2) == 4")
    with pytest.raises(SystemExit, match="fail without the mutant"):
        report(tree, [TOY])
    (tree / "src" / "clom" / "sums.py").write_text("def add(a, b):\n    return sum([a, b])\n")
    with pytest.raises(SystemExit, match="0 times, not once"), mutated(tree, TOY):
        pass


def test_names_are_checked() -> None:
    assert [mutant.name for mutant in chosen("bic-share,hat-sparsity")] == ["bic-share", "hat-sparsity"]
    with pytest.raises(ArgumentTypeError, match="unknown: bic"):
        chosen("bic")
