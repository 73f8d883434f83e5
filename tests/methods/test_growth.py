"""Networks that grow between tasks: when they do, and that nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clom
from clom.data.stream import Stream
from clom.errors import UserError
from clom.learning.heads import HeadSettings
from clom.learning.protection.hard_attention import HardAttention, HardAttentionSettings
from clom.methods.clom import Clom, ClomSettings
from clom.methods.hat import Hat, HatSettings
from clom.nets import AdapterSettings, NetSettings
from clom.nets.networks.kinds import read_net_settings
from clom.storage.describe import describe_method
from clom.storage.fingerprint import fingerprint
from clom.storage.model_file import load_model, save_model
from clom.testing import check_method, tiny_stream
from clom.testing.simulated_device import simulated_device
from methods.test_clom import OPTIMISERS, RESNET, TINY, optimised_by, quick
from nets.plain_networks import Residual

ADAPTERS = AdapterSettings(weights="random", width=0.05, hidden=12)
NETS: dict[str, NetSettings] = {"alexnet": TINY, "resnet18": RESNET, "adapters": ADAPTERS}
STREAMS = {name: tiny_stream(32, 3) if name == "adapters" else tiny_stream() for name in NETS}


def growing(growth: str | int, learning: dict[str, Any] | None = None, **changes: Any) -> ClomSettings:
    attention = HardAttentionSettings.model_validate({"sparsity_first": 0.1, "sparsity_rest": 0.1, "growth": growth})
    return quick(learning, **{"attention": attention, **changes})


def answers(method: Clom, pixels: Tensor, task: int) -> list[Tensor]:
    """All that an old task says."""
    return [method.block(pixels, task), method.belonging(pixels)[:, task], method.features(pixels, task)]


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_nothing_is_forgotten_when_every_layer_grows(optimiser: str, kind: str) -> None:
    stream = STREAMS[kind]
    discriminant = {"head": HeadSettings(kind="discriminant", views=1)} if kind == "adapters" else {}
    method = Clom(NETS[kind], growing(40, {**optimised_by(optimiser), **discriminant}), stream.image_shape)
    pixels, sizes = stream.tests[0].pixels, [method.protection.net.gate_sizes()]
    told, prints = [], []
    for number, task in enumerate(stream):
        method.learn(task)
        told.append(answers(method, pixels, number))
        prints.append(fingerprint(method, number))
        sizes.append(method.protection.net.gate_sizes())
    assert sizes[1] == sizes[0], "the first task takes the network as it is"
    assert all(sizes[2][group] == size + 40 for group, size in sizes[0].items())
    for number, then in enumerate(told):
        assert then[0].std().item() > 0, "constant scores would prove nothing"
        for before, after in zip(then, answers(method, pixels, number), strict=True):
            assert torch.equal(before, after)
    assert [fingerprint(method, number) for number in range(3)] == prints


@pytest.mark.parametrize("kind", NETS)
def test_a_growing_method_is_a_method(kind: str) -> None:
    check_method(lambda seed: Clom(NETS[kind], growing("auto"), STREAMS[kind].image_shape, seed), STREAMS[kind])


def test_soft_gates_grow_too(tiny_stream: Stream) -> None:
    attention = HardAttentionSettings(s_max=50.0, binary=False, sparsity_first=0.1, growth=12)
    method = Clom(TINY, quick(attention=attention), tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    assert method.unit_counts()["conv1"] == [8, 20]
    assert [block.shape for block in method.blocks(tiny_stream.tests[0].pixels)] == [(16, 2), (16, 2)]
    assert not method.gates(0)["conv1"][8:].any(), "new units are closed for old tasks, though all others are soft"


def test_a_converted_network_grows(tiny_stream: Stream) -> None:
    clom.register_network("residual")(lambda width=8: Residual(width, blocks=1, stages=2))
    method = Clom(read_net_settings({"kind": "residual"}), growing(40), tiny_stream.image_shape).learn(tiny_stream[0])
    pixels = tiny_stream.tests[0].pixels
    told = answers(method, pixels, 0)
    method.learn(tiny_stream[1])
    assert all(after == before + 40 for before, after in method.unit_counts().values())
    assert all(map(torch.equal, answers(method, pixels, 0), told))


def test_a_shared_projection_grows_too(tiny_stream: Stream) -> None:
    settings = growing(40, {"projection_layer": "shared"})
    check_method(lambda seed: Clom(TINY, settings, tiny_stream.image_shape, seed), tiny_stream)
    method = Clom(TINY, settings, tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    protection = method.protection
    assert isinstance(protection, HardAttention)
    assert protection.projection is not None
    assert protection.projection.weight.shape == (72, 72)
    training = protection.projection.weight.numel() + 72 + 32 + 72  # its weights, biases and the gates of two tasks
    assert protection.n_parameters() == sum(p.numel() for p in protection.parameters()) - training


# --------------------------------------------------------------------------------------------------------- the rule


def set_open(method: Clom, task: int, **units: list[int]) -> None:
    """Open exactly these units."""
    assert isinstance(method.protection, HardAttention)
    with torch.no_grad():
        for group, embedding in method.protection.embeddings_of(task).items():
            embedding.fill_(-6.0)
            embedding[units.get(group, [0])] = 6.0


def test_growth_appends_what_is_missing_and_nothing_else(tiny_stream: Stream) -> None:
    """Layers of 8, 8, 16 and 32 units."""
    method = Clom(TINY, growing("auto"), tiny_stream.image_shape).learn(tiny_stream[0])
    # conv1: 5 of 8 opened, 3 free, so 2 are missing. conv2: full, so 8. conv3: half, which leaves enough.
    set_open(method, 0, conv1=[0, 1, 2, 4, 6], conv2=list(range(8)), conv3=list(range(8)))
    method.learn(tiny_stream[1])
    assert method.unit_counts() == {"conv1": [8, 10], "conv2": [8, 16], "conv3": [16, 16], "fc": [32, 32]}
    # The second task opens two new units of conv1 and shares one: 3 are free, and 5 were opened once.
    set_open(method, 1, conv1=[3, 8, 0])
    assert method.capacity() == {
        "conv1": [0.625, 0.7],
        "conv2": [1.0, 0.5],
        "conv3": [0.5, 0.5],
        "fc": [0.0312, 0.0312],
    }
    assert method.protection.sizes_for_next_task() == {"conv1": 12, "conv2": 16, "conv3": 16, "fc": 32}
    assert [len(gate) for gate in method.gates(0).values()] == [10, 16, 16, 32]
    assert not method.gates(0)["conv1"][8:].any()


def test_a_number_appends_that_many_where_fewer_are_free(tiny_stream: Stream) -> None:
    method = Clom(TINY, growing(4), tiny_stream.image_shape).learn(tiny_stream[0])
    set_open(method, 0, conv1=[0, 1, 2, 4, 6], conv2=[1, 2, 3, 4])
    assert method.protection.sizes_for_next_task() == {"conv1": 12, "conv2": 8, "conv3": 16, "fc": 32}


def test_without_growth_a_network_keeps_its_size(tiny_stream: Stream) -> None:
    method = Clom(TINY, quick(), tiny_stream.image_shape).learn(tiny_stream[0])
    set_open(method, 0, conv1=list(range(8)))
    assert method.protection.sizes_for_next_task() == {}
    method.learn(tiny_stream[1])
    assert method.unit_counts()["conv1"] == [8, 8]
    assert [task.units for task in method.tasks] == [{}, {}]


@pytest.mark.parametrize("written", ["off", False])
def test_off_is_written_as_before_growth_existed(written: object) -> None:
    settings = HardAttentionSettings.model_validate({"growth": written})
    assert settings == HardAttentionSettings()
    assert "growth" not in settings.model_dump()
    assert HardAttentionSettings(growth="auto").model_dump()["growth"] == "auto"
    for wrong in (True, 0, -1, "on"):
        with pytest.raises(ValueError, match="growth"):
            HardAttentionSettings.model_validate({"growth": wrong})


# ------------------------------------------------------------------------------------------- files, forgetting, devices


@pytest.fixture(scope="module")
def grown() -> Clom:
    stream = STREAMS["resnet18"]
    method = Clom(RESNET, growing(12), stream.image_shape)
    for task in stream:
        method.learn(task)
    assert method.unit_counts()["stem"] == [8, 20, 20 + 12 * (method.capacity()["stem"][1] > 0.4)]
    return method


def test_a_file_keeps_the_sizes(grown: Clom, tmp_path: Path) -> None:
    save_model(tmp_path / "m", grown)
    loaded = load_model(tmp_path / "m")
    assert loaded.tasks == grown.tasks
    assert loaded.unit_counts() == grown.unit_counts() == describe_method(loaded)["units_by_task"]
    assert loaded.n_parameters() == grown.n_parameters()
    state = loaded.state_dict()
    assert all(torch.equal(state[name], value) for name, value in grown.state_dict().items())


@pytest.mark.parametrize(
    "units", [{"stem": 9}, {"stem": 4}, {"stage1.0.1": 7}, {"stage1.0.1": 1e9}, {"no": 3}, {"stem": "9"}]
)
def test_a_file_with_impossible_sizes_is_refused(units: dict[str, Any], grown: Clom, tmp_path: Path) -> None:
    """The stem's units are added to those of stage 1, a layer never shrinks, and the tensors must have these sizes."""
    broken = copy.deepcopy(grown)
    first = {group: counts[1] for group, counts in grown.unit_counts().items()}
    units = {name: int(value) if isinstance(value, float) else value for name, value in units.items()}
    object.__setattr__(broken.tasks[1], "units", {**first, **units})
    save_model(tmp_path / "m", broken)
    with pytest.raises(UserError, match="damaged"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_forgetting_a_task_of_a_grown_network(number: int, grown: Clom, tmp_path: Path) -> None:
    pixels = STREAMS["resnet18"].tests[0].pixels
    told = [answers(grown, pixels, task) for task in range(3)]
    method, kept = copy.deepcopy(grown), [task for task in range(3) if task != number]
    method.forget(number)
    save_model(tmp_path / "m", method)
    for model in (method, load_model(tmp_path / "m")):
        assert isinstance(model, Clom)
        for task, old in enumerate(kept):
            assert all(map(torch.equal, answers(model, pixels, task), told[old]))
    last = {group: counts[kept[-1]] for group, counts in grown.unit_counts().items()}
    assert method.protection.net.gate_sizes() == last, "no unit is left that no task knows"
    method.learn(STREAMS["resnet18"][number])
    assert all(map(torch.equal, answers(method, pixels, 0), told[kept[0]]))


def test_forgetting_the_last_task_undoes_its_growth(tiny_stream: Stream) -> None:
    """Every weight is as it was, and all that it opened is free."""
    method = Clom(RESNET, growing(12), tiny_stream.image_shape).learn(tiny_stream[0]).learn(tiny_stream[1])
    before = copy.deepcopy(method)
    method.learn(tiny_stream[2])
    assert method.protection.net.gate_sizes() != before.protection.net.gate_sizes()
    method.forget(2)
    used = before.protection
    assert isinstance(used, HardAttention)
    fresh = Clom(RESNET, growing(12), tiny_stream.image_shape)
    for task in before.tasks:
        fresh.protection.grow(task.units, 0)
    now, then, new = (list(one.protection.net.gated_layers()) for one in (method, before, fresh))
    in_use = used.used(2)
    for layer, old, untouched in zip(now, then, new, strict=True):
        rows = in_use[layer.gate_out or ""] > 0
        columns = torch.ones(3) > 0 if layer.gate_in is None else in_use[layer.gate_in] > 0
        both = rows[:, None] & columns[None, :]
        assert torch.equal(layer.weight[both], old.weight[both])
        assert torch.equal(layer.weight[~both], untouched.weight[~both])


def test_growth_is_the_same_on_an_accelerator(tiny_stream: Stream) -> None:
    on_cpu, on_device = (
        Hat(TINY, HatSettings.model_validate(HAT), tiny_stream.image_shape).to(device)
        for device in ("cpu", simulated_device())
    )
    for task in tiny_stream[:2]:
        on_cpu.learn(task)
        on_device.learn(task)
    assert on_cpu.unit_counts()["conv1"][1] > 8
    state = on_device.state_dict()
    assert all(torch.equal(value, state[name].cpu()) for name, value in on_cpu.state_dict().items())
    pixels = tiny_stream.tests[0].pixels
    assert all(map(torch.equal, on_cpu.blocks(pixels), on_device.blocks(pixels)))


HAT = {"learning": {"plan": {"epochs": 1, "batch": 12}}, "attention": {"growth": 12, "sparsity_first": 0.1}}
