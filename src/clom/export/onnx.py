"""Export a model as a single file: `.onnx` for onnxruntime, `.pt2` for `torch.export.load`."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clom.errors import UserError
from clom.export.graphs import Graph, make_graph
from clom.extras import require
from clom.files import write_atomically
from clom.learning.loop import generator
from clom.methods.families.base import Method, move
from clom.photos.thresholds import thresholds

REJECTION_RATES = (0.01, 0.05, 0.1)
AGREEMENT = 1e-4
"""Largest tolerated difference from the model's own scores, relative to the largest score if that exceeds one."""
_ENDINGS = (".onnx", ".pt2")
_LARGEST_ONNX = 2**31 - 1  # the limit of protobuf; external weights would need a second file

Answer = tuple[Tensor, Tensor]
Runner = Callable[[Tensor], Answer]


@dataclass(frozen=True)
class Exported:
    """The written file, and its largest difference from the model."""

    path: Path
    n_bytes: int
    class_names: tuple[str, ...]
    largest_difference: float


def export_model(path: Path, method: Method, task: str | None = None, device: torch.device | None = None) -> Exported:
    """Write all tasks, or one, as a single graph, after comparing its outputs with the model.

    The graph is made on the CPU; the scores of the model are computed on `device`, by default the CPU too.
    """
    check_target(path)
    tasks = [*range(len(method.tasks))] if task is None else [method.task_number(task)]
    if not tasks:
        raise UserError("The model has learned nothing yet: there is nothing to export.")
    own, cpu = method.device, torch.device("cpu")
    try:
        move(method, cpu)
        graph = make_graph(method, tasks)
        about = metadata(method, tasks)
        content, run = (_onnx if path.suffix == ".onnx" else _torch_export)(graph, _samples(method, 2), about)
        move(method, device or cpu)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # TF32 has only ten bits of precision
            difference = _difference(method, tasks, run)
    finally:
        move(method, own)
    write_atomically(path, content)
    return Exported(path, len(content), tuple(json.loads(about["classes"])), difference)


def check_target(path: Path) -> None:
    """Raise if `path` cannot be an export target; cheap, so call it before loading a model."""
    if path.suffix not in _ENDINGS:
        raise UserError(f"{path} should end in {' or '.join(_ENDINGS)}: the suffix selects the format.")
    if path.is_dir():
        raise UserError(f"{path} is a folder. Name a file.")
    if path.suffix == ".onnx":
        require("export", "Writing .onnx files")


def metadata(method: Method, tasks: Sequence[int]) -> dict[str, str]:
    """Metadata of the exported file as JSON strings. Columns of `scores` are in the order of `classes`.

    An image is unknown if its `belonging` is below the threshold of the predicted class's task.
    """
    about = {
        "format": "clom-export 1",
        "method": method.name,
        "classes": [name for task in tasks for name in method.tasks[task].answer_names],
        "tasks": [
            {
                "name": method.tasks[task].name,
                "classes": list(method.tasks[task].answer_names),
                "thresholds": {str(rate): value for rate, value in thresholds(method, task, REJECTION_RATES).items()},
            }
            for task in tasks
        ],
        "calibration": method.calibration_name,
        "image_shape": list(method.image_shape),
    }
    return {name: json.dumps(value) for name, value in about.items()}


# --- the two formats -------------------------------------------------------------------------------------------------


def _onnx(graph: Graph, example: Tensor, about: dict[str, str]) -> tuple[bytes, Runner]:
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            graph,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["scores", "belonging"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
        )
    assert program is not None
    proto = program.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # contains local source paths
    for name, text in about.items():
        proto.metadata_props.add(key=name, value=text)
    if proto.ByteSize() > _LARGEST_ONNX:
        raise UserError(
            f"The graph has {proto.ByteSize() / 1e9:.1f} GB, and an .onnx file holds at most 2. Export the tasks one "
            "by one with --task, or write a .pt2 file."
        )
    content: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Answer:
        scores, belonging = session.run(["scores", "belonging"], {"images": images.numpy()})
        return torch.from_numpy(scores), torch.from_numpy(belonging)

    return content, run


def _torch_export(graph: Graph, example: Tensor, about: dict[str, str]) -> tuple[bytes, Runner]:
    with _quiet():
        program = torch.export.export(graph, (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # contains local source paths
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={"clom.json": json.dumps(_decoded(about))})
    run: Runner = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    return buffer.getvalue(), run


def _decoded(about: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in about.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's log messages and warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# --- comparison ------------------------------------------------------------------------------------------------------


def _samples(method: Method, count: int) -> Tensor:
    randomness = generator(0, "export")
    return torch.randint(0, 256, (count, *method.image_shape), dtype=torch.uint8, generator=randomness)


@torch.no_grad()
def _difference(method: Method, tasks: Sequence[int], run: Runner) -> float:
    """The largest difference from the model's own scores, for batches of one and three images."""
    calibrate, largest = method.calibration, 0.0
    for count in (1, 3):
        images = _samples(method, count)
        raw, own = method.blocks_and_belonging(images)
        decides = method.exports_decision and len(tasks) == len(method.tasks)
        blocks = method.comparable_blocks(images) if decides else calibrate(raw)
        expected = torch.cat([blocks[task] for task in tasks], 1)
        scores, belonging = run(images)
        places = torch.cat([torch.full((blocks[task].shape[1],), task) for task in tasks])
        best = own.gather(1, places[expected.argmax(1)][:, None])[:, 0]
        for mine, theirs in ((expected.float(), scores), (best, belonging)):
            size = max(1.0, float(mine.abs().max()))
            largest = max(largest, float((mine - theirs).abs().max()) / size)
    if not largest <= AGREEMENT:  # also rejects NaN
        raise UserError(
            f"The exported graph disagrees with the model by {largest:.1e}, more than {AGREEMENT:.0e}. Nothing was "
            "written. Please report this with the versions that 'clom doctor' shows."
        )
    return largest
