"""What `make dist` checks before it tries the wheel."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from release import make_dist


def wheel(path: Path, names: Iterable[str], content: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return path


def test_a_wheel_with_everything_and_nothing_else(tmp_path: Path) -> None:
    names = make_dist.expected_files()
    assert {"clom/__init__.py", "clom/py.typed", "clom/reporting/paper/paper.json"} <= set(names)
    assert make_dist.check_content(wheel(tmp_path / "a.whl", [*names, "clom_learn-0.dist-info/METADATA"])) == []


def test_what_is_wrong_with_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in make_dist.expected_files() if name != "clom/py.typed"]
    monkeypatch.setattr(make_dist, "MOST_BYTES", 10)
    first, second, third = make_dist.check_content(wheel(tmp_path / "a.whl", [*names, "tests/test_api.py"]))
    assert first == "tests/test_api.py does not belong into it"
    assert second == "clom/py.typed is missing"
    assert third.startswith("it has ")


def test_a_user_knows_nothing_of_the_checkout() -> None:
    known = make_dist.outside({"PATH": "/bin", "PYTHONPATH": "src", "CLOM_DATA": "data", "VIRTUAL_ENV": ".venv"})
    assert known == {"PATH": "/bin"}


def test_a_failing_command_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exit code 3"):
        make_dist.run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
