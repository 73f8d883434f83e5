"""Targets: published sizes, and forward passes with given weights and statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from clom.methods.hypernet.targets import (
    MlpTarget,
    MlpTargetSettings,
    ResNet32,
    ResNet32Settings,
    Statistics,
    TargetSettings,
    as_weights,
    make_target,
    n_weights,
)

SMALL: list[TargetSettings] = [MlpTargetSettings(hidden=(12, 7)), ResNet32Settings(width=4, n=2)]
targets = pytest.mark.parametrize("settings", SMALL, ids=lambda settings: settings.kind)


def images(n: int = 6, size: int = 8, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat_weights(target: nn.Module, seed: int = 2) -> Tensor:
    count = n_weights(target)
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 4


@pytest.mark.parametrize(
    ("settings", "size", "n_outputs", "exact", "printed"),
    [
        pytest.param(MlpTargetSettings(), 28, 10, 478_410, "0.48", id="mnist-5t"),
        # The paper prints .47 for CIFAR-10 as well, where rounding gives .46.
        pytest.param(ResNet32Settings(), 32, 10, 464_154, "0.46", id="cifar10-5t"),
        pytest.param(ResNet32Settings(), 32, 100, 470_004, "0.47", id="cifar100"),
        pytest.param(ResNet32Settings(), 32, 200, 476_504, "0.48", id="tinyimagenet"),
    ],
)
def test_published_parameter_counts(
    settings: TargetSettings, size: int, n_outputs: int, exact: int, printed: str
) -> None:
    count = n_weights(make_target(settings, size, n_outputs))
    assert count == exact
    assert f"{count / 1e6:.2f}" == printed


def test_resnet32_has_32_layers_with_weights() -> None:
    target = make_target(ResNet32Settings(), 32, 10)
    layers = [module for module in target.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    assert len(layers) == 32
    assert [module.out_channels for module in layers[:-1] if isinstance(module, nn.Conv2d)] == (
        [16] * 11 + [32] * 10 + [64] * 10
    )


@targets
def test_targets_have_no_weights(settings: TargetSettings) -> None:
    target = make_target(settings, 8, 3)
    assert all(tensor.is_meta for tensor in (*target.parameters(), *target.buffers()))


@targets
def test_only_the_head_depends_on_the_number_of_classes(settings: TargetSettings) -> None:
    few, many = (make_target(settings, 8, n_outputs) for n_outputs in (2, 5))
    shapes = [{name: p.shape for name, p in target.named_parameters()} for target in (few, many)]
    assert list(shapes[0])[-2:] == ["head.weight", "head.bias"], "the head is last"
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} == {"head.weight", "head.bias"}
    flat = flat_weights(many)
    body = [as_weights(target, flat[: n_weights(target)]) for target in (few, many)]
    assert all(torch.equal(body[0][name], body[1][name]) for name in shapes[0] if not name.startswith("head"))


@targets
def test_weights_are_split_into_the_targets_shapes(settings: TargetSettings) -> None:
    # Every weight is used exactly once.
    target = make_target(settings, 8, 3)
    flat = torch.arange(n_weights(target))
    named = as_weights(target, flat)
    assert {name: value.shape for name, value in named.items()} == {
        name: value.shape for name, value in target.named_parameters()
    }
    assert torch.equal(torch.cat([value.flatten() for value in named.values()]), flat)
    for wrong in (flat[:-1], torch.cat([flat, flat[:1]])):
        with pytest.raises(RuntimeError, match="split"):
            as_weights(target, wrong)


def reference_mlp(pixels: Tensor, w: dict[str, Tensor]) -> Tensor:
    values = (pixels[:, 0] + pixels[:, 1] + pixels[:, 2]).reshape(len(pixels), -1) / 3
    for layer in ("layers.0", "layers.1"):
        values = (values @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]).clamp(min=0)
    return values @ w["head.weight"].T + w["head.bias"]


def reference_resnet(pixels: Tensor, w: dict[str, Tensor], statistics: dict[str, Tensor] | None) -> Tensor:
    """A second implementation of the ResNet with 6n + 2 layers (here n = 2); batch statistics if none are given."""

    def conv_norm(values: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        values = F.conv2d(values, w[f"{conv}.weight"], stride=stride, padding=1)
        if statistics is None:
            mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), correction=0)
        else:
            mean, variance = statistics[f"{norm}.running_mean"], statistics[f"{norm}.running_var"]
        normal = (values - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return normal * w[f"{norm}.weight"][:, None, None] + w[f"{norm}.bias"][:, None, None]

    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).double().view(2, 3, 1, 1)
    values = conv_norm((pixels - mean) / deviation, "stem", "norm", 1).relu()
    for number in range(6):
        block, stride = f"blocks.{number}", 2 if number in (2, 4) else 1
        inner = conv_norm(values, f"{block}.conv1", f"{block}.norm1", stride).relu()
        outer = conv_norm(inner, f"{block}.conv2", f"{block}.norm2", 1)
        shortcut = torch.zeros_like(outer)
        shortcut[:, : values.shape[1]] = values[:, :, ::stride, ::stride]
        values = (outer + shortcut).relu()
    return values.mean((2, 3)) @ w["head.weight"].T + w["head.bias"]


def test_the_mlp_equals_the_reference() -> None:
    target = make_target(SMALL[0], 8, 3)
    assert isinstance(target, MlpTarget)
    named = as_weights(target, flat_weights(target))
    torch.testing.assert_close(functional_call(target, named, (images(),)), reference_mlp(images(), named))


@pytest.mark.parametrize("training", [False, True])
def test_the_resnet_equals_the_reference(training: bool) -> None:
    target = make_target(SMALL[1], 8, 3).train(training)
    assert isinstance(target, ResNet32)
    named = as_weights(target, flat_weights(target))
    statistics = Statistics(target).double()
    for buffer in statistics.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    before = {name: value.clone() for name, value in statistics.named().items()}
    outputs = functional_call(target, {**named, **statistics.named()}, (images(),))
    torch.testing.assert_close(outputs, reference_resnet(images(), named, None if training else before))
    changed = {name for name, value in statistics.named().items() if not torch.equal(value, before[name])}
    assert changed == (set(before) if training else set()), "training updates the given statistics, inference does not"


def test_statistics_are_named_like_the_targets_buffers() -> None:
    mlp, resnet = (make_target(settings, 8, 3) for settings in SMALL)
    assert Statistics(mlp).named() == {}
    named = Statistics(resnet).named()
    assert {name: value.shape for name, value in named.items()} == {n: b.shape for n, b in resnet.named_buffers()}
    assert all(bool((value == ("var" in name)).all()) for name, value in named.items()), "means 0, variances 1"
