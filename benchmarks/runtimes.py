"""CIL inference with five tasks, half of all gates open: our own against onnxruntime on the exported graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import Figure, figure, interleaved, ratios
from benchmarks.models import random_pixels, subject, untrained
from clom.export.onnx import export_model
from clom.methods.clom import Clom, ClomSettings

TASKS = 5
_SESSIONS = 3
_PAUSE = 0.05  # onnxruntime's threads spin for a while after every call, and take a core from whoever comes next


@dataclass(frozen=True)
class Case:
    """The rounds for each number of images that is answered at once."""

    name: str
    rounds: dict[int, int]


CASES = (Case("MNIST net", {1: 101, 64: 15}), Case("ResNet-18, width 64", {1: 51, 64: 5}))


def figures(quick: bool = False) -> list[Figure]:
    found: list[Figure] = []
    for case in CASES:
        what = subject(case.name, quick)
        model = untrained(what, TASKS, settings=ClomSettings(calibration="none"))
        other = onnxruntime_scores(model, sessions=1 if quick else _SESSIONS)
        for images, rounds in ({1: 2, 3: 2} if quick else case.rounds).items():
            group = f"answering, {case.name}, {TASKS} tasks, {images} image{'s' if images > 1 else ''}"
            found += _against(group, model, other, random_pixels(what, images), rounds)
    return found


def onnxruntime_scores(model: Clom, sessions: int = _SESSIONS) -> Callable[[Tensor], Tensor]:
    """The scores of all classes by onnxruntime, with as many threads as torch uses: the quickest of several sessions,
    since some stay at half the speed of others for as long as they live."""
    import onnxruntime

    def scores(session: onnxruntime.InferenceSession, pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["scores"], {"images": pixels.numpy()})[0])

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_model(path, model)
        made = [
            onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for _ in range(sessions)
        ]
    image = torch.zeros(1, *model.image_shape, dtype=torch.uint8)
    candidates = {str(number): partial(scores, session, image) for number, session in enumerate(made)}
    times = interleaved(candidates, rounds=5, warmup=2, pause=_PAUSE) if sessions > 1 else {"0": [0.0]}
    quickest = min(times, key=lambda name: median(times[name]))
    return partial(scores, made[int(quickest)])


def _against(group: str, model: Clom, other: Callable[[Tensor], Tensor], pixels: Tensor, rounds: int) -> list[Figure]:
    def ours() -> Tensor:
        return torch.cat(model.blocks(pixels), 1)

    times = interleaved({"ours": ours, "onnxruntime": lambda: other(pixels)}, rounds, warmup=2, pause=_PAUSE)
    gain = ratios(times["onnxruntime"], times["ours"])
    speeds = {name: [len(pixels) / taken for taken in measured] for name, measured in times.items()}
    difference = float((ours() - other(pixels)).abs().max())
    return [
        figure(group, "ours / onnxruntime, images per second", gain, "x", at_least=1.0),
        *(figure(group, name, speed, "images/s") for name, speed in speeds.items()),
        figure(group, "largest difference of a score", [difference], "points"),
    ]
