"""A distributed run: its accuracy, what is refused, and resuming after an interruption."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clom import machine
from clom.cli import main
from clom.experiments.config import resolve
from clom.experiments.distributed_run import pack, unpack
from clom.experiments.run import execute
from processes import ended, torchrun

DIGITS = ("run", "digits-5t", "--budget", "smoke")
TOLD = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.slow
def test_two_processes_reach_the_accuracy_of_one(tmp_path: Path) -> None:
    process = torchrun(2, *DIGITS, "--out", str(tmp_path / "two"), "--allowance", "20000")
    config = resolve("digits-5t", "clom", "smoke")
    one = execute(config, config.data.stream(None, 0), tmp_path / "one").summary
    ((code, output, errors),) = ended([process])
    assert code == 0, errors
    assert output.count("Learned task 5 of 5") == 1, "only rank 0 prints"
    two = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert two["til"] == pytest.approx(one["til"], abs=0.02)
    assert two["cil"] == pytest.approx(one["cil"], abs=0.05)
    assert two["til"] > 0.9
    assert two["forgetting"] == 0
    assert two["passes"] == pytest.approx(one["passes"], rel=0.01)  # gates decide how many units the last passes need
    assert two["allowance"] == 20000
    assert {name: two[name] for name in ("parameters", "memory_bytes")} == {
        name: one[name] for name in ("parameters", "memory_bytes")
    }
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    assert not list((tmp_path / "two").glob(".*")), "nothing is left over"


@pytest.mark.slow
def test_two_processes_resume_a_stopped_run(tmp_path: Path) -> None:
    def begin(name: str) -> list[str]:
        return [*DIGITS, "--out", str(tmp_path / name), "--checkpoint-every", "0"]

    ((code, _, errors),) = ended([torchrun(2, *begin("unbroken"))])
    assert code == 0, errors
    stopped = torchrun(2, *begin("stopped"))
    while not (list((tmp_path / "stopped").glob("checkpoints/task1-*")) or stopped.poll() is not None):
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    ((code, output, errors),) = ended([stopped])
    assert "Stopped." in output, errors
    assert not (tmp_path / "stopped" / "summary.json").exists()
    ((code, _, errors),) = ended([torchrun(2, *begin("stopped"))])
    assert code == 0, errors
    for name in ("model.safetensors", "scores.safetensors"):
        wanted, got = load_file(tmp_path / "unbroken" / name), load_file(tmp_path / "stopped" / name)
        assert wanted.keys() == got.keys()
        assert all(torch.equal(wanted[key], got[key]) for key in wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo"], "'clom demo' is for one process"),
        (["run", "digits-5t", "--method", "owm"], "Methods that can be distributed: bic, clom, "),
        (["run", "digits-5t"], "could not join the process group"),
    ],
)
def test_what_cannot_be_distributed(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "tune_process", lambda threads=None, deterministic=False: None)
    for name, value in (TOLD | {"MASTER_PORT": "none"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    assert message in capsys.readouterr().err


def test_a_copy_of_the_folder_has_the_files_for_resuming(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for inner in ("checkpoints", "tensorboard"):
        (folder / inner).mkdir(parents=True)
    needed = ("config.yaml", "model.safetensors", "checkpoints/a.ckpt")
    for name in (*needed, "report.html", ".model.7.tmp", "progress.jsonl", "tensorboard/events.out.1"):
        (folder / name).write_text(name)
    unpack(pack(folder), tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert copied == {*needed}
    assert (tmp_path / "copy" / "config.yaml").read_text() == "config.yaml"
    unpack(pack(tmp_path / "nothing there"), tmp_path / "empty")
    assert not list((tmp_path / "empty").glob("*"))
