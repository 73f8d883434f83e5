"""One epoch of every `paper` recipe, in a narrow network on generated images, through every phase of two tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clom.data.images import DataSet, Images
from clom.data.stream import Stream, split
from clom.experiments.catalogue import size_of
from clom.experiments.config import RunConfig, resolve
from clom.learning.context import TrainingContext
from clom.learning.progress import Progress
from experiments.paper_numbers import CLASSES_PER_TASK, EXPERIMENTS, TABLE, value_at

PER_CLASS = 5
"""Generated images of a class, of which one validates."""
NARROW: dict[str, Any] = {
    "epochs": 1,
    "first_epochs": 1,
    "iterations": 5,
    "width": 4,
    "n": 1,
    "channels": [4, 4, 8],
    "hidden": 16,
    "chunk": 2000,
    "candidates": 2,
    "patience": 1,
    "replay_batch": 8,
}
"""By the last part of a setting's name, wherever it is; everything else stays as published."""
FEW = {"wgan.steps": 2}
LISTS = {"hypernetwork.hidden": None, "target.hidden": [16, 16], "network.hidden": [16, 16]}
TWO_STEPS = {"features", "head"}
PHASES = {
    "clom": TWO_STEPS,
    "clom-no-calibration": TWO_STEPS,
    "clom-no-ood": TWO_STEPS,
    "supsup-ood": TWO_STEPS,
    "muc": {"learning", "sides"},
    "bic": {"learning", "bias correction"},
    "a-rps": {"candidate 1", "candidate 2"},
    "co2l": {"learning", "head"},
    "ccg": {"learning", "generator"},
    "mnemonics": {"learning", "exemplars"},
}


def narrowed(settings: dict[str, Any], path: str = "") -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, value in settings.items():
        place = f"{path}.{name}".removeprefix(".")
        if isinstance(value, dict):
            small[name] = narrowed(value, place)
        elif place in FEW:
            small[name] = FEW[place]
        elif place in LISTS:
            small[name] = value if LISTS[place] is None else LISTS[place]
        elif name == "widths":
            small[name] = [4] * len(value)
        else:
            small[name] = NARROW.get(name, value) if value is not None else None
    return small


def narrow(config: RunConfig) -> RunConfig:
    net = type(config.net).model_validate(narrowed(config.net.model_dump(mode="json")))
    return config.model_copy(update={"settings": narrowed(config.settings), "net": net})


def generated(experiment: str) -> Stream:
    """Two tasks with the experiment's classes, of noise around a brightness of each class's own."""
    size, n_classes = size_of(experiment), 2 * value_at(CLASSES_PER_TASK, experiment)
    assert size is not None
    randomness = torch.Generator().manual_seed(0)
    labels = torch.arange(n_classes).repeat_interleave(PER_CLASS)
    noise = torch.randint(0, 60, (len(labels), *size.image_shape), generator=randomness)
    pixels = (noise + (labels * 190 // n_classes)[:, None, None, None]).to(torch.uint8)
    images = Images(pixels, labels)
    names = tuple(f"class {label}" for label in range(n_classes))
    return split(DataSet(experiment, names, images, images), [n_classes // 2] * 2, validation=0.2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few images of SVHN's kind, for MUC."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "SVHN").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    np.savez(folder / "SVHN" / "test_2000.npz", images=images, labels=np.arange(20) % 10)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(closed every|No channel is free)")
@pytest.mark.parametrize("method", TABLE)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_epoch_of_every_phase(experiment: str, method: str, data: Path) -> None:
    stream, reports = generated(experiment), list[Progress]()
    learner = narrow(resolve(experiment, method, "paper")).make_method(stream[0].train.pixels.shape[1:])
    for task in stream:
        learner.learn(task, TrainingContext(reports.append, data=data))
    assert {report.phase for report in reports} == PHASES.get(method, {"learning"})
    assert {report.epochs for report in reports if report.epochs} == {1}
    blocks = learner.blocks(stream.tests[0].pixels)
    calibrated = learner.calibration(blocks)
    assert [block.shape[1] for block in calibrated] == [task.n_classes for task in stream]
    assert all(bool(torch.isfinite(block).all()) for block in calibrated)
