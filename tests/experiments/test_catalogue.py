"""Experiments by name and by path, built in, in packages and of one's own."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clom.errors import UserError
from clom.experiments import catalogue
from clom.experiments.catalogue import anchored, experiment_names, is_path, name_of, read_experiment, size_of


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_built_in_experiments_tell_what_they_are() -> None:
    found = read_experiment("digits-5t")
    assert (found.name, found.built_in, found.origin) == ("digits-5t", True, "built in")
    size = size_of("digits-5t")
    assert size is not None
    assert (size.image_shape, size.classes) == ((1, 8, 8), 10)
    assert size_of("of somebody else") is None


def test_a_file_of_one_s_own_may_be_as_short_as_its_data(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", "data: {set: digits, classes_per_task: 5}")
    found = read_experiment(str(path))
    assert (found.name, found.title, found.origin, found.built_in) == ("mine", "mine", f"file {path}", False)
    assert found.at("smoke").data == {}
    assert found.at("paper").net is None


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "data: {folders: [birds, ../tools, /abs, ~/home]}\n"
        "budgets:\n  smoke: {data: {folder: small}}\n  cpu: {data: {npz: x.npz}}\n  paper: {data: {set: 'my.py:f'}}\n"
    )
    path = write(tmp_path / "here" / "mine.yaml", text)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for reference in (str(path), "here/mine.yaml"):
        found = read_experiment(reference)
        here = str(tmp_path / "here")
        assert found.data["folders"] == [f"{here}/birds", str(tmp_path / "tools"), "/abs", "/home/me/home"]
        assert found.budgets["smoke"].data == {"folder": f"{here}/small"}
        assert found.budgets["cpu"].data == {"npz": f"{here}/x.npz"}
        assert found.budgets["paper"].data == {"set": f"{here}/my.py:f"}


def test_references() -> None:
    assert [is_path(one) for one in ("mine.yaml", "a/mine.yml", "a/mine", "digits-5t")] == [True, True, True, False]
    assert [name_of(one) for one in ("a/mine.yaml", "digits-5t")] == ["mine", "digits-5t"]
    assert anchored("digits-5t", Path("/grids")) == "digits-5t"
    assert anchored("../mine.yaml", Path("/grids/all")) == "/grids/mine.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an experiment: it must name its data"),
        ("- 1", "is not an experiment"),
        ("title: x", "is not an experiment"),
        ("data: birds", "is not an experiment"),
        ("data: {set: [", "cannot be read as YAML"),
        ("data: {set: digits}\ntitel: x", "There is no setting 'titel'. Did you mean 'title'?"),
        ("data: {set: digits}\nbudgets: {tiny: {}}", "Setting 'budgets.tiny"),
        ("data: {set: digits}\nbudgets: {cpu: {nets: {}}}", "There is no setting 'budgets.cpu.nets'. Did you mean"),
        ("data: {set: digits}\nrecipe: {clom: 5}", "Setting 'recipe.clom'"),
        ("data: {set: digits}\nname: x", "There is no setting 'name'"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(UserError) as caught:
        read_experiment(str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_called_like_a_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"^There is no experiment file .*mine\.yaml\.$"):
        read_experiment(str(tmp_path / "mine.yaml"))
    path = write(tmp_path / "digits-5t.yaml", "data: {set: digits, classes_per_task: 5}")
    with pytest.raises(UserError, match="'digits-5t' is the name of a built-in experiment: rename the file"):
        read_experiment(str(path))
    write(tmp_path / "mine.yml", "data: {set: digits}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no experiment 'mine'\..* If you mean the file, write mine\.yml\."):
        read_experiment("mine")


# --- packages ---


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two importable packages that bring experiments, as their entry points say."""
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "birdwatch" / "__init__.py", "raise RuntimeError('never run for a list of experiments')")
    write(tmp_path / "birdwatch" / "experiments" / "birds-2t.yaml", "title: Birds\ndata: {folder: birds, sizes: [1]}")
    write(tmp_path / "birdwatch" / "experiments" / "digits-5t.yaml", "data: {set: mnist}")
    write(tmp_path / "flat" / "__init__.py", "")
    write(tmp_path / "flat" / "flat-2t.yml", "data: {set: digits, classes_per_task: 5}")
    points = [EntryPoint(name, name, catalogue.GROUP) for name in ("birdwatch", "flat")]
    monkeypatch.setattr(catalogue, "entry_points", lambda group: points)
    return tmp_path


def test_packages_bring_experiments(packages: Path) -> None:
    assert experiment_names()[-2:] == ["birds-2t", "flat-2t"]
    found = read_experiment("birds-2t")
    assert (found.title, found.origin) == ("Birds", "module birdwatch")
    assert found.data["folder"] == str(packages / "birdwatch" / "experiments" / "birds")
    assert read_experiment("flat-2t").name == "flat-2t"
    assert read_experiment("digits-5t").built_in, "what is built in keeps its name"


def test_a_broken_package_does_not_hide_the_others(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name, name, catalogue.GROUP) for name in ("nowhere", "birdwatch.inner", "flat")]
    monkeypatch.setattr(catalogue, "entry_points", lambda group: points)
    with pytest.warns(UserWarning, match="experiments of module .* cannot be found: .*") as told:
        assert experiment_names()[-1] == "flat-2t"
    assert [str(one.message) for one in told] == [
        "The experiments of module nowhere cannot be found: there is no module 'nowhere'.",
        "The experiments of module birdwatch.inner cannot be found: RuntimeError: never run for a list of experiments.",
    ]
