"""Training cases to compare between one process and several. As a script: one rank of the several."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from clom.data.formats import read_digits
from clom.data.stream import Stream, split
from clom.errors import UserError
from clom.evaluation.scorebook import Scorebook
from clom.experiments.distributed_run import broadcast
from clom.launch import read_launch
from clom.learning.context import TrainingContext
from clom.learning.distributed import require_same, session
from clom.learning.losses import supervised_contrastive
from clom.learning.progress import Progress
from clom.methods.registry import method_class
from clom.nets import AlexNetSettings, NetSettings, PooledConvSettings, ResNet18Settings, data_parallel, make_net
from clom.nets.networks.kinds import read_net_settings
from clom.nets.networks.registry import register_network
from clom.testing.simulated_device import simulated_device

ALEXNET = AlexNetSettings(channels=(6, 6, 8), hidden=12, paddings=(1, 1, 0), pools=(2, 2, 1), dropout=(0.0, 0.0))
DROPOUT = ALEXNET.model_copy(update={"dropout": (0.2, 0.5)})
RESNET = ResNet18Settings(width=4)


class PlainNetwork(nn.Sequential):
    """What somebody may bring: shared networks take it as it is, masked ones convert it."""

    def __init__(self, dropout: float = 0.2, norm: bool = True) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, 6, 3), *([nn.BatchNorm2d(6)] if norm else []), nn.ReLU()]
        super().__init__(
            *layers, nn.Dropout(dropout), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )


register_network("plain")(PlainNetwork)
PLAIN = read_net_settings({"kind": "plain"})
PLAIN_WITHOUT_NORM = read_net_settings({"kind": "plain", "norm": False})
POOLED = PooledConvSettings(channels=(4, 4, 6), hidden=8)

# SGD: Adam's first steps are full-size even where the gradient is nothing but rounding error.
SGD = {"kind": "sgd", "lr": 0.05}
TRAINING = {"plan": {"epochs": 1, "batch": 13}, "optimiser": SGD}  # 13 rows: 7 for one rank and 6 for the other
GATES = {**TRAINING, "gates_optimiser": SGD}
MASKED = {"memory_per_class": 2, "learning": GATES}
CONTRASTIVE: dict[str, Any] = {"memory_per_class": 2, "learning": {**GATES, "head": {"views": 1, "iterations": 5}}}
SGD_HEAD = {"learning": {**GATES, "cross_entropy": 1.0, "head": {"plan": {"epochs": 1, "batch": 13}}}}
REPLAY = {**TRAINING, "memory": {"size": 8}}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("clom", "supsup-ood"), CONTRASTIVE),
    "clom+": {**CONTRASTIVE, "predictor": "fusion", "learning": {**CONTRASTIVE["learning"], "outliers": 0.25}},
    "clom-no-calibration": {**CONTRASTIVE, "calibration": "none"},
    "clom-no-ood": {"learning": {**GATES, "rotations": 1, "head": {"views": 1, "iterations": 5}}},
    **dict.fromkeys(("hat", "clom-odin", "supsup"), MASKED),
    **dict.fromkeys(("finetune", "joint", "pass"), TRAINING),
    **dict.fromkeys(("lwf-r", "icarl", "bic"), REPLAY),
    "mnemonics": {**REPLAY, "exemplars": {"plan": {"epochs": 1, "batch": 13}}},
    "co2l": {**REPLAY, "head": {"views": 1, "iterations": 5}},
    "derpp": {**REPLAY, "replay_batch": 5},
    "muc": {**TRAINING, "ood": "noise", "side_training": {"plan": {"epochs": 1, "batch": 13}}},
}
"""Every method that supports data parallelism."""
LEARNING: dict[str, tuple[str, NetSettings, dict[str, Any]]] = {
    **{name: (name, ALEXNET, settings) for name, settings in SETTINGS.items()},
    "clom, trained head": ("clom", ALEXNET, SGD_HEAD),
    "clom, dropout": ("clom", DROPOUT, CONTRASTIVE),
    "clom, growth": ("clom", ALEXNET, {**CONTRASTIVE, "attention": {"growth": 12}}),
    **{f"{name}, batch norm": (name, RESNET, SETTINGS[name]) for name in ("clom", "hat", "supsup", "finetune")},
    **{f"{name}, plain network": (name, PLAIN_WITHOUT_NORM, SETTINGS[name]) for name in ("hat", "supsup", "finetune")},
    "finetune, plain network with batch norm": ("finetune", PLAIN, TRAINING),
}
ON_A_DEVICE = ("clom", "hat", "supsup", "icarl", "derpp")
"""Trained on the simulated accelerator, too."""
NETS: dict[str, NetSettings] = {"alexnet": DROPOUT, "pooled": POOLED, "resnet": RESNET, "converted": PLAIN}


def learn(case: str, device: torch.device | None = None) -> dict[str, Any]:
    """Gradients of each task's first step, the state after two tasks, and their scores."""
    name, net, settings = LEARNING[case]
    maker = method_class(name)
    tasks = stream()
    method = maker(net, maker.settings_type.model_validate(settings), tasks.image_shape, 0)
    method.to(device or torch.device("cpu"))
    gradients: list[dict[str, Tensor]] = []
    book = Scorebook(tasks.tests)

    def record_gradients(step: Progress) -> None:
        if step.done == 1 and step.task == len(gradients):
            gradients.append(
                {name: p.grad.cpu().clone() for name, p in method.named_parameters() if p.grad is not None}
            )

    for task in tasks:
        method.learn(task, TrainingContext(record_gradients))
        book.update(method)
    return {
        "gradients": gradients,
        "state": {name: value.cpu() for name, value in method.state_dict().items()},
        "scores": _by_pair(book),
    }


