"""Importing checkpoints of the paper's authors.

Their files are dictionaries saved with `torch.save`: `last.model` (weights), `masks` (cumulative gates) and
`calibration` (scale and shift per task). Only tensors are read; no code from the files is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clom.errors import UserError, shorten
from clom.files import check_regular
from clom.learning.calibration import Affine
from clom.learning.learners.contrastive import Projection
from clom.learning.protection.hard_attention import HardAttention
from clom.methods.clom import Clom, ClomSettings
from clom.methods.families.base import LearnedTask, place
from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.size_limit import SizeLimit

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class AuthorsModel:
    """The model, and the projection g of each task, which is used only in training."""

    method: Clom
    projections: list[Projection]


def read_authors(weights: Path, masks: Path | None = None, calibration: Path | None = None) -> AuthorsModel:
    """Read a checkpoint of their AlexNet-like or ResNet-18 network, optionally with its masks and calibration."""
    state = _tensors(_read(weights), weights)
    try:
        with SizeLimit.for_file(state):
            return _convert(state, masks, calibration)
    except UserError as problem:
        raise UserError(f"{weights}: {problem}") from None
    except Exception as problem:  # tensors of wrong types and shapes can raise anything
        raise UserError(
            f"{weights} does not have the structure of the authors' checkpoints: {_first_line(problem)}."
        ) from None


def _convert(state: Weights, masks: Path | None, calibration: Path | None) -> AuthorsModel:
    residual = "layer1.0.conv1.weight" in state
    net, image_shape = _describe_resnet(state) if residual else _describe_alexnet(state)
    settings = ClomSettings(calibration="memory" if calibration else "none")
    method = Clom(net, settings, image_shape)
    first = 0
    for task in range(_count_tasks(state)):
        n_classes = len(state[f"joint_distribution_layer.{task}.weight"]) // method.learner.rotations
        names = tuple(str(label) for label in range(first, first + n_classes))
        method.open_task(LearnedTask(f"task {task + 1}", names))
        first += n_classes
    names_of = _resnet_names if residual else _alexnet_names
    _fill(method, state, names_of(len(method.tasks)))
    if masks is not None:
        _check_masks(method, _read(masks), masks)
    if calibration is not None:
        method.set_fitted(_read_calibration(_read(calibration), calibration, len(method.tasks)))
    method.eval().requires_grad_(False)
    place(method, torch.device("cpu"))
    return AuthorsModel(method, [_projection(state, task) for task in range(len(method.tasks))])


def _describe_alexnet(state: Weights) -> tuple[NetSettings, tuple[int, int, int]]:
    one, two, three = (len(state[f"conv{n}.weight"]) for n in (1, 2, 3))
    return AlexNetSettings(channels=(one, two, three), hidden=len(state["fc1.weight"])), (1, 28, 28)


def _describe_resnet(state: Weights) -> tuple[NetSettings, tuple[int, int, int]]:
    return ResNet18Settings(width=len(state["conv1.weight"])), (3, 32, 32)


def _count_tasks(state: Weights) -> int:
    """The number of tasks with embeddings or heads; at least one, so that a file without any is rejected later."""
    found = [re.fullmatch(r"(?:joint_distribution_layer|.*\bec\d+)\.(\d+)(?:\.weight)?", name) for name in state]
    return max((int(match[1]) + 1 for match in found if match), default=1)


def _alexnet_names(n_tasks: int) -> dict[str, str]:
    """Our parameter name -> theirs, for everything needed at inference."""
    names = {f"convs.{n}.{kind}": f"conv{n + 1}.{kind}" for n in range(3) for kind in ("weight", "bias")}
    names |= {f"fc.{kind}": f"fc1.{kind}" for kind in ("weight", "bias")}
    gates = {"conv1": "ec1", "conv2": "ec2", "conv3": "ec3", "fc": "ec4"}
    return _with_gates(names, gates, n_tasks)


def _resnet_names(n_tasks: int) -> dict[str, str]:
    names, gates = {"stem.weight": "conv1.weight"}, {"stem": "ec0"}
    norms = {"stem": "bn1"}
    for number in range(8):
        ours, theirs = f"blocks.{number}", f"layer{number // 2 + 1}.{number % 2}"
        group = f"stage{number // 2 + 1}.{number % 2}"
        layers = {"conv1": ("conv1", "bn1"), "conv2": ("conv2", "bn2")}
        if number in (2, 4, 6):
            layers["shortcut"] = ("shortcut.conv1", "shortcut.bn1")
        for layer, (conv, norm) in layers.items():
            names[f"{ours}.{layer}.weight"] = f"{theirs}.{conv}.weight"
            norms[f"{ours}.{layer}"] = f"{theirs}.{norm}"
        gates |= {f"{group}.1": f"{theirs}.ec1", f"{group}.2": f"{theirs}.ec2"}
    for ours, theirs in norms.items():
        for task in range(n_tasks):
            for kind in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                names[f"{ours}.norms.{task}.{kind}"] = f"{theirs}.{task}.{kind}"
    return _with_gates(names, gates, n_tasks)


def _with_gates(names: dict[str, str], gates: dict[str, str], n_tasks: int) -> dict[str, str]:
    """Gate groups have the prefix `@`: they belong to the protection, not to the network."""
    return names | {f"@{group}.{task}": f"{name}.{task}" for group, name in gates.items() for task in range(n_tasks)}


@torch.no_grad()
def _fill(method: Clom, state: Weights, names: dict[str, str]) -> None:
    protection = method.protection
    assert isinstance(protection, HardAttention)
    ours: dict[str, Tensor] = dict(protection.net.state_dict())
    for task in range(len(method.tasks)):
        ours |= {f"@{group}.{task}": e for group, e in protection.embeddings_of(task).items()}
        head = method.heads[task]
        for kind in ("weight", "bias"):
            getattr(head, kind).copy_(state[f"joint_distribution_layer.{task}.{kind}"])
    missing = set(ours) - set(names)
    if missing:
        raise KeyError(f"no counterpart for {sorted(missing)[0]}")
    for name, theirs in names.items():
        if theirs not in state and theirs.endswith("num_batches_tracked"):
            continue  # not written by older torch versions, and not used
        value = state[theirs]
        if value.numel() != ours[name].numel():
            raise RuntimeError(f"{theirs} has shape {tuple(value.shape)}, expected {tuple(ours[name].shape)}")
        ours[name].copy_(value.reshape(ours[name].shape))


def _projection(state: Weights, task: int) -> Projection:
    """Linear - ReLU - gate - Linear, with the gate folded into the last layer's columns."""
    first, last = "simclr_layer.fc1", f"simclr_layer.last.{task}"
    projection = Projection(state[f"{first}.weight"].shape[1], len(state[f"{last}.weight"]))
    inner, outer = projection[0], projection[2]
    assert isinstance(inner, nn.Linear)
    assert isinstance(outer, nn.Linear)
    gate = (state[f"simclr_layer.ec.{task}"].flatten() > 0).float()
    with torch.no_grad():
        inner.weight.copy_(state[f"{first}.weight"])
        inner.bias.copy_(state[f"{first}.bias"])
        outer.weight.copy_(state[f"{last}.weight"] * gate)
        outer.bias.copy_(state[f"{last}.bias"])
    return projection


