"""Devices and precisions from the command line: recorded with the run, refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clom.cli import main
from clom.cli.options import Device, Precision
from clom.experiments.ledger import Row

QUICK = ["run", "digits-5t", "--method", "finetune", "--budget", "smoke", "--threads", "1", "--set", "plan.epochs=1"]


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_both_options_are_plain_texts() -> None:
    assert Device.__origin__ is Precision.__origin__ is str  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command",
    [
        QUICK,
        ["predict", "some.model", "photo.jpg"],
        ["learn", "a.model", "photos"],
        ["report", "run"],
        ["export", "some.model", "out.pt2"],
    ],
)
def test_a_device_that_is_not_there(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "run"):
        (tmp_path / folder).mkdir()
    for file in ("some.model", "photo.jpg", "run/config.yaml"):
        (tmp_path / file).touch()
    said = refusal([*command, "--device", "gpu"], capsys)
    assert "There is no device 'gpu'" in said
    assert "cpu" in said
    assert not list(tmp_path.rglob("model.safetensors"))


def test_precisions_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert "Did you mean 'bfloat16'" in refusal([*QUICK, *out, "--precision", "bflot16"], capsys)
    assert "float16 is for GPUs" in refusal([*QUICK, *out, "--precision", "float16"], capsys)


def test_device_and_precision_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as end:
        main([*QUICK, "--out", str(folder), "--device", "cpu", "--precision", "bfloat16"])
    assert not end.value.code
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["device"], environment["precision"]) == ("cpu", "bfloat16")
    row = Row.of_run(folder)
    assert (row.device, row.precision) == ("cpu", "bfloat16")


def test_a_run_that_would_exceed_its_allowance_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """72 images in each of five tasks, forward and backward once."""
    folder = tmp_path / "run"
    said = refusal([*QUICK, "--out", str(folder), "--allowance", "1000"], capsys)
    assert "would use 1,080 training passes on digits-5t, but the allowance is 1,000" in " ".join(said.split())
    assert not folder.exists()
    with pytest.raises(SystemExit) as end:
        main([*QUICK, "--out", str(folder), "--allowance", "2,000"])
    assert not end.value.code
    assert "1,080 training passes of 2,000 allowed (54%)" in capsys.readouterr().out
    figures = Row.of_run(folder).figures
    assert (figures["passes"], figures["allowance"]) == (1080, 2000)