def _by_pair(book: Scorebook) -> dict[str, Tensor]:
    return {f"{model}.{test}": b for test, row in enumerate(book.all_blocks()) for model, b in enumerate(row)}


def stream() -> Stream:
    return split(read_digits(), [2, 2], train_per_class=16, test_per_class=5, validation=0.2)


def differentiate(case: str) -> dict[str, Tensor]:
    """Gradients and batch-norm statistics of one contrastive step, in float64, where rounding hides no error."""
    torch.manual_seed(0)
    net = make_net(NETS[case], 8).double().train()
    net.add_task()
    net.double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    gates = {group: torch.rand(size).double().requires_grad_() for group, size in net.gate_sizes().items()}
    images = torch.rand(21, 3, 8, 8).double().contiguous(memory_format=torch.channels_last)
    features = data_parallel.split_over_ranks(lambda part: cast(Tensor, net(part, 0, gates)), images)
    z = torch.nn.functional.normalize(features)
    loss = supervised_contrastive(z, torch.arange(21) % 3, 0.5).double() + sum(gate.sum() for gate in gates.values())
    loss.backward()  # type: ignore[no-untyped-call]
    found = {**dict(net.named_parameters()), **gates}
    gradients = {name: value.grad for name, value in found.items() if value.grad is not None}
    data_parallel.average_over_ranks(list(gradients.values()))
    statistics = {name: value.double() for name, value in net.named_buffers()}
    return {**gradients, **statistics, "randomness after": torch.rand(3)}


def communicate(rank: int) -> dict[str, Any]:
    """Communication other than tensors of a network."""
    require_same("numbers", b"equal everywhere")
    refused = ""
    try:
        require_same("numbers", str(rank).encode())
    except UserError as problem:
        refused = str(problem)
    empty = broadcast(b"")
    return {"refused": refused, "shared": [broadcast(f"from {rank}".encode()).decode(), empty.decode()]}


def lose(rank: int) -> str:
    """The last rank exits abruptly; the others notice at the next collective operation."""
    if rank == data_parallel.world_size() - 1:
        os._exit(0)
    try:
        data_parallel.all_reduce_sum(torch.zeros(1))
    except data_parallel.RankLost as problem:
        return str(problem)
    return "the lost rank was not noticed"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # networks this small close whole layers
    device = simulated_device()
    launch = read_launch()
    with session(launch):
        found = {
            "learned": {case: learn(case) for case in LEARNING},
            "on a device": {case: learn(case, device) for case in ON_A_DEVICE},
            "differentiated": {case: differentiate(case) for case in NETS},
            "communicated": communicate(launch.rank),
        }
        torch.save(found, folder / f"{launch.rank}.pt")
        (folder / "lost.txt").write_text(lose(launch.rank))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
