"""Every method can be saved, loaded in a new process and continued there, with a bit-identical result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clom.data.stream import Stream
from clom.experiments.config import resolve
from clom.methods.registry import PAPER_METHODS
from clom.storage.model_file import save_model

CONTINUE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from clom.data.formats import read_digits
from clom.data.stream import split
from clom.storage.model_file import load_model

torch.set_num_threads(1)
stream = split(read_digits(), [2, 2, 2], train_per_class=16, test_per_class=8, validation=0.25)
for path in sorted(Path(sys.argv[1]).glob("*.model")):
    method = load_model(path).learn(stream[1])
    blocks = {str(number): block.contiguous() for number, block in enumerate(method.blocks(stream.tests[0].pixels))}
    save_file(blocks, path.with_suffix(".blocks"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_stream: Stream) -> Path:
    """Models after the first task, and their scores after a new process, one for all methods, learned the second."""
    folder = tmp_path_factory.mktemp("models")
    for name in PAPER_METHODS:
        method = resolve("digits-5t", name, "smoke", 3).make_method(tiny_stream.image_shape)
        save_model(folder / f"{name}.model", method.learn(tiny_stream[0]))
    subprocess.run([sys.executable, "-c", CONTINUE, str(folder)], check=True, timeout=280)
    return folder


@pytest.mark.parametrize("name", PAPER_METHODS)
def test_continues_in_a_new_process(name: str, folder: Path, tiny_stream: Stream) -> None:
    method = resolve("digits-5t", name, "smoke", 3).make_method(tiny_stream.image_shape)
    for task in tiny_stream[:2]:
        method.learn(task)
    here, there = method.blocks(tiny_stream.tests[0].pixels), load_file(folder / f"{name}.blocks")
    assert len(there) == 2
    assert all(torch.equal(block, there[str(number)]) for number, block in enumerate(here))
