"""Passes are counted once per image and network, with their gradients, wherever a network runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from clom.methods.ccg.wgan import WganSettings, gradient_penalty, make_critic
from clom.nets import data_parallel
from clom.nets.data_parallel import BatchSlice, split_over_ranks
from clom.nets.passes import CountedNetwork, PassCounter, count_again, counting, multiply_adds


class Small(CountedNetwork):
    """16 pixels x 4 outputs x (3 channels x 9 kernel cells) and 64 x 2: 1,856 multiply-adds for images of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.linear = nn.Linear(64, 2)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.linear(self.conv(images).flatten(1))
        return outputs


class Outer(CountedNetwork):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.inner(images)
        return outputs


UNIT = 16 * 4 * 27 + 64 * 2
IMAGES = torch.zeros(5, 3, 4, 4)


@pytest.fixture
def counter() -> PassCounter:
    return PassCounter(UNIT)


def test_a_forward_pass_costs_one_and_gradients_two_more(counter: PassCounter) -> None:
    network = Small()
    with counting(counter):
        with torch.no_grad():
            network(IMAGES)
        assert counter.total == 5
        network(IMAGES[:2])
        assert counter.total == 5 + 2 * 3
        network.requires_grad_(False)(IMAGES)
        assert counter.total == 5 + 2 * 3 + 5, "a frozen network has no gradients"
        network(IMAGES.clone().requires_grad_())
        assert counter.total == 5 + 2 * 3 + 5 + 5 * 3, "but those of its input"


def test_nothing_is_counted_outside_the_context(counter: PassCounter) -> None:
    network = Small()
    with counting(counter):
        pass
    network(IMAGES)
    with counting(counter), counting(None):
        network(IMAGES)
    assert counter.total == 0


def test_other_networks_and_sizes_cost_in_proportion_to_their_multiply_adds(counter: PassCounter) -> None:
    class Up(CountedNetwork):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 2, 2, stride=2)

        def forward(self, images: Tensor) -> Tensor:
            outputs: Tensor = self.up(images)
            return outputs

    with counting(counter), torch.no_grad():
        network = Up()
        network(IMAGES)
        assert counter.total == pytest.approx(5 * 16 * 3 * 2 * 4 / UNIT)
        network(torch.zeros(1, 3, 8, 8))
        assert counter.total == pytest.approx((5 * 16 + 64) * 3 * 2 * 4 / UNIT)
    assert multiply_adds(Small(), IMAGES) == UNIT


def test_a_network_without_layers_to_measure_costs_one() -> None:
    class Mean(CountedNetwork):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

    counter = PassCounter(multiply_adds(Mean(), IMAGES))
    with counting(counter):
        Mean()(IMAGES)
    assert counter.total == 5


def test_a_network_within_a_network_is_not_counted_again(counter: PassCounter) -> None:
    with counting(counter):
        Outer(Small())(IMAGES)
    assert counter.total == 5 * 3


def test_activations_that_are_computed_again_are_not_counted_again(counter: PassCounter) -> None:
    network, images = Small(), IMAGES.clone().requires_grad_()
    with counting(counter), set_checkpoint_early_stop(False):  # else the second computation ends within the network
        outputs = checkpoint(network, images, use_reentrant=False)
        assert isinstance(outputs, Tensor)
        outputs.sum().backward()  # type: ignore[no-untyped-call]
    assert images.grad is not None
    assert counter.total == 5 * 3


def test_a_slice_of_a_batch_counts_as_the_whole_batch(counter: PassCounter) -> None:
    """Otherwise the ranks would report different numbers, and all of them too little."""
    network = Small()
    scope = data_parallel._batch_slice.set(BatchSlice((3, 2), 1))
    with counting(counter), torch.no_grad():
        network(IMAGES[3:])
    data_parallel._batch_slice.reset(scope)
    assert counter.total == 5
    with counting(counter), torch.no_grad():
        split_over_ranks(network, IMAGES)
    assert counter.total == 10


def test_second_derivatives_are_counted_where_they_are_taken() -> None:
    critic = make_critic(WganSettings(width=2), 1, 4)
    real, fake = torch.rand(6, 1, 4, 4), torch.rand(6, 1, 4, 4)
    counter = PassCounter(multiply_adds(critic, real))
    with counting(counter):
        gradient_penalty(critic, real, fake, torch.Generator()).backward()  # type: ignore[no-untyped-call]
    assert counter.total == 6 * (1 + 2 + 2)
    count_again(critic, real, 1.0)
    assert counter.total == 6 * (1 + 2 + 2), "outside the context"
