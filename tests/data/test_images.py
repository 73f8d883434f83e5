"""Resizing images, and evenly spaced subsets."""

from __future__ import annotations

import pytest
import torch

from clom.data.images import Images, evenly_spaced, resized, resized_images


def images(*shape: int, fill: int = 100) -> Images:
    return Images(torch.full(shape, fill, dtype=torch.uint8), torch.arange(shape[0]))


@pytest.mark.parametrize("given", [(2, 1, 28, 28), (2, 3, 32, 32), (2, 1, 8, 8), (2, 3, 5, 7)])
@pytest.mark.parametrize("wanted", [(1, 8, 8), (3, 32, 32)])
def test_resizing_to_any_shape(given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    made = resized_images(images(*given), wanted)
    assert made.pixels.shape == (2, *wanted)
    assert (made.pixels == 100).all()
    assert made.labels.tolist() == [0, 1]


def test_images_of_the_target_shape_are_unchanged() -> None:
    pixels = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).to(torch.uint8)
    assert resized(pixels, (3, 4, 4)) is pixels


def test_downscaling_averages_pixels() -> None:
    checks = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * 200
    board = Images(checks.view(1, 1, 16, 16).to(torch.uint8), torch.zeros(1, dtype=torch.int64))
    assert (resized_images(board, (1, 4, 4)).pixels.float() - 100).abs().max() < 10


def test_colours_are_averaged() -> None:
    pixels = torch.tensor([30, 60, 90], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    assert (resized_images(Images(pixels, torch.zeros(1, dtype=torch.int64)), (1, 2, 2)).pixels == 60).all()


def test_evenly_spaced_covers_the_whole_set() -> None:
    assert evenly_spaced(images(10, 1, 1, 1), 4).labels.tolist() == [0, 2, 5, 7]
    assert len(evenly_spaced(images(3, 1, 1, 1), 4)) == 3
