"""The learners for people's photos: what can be chosen, and that each of them learns."""

from __future__ import annotations

import pytest
import torch

from clom.data.images import Images
from clom.data.stream import Task
from clom.errors import UserError
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from clom.methods.clom import Clom
from clom.methods.families.base import Method
from clom.nets.pretrained.efficientnet_lite import find_weights
from clom.photos.presets import RECIPES, new_method

needs_weights = pytest.mark.skipif(find_weights() is None, reason="the extra 'pretrained' is not installed")


@pytest.mark.parametrize(("method", "backbone"), list(RECIPES))
def test_what_can_be_chosen(method: str, backbone: str) -> None:
    made = new_method(method, backbone, seed=7)
    assert isinstance(made, Method)
    assert (made.name, made.seed, made.tasks) == (method, 7, [])
    channels, height, width = made.image_shape
    assert channels == 3
    assert height == width


def test_the_usual_choice() -> None:
    made = new_method()
    assert isinstance(made, Clom)
    assert made.net_settings.kind == "efficientnet-lite0"


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(UserError, match=r"no method for photos 'clmo'. Did you mean 'clom'\?"):
        new_method("clmo")
    with pytest.raises(UserError, match=r"no backbone 'resnet18'. Did you mean 'resnet-18'\?"):
        new_method(backbone="resnet18")
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
@pytest.mark.parametrize("method", ["clom", "ncm", "slda"])
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
    calibrate = made.calibration
    answers = torch.cat(calibrate(made.blocks(tasks[1].validation.pixels)), 1).argmax(1)
    assert answers.tolist() == [2, 3]
    assert told
