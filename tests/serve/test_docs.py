"""What docs/serving.md shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clom.cli import make_app
from clom.serve.service import Service
from serve.running import serving, warm_model, write_pictures

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.mark.slow  # it learns
def test_the_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path, "red", 1)[0].rename(tmp_path / "garden.jpg")
    for name, colour in (("cats", "blue"), ("dogs", "yellow")):
        for path in write_pictures(tmp_path, colour):
            (tmp_path / name).mkdir(exist_ok=True)
            path.rename(tmp_path / name / path.name)
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with serving(warm_model(tmp_path / "model.safetensors")) as (client, _):
        exec(first.replace("http://127.0.0.1:8000", client.url), {})
        assert "garden.jpg red" in capsys.readouterr().out
        assert [task["name"] for task in client.model()["tasks"]] == ["warm", "pets"]
        exec(second.replace("http://127.0.0.1:8000", client.url), {})
        assert "'class_name': " in capsys.readouterr().out


def test_every_option_and_every_request_is_described(tmp_path: Path) -> None:
    from clom.serve.app import make_app as make_server

    options = set(re.findall(r"`(--[a-z-]+)", TEXT))
    command = make_app()["serve"]
    known = {name for argument in command.assemble_argument_collection() for name in argument.names}
    assert {name for name in known if name.startswith("--") and not name.startswith("--no-")} >= options
    routes = make_server(Service(warm_model(tmp_path / "model.safetensors"), threads=1)).openapi()["paths"]
    for path in routes:
        assert path.replace("{number}", "{id}") in TEXT, path
