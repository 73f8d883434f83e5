"""Networks without gates, and growing heads."""

from __future__ import annotations

import pytest
import torch

from clom.nets import AlexNetSettings, NetSettings, ResNet18Settings
from clom.nets.plain import Backbone, CosineHead, LinearHead

SMALL = AlexNetSettings(channels=(4, 6, 8), hidden=10, paddings=(1, 1, 0), pools=(2, 2, 1))


@pytest.mark.parametrize(
    ("net", "size", "classes", "exact"),
    [
        (AlexNetSettings(), 28, 10, 1_034_986),
        (ResNet18Settings(width=64), 32, 10, 11_173_962),
        (ResNet18Settings(width=128), 32, 100, 44_755_172),
        (ResNet18Settings(width=128), 32, 200, 44_857_672),
    ],
)
def test_sizes_of_the_papers_table(net: NetSettings, size: int, classes: int, exact: int) -> None:
    # The paper: 1.03 / 11.17 / 44.76 / 44.86 million with a linear head; LwF.R: one less per class, plus sigma.
    with torch.device("meta"):
        backbone = Backbone(net, size)
        heads = LinearHead(backbone.n_features), CosineHead(backbone.n_features)
        for head in heads:
            head.grow(classes)
    linear, cosine = (sum(p.numel() for part in (backbone, head) for p in part.parameters()) for head in heads)
    assert linear == exact
    assert cosine == exact - classes + 1


@pytest.mark.parametrize("net", [SMALL, ResNet18Settings(width=4)])
def test_features_may_be_negative_without_the_last_relu(net: NetSettings) -> None:
    torch.manual_seed(0)
    images = torch.rand(16, 3, 8, 8)
    assert Backbone(net, 8).eval()(images).min() >= 0
    assert Backbone(net.model_copy(update={"final_relu": False}), 8).eval()(images).min() < 0


@pytest.mark.parametrize("head", [LinearHead(5), CosineHead(5)])
def test_growing_does_not_change_old_outputs(head: LinearHead | CosineHead) -> None:
    features = torch.randn(7, 5)
    head.grow(2)
    before = head(features)
    head.grow(3)
    after = head(features)
    assert after.shape == (7, 5)
    torch.testing.assert_close(after[:, :2], before)


def test_cosine_outputs_depend_only_on_directions() -> None:
    head = CosineHead(4)
    head.grow(3)
    features = torch.randn(6, 4)
    before = head(features)
    torch.testing.assert_close(head(5 * features), before)
    with torch.no_grad():
        head.parts[0].mul_(3)
    torch.testing.assert_close(head(features), before)
    assert before.abs().max() <= 1 + 1e-6


def test_imprinting_of_lwf() -> None:
    head = CosineHead(2)
    head.grow(2)
    with torch.no_grad():
        head.parts[0].copy_(torch.tensor([[2.0, 0], [0, 4]]))
    head.grow(1)
    head.imprint(torch.tensor([[3.0, 4], [0, 2]]), torch.tensor([0, 0]))
    torch.testing.assert_close(
        head.parts[1], torch.nn.Parameter(torch.tensor([[0.948683, 2.846050]])), atol=1e-5, rtol=0
    )
    expected = torch.tensor([[0.707107, 0.707107, 0.894427]])
    torch.testing.assert_close(head(torch.ones(1, 2)).detach(), expected, atol=1e-5, rtol=0)


def test_imprinting_of_mnemonics() -> None:
    head = CosineHead(2)
    head.grow(2)
    with torch.no_grad():
        head.parts[0].copy_(torch.tensor([[3.0, 4], [0, 1]]))
    head.grow(1)
    head.imprint(torch.eye(2), torch.tensor([0, 0]))
    torch.testing.assert_close(head.parts[1], torch.nn.Parameter(torch.full((1, 2), 2.1213203)))
