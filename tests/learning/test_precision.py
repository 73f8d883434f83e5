"""Lower precision: where it applies, that it learns, that old tasks stay bit-identical, and when `auto` takes it."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from clom.data.stream import Stream
from clom.errors import UserError
from clom.evaluation.metrics import evaluate
from clom.evaluation.scorebook import Scorebook
from clom.experiments.config import resolve
from clom.learning import precision
from clom.learning.context import TrainingContext
from clom.learning.loop import Batch, Plan, fit, generator
from clom.learning.precision import Precision, choose_precision, network_pass
from clom.methods.families.base import Method
from clom.nets import AdapterSettings, AlexNetSettings, ResNet18Settings, make_net
from clom.nets.layers import GatedConv2d, GatedJoin
from clom.nets.networks.kinds import read_net_settings
from clom.nets.networks.registry import register_network
from clom.nets.networks.resnet import Block
from clom.nets.precision import autocast_network, network_dtype

CPU = torch.device("cpu")


def learned(name: str, dtype: Precision, n_tasks: int = 2) -> tuple[Method, Stream, list[Tensor]]:
    config = resolve("digits-5t", name, "smoke", 0, {"data.train_per_class": 60})
    stream = config.data.stream(None, 0)[:n_tasks]
    method = config.make_method(stream.image_shape)
    first: list[Tensor] = []
    for task in stream:
        method.learn(task, TrainingContext(precision=dtype))
        first.append(method.block(stream.tests[0].pixels, 0))
    return method, stream, first


class Viewing(nn.Module):
    """A network as somebody may bring it: `view` refuses channels_last."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.requires_grad_(not frozen)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv(images).view(len(images), -1)
        return features


def test_a_network_that_somebody_brings_can_be_measured() -> None:
    register_network("viewing")(Viewing)
    measured = network_pass(read_net_settings({"kind": "viewing"}), 8)
    assert measured is not None
    measured(torch.bfloat16)
    assert network_pass(read_net_settings({"kind": "viewing", "frozen": True}), 8) is None


def test_only_training_passes_of_the_network_are_autocast() -> None:
    layer, images = nn.Linear(4, 3), torch.rand(2, 4)
    seen: list[torch.dtype] = []

    def compute(values: Tensor) -> Tensor:
        outputs: Tensor = layer(values)
        seen.append(outputs.dtype)
        return outputs

    assert autocast_network(compute, images).dtype == torch.float32
    with network_dtype(torch.bfloat16):
        assert autocast_network(compute, images).dtype == torch.float32
        with torch.no_grad():
            autocast_network(compute, images)
    autocast_network(compute, images)
    assert seen == [torch.float32, torch.bfloat16, torch.float32, torch.float32]


def test_float32_gates_leave_the_values_in_bfloat16() -> None:
    """Otherwise every identity shortcut would promote its values, and all later additions would convert them."""
    net = make_net(ResNet18Settings(width=4), 16)
    net.add_task()
    gates = {group: torch.rand(size) for group, size in net.gate_sizes().items()}
    seen: dict[str, torch.dtype] = {}
    for name, module in net.named_modules():
        if isinstance(module, GatedJoin | GatedConv2d | Block):
            module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
    with network_dtype(torch.bfloat16):
        features = autocast_network(lambda images: net(images, 0, gates), torch.rand(4, 3, 16, 16))
    assert len(seen) > 20
    assert {name for name, dtype in seen.items() if dtype != torch.bfloat16} == set()
    assert features.dtype == torch.float32


@pytest.mark.parametrize("name", ["clom", "icarl"])
def test_bfloat16_learns_and_everything_kept_is_float32(name: str) -> None:
    method, stream, _ = learned(name, "bfloat16")
    plain, _, _ = learned(name, "float32")
    floats = {value.dtype for value in method.state_dict().values() if value.is_floating_point()}
    assert floats == {torch.float32}
    assert not torch.equal(
        torch.cat(method.blocks(stream.tests[0].pixels), 1), torch.cat(plain.blocks(stream.tests[0].pixels), 1)
    ), "nothing was computed in bfloat16"
    book = Scorebook(stream.tests)
    book.update(method)
    assert evaluate(book, method.calibrations()).til > 0.8


def test_old_tasks_stay_bit_identical_in_bfloat16() -> None:
    _, _, (before, after) = learned("clom", "bfloat16")
    assert torch.equal(before, after)


def test_float16_scales_the_loss_and_takes_the_same_steps() -> None:
    """A gradient of 1e-6 would vanish in float16; the scaler undoes its factor before the step."""
    weights = []
    for dtype in ("float32", "float16"):
        weight = nn.Parameter(torch.tensor(1.0))
        optimiser = torch.optim.SGD([weight], lr=1.0)

        def loss_of(batch: Batch, weight: nn.Parameter = weight) -> Tensor:
            return weight * 1e-6

        context = TrainingContext(precision=dtype)
        fit(loss_of, optimiser, Plan(epochs=3, batch=4), 4, generator(0), context=context)
        weights.append(weight.item())
    assert weights[1] == pytest.approx(weights[0], abs=1e-7)
    assert weights[0] < 1.0


def test_names() -> None:
    assert choose_precision("bfloat16", CPU) == "bfloat16"
    assert choose_precision("auto", CPU) == "float32", "nothing to measure"
    with pytest.raises(UserError, match="Did you mean 'bfloat16'"):
        choose_precision("bfloat61", CPU)
    with pytest.raises(UserError, match="float16 is for GPUs"):
        choose_precision("float16", CPU)


@pytest.mark.parametrize(
    ("slow", "fast", "chosen"), [(0.05, 0.02, "bfloat16"), (0.05, 0.049, "float32"), (0.005, 0.001, "float32")]
)
def test_auto_takes_bfloat16_where_it_is_measured_faster(
    slow: float, fast: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own: a pass in float32 takes `slow` seconds, one in bfloat16 `fast`."""
    clock = [0.0]

    def training_pass(dtype: torch.dtype | None) -> None:
        clock[0] += slow if dtype is None else fast

    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    assert choose_precision("auto", CPU, training_pass) == chosen
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: False)
    assert choose_precision("auto", CPU, training_pass) == "float32"


def test_what_is_measured_is_a_pass_of_the_network() -> None:
    state = torch.get_rng_state()
    training_pass = network_pass(AlexNetSettings(channels=(4, 4, 4), hidden=8), 28, batch=4)
    assert training_pass is not None
    training_pass(None)
    training_pass(torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), state)
    assert network_pass(AdapterSettings(weights="random", width=0.05, hidden=4), 32, batch=2) is None