def _check_masks(method: Clom, content: Any, path: Path) -> None:
    """Their cumulative gates must match the embeddings; otherwise the files are from different runs."""
    if not isinstance(content, Mapping) or not isinstance(content.get("p_mask"), Mapping):
        raise UserError(f"{path} is not a masks file of the authors: it has no 'p_mask'.")
    if wrong := [why for mask in content["p_mask"].values() if isinstance(mask, Tensor) and (why := _problem(mask))]:
        raise UserError(f"{path} is not a masks file of the authors: a mask {wrong[0]}.")
    protection = method.protection
    assert isinstance(protection, HardAttention)
    used = protection.used(len(method.tasks))
    open_units = sorted(int(u.sum()) for u in used.values())
    stored = [int((m > 0.5).sum()) for m in content["p_mask"].values() if isinstance(m, Tensor)]
    unmatched = [count for count in open_units if count not in stored]
    if unmatched:
        raise UserError(f"{path} does not belong to this checkpoint: its cumulative gates are those of other tasks.")


def _read_calibration(content: Any, path: Path, n_tasks: int) -> Affine:
    try:
        counts = [len(content[name]) for name in ("w", "b")]
        if counts != [n_tasks, n_tasks]:  # checked before conversion: there may be a billion
            raise UserError(f"{path} calibrates {counts[0]} tasks, the checkpoint has {n_tasks}.")
        scales, shifts = (
            torch.as_tensor([float(v) for v in content[name]], dtype=torch.float32) for name in ("w", "b")
        )
    except (TypeError, KeyError, IndexError, ValueError, ArithmeticError, RuntimeError):
        raise UserError(f"{path} is not a calibration file of the authors: it needs 'w' and 'b' per task.") from None
    if not bool((scales > 0).all() and torch.isfinite(scales).all() and torch.isfinite(shifts).all()):
        raise UserError(f"{path} must contain positive, finite scales and finite shifts.")
    return Affine(scales, shifts)


def _read(path: Path) -> Any:
    check_regular(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except Exception as problem:  # damaged bytes can make the unpickler raise anything
        raise UserError(
            f"{path} cannot be read as a checkpoint (only tensors are loaded, no code): {_first_line(problem)}"
        ) from None


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:300] if lines else type(problem).__name__


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    """Their state dict, without the prefix that multi-GPU training adds."""
    if not isinstance(content, Mapping):
        raise UserError(f"{path} is not a checkpoint of the authors: it does not contain a dictionary.")
    found = {str(name).removeprefix("module."): value for name, value in content.items() if isinstance(value, Tensor)}
    for name, value in found.items():
        problem = _problem(value)
        if problem:
            raise UserError(f"{path} is not a checkpoint of the authors: {shorten(name)} {problem}.")
    return found


def _problem(value: Tensor) -> str:
    """What is wrong with a tensor; empty if nothing is."""
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_complex():
        return "is not a plain real tensor"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "claims more values than the file holds"  # stride 0 can turn one value into a billion
    if not bool(torch.isfinite(value).all()):
        return "contains NaN or infinite values"
    return ""
