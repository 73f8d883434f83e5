"""The paper's table of network sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from clom.methods.clom import Clom
from clom.methods.families.base import LearnedTask, Method
from clom.methods.hat import Hat
from clom.methods.supsup import SupSup
from clom.nets import AlexNetSettings, NetSettings, PooledConvSettings, ResNet18Settings

NARROW, WIDE = ResNet18Settings(width=64), ResNet18Settings(width=128)


def opened(kind: type[Method], net: NetSettings, size: int, n_tasks: int, n_classes: int) -> tuple[Method, list[int]]:
    """An untrained model with all tasks, and the parameters that each of them added. On the meta device."""
    with torch.device("meta"):
        method = kind(net, kind.settings_type(), (3, size, size))
        counts = [method.n_parameters()]
        for task in range(n_tasks):
            method.open_task(LearnedTask(f"task {task}", tuple(f"{task}/{label}" for label in range(n_classes))))
            counts.append(method.n_parameters())
    return method, [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize(
    ("net", "size", "n_tasks", "n_classes", "millions", "added"),
    [
        pytest.param(AlexNetSettings(), 28, 5, 2, "1.07", "7.7K", id="mnist-5t"),
        pytest.param(NARROW, 32, 5, 2, "11.25", "17.6K", id="cifar10-5t"),
        pytest.param(WIDE, 32, 10, 10, "45.31", "68.0K", id="cifar100-10t"),
        pytest.param(WIDE, 32, 20, 5, "45.58", "47.5K", id="cifar100-20t"),
        pytest.param(WIDE, 32, 5, 40, "45.59", "191.0K", id="tinyimagenet-5t"),
        pytest.param(WIDE, 32, 10, 20, "45.72", "109.0K", id="tinyimagenet-10t"),
    ],
)
def test_clom(net: NetSettings, size: int, n_tasks: int, n_classes: int, millions: str, added: str) -> None:
    method, steps = opened(Clom, net, size, n_tasks, n_classes)
    assert f"{method.n_parameters() / 1e6:.2f}" == millions
    assert {f"{step / 1e3:.1f}K" for step in steps} == {added}


@pytest.mark.parametrize(
    ("net", "size", "n_tasks", "n_classes", "millions"),
    [
        pytest.param(AlexNetSettings(), 28, 5, 2, "1.04", id="mnist-5t"),
        pytest.param(NARROW, 32, 5, 2, "11.23", id="cifar10-5t"),
        pytest.param(WIDE, 32, 10, 10, "45.01", id="cifar100-10t"),
        pytest.param(WIDE, 32, 20, 5, "45.28", id="cifar100-20t"),
        pytest.param(WIDE, 32, 5, 40, "44.97", id="tinyimagenet-5t"),
        pytest.param(WIDE, 32, 10, 20, "45.11", id="tinyimagenet-10t"),
    ],
)
def test_hat(net: NetSettings, size: int, n_tasks: int, n_classes: int, millions: str) -> None:
    method, _ = opened(Hat, net, size, n_tasks, n_classes)
    assert f"{method.n_parameters() / 1e6:.2f}" == millions


@pytest.mark.parametrize(
    ("net", "size", "n_tasks", "n_classes", "millions"),
    [
        pytest.param(PooledConvSettings(), 28, 5, 2, "0.58", id="mnist-5t"),
        pytest.param(NARROW, 32, 5, 2, "11.16", id="cifar10-5t"),
        pytest.param(WIDE, 32, 10, 10, "44.64", id="cifar100-10t"),
        pytest.param(WIDE, 32, 20, 5, "44.64", id="cifar100-20t"),
        pytest.param(WIDE, 32, 5, 40, "44.67", id="tinyimagenet-5t"),
        pytest.param(WIDE, 32, 10, 20, "44.65", id="tinyimagenet-10t"),
    ],
)
def test_supsup(net: NetSettings, size: int, n_tasks: int, n_classes: int, millions: str) -> None:
    method, _ = opened(SupSup, net, size, n_tasks, n_classes)
    assert f"{method.n_parameters() / 1e6:.2f}" == millions


def test_supsup_with_its_original_network_on_mnist() -> None:
    method, _ = opened(SupSup, PooledConvSettings(), 28, 5, 2)
    assert method.n_parameters() == 576_768


@pytest.mark.parametrize(
    ("net", "n_tasks", "n_classes", "exact"),
    [(NARROW, 5, 2, 11_231_882), (WIDE, 10, 10, 45_006_052), (WIDE, 20, 5, 45_276_132), (WIDE, 5, 40, 44_973_512)],
)
def test_hat_has_one_output_per_class(net: NetSettings, n_tasks: int, n_classes: int, exact: int) -> None:
    # Shared weights, and for each task normalisation, gates and a head of C outputs.
    method, steps = opened(Hat, net, 32, n_tasks, n_classes)
    assert isinstance(method, Hat)
    assert method.n_parameters() == exact
    network = method.protection.net
    by_hand = (
        sum(p.numel() for p in network.task_parameters(0))
        + sum(network.gate_sizes().values())
        + (network.n_features + 1) * n_classes
    )
    assert set(steps) == {by_hand}
    assert exact == sum(p.numel() for p in network.shared_parameters()) + n_tasks * by_hand
