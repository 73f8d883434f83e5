"""The pages about the estimator and about exported files: their code runs as it stands."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import clom
from clom.data.stream import Stream
from clom.export.onnx import export_model

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_about_the_estimator() -> None:
    result = doctest.testfile(str(DOCS / "estimator.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_page_about_export(
    tiny_stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method = clom.make_method("clom", "digits-5t", "smoke", net__channels=[4, 4, 6], net__hidden=12)
    method.learn(tiny_stream[0])
    for ending in ("onnx", "pt2"):
        export_model(tmp_path / f"model.{ending}", method)
    picture = tiny_stream.tests[0].pixels[:1]
    Image.fromarray(picture[0, 0].numpy()).save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    onnx_code, torch_code = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(encoding="utf-8"), re.S)
    exec(onnx_code, names)
    best = method.blocks(picture)[0].argmax(1)
    assert names["answer"] == method.tasks[0].class_names[int(best)]
    assert capsys.readouterr().out.strip() in (names["answer"], "unknown")
    seen = torch.from_numpy(names["scores"].copy())
    exec(torch_code, names)
    torch.testing.assert_close(names["scores"], seen, atol=1e-4, rtol=0)
