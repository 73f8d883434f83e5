"""Memory added per task, loading time of saved models, and reading time of images."""

from __future__ import annotations

import gc
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Figure, figure, interleaved, scaled
from benchmarks.models import Subject, random_task, short_settings, subject, untrained
from clom.data.formats import read_idx_images
from clom.methods.clom import Clom
from clom.methods.families.masked import MaskedMethod
from clom.storage.model_file import load_model, save_model

LIMIT = 1.10


def memory_figures(quick: bool = False) -> list[Figure]:
    """Each network learns a few tasks from a few images; every tensor alive afterwards counts."""
    found = []
    for name in ("MNIST net", "ResNet-18, width 16"):
        what = subject(name, quick)
        group = f"memory per added task, {name}, {what.classes} classes"
        grown, own, statistics = _learned(what, n_tasks=4)
        needed = [o - s for o, s in zip(own, statistics, strict=True)]
        found.append(figure(group, "its own gates, normalisation and head", scaled(needed, 1e-3), "kB"))
        found.append(figure(group, "its statistics for task predictors", scaled(statistics, 1e-3), "kB"))
        found.append(
            figure(
                group,
                "growth after learning / its own",
                [g / o for g, o in zip(grown, own, strict=True)],
                "x",
                at_most=LIMIT,
            )
        )
        cached, cut = _answered(what, n_tasks=4)
        found.append(figure(group, "its cut network, kept while the model answers", scaled(cut, 1e-3), "kB"))
        shares = [c / n for c, n in zip(cached, cut, strict=True)]
        found.append(figure(group, "growth after answering / its cut network", shares, "x", at_most=LIMIT))
    return found


def _learned(what: Subject, n_tasks: int) -> tuple[list[float], list[float], list[float]]:
    """Growth of all live tensors with each task after the second, the bytes of all that is the task's own, and of its
    statistics among them.

    The first two tasks do not count: protection starts with the second.
    """
    model = untrained(what, 0, settings=short_settings(batch=what.classes))
    after = []
    for number in range(n_tasks):
        model.learn(random_task(what, what.classes, number))
        model.load_state_dict(model.state_dict())  # drops the compact networks, which `_answered` measures
        after.append(live_bytes())
    grown = [float(b - a) for a, b in pairwise(after[1:])]
    measured = range(2, n_tasks)
    own, statistics = ([float(of(model, number)) for number in measured] for of in (own_bytes, statistics_bytes))
    return grown, own, statistics


def _answered(what: Subject, n_tasks: int) -> tuple[list[float], list[float]]:
    """Growth of all live tensors with each task's first inference, and the bytes of its compact network and head."""
    model = untrained(what, n_tasks)
    images = random_task(what, 2 * what.classes).train.pixels
    before, cached, cut = live_bytes(), [], []
    for number in range(n_tasks):
        model.block(images, number)
        now = live_bytes()
        cached.append(float(now - before))
        cut.append(float(_cut_bytes(model, number)))
        before = now
    return cached, cut


def _cut_bytes(model: MaskedMethod, task: int) -> int:
    """4 bytes for each weight between open units and each of their biases."""
    gates: dict[str | None, int] = {group: int(gate.sum()) for group, gate in model.gates(task).items()}
    total = 0
    for layer in model.protection.net.gated_layers():
        n_in = layer.weight.shape[1] if layer.gate_in is None else gates[layer.gate_in] * layer.spread
        total += gates[layer.gate_out] * (n_in * layer.weight[0, 0].numel() + 1)
    head = model.heads[task]
    assert isinstance(head, nn.Linear)
    return 4 * (total + head.out_features * (gates[model.protection.net.feature_group] + 1))


def own_bytes(model: Clom, task: int) -> int:
    """Gates, normalisation (with its statistics), head, calibration and feature statistics of one task."""
    norms = [norm for layer in model.protection.net.gated_layers() for norm in layer.norms_of(task)]
    parts: list[Tensor] = [*model.protection.mask_parameters(task), *model.heads[task].parameters()]
    parts += [value for norm in norms for value in norm.state_dict().values()]
    parts += [model.typical[task], torch.zeros(2)]  # and its scale and shift
    return statistics_bytes(model, task) + _bytes(parts)


def statistics_bytes(model: Clom, task: int) -> int:
    """The statistics of one task's features."""
    return _bytes(list(model.prediction.statistics[task].buffers()))


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def live_bytes() -> int:
    """The bytes of all reachable tensors, each storage counted once."""
    gc.collect()
    # Other tensor types, such as the fake tensors of exporters, hold no memory.
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors if not tensor.is_mkldnn]
    # Packed weights do not show their storage: their padding, less than 16 channels, is not counted.
    packed: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_mkldnn)
    plain: int = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    return packed + plain


def loading_figures(quick: bool = False) -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("MNIST net", "ResNet-18, width 64"):
            path = Path(folder) / "model.safetensors"
            save_model(path, untrained(subject(name, quick), 5))
            times = interleaved({name: lambda path=path: load_model(path)}, 2 if quick else 9)  # type: ignore[misc]
            note = f"{path.stat().st_size / 1e6:.1f} MB"
            found.append(figure("loading a model of 5 tasks", name, scaled(times[name], 1000), "ms", note=note))
        found.append(_reading(Path(folder), 100 if quick else 10_000, 2 if quick else 5))
    return found


def _reading(folder: Path, count: int, rounds: int) -> Figure:
    """Images in MNIST's format, uncompressed."""
    images, labels = folder / "images", folder / "labels"
    dimensions = np.array([count, 28, 28], dtype=">i4").tobytes()
    pixels = np.random.default_rng(0).integers(0, 256, count * 784, dtype=np.uint8)
    images.write_bytes(bytes([0, 0, 8, 3]) + dimensions + pixels.tobytes())
    labels.write_bytes(bytes([0, 0, 8, 1]) + dimensions[:4] + bytes(i % 10 for i in range(count)))
    times = interleaved({"read": lambda: read_idx_images(images, labels, 10)}, rounds)["read"]
    return figure("reading images", f"{count} images of 28 x 28 in MNIST's format", scaled(times, 1000), "ms")
