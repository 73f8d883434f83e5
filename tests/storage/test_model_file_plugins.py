"""Model files of plug-in methods: the recorded origin, and the error when the plug-in is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import clom
import plugin_files
from clom.data.stream import Stream
from clom.errors import UserError
from clom.methods.registry import METHODS
from clom.storage.tensors import read_tensors, to_bytes
from plugin_files import METHOD, install, write


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with plugin_files.clean(METHODS):
        yield


def saved(path: Path, method: str, stream: Stream) -> Path:
    with plugin_files.clean(METHODS):
        model = clom.make_method(method, "digits-5t", "smoke").learn(stream[0])
        clom.save_model(path, model)
    return path


def description(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_tensors(path)[1]["description"])
    return found


def changed(path: Path, **changes: Any) -> None:
    """Rewrite the file with a changed description."""
    tensors, header = read_tensors(path)
    header["description"] = json.dumps(description(path) | changes)
    path.write_bytes(to_bytes(tensors, header))


def test_a_built_in_method_records_no_origin(tiny_stream: Stream, tmp_path: Path) -> None:
    path = saved(tmp_path / "model.safetensors", "finetune", tiny_stream)
    assert list(description(path)) == ["method", "net", "settings", "image_shape", "seed", "tasks"]


def test_a_method_from_a_file(tiny_stream: Stream, tmp_path: Path) -> None:
    code = write(tmp_path, "somewhere/my_file.py", METHOD)
    path = saved(tmp_path / "model.safetensors", f"{code}:Mine", tiny_stream)
    assert description(path)["method"] == "mine"
    assert description(path)["plugins"] == {"method": "file my_file.py"}
    assert str(tmp_path) not in path.read_bytes().decode("latin-1"), "the file names a local folder"
    with pytest.raises(
        UserError, match=r"needs the method 'mine' from my_file.py: repeat .* --plugin my_file.py"
    ) as problem:
        clom.load_model(path)
    assert "damaged" not in str(problem.value)
    clom.load_plugin(code)
    model = clom.load_model(path)
    assert type(model).__name__ == "Mine"
    assert torch.isfinite(model.blocks(tiny_stream.tests[0].pixels)[0]).all()


def test_a_method_from_a_package(tiny_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "image_means", "3.1", METHOD, {"clom.methods": {"image-mean": "image_means:Mine"}})
    path = tmp_path / "model.safetensors"
    with monkeypatch.context() as installed:
        installed.syspath_prepend(tmp_path / "site")
        saved(path, "image-mean", tiny_stream)
        with plugin_files.clean(METHODS):
            assert clom.load_model(path).name == "image-mean"
    assert description(path)["plugins"] == {"method": "package image_means 3.1"}
    with pytest.raises(
        UserError, match=r"method 'image-mean' from the package image_means 3.1, which is not installed here"
    ):
        clom.load_model(path)


def test_a_file_never_loads_code(tiny_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "evil.py", "import pathlib\npathlib.Path('loaded').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = saved(tmp_path / "model.safetensors", "finetune", tiny_stream)
    for method, origin in [("evil.py:X", "file evil.py"), ("evil:X", "module evil"), ("evil", "module evil")]:
        changed(path, method=method, plugins={"method": origin})
        with pytest.raises(UserError, match="needs the method"):
            clom.load_model(path)
        changed(path, method=method, plugins={})
        with pytest.raises(UserError, match="damaged"):
            clom.load_model(path)
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("plugins", [[], "file x.py", {"method": 3}, {"method": ["x"]}, 1])
def test_an_invalid_origin_is_damage(plugins: Any, tiny_stream: Stream, tmp_path: Path) -> None:
    path = saved(tmp_path / "model.safetensors", "finetune", tiny_stream)
    changed(path, plugins=plugins)
    with pytest.raises(UserError, match="is damaged"):
        clom.load_model(path)


def test_a_plugin_that_has_changed(tiny_stream: Stream, tmp_path: Path) -> None:
    code = write(tmp_path, "my_file.py", METHOD)
    path = saved(tmp_path / "model.safetensors", f"{code}:Mine", tiny_stream)
    write(tmp_path, "other/my_file.py", METHOD.replace('f"means', 'f"averages'))
    clom.load_plugin(tmp_path / "other/my_file.py")
    with pytest.raises(
        UserError, match=r"does not match the installed code .*averages0.* saved with the method of file my_file.py"
    ):
        clom.load_model(path)
