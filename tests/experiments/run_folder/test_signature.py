"""Edited files, and files of another run, are named instead of being mixed into the results."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from clom.cli import main
from clom.data.stream import Stream
from clom.errors import UserError
from clom.experiments.analysis.finished_run import read_run
from clom.experiments.config import RunConfig, resolve
from clom.experiments.ledger import Row
from clom.experiments.run import execute, read_config
from clom.experiments.run_folder import signature
from clom.storage.tensors import checksum, read_tensors

TINY: dict[str, Any] = {
    "data.sizes": [2, 2],
    "data.classes_per_task": None,
    "data.train_per_class": 12,
    "data.test_per_class": 5,
    "plan.epochs": 2,
}


def config_of(seed: int = 0) -> RunConfig:
    return resolve("digits-5t", "finetune", "smoke", seed, TINY)


class Interrupted(Exception):
    pass


def half_done(folder: Path, seed: int = 0) -> Path:
    """A run that was interrupted after its first task."""
    config = config_of(seed)

    def interrupt(*_: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        execute(config, config.data.stream(None, seed), folder, on_task=interrupt)
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs that differ in their seed."""
    place = tmp_path_factory.mktemp("runs")
    return half_done(place / "mine"), half_done(place / "other", seed=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("mine", "other")):
        config = config_of(seed)
        execute(config, config.data.stream(None, seed), place / name)
    return place / "mine", place / "other"


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target / "run"))


def resume(folder: Path) -> None:
    config = read_config(folder)
    execute(config, config.data.stream(None, config.seed), folder)


def edit_epochs(folder: Path) -> None:
    path = folder / "config.yaml"
    text = path.read_text()
    assert "epochs: 2" in text
    path.write_text(text.replace("epochs: 2", "epochs: 1"))


def test_an_interrupted_run_is_resumed(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resume(folder)
    signature.check(folder)
    assert set(json.loads((folder / "signature.json").read_text())["files"]) == set(signature.RESULTS)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_an_edited_configuration_is_named(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    edit_epochs(folder)
    with pytest.raises(UserError, match=r"config\.yaml is not as it was when the run began"):
        resume(folder)
    assert not (folder / "summary.json").exists()


def test_a_configuration_edited_during_the_first_task_is_named(tmp_path: Path) -> None:
    config = config_of()

    def interrupt(*_: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        execute(config, config.data.stream(None, 0), tmp_path / "run", interrupt)
    edit_epochs(tmp_path / "run")
    with pytest.raises(UserError, match=r"config\.yaml"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("name", ["model.safetensors", "scores.safetensors", "metrics.jsonl"])
def test_a_file_of_another_seed_is_named(name: str, interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    shutil.copy(interrupted[1] / name, folder / name)
    with pytest.raises(UserError, match=f"run/{name} is not what this run wrote"):
        resume(folder)


def test_all_files_of_another_seed_do_not_fit_the_configuration(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[1], tmp_path)
    shutil.copy(interrupted[0] / "config.yaml", folder / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml"):
        resume(folder)


def test_a_model_put_into_a_new_run_is_named(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    """It has learned nothing yet, so no model of it was ever signed."""
    folder = copy(interrupted[0], tmp_path)
    for name in ("model.safetensors", "scores.safetensors", "metrics.jsonl"):
        (folder / name).unlink()
    signature.begin(folder)
    shutil.copy(interrupted[1] / "model.safetensors", folder)
    with pytest.raises(UserError, match=r"model\.safetensors is not what this run wrote"):
        resume(folder)


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "metrics.jsonl", "model.safetensors"])
def test_a_finished_run_with_a_wrong_file_is_neither_recorded_nor_reported(
    name: str, finished: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = copy(finished[0], tmp_path)
    Row.of_run(folder)
    shutil.copy(finished[1] / name, folder / name)
    for read in (Row.of_run, read_run):
        with pytest.raises(UserError, match=f"run/{name} is not"):
            read(folder)


def test_an_environment_of_other_images_is_named(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    path = folder / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_sha256": "0" * 64}))
    with pytest.raises(UserError, match=r"environment\.json does not name the images"):
        resume(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"config": 3}', '{"config": "a", "files": {"model.safetensors": 3}}']
)
def test_a_damaged_signature_is_named(text: str, interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    (folder / "signature.json").write_text(text)
    with pytest.raises(UserError, match=r"signature\.json is damaged"):
        resume(folder)


@pytest.mark.parametrize("moved", range(4))
def test_an_interruption_while_files_are_replaced_is_harmless(
    moved: int,
    interrupted: tuple[Path, Path],
    finished: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed after so many of the three files of the second task were moved to their place."""
    folder, left = copy(interrupted[0], tmp_path), moved
    really_replace = Path.replace

    def replace(path: Path, target: Path) -> Path:
        nonlocal left
        if path.parent.name == ".new" and not path.name.startswith("."):
            if left == 0:
                raise Interrupted
            left -= 1
        return really_replace(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Interrupted):
        resume(folder)
    monkeypatch.undo()
    resume(folder)
    for name in ("model.safetensors", "scores.safetensors"):
        assert checksum(*read_tensors(folder / name)) == checksum(*read_tensors(finished[0] / name)), name


def test_a_run_without_a_signature_is_accepted_with_a_warning(
    interrupted: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(interrupted[0], tmp_path)
    (folder / "signature.json").unlink()
    with pytest.raises(SystemExit) as end:
        main(["resume", str(folder), "--threads", "1"])
    assert not end.value.code
    assert "earlier version, which did not sign its files" in capsys.readouterr().err
    signature.check(folder)
    assert (folder / "signature.json").exists(), "what it learned from now on is signed"


def test_a_model_of_other_settings_is_named_without_a_signature(interrupted: tuple[Path, Path], tmp_path: Path) -> None:
    folder = copy(interrupted[0], tmp_path)
    (folder / "signature.json").unlink()
    edit_epochs(folder)
    with pytest.warns(UserWarning, match="did not sign"), pytest.raises(UserError, match="they differ in settings"):
        resume(folder)
    shutil.copy(interrupted[0] / "config.yaml", folder)
    shutil.copy(interrupted[1] / "model.safetensors", folder)
    with pytest.raises(UserError, match="they differ in seed"):
        resume(folder)


def test_settings_that_hold_the_number_of_classes(tmp_path: Path) -> None:
    """They are filled in when the method is made."""
    config = resolve("digits-5t", "derpp", "smoke", 0, TINY | {"n_classes": None})
    assert config.settings["n_classes"] is None
    stream: Stream = config.data.stream(None, 0)
    execute(config, stream, tmp_path / "run")
    (tmp_path / "run" / "signature.json").unlink()
    with pytest.warns(UserWarning, match="did not sign"):
        execute(config, stream, tmp_path / "run")
