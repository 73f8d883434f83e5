"""The numbers of the SupSup specification, and independence of the masks."""

from __future__ import annotations

import math

import pytest
import torch

from clom.learning.protection.supermask import (
    LearnedMask,
    MaskedHead,
    Supermask,
    SupermaskSettings,
    density,
    n_kept,
    signed_constant,
    top_mask,
)
from clom.nets import AlexNetSettings, ResNet18Settings, make_net

RHO = 32.0


def test_mask_and_straight_through_gradient() -> None:
    scores = torch.tensor([0.3, -0.9, 0.1, -0.2], requires_grad=True)
    weights, inputs = torch.tensor([0.5, -0.5, 0.5, -0.5]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    mask = top_mask(scores, 2)
    assert mask.tolist() == [1, 1, 0, 0]
    output = (weights * mask * inputs).sum()
    assert output.item() == -0.5
    output.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, torch.tensor([0.5, 1.0, 1.5, 2.0]))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 3, 3, 3), 0.5),
        ((64, 64, 3, 3), 0.1111),
        ((128, 128, 3, 3), 0.0556),
        ((256, 256, 3, 3), 0.0278),
        ((512, 512, 3, 3), 0.0139),
        ((128, 64, 1, 1), 0.5),
        ((256, 128, 1, 1), 0.375),
        ((512, 256, 1, 1), 0.1875),
        ((2, 512), 0.5),
        ((160, 1024), 0.231),
        ((80, 1024), 0.431),
    ],
)
def test_densities(shape: tuple[int, ...], expected: float) -> None:
    assert density(torch.Size(shape), RHO) == pytest.approx(expected, abs=5e-4)


def test_total_kept_at_width_64() -> None:
    with torch.device("meta"):
        net = make_net(ResNet18Settings(width=64, affine=False), 32)
    assert sum(n_kept(p.shape, RHO) for p in net.shared_parameters()) == 273_248


def test_rounding_of_the_number_kept() -> None:
    # `n - int((1 - k) n)` would keep 10 of 10 at density .9 and 5 of 5 at .8.
    assert n_kept(torch.Size((1, 10)), 9 / 11) <= 5  # never more than half
    assert n_kept(torch.Size((2, 2)), 0.0) == 1  # never nothing


@pytest.mark.parametrize(
    ("shape", "constant"),
    [((64, 3, 3, 3), 0.27217), ((64, 64, 3, 3), 0.05893), ((512, 512, 3, 3), 0.02083), ((2, 512), 0.0625)],
)
def test_weight_constants(shape: tuple[int, ...], constant: float) -> None:
    weights = signed_constant(shape)
    assert torch.unique(weights.abs()).tolist() == pytest.approx([constant], abs=1e-5)
    assert 0.3 < (weights > 0).float().mean().item() < 0.7


def test_learning_a_second_task_does_not_change_the_first() -> None:
    torch.manual_seed(0)
    settings = AlexNetSettings(
        channels=(4, 4, 4), hidden=6, paddings=(1, 1, 0), pools=(2, 2, 1), bias=False, dropout=(0.0, 0.0)
    )
    protection = Supermask(make_net(settings, 8), SupermaskSettings())
    images = torch.rand(16, 3, 8, 8)
    frozen = {name: p.clone() for name, p in protection.net.named_parameters()}

    def learn(task: int) -> MaskedHead:
        protection.add_task()
        head = protection.make_head(task, 2)
        assert isinstance(head, MaskedHead)
        parameters = [*protection.mask_parameters(task), *head.mask.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=0.05, weight_decay=1e-2)
        labels = torch.arange(16) % 2 if task == 0 else torch.arange(16) // 8
        for _ in range(20):
            features, penalty = protection.training_features(images, task, 0.0)
            loss = torch.nn.functional.cross_entropy(head(features), labels) + penalty
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        during = head(protection.features(images, task))
        protection.finish(task, head)
        assert torch.equal(head(protection.features(images, task)), during)  # the bits equal the mask of the scores
        assert list(head.mask.parameters()) == []
        return head

    head = learn(0)
    before, masks = head(protection.features(images, 0)), protection.masks(0)
    learn(1)
    assert torch.equal(before, head(protection.features(images, 0)))
    others = protection.masks(1)
    assert any(not torch.equal(masks[name], others[name]) for name in masks)
    for mask in masks.values():
        assert set(torch.unique(mask).tolist()) <= {0.0, 1.0}
        assert int(mask.sum()) == n_kept(mask.shape, RHO)
    assert all(torch.equal(frozen[name], p) and not p.requires_grad for name, p in protection.net.named_parameters())


def test_a_finished_mask_has_one_bit_per_weight() -> None:
    mask = LearnedMask(torch.zeros(5, 7), RHO)
    before = mask()
    mask.finish()
    assert {name: value.dtype for name, value in mask.state_dict().items()} == {"bits": torch.uint8}
    assert mask.bits.numel() == math.ceil(5 * 7 / 8)
    assert torch.equal(mask(), before)
    again = LearnedMask(torch.zeros(5, 7), RHO)
    again.load_state_dict(mask.state_dict())
    assert torch.equal(again(), before)


def test_mask_bits_of_the_papers_networks() -> None:
    # 1.33 MiB per task at width 64, 5.32 MiB at width 128, including the head.
    for width, mebibytes in ((64, 1.33), (128, 5.32)):
        with torch.device("meta"):
            protection = Supermask(make_net(ResNet18Settings(width=width, affine=False), 32), SupermaskSettings())
            protection.add_task()
        assert sum(buffer.numel() for buffer in protection.tasks.buffers()) / 2**20 == pytest.approx(
            mebibytes, abs=0.01
        )
