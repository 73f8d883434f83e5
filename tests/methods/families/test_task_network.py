"""A task's network for inference, by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clom.methods.families.task_network import TaskNetwork

# Two images in two rotations, rotation by rotation; two classes, so the head has an output per rotation and class.
VIEWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])


def head() -> nn.Linear:
    layer = nn.Linear(3, 4)
    layer.weight = nn.Parameter(torch.tensor([[1.0, 9.0, 0.0], [0.0, 9.0, 1.0], [2.0, 9.0, 0.0], [0.0, 9.0, 4.0]]))
    layer.bias = nn.Parameter(torch.zeros(4))
    return layer


def network(flip_tta: bool = False) -> TaskNetwork:
    """The middle one of three features is closed: the network computes the other two."""
    return TaskNetwork(lambda views: views, torch.tensor([0, 2]), head(), rotations=2, flip_tta=flip_tta)


def expected(by_rotation: list[list[list[float]]]) -> Tensor:
    return torch.tensor(by_rotation).mean(0)


def test_rotation_r_reads_block_r_and_blocks_are_averaged() -> None:
    # Image 0: (1, 0) reads outputs 0 and 1, its rotation (2, 0) outputs 2 and 3. Image 1: (0, 1) and (0, 3).
    scores = expected([[[1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [0.0, 12.0]]])
    assert torch.equal(network()(VIEWS), scores)


def test_features_are_sorted_by_image() -> None:
    scores, features = network().outputs(VIEWS)
    assert torch.equal(scores, network()(VIEWS))
    assert features.tolist() == [[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]]


def test_scores_are_averaged_over_flips_and_features_are_those_of_the_image() -> None:
    # Now the second image is the flip of the first.
    scores, features = network(flip_tta=True).outputs(VIEWS)
    assert torch.equal(scores, network()(VIEWS).mean(0, keepdim=True))
    assert features.tolist() == [[[1.0, 0.0], [2.0, 0.0]]]


def test_chunks_are_compared_once() -> None:
    asked: list[int] = []

    def features_of(views: Tensor) -> Tensor:
        asked.append(len(views))
        return views[:, :2] + (1e-6 if len(views) == 3 else 0.0)  # as if a sum of three rows rounded differently

    net = TaskNetwork(features_of, torch.tensor([0, 2]), head(), rotations=2, flip_tta=False)
    threads = torch.get_num_threads()
    for _ in range(2):
        assert net.has_same_bits_in_chunks(torch.Size([4, 5]), 2)
        assert not net.has_same_bits_in_chunks(torch.Size([6, 5]), 2)
        assert net.has_same_bits_in_chunks(torch.Size([4, 3, 8, 8]), 4)
    assert asked == [2, 2, 4, 3, 3, 6, 1, 1, 1, 1, 4]
    assert torch.get_num_threads() == threads
