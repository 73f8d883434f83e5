"""RPS-Net beside the authors' code: github.com/brjathu/RPSnet, commit 40a884dab0650adced6fe76502dd26c8603307ea.

`Learner.train` with `RPS_net_cifar`, a thirty-second as wide, on one batch of each of three tasks of two classes, with
six outputs and two tasks per path: the second step distils on the first path, the third trains a new path beside frozen
modules. Changed there: image and pooling size, fixed draws of path and exemplars, SGD (learning rate 1) instead of
Adam, whose first step hardly depends on the gradient, and the differences that method.py lists: the teacher has the
previous paths only, frozen modules are in evaluation mode, and level 7 has its skip.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clom.methods.a_rps import method as a_rps
from clom.methods.a_rps.method import ARps, ARpsSettings
from clom.nets import NetSettings
from methods.official.recording import Step, StepRecorder, differing, fill
from methods.official.tiny_network import SHAPE, numbered_task, tiny_network

NEW_PATH = [1, 0, 2, 1, 1, 2, 1, 0, 2]
LOSSES = [0.77734381, 1.5357713 + 0.58082131, 5.6414514 + 0.52661882]
"""Cross-entropy, plus distillation in the later tasks."""
CHANGES = [
    {
        "m10": (1.5503152, -0.035115508),
        "m20": (0.84288338, 0.03598861),
        "m30": (0.57971854, 0.1413368),
        "m40": (1.5569964, -0.023734595),
        "m4x": (0.6020541, -0.074322735),
        "m50": (1.0173465, 0.042809762),
        "m60": (1.024808, -0.013194641),
        "m6x": (0.48597685, 0.027410853),
        "m70": (0.61817317, 0.022614494),
        "m80": (0.64141904, 0.022021201),
        "m8x": (0.28832873, 0.001000182),
        "m90": (0.4799307, -0.0021902454),
        "final_layer1": (0.83998463, -0.017942319),
    },
    {
        "m10": (2.1066342, 0.42995058),
        "m20": (1.5466657, 0.050593882),
        "m30": (0.73099631, -0.063925849),
        "m40": (2.3057122, -0.11163027),
        "m4x": (0.67701131, 0.062304549),
        "m50": (1.4694373, -0.15710846),
        "m60": (1.3353479, 0.079281122),
        "m6x": (0.66876702, -0.02927707),
        "m70": (0.72518116, 0.013618411),
        "m80": (0.76650686, -0.0028976567),
        "m8x": (0.29880961, 0.0057898985),
        "m90": (0.40717938, 0.0032545278),
        "final_layer1": (1.5269319, -0.15894226),
    },
    {
        "m11": (2.9507892, -1.169772),
        "m32": (1.4448304, 0.4000269),
        "m41": (1.3501416, 0.139927),
        "m4x": (0.45801839, -0.026240463),
        "m51": (1.3210793, 0.16555238),
        "m62": (1.8768162, -0.022688431),
        "m6x": (0.83005652, 0.039288017),
        "m71": (1.2578209, -0.0035710954),
        "m8x": (1.2443517, -0.0066050636),
        "m92": (1.6382614, 0.0057354329),
        "final_layer1": (5.4777715, 0.14364706),
    },
]
"""Of each task's step, the change of the parameters of each trained module, skip and head: `digest`."""


@pytest.fixture(autouse=True)
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_path(used: Tensor, randomness: torch.Generator, prefer_free: bool) -> Tensor:
        return torch.tensor(NEW_PATH)

    def in_order(n: int, **_: object) -> Tensor:
        return torch.arange(n)

    monkeypatch.setattr(a_rps, "draw_path", draw_path)
    monkeypatch.setattr(torch, "randperm", in_order)


def make(net: NetSettings) -> ARps:
    settings = ARpsSettings.model_validate(
        {
            "n_classes": 6,
            "memory": {"size": 8},
            "paths": {"widths": [2, 2, 2, 4, 4, 8, 8, 16, 16], "pools": [5, 7], "modules": 3},
            "plan": {"epochs": 1, "batch": 28, "schedule": {"kind": "constant"}},
            "optimiser": {"kind": "sgd", "lr": 1.0},
        }
    )
    return ARps(net, settings, SHAPE)


def set_weights(module: nn.Module, first: int) -> None:
    layers = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    for number, layer in enumerate(layers):
        assert layer.bias is not None
        fill([layer.weight, layer.bias], first + 2 * number, 0.2)
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data += 1


def set_all_weights(method: ARps, shift: int, new_path_only: bool) -> None:
    """In the second task other weights than the teacher's."""
    for number, level in enumerate(method.backbone.levels):
        parallel = level.get_submodule("parallel")
        for name, module in parallel.named_children():
            if not new_path_only or (name != "0" and int(name) == NEW_PATH[number]):
                set_weights(module, 100 * number + 10 * int(name) + shift)
        if not new_path_only and isinstance(level.skip, nn.Module):
            set_weights(level.skip, 100 * number + 90 + shift)
    if not new_path_only:
        set_weights(method.head, 1000 + shift)


def learned(method: ARps) -> list[Step]:
    steps = list[Step]()
    for number, shift in enumerate((0, 7, 7)):

        def prepare(phase: int, _: list[nn.Parameter], shift: int = shift, new_only: bool = number == 2) -> None:
            set_all_weights(method, shift, new_only)

        recorder = StepRecorder(prepare)
        method.learn(numbered_task(number), recorder)
        steps += recorder.recorded
        steps[-1] = Step(0, steps[-1].loss, [], by_module(method, steps[-1].changes))
    return steps


def by_module(method: ARps, changes: list[Tensor]) -> list[Tensor]:
    """One vector of changes for each module: level after level, the skip last in its level, then the head."""
    names = [name for name, parameter in method.named_parameters() if parameter.requires_grad]
    groups: dict[tuple[str, ...], list[Tensor]] = {}
    for name, change in zip(names, changes, strict=True):
        places = name.split(".")
        key = ("head",) if places[0] == "head" else tuple(places[1:5] if "parallel" in places else places[1:4])
        groups.setdefault(key, []).append(change.flatten())
    return [torch.cat(groups[key]) for key in sorted(groups, key=lambda key: (key[0] == "head", key))]


def test_steps_are_the_official_ones() -> None:
    steps = learned(make(tiny_network()))
    assert [step.loss for step in steps] == pytest.approx(LOSSES, abs=1e-5)
    for step, changes in zip(steps, CHANGES, strict=True):
        assert differing(step.changes, changes) == []
