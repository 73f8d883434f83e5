"""An ONNX file as a frozen backbone: tried when it is given, saved with the model, and run like any network."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clom.errors import UserError
from clom.methods.experts import Experts
from clom.nets.pretrained.onnx_file import OnnxFile, read_onnx
from clom.photos.presets import new_method
from clom.photos.teach import learn_pictures
from clom.storage.model_file import load_model, save_model
from photos.pictures import coloured, pictures

pytest.importorskip("onnxruntime")


class Colours(nn.Module):
    """The mean and the deviation of each colour."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images.mean((2, 3)), images.flatten(2).std(2)], 1)


class Maps(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images * 2


def written(path: Path, net: nn.Module, dynamic: bool = True) -> Path:
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    example = torch.rand(2 if dynamic else 1, 3, 32, 32)
    program = torch.onnx.export(net.eval(), (example,), dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert program is not None
    program.save(str(path))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("onnx") / "colours.onnx", Colours())


def loaded(path: Path) -> OnnxFile:
    settings, content = read_onnx(path, 32)
    net = OnnxFile(settings)
    net.content.copy_(content)
    return net


def test_it_computes_what_the_network_does(file: Path, tmp_path: Path) -> None:
    images = torch.rand(3, 3, 32, 32)
    for path in (file, written(tmp_path / "one.onnx", Colours(), dynamic=False)):
        net = loaded(path)
        torch.testing.assert_close(net(images), Colours()(images), atol=1e-5, rtol=1e-4)
        assert net(images[:0]).shape == (0, 6)
        torch.testing.assert_close(copy.deepcopy(net)(images), net(images))


def test_a_model_on_it_is_saved_with_it(file: Path, tmp_path: Path) -> None:
    method = new_method(backbone=str(file), size=32)
    assert isinstance(method, Experts)
    learn_pictures(method, pictures("red", "green"), "leaves")
    learn_pictures(method, pictures("blue", "grey"), "sea")
    save_model(tmp_path / "m", method)
    again = load_model(tmp_path / "m")
    pixels = torch.cat([coloured(name, 4, seed=7) for name in ("red", "green", "blue", "grey")])
    answers = torch.cat(again.comparable_blocks(pixels), 1).argmax(1)
    assert answers.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    with pytest.raises(UserError, match="cannot be exported"):
        again.scoring_graph([0])


def test_what_is_not_a_backbone(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(UserError, match=r"text\.onnx is not an ONNX file that can be run"):
        read_onnx(tmp_path / "text.onnx", 32)
    with pytest.raises(UserError, match=r"There is no file .*absent\.onnx"):
        read_onnx(tmp_path / "absent.onnx", 32)
    with pytest.raises(UserError, match=r"must return features \[images, features\]"):
        read_onnx(written(tmp_path / "maps.onnx", Maps()), 32)
    with pytest.raises(UserError, match="does not run on images of 3 x 48 x 48"):
        read_onnx(written(tmp_path / "fixed.onnx", Colours(), dynamic=False), 48)
