"""`clom export` as a person calls it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import clom
from clom.cli import main
from clom.methods.families.base import LearnedTask


@pytest.fixture
def model(tmp_path: Path) -> Path:
    method = clom.make_method("clom", "digits-5t", "smoke", net__channels=[4, 4, 6], net__hidden=12)
    for name in ("flowers", "insects"):
        method.open_task(LearnedTask(name, (f"{name} 1", f"{name} 2")))
    clom.save_model(tmp_path / "model.safetensors", method)
    return tmp_path / "model.safetensors"


def test_a_file_and_two_lines(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", str(model), str(tmp_path / "out.pt2"), "--task", "insects"])
    assert end.value.code == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'out.pt2'}: 2 classes")
    assert "'images': uint8 [n, channels, height, width]" in second
    assert (tmp_path / "out.pt2").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["absent.safetensors", "out.onnx"], "no file absent.safetensors"),
        (["MODEL", "out.txt"], "should end in .onnx or .pt2"),
        (["MODEL", "out.pt2", "--task", "flower"], "Did you mean 'flowers'?"),
    ],
)
def test_mistakes(
    arguments: list[str], expected: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", *(str(model) if word == "MODEL" else word for word in arguments)])
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("clom: ")
    assert expected in text
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_without_the_extra(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(SystemExit):
        main(["export", str(model), str(tmp_path / "out.onnx")])
    assert "pip install onnxscript\n" in capsys.readouterr().err
