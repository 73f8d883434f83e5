"""Checkpoints of the paper's authors: the same outputs as their networks, and nothing but tensors is loaded."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clom.errors import UserError
from clom.methods.clom import Clom
from clom.storage.authors import read_authors
from clom.storage.model_file import load_model, save_model

SMALL = Path(__file__).parent / "authors" / "authors_mnist3t"
FULL = Path(__file__).parents[3] / "shared" / "conformance" / "authors_mnist5t"
"""The same with the network's real size, 6 MB, if it is at hand."""
State = dict[str, Tensor]

# --- conformance: files with expected outputs ----------------------------------------------------


@pytest.fixture(scope="module", params=[SMALL, FULL], ids=["small", "full size"])
def conformance(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Tensor]]:
    weights, expected = (request.param.with_name(request.param.name + end) for end in (".model", "_expected.npz"))
    if request.param is FULL and not weights.exists():
        pytest.skip(f"{weights} is not at hand")
    with np.load(expected) as arrays:
        return weights, {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def test_conformance(conformance: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    weights, expected = conformance
    model = read_authors(weights)
    images = expected["images"]
    assert len(model.method.tasks) == len(model.projections) == len(expected["logits"]) > 2
    for task, block in enumerate(model.method.blocks(images)):
        torch.testing.assert_close(block, expected["logits"][task], atol=1e-4, rtol=0)
        features = model.method.features(images, task)
        torch.testing.assert_close(features, expected["features"][task], atol=1e-4, rtol=0)
        projections = model.projections[task](features)
        torch.testing.assert_close(projections, expected["projections"][task], atol=1e-4, rtol=0)
    # Outputs of different tasks differ, so mixed-up tasks would be detected.
    assert float((expected["logits"][0] - expected["logits"][1]).abs().max()) > 1e-2
    save_model(tmp_path / "m.safetensors", model.method)
    again = load_model(tmp_path / "m.safetensors")
    for one, two in zip(model.method.blocks(images), again.blocks(images), strict=True):
        assert torch.equal(one, two)


# --- generated checkpoints and reference networks, so that both layouts are always covered --------


class Maker:
    """Random tensors under the authors' names."""

    def __init__(self, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.state: State = {}

    def tensor(self, name: str, *shape: int, scale: float | None = None) -> None:
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 10
        self.state[name] = torch.randn(*shape, generator=self.random) * (scale or 1.5 * fan**-0.5)

    def embedding(self, name: str, size: int) -> None:
        """Far from zero on both sides, about two thirds open."""
        open_ = torch.rand(size, generator=self.random) < 0.67
        self.state[name] = (torch.where(open_, 1.0, -1.0) * (1 + torch.rand(size, generator=self.random)))[None]

    def norm(self, name: str, size: int) -> None:
        self.state[f"{name}.weight"] = 0.5 + torch.rand(size, generator=self.random)
        self.state[f"{name}.bias"] = 0.2 * torch.randn(size, generator=self.random)
        self.state[f"{name}.running_mean"] = 0.2 * torch.randn(size, generator=self.random)
        self.state[f"{name}.running_var"] = 0.5 + torch.rand(size, generator=self.random)
        self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def linear(self, name: str, n_out: int, n_in: int) -> None:
        self.tensor(f"{name}.weight", n_out, n_in)
        self.tensor(f"{name}.bias", n_out)

    def heads(self, classes: tuple[int, ...], features: int) -> None:
        self.linear("simclr_layer.fc1", features, features)
        for task, count in enumerate(classes):
            self.linear(f"joint_distribution_layer.{task}", 4 * count, features)
            self.linear(f"linear.{task}", count, features)
            self.linear(f"shift_cls_layer.{task}", 4, features)
            self.linear(f"simclr_layer.last.{task}", 16, features)
            self.embedding(f"simclr_layer.ec.{task}", features)


def alexnet_checkpoint(classes: tuple[int, ...] = (2, 3), seed: int = 0) -> State:
    make = Maker(seed)
    for number, (n_out, n_in, kernel) in enumerate([(4, 3, 3), (6, 4, 3), (8, 6, 2)], start=1):
        make.tensor(f"conv{number}.weight", n_out, n_in, kernel, kernel)
        make.tensor(f"conv{number}.bias", n_out)
    make.linear("fc1", 12, 8 * 2 * 2)
    for task in range(len(classes)):
        for number, size in enumerate((4, 6, 8, 12), start=1):
            make.embedding(f"ec{number}.{task}", size)
    make.heads(classes, 12)
    return make.state


def resnet_checkpoint(classes: tuple[int, ...] = (2, 2), width: int = 4, seed: int = 0) -> State:
    make = Maker(seed)
    make.tensor("conv1.weight", width, 3, 3, 3)
    tasks = range(len(classes))
    for task in tasks:
        make.norm(f"bn1.{task}", width)
        make.embedding(f"ec0.{task}", width)
    n_in = width
    for stage in range(4):
        n_out = width * 2**stage
        for position in range(2):
            name = f"layer{stage + 1}.{position}"
            make.tensor(f"{name}.conv1.weight", n_out, n_in, 3, 3)
            make.tensor(f"{name}.conv2.weight", n_out, n_out, 3, 3)
            for task in tasks:
                for number in (1, 2):
                    make.norm(f"{name}.bn{number}.{task}", n_out)
                    make.embedding(f"{name}.ec{number}.{task}", n_out)
            if stage > 0 and position == 0:
                make.tensor(f"{name}.shortcut.conv1.weight", n_out, n_in, 1, 1)
                for task in tasks:
                    make.norm(f"{name}.shortcut.bn1.{task}", n_out)
            n_in = n_out
    make.heads(classes, n_in)
    return make.state


def gate(state: State, name: str, values: Tensor) -> Tensor:
    """Their sigmoid(s e) at s = 700."""
    open_ = torch.sigmoid(700 * state[name]).flatten()
    return values * open_.view(1, -1, *[1] * (values.ndim - 2))


def alexnet_features(state: State, images: Tensor, task: int) -> Tensor:
    values = images
    for number in (1, 2, 3):
        values = F.relu(F.conv2d(values, state[f"conv{number}.weight"], state[f"conv{number}.bias"]))
        values = gate(state, f"ec{number}.{task}", F.max_pool2d(values, 2))
    values = F.relu(F.linear(values.flatten(1), state["fc1.weight"], state["fc1.bias"]))
    return gate(state, f"ec4.{task}", values)


def resnet_features(state: State, images: Tensor, task: int) -> Tensor:
    def norm(name: str, values: Tensor) -> Tensor:
        kinds = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (state[f"{name}.{task}.{kind}"][:, None, None] for kind in kinds)
        return (values - mean) / torch.sqrt(variance + 1e-5) * weight + bias

    values = F.conv2d((images - 0.5) / 0.5, state["conv1.weight"], padding=1)
    values = gate(state, f"ec0.{task}", F.relu(norm("bn1", values)))
    for stage in range(1, 5):
        for position in range(2):
            name, stride = f"layer{stage}.{position}", 2 if stage > 1 and position == 0 else 1
            inner = F.relu(norm(f"{name}.bn1", F.conv2d(values, state[f"{name}.conv1.weight"], None, stride, 1)))
            inner = gate(state, f"{name}.ec1.{task}", inner)
            outer = norm(f"{name}.bn2", F.conv2d(inner, state[f"{name}.conv2.weight"], padding=1))
            if stride == 2:
                short = F.conv2d(values, state[f"{name}.shortcut.conv1.weight"], stride=2)
                values = norm(f"{name}.shortcut.bn1", short)
            values = F.relu(outer + values)
            if (stage, position) == (4, 1):
                values = F.avg_pool2d(values, 4).flatten(1)  # before its gate
            values = gate(state, f"{name}.ec2.{task}", values)
    return values


Network = Callable[[State, Tensor, int], Tensor]


def ensemble(state: State, network: Network, images: Tensor, task: int) -> Tensor:
    weight, bias = (state[f"joint_distribution_layer.{task}.{kind}"] for kind in ("weight", "bias"))
    count = len(bias) // 4
    parts = []
    for turn in range(4):
        rows = slice(turn * count, (turn + 1) * count)
        features = network(state, torch.rot90(images, turn, (2, 3)), task)
        parts.append(F.linear(features, weight[rows], bias[rows]))
    return torch.stack(parts).mean(0)


def projected(state: State, features: Tensor, task: int) -> Tensor:
    inner = F.relu(F.linear(features, state["simclr_layer.fc1.weight"], state["simclr_layer.fc1.bias"]))
    inner = gate(state, f"simclr_layer.ec.{task}", inner)
    return F.linear(inner, state[f"simclr_layer.last.{task}.weight"], state[f"simclr_layer.last.{task}.bias"])


def written(tmp_path: Path, content: Any, name: str = "last.model") -> Path:
    torch.save(content, tmp_path / name)
    return tmp_path / name


CASES: list[tuple[State, Network, int]] = [
    (alexnet_checkpoint(), alexnet_features, 28),
    (resnet_checkpoint(), resnet_features, 32),
]


@pytest.mark.parametrize(("state", "network", "side"), CASES, ids=["alexnet", "resnet18"])
def test_both_layouts_have_the_outputs_of_the_reference_networks(
    state: State, network: Network, side: int, tmp_path: Path
) -> None:
    images = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    model = read_authors(written(tmp_path, state))
    blocks = model.method.blocks(images)
    assert len(blocks) == 2
    for task, block in enumerate(blocks):
        expected = ensemble(state, network, images, task)
        assert float(expected.std()) > 1e-2
        torch.testing.assert_close(block, expected, atol=1e-4, rtol=1e-4)
        features = network(state, images, task)
        torch.testing.assert_close(model.method.features(images, task), features, atol=1e-4, rtol=1e-4)
        projections = model.projections[task](model.method.features(images, task))
        torch.testing.assert_close(projections, projected(state, features, task), atol=1e-4, rtol=1e-4)
    assert model.method.calibration_name == "none"
    save_model(tmp_path / "ours", model.method)
    for one, two in zip(blocks, load_model(tmp_path / "ours").blocks(images), strict=True):
        assert torch.equal(one, two)


def test_the_expected_outputs_are_those_of_the_reference_network() -> None:
    state = torch.load(SMALL.with_suffix(".model"), weights_only=True)
    with np.load(SMALL.with_name(f"{SMALL.name}_expected.npz")) as arrays:
        expected = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    images = expected["images"]
    for task in range(3):
        features = alexnet_features(state, images, task)
        torch.testing.assert_close(features, expected["features"][task])
        torch.testing.assert_close(projected(state, features, task), expected["projections"][task])
        torch.testing.assert_close(ensemble(state, alexnet_features, images, task), expected["logits"][task])


def test_class_names_are_numbered_across_tasks(tmp_path: Path) -> None:
    method = read_authors(written(tmp_path, alexnet_checkpoint((2, 3)))).method
    assert [task.class_names for task in method.tasks] == [("0", "1"), ("2", "3", "4")]


def test_the_multi_gpu_prefix_and_missing_batch_counters_are_accepted(tmp_path: Path) -> None:
    state = resnet_checkpoint()
    images = torch.rand(2, 3, 32, 32)
    plain = read_authors(written(tmp_path, state)).method.blocks(images)
    spread = {f"module.{name}": value for name, value in state.items() if "num_batches" not in name}
    other = read_authors(written(tmp_path, spread, "other.model")).method.blocks(images)
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


# --- masks and calibration ------------------------------------------------------------------------


def used_units(state: State, n_tasks: int = 2) -> dict[str, Tensor]:
    groups = sorted({name.rpartition(".")[0] for name in state if "ec" in name and "simclr" not in name})
    return {
        group: torch.stack([torch.sigmoid(700 * state[f"{group}.{task}"]) for task in range(n_tasks)]).amax(0)
        for group in groups
    }


def test_calibration_is_imported(tmp_path: Path) -> None:
    state = alexnet_checkpoint()
    companion = written(
        tmp_path, {"w": torch.tensor([[0.5], [2.0]]), "b": torch.tensor([[1.0], [-3.0]])}, "calibration"
    )
    method = read_authors(written(tmp_path, state), calibration=companion).method
    name, affine = next(iter(method.calibrations().items()))
    assert name == "memory"
    assert affine.scales.tolist() == [0.5, 2.0]
    assert affine.shifts.tolist() == [1.0, -3.0]
    save_model(tmp_path / "ours", method)
    again = load_model(tmp_path / "ours").calibration
    assert again.scales.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    "content",
    [
        {"w": [1.0], "b": [0.0]},
        {"w": [1.0, 1.0], "b": [0.0]},
        {"w": [1.0, 1.0, 1.0], "b": [0.0, 0.0, 0.0]},
        {"w": [1.0, 1.0]},
        {"w": [1.0, -1.0], "b": [0.0, 0.0]},
        {"w": [1.0, 0.0], "b": [0.0, 0.0]},
        {"w": [1.0, float("nan")], "b": [0.0, 0.0]},
        {"w": [1.0, 1.0], "b": [0.0, float("inf")]},
        {"w": ["a", "b"], "b": [0.0, 0.0]},
        {"w": 3, "b": 3},
        [1.0, 2.0],
        torch.ones(2),
        None,
    ],
    ids=str,
)
def test_an_invalid_calibration_is_rejected(content: Any, tmp_path: Path) -> None:
    companion = written(tmp_path, content, "calibration")
    with pytest.raises(UserError) as problem:
        read_authors(written(tmp_path, alexnet_checkpoint()), calibration=companion)
    assert str(companion) in str(problem.value)


@pytest.mark.parametrize("state", [alexnet_checkpoint(), resnet_checkpoint()], ids=["alexnet", "resnet18"])
def test_matching_masks_are_accepted(state: State, tmp_path: Path) -> None:
    masks = written(tmp_path, {"p_mask": used_units(state), "mask_back": {"conv1.weight": torch.zeros(1)}}, "masks")
    assert isinstance(read_authors(written(tmp_path, state), masks=masks).method, Clom)


@pytest.mark.parametrize(
    "content", ["closed", {"mask_back": {}}, {"p_mask": 3}, {"p_mask": {}}, [], torch.ones(2)], ids=str
)
def test_invalid_or_foreign_masks_are_rejected(content: Any, tmp_path: Path) -> None:
    state = alexnet_checkpoint()
    if content == "closed":
        content = {"p_mask": {name: torch.zeros_like(used) for name, used in used_units(state).items()}}
    masks = written(tmp_path, content, "masks")
    with pytest.raises(UserError) as problem:
        read_authors(written(tmp_path, state), masks=masks)
    assert str(masks) in str(problem.value)


# --- invalid checkpoints --------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(UserError) as problem:
        read_authors(path)
    assert str(path) in str(problem.value)
    return str(problem.value)


@pytest.mark.parametrize("state", [alexnet_checkpoint(), resnet_checkpoint()], ids=["alexnet", "resnet18"])
def test_the_error_names_a_missing_tensor(state: State, tmp_path: Path) -> None:
    needed = [
        name
        for name in state
        if not name.startswith(("linear.", "shift_cls_layer.")) and "num_batches" not in name and "simclr" not in name
    ]
    for name in [*random.Random(0).sample(needed, 12), "joint_distribution_layer.0.bias", "conv1.weight"]:
        rest = {other: value for other, value in state.items() if other != name}
        assert name in refused(written(tmp_path, rest))


def test_a_checkpoint_without_any_task(tmp_path: Path) -> None:
    rest = {name: value for name, value in alexnet_checkpoint().items() if "joint" not in name}
    assert "joint_distribution_layer.0.weight" in refused(written(tmp_path, rest))


def test_the_error_names_a_tensor_of_the_wrong_shape(tmp_path: Path) -> None:
    state = alexnet_checkpoint() | {"conv2.weight": torch.zeros(6, 4, 5, 5)}
    assert "conv2.weight" in refused(written(tmp_path, state))
    state = resnet_checkpoint() | {"layer2.0.ec1.1": torch.zeros(1, 3)}
    assert "layer2.0.ec1.1" in refused(written(tmp_path, state))


@pytest.mark.parametrize(
    "content", [[1, 2], torch.zeros(3), {}, {"epoch": 3}, {"weight": torch.zeros(2)}, None], ids=str
)
def test_other_contents(content: Any, tmp_path: Path) -> None:
    refused(written(tmp_path, content))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path / "absent")
    refused(tmp_path)


class _Payload:
    """Unpickling this would create a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "legacy", "companion"])
def test_no_code_of_a_file_is_run(tmp_path: Path, kind: str) -> None:
    trap = tmp_path / "executed"
    bad = tmp_path / "bad"
    content = alexnet_checkpoint() | {"extra": _Payload(trap)}
    if kind == "pickle":
        bad.write_bytes(pickle.dumps(_Payload(trap)))
    else:
        torch.save(content, bad, _use_new_zipfile_serialization=kind == "torch")
    if kind == "companion":
        with pytest.raises(UserError, match="bad"):
            read_authors(written(tmp_path, alexnet_checkpoint()), calibration=bad)
    else:
        refused(bad)
    assert not trap.exists()


def test_damaged_files_are_user_errors(tmp_path: Path) -> None:
    """Truncated anywhere, or with wrong bytes anywhere in the header, in both of torch's formats."""
    dice = random.Random(0)
    for new in (True, False):
        torch.save(
            {"conv1.weight": torch.zeros(2, 3, 3, 3), "x": torch.ones(4)},
            tmp_path / "good",
            _use_new_zipfile_serialization=new,
        )
        content = (tmp_path / "good").read_bytes()
        bad = tmp_path / "bad"
        for length in range(0, len(content), max(1, len(content) // 25)):
            bad.write_bytes(content[:length])
            refused(bad)
        for _ in range(150):
            broken = bytearray(content)
            for _ in range(dice.randint(1, 6)):
                broken[dice.randrange(min(len(broken), 600))] = dice.randrange(256)
            bad.write_bytes(broken)
            refused(bad)
    for _ in range(50):
        bad.write_bytes(dice.randbytes(dice.randint(1, 200)))
        refused(bad)
