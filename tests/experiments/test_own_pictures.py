"""Four folders of pictures as four tasks of unequal size, one of them with a single class: every method learns them,
or says before anything is learned why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import Evaluation
from clom.experiments.config import RunConfig, resolve
from clom.experiments.run import execute, read_config
from clom.methods.registry import BUILT_IN
from experiments.pictures import FOUR_TASKS, write_experiment

ONE_CLASS_IS_TOO_FEW = {"hat", "supsup", "clom-odin", "clom-no-ood", "hypernet", "muc"}
"""What they learn from is a cross-entropy over a task's own classes, which a lone class leaves at zero."""
SMALL = """
net: {kind: alexnet, channels: [4, 4, 6], kernels: [3, 3, 2], paddings: [1, 1, 0], pools: [2, 2, 1], hidden: 8}
recipe:
  ccg: {network: {kind: conv, channels: [4, 4, 4]}}
  clom: {learning: {head: {iterations: 5}}}
  supsup-ood: {learning: {head: {iterations: 5}}}
  co2l: {head: {iterations: 5}}
  bic: {correction: {plan: {epochs: 2}}}
  hypernet: {target: {kind: mlp, hidden: [8]}, hypernetwork: {chunk: 200, task_vector: 4, chunk_vector: 4}}
"""


@pytest.fixture(scope="module")
def four_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("own"), more=SMALL)


@pytest.fixture(scope="module")
def stream(four_folders: Path) -> Stream:
    return resolve(str(four_folders)).data.stream(None, 0)


def test_the_pictures_become_tasks(stream: Stream) -> None:
    assert [len(names) for names in stream.class_names] == [3, 2, 1, 4]
    assert stream.class_names == tuple(FOUR_TASKS.values())
    assert stream.image_shape == (3, 8, 8)


def learn(config: RunConfig, stream: Stream, folder: Path) -> list[Evaluation]:
    return execute(config, stream, folder).history


@pytest.mark.filterwarnings("ignore:No channel is free", "ignore:Task .* closed every")
@pytest.mark.parametrize("method", BUILT_IN)
def test_every_method_learns_them_or_says_why_not(
    four_folders: Path, stream: Stream, tmp_path: Path, method: str
) -> None:
    config = resolve(str(four_folders), method, "smoke")
    if method in ONE_CLASS_IS_TOO_FEW:
        with pytest.raises(UserError, match=rf"^'{method}' cannot learn task 3, which has only the class 'luna': it "):
            execute(config, stream, tmp_path / "runs" / "run")
        assert not (tmp_path / "runs").exists(), "nothing is left behind by a refusal"
        without = config.model_copy(update={"data": config.data.model_copy(update={"sizes": (3, 2, 5)})})
        history = learn(without, without.data.stream(None, 0), tmp_path / "run")
    else:
        history = learn(config, stream, tmp_path / "run")
    assert len(history) in (3, 4)
    assert all(0 <= share <= 1 for share in history[-1].til_by_task)
    content = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert content["title"] == "My own pictures"
    assert read_config(tmp_path / "run").data.pixels == 8
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["experiment"] == "mine"
