"""The learners for people's photos: what can be chosen, and that each of them learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.experts import Experts
from clom.methods.families.base import Method
from clom.methods.families.frozen_features import FrozenSettings
from clom.nets.pretrained.efficientnet_lite import find_weights
from clom.photos.presets import METHODS, ON_FROZEN_FEATURES, new_method

needs_weights = pytest.mark.skipif(find_weights() is None, reason="the extra 'pretrained' is not installed")


@pytest.mark.parametrize(
    ("method", "backbone"),
    [*((name, "efficientnet-lite0") for name in METHODS), ("clom", "resnet-18"), ("experts", "efficientnet-lite2")],
)
def test_what_can_be_chosen(method: str, backbone: str) -> None:
    made = new_method(method, backbone, seed=7)
    assert isinstance(made, Method)
    assert (made.name, made.seed, made.tasks) == (method, 7, [])
    channels, height, width = made.image_shape
    assert channels == 3
    assert height == width


def test_the_usual_choice() -> None:
    made = new_method()
    assert isinstance(made, Experts)
    assert made.net_settings.kind == "efficientnet-lite0"
    assert made.image_shape == (3, 160, 160)
    assert new_method(size=224).image_shape == (3, 224, 224)


@pytest.mark.parametrize("method", ON_FROZEN_FEATURES)
def test_all_methods_on_frozen_features_learn_from_flips(method: str) -> None:
    settings = new_method(method).settings
    assert isinstance(settings, FrozenSettings)
    assert settings.views == 2


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(UserError, match=r"no method for photos 'clmo'. Did you mean 'clom'\?"):
        new_method("clmo")
    with pytest.raises(UserError, match=r"no backbone 'resnet-81'. Did you mean 'resnet-18'\?"):
        new_method(backbone="resnet-81")
    with pytest.raises(UserError, match="pretrained features"):
        new_method(backbone="resnet18")
    with pytest.raises(UserError, match="clom trains its own layers"):
        new_method("clom", "efficientnet-lite2")
    with pytest.raises(UserError, match="choose --size from 32 to 512"):
        new_method(size=5000)
    with pytest.raises(UserError, match=r"There is no file nothing\.onnx"):
        new_method(backbone="nothing.onnx")
    for method in ("ncm", "slda"):
        with pytest.raises(UserError, match=f"{method} reads pretrained features.*'efficientnet-lite0'"):
            new_method(method, "resnet-18")


def stripes(size: int, task: int, n: int = 5) -> Task:
    """Photos of two textures, coarse and fine; the tasks differ in colour."""
    generator = torch.Generator().manual_seed(task)
    pixels, labels = [], []
    for label, period in enumerate((4, 16)):
        for _ in range(n + 1):
            wave = (torch.arange(size) // period % 2).float().expand(size, size)
            image = torch.zeros(3, size, size)
            image[task] = wave * (0.5 + 0.5 * torch.rand(1, generator=generator))
            image += 0.1 * torch.rand(3, size, size, generator=generator)
            pixels.append((image.clamp(0, 1) * 255).to(torch.uint8))
            labels.append(label)
    images = Images(torch.stack(pixels), torch.tensor(labels))
    held = torch.tensor([n, 2 * n + 1])
    rows = torch.tensor([row for row in range(len(images)) if row not in held.tolist()])
    return Task(f"task {task}", (f"fine {task}", f"coarse {task}"), images[rows], images[held])


@needs_weights
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_learns_from_five_photos_a_class(method: str) -> None:
    made = new_method(method)
    told: list[Progress] = []
    tasks = [stripes(made.image_shape[-1], number) for number in range(2)]
    before = None
    for task in tasks:
        made.learn(task, TrainingContext(told.append))
        block = made.block(tasks[0].train.pixels, 0)
        if made.exact_memory:
            assert before is None or torch.equal(block, before)
        before = block
    answers = torch.cat(made.comparable_blocks(tasks[1].validation.pixels), 1).argmax(1)
    assert answers.tolist() == [2, 3]
    assert told


def test_a_network_of_one_s_own_is_a_frozen_backbone(tmp_path: Path) -> None:
    """Batch norm stays as it was trained."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm = nn.BatchNorm2d(3)\n\n"
        "    def forward(self, images):\n"
        "        return self.norm(images).mean((2, 3))\n"
    )
    made = new_method("slda", f"{tmp_path / 'mine.py'}:Mine", size=32)
    before = {name: value.clone() for name, value in made.state_dict().items() if "backbone" in name}
    made.learn(stripes(32, 0))
    made.learn(stripes(32, 1))
    assert any("running_mean" in name for name in before)
    assert all(torch.equal(made.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(UserError, match="clom trains its own layers"):
        new_method("clom", f"{tmp_path / 'mine.py'}:Mine")
