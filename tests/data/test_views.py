"""Views: exact rotations and flips, bounded values, and reproducible draws."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from clom.data import views as module
from clom.data.views import (
    Augmentation,
    Order,
    augment,
    classifier_views,
    contrastive_views,
    rotate,
    rotation_labels,
    rotations,
)

NOTHING = Augmentation(flip=False, colour=False, crop=False)
FLIP = Augmentation(flip=True, colour=False, crop=False)
COLOUR = Augmentation(flip=False, colour=True, crop=False)
CROP = Augmentation(flip=False, colour=False, crop=True)
ALL = Augmentation()
EVERY = [NOTHING, FLIP, COLOUR, CROP, ALL, Augmentation(shift=4), FLIP.model_copy(update={"shift": 2})]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit_images(n: int = 8, height: int = 8, width: int = 8, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, height, width, generator=seeded(seed))


def byte_images(n: int = 6, channels: int = 3, size: int = 8, seed: int = 1) -> Tensor:
    return torch.randint(0, 256, (n, channels, size, size), generator=seeded(seed), dtype=torch.uint8)


def ramp(n: int, height: int, width: int) -> Tensor:
    """Channel 0 is a pixel's x, channel 1 its y (centres, relative to the image), channel 2 zero."""
    x = (torch.arange(width) + 0.5) / width
    y = (torch.arange(height) + 0.5) / height
    image = torch.stack((x.expand(height, width), y[:, None].expand(height, width), torch.zeros(height, width)))
    return image.repeat(n, 1, 1, 1)


def spans(view: Tensor) -> tuple[Tensor, Tensor]:
    """Width and height of the crops of a ramp, from the slope in their centre, away from the border."""
    size = view.shape[-1]
    low, high = size // 4, 3 * size // 4
    steps = (high - low) / size
    share_x = (view[:, 0, size // 2, high] - view[:, 0, size // 2, low]) / steps
    share_y = (view[:, 1, high, size // 2] - view[:, 1, low, size // 2]) / steps
    return share_x, share_y


# ---------------------------------------------------------------------------------------------------------- rotation


def test_a_quarter_turn_is_counter_clockwise_and_exact() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    expected = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    for r, turned in enumerate(expected):
        assert rotate(image, r)[0, 0].tolist() == turned
    assert rotations(image)[:, 0].tolist() == expected


def test_rotations_are_rotation_major_and_contiguous() -> None:
    images = unit_images(n=3)
    stacked = rotations(images, 4)
    assert stacked.shape == (12, 3, 8, 8)
    assert stacked.is_contiguous()
    for r in range(4):
        assert torch.equal(stacked[3 * r : 3 * r + 3], rotate(images, r))


@given(r=st.integers(-8, 8), size=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_rotating_back_restores_the_image(r: int, size: int) -> None:
    images = unit_images(2, size, size)
    assert torch.equal(rotate(rotate(images, r), -r), images)


def test_rotations_need_square_images_unless_there_is_only_one() -> None:
    with pytest.raises(ValueError, match="square images, got 4 x 6"):
        rotations(unit_images(2, 4, 6))
    assert rotations(unit_images(2, 4, 6), 1).shape == (2, 3, 4, 6)


@pytest.mark.parametrize("count", [0, 5])
def test_invalid_rotation_counts_are_rejected(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        rotations(unit_images(), count)
    with pytest.raises(ValueError, match="1 to 4"):
        rotation_labels(torch.tensor([0]), 2, count)


@given(labels=st.lists(st.integers(0, 4), max_size=6), count=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_rotation_labels_are_offset_by_the_number_of_classes(labels: list[int], count: int) -> None:
    result = rotation_labels(torch.tensor(labels, dtype=torch.int64), 5, count)
    assert result.tolist() == [y + 5 * r for r in range(count) for y in labels]
    assert result.dtype == torch.int64


# ---------------------------------------------------------------------------------------------------------- geometry


def test_no_augmentation_is_the_identity_in_a_new_tensor() -> None:
    images = unit_images()
    view = augment(images, NOTHING, seeded())
    assert torch.equal(view, images)
    assert view.data_ptr() != images.data_ptr()


def test_flip_alone_flips_about_half_exactly() -> None:
    images = unit_images(n=400, height=3, width=5)
    view = augment(images, FLIP, seeded())
    same = (view == images).flatten(1).all(1)
    flipped = (view == images.flip(3)).flatten(1).all(1)
    assert bool((same ^ flipped).all())
    assert 140 < int(flipped.sum()) < 260


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 9)])
def test_crop_of_the_whole_image_is_the_identity(height: int, width: int) -> None:
    images = unit_images(4, height, width)
    augmentation = Augmentation(flip=False, colour=False, crop_area=(1, 1), crop_ratio=(1, 1))
    torch.testing.assert_close(augment(images, augmentation, seeded()), images, atol=1e-5, rtol=0)


def test_flip_by_sampling_equals_a_flip() -> None:
    images = unit_images(n=50)
    view = augment(images, Augmentation(colour=False, crop_area=(1, 1)), seeded())
    same = (view - images).abs().amax((1, 2, 3)) < 1e-5
    flipped = (view - images.flip(3)).abs().amax((1, 2, 3)) < 1e-5
    assert bool((same ^ flipped).all())
    assert 10 < int(flipped.sum()) < 40


@given(low=st.floats(0.05, 1), high=st.floats(0.05, 1), size=st.sampled_from([(16, 16), (12, 16), (16, 8)]))
@settings(max_examples=15, deadline=None)
def test_crops_have_the_drawn_area_and_lie_inside(low: float, high: float, size: tuple[int, int]) -> None:
    low, high = min(low, high), max(low, high)
    augmentation = CROP.model_copy(update={"crop_area": (low, high)})
    share_x, share_y = module._boxes(200, *size, augmentation, seeded(), torch.device("cpu"))
    area = share_x * share_y
    assert bool(((area >= low - 1e-4) & (area <= high + 1e-4)).all())
    assert float(share_x.max()) <= 1
    assert float(share_y.max()) <= 1
    grid = module._grid(torch.zeros(200, 3, *size), augmentation, seeded())
    assert float(grid.abs().max()) <= 1


def test_a_ramp_shows_the_area_and_ratio_of_the_crops() -> None:
    view = augment(ramp(4000, 32, 32), CROP, seeded())
    share_x, share_y = spans(view)
    area, ratio = share_x * share_y, share_x / share_y
    assert 0.079 < float(area.min()) < 0.09
    assert 0.97 < float(area.max()) < 1.001
    assert float(area.mean()) == pytest.approx(0.54, abs=0.02)  # uniform on .08 to 1
    assert 0.745 < float(ratio.min()) < 0.76
    assert 1.32 < float(ratio.max()) < 1.34
    assert float(ratio.log().mean()) == pytest.approx(0, abs=0.02)
    middle = view[:, 0].mean((1, 2))  # crops are equally often on the left and on the right
    assert float(middle.mean()) == pytest.approx(0.5, abs=0.02)


def test_crop_reads_no_black_beyond_the_border() -> None:
    view = augment(torch.ones(500, 3, 8, 8), CROP, seeded())
    torch.testing.assert_close(view, torch.ones_like(view), atol=1e-5, rtol=0)


def test_shift_moves_whole_pixels_with_black_padding() -> None:
    augmentation = NOTHING.model_copy(update={"shift": 2})
    images = unit_images(n=60, height=6, width=7)
    view = augment(images, augmentation, seeded())
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    candidates = torch.stack([padded[:, :, y : y + 6, x : x + 7] for y in range(5) for x in range(5)])
    nearest = (candidates - view).abs().amax((2, 3, 4)).min(0)
    assert float(nearest.values.max()) < 1e-5
    assert len(set(nearest.indices.tolist())) > 15


# ------------------------------------------------------------------------------------------------------------ colour


def test_grey_stays_grey() -> None:
    grey = torch.rand(64, 1, 6, 6, generator=seeded()).repeat(1, 3, 1, 1)
    view = augment(grey, COLOUR, seeded())
    assert float((view.amax(1) - view.amin(1)).max()) < 1e-5


def test_about_a_fifth_turns_grey_and_a_sixth_is_unchanged() -> None:
    images = unit_images(n=2000, height=4, width=4)
    view = augment(images, COLOUR, seeded())
    grey = (view.amax(1) - view.amin(1)).amax((1, 2)) < 1e-5
    untouched = (view == images).flatten(1).all(1)
    assert float(grey.float().mean()) == pytest.approx(0.2, abs=0.03)
    assert float(untouched.float().mean()) == pytest.approx(0.2 * 0.8, abs=0.03)


def draws(monkeypatch: pytest.MonkeyPatch, *values: float, applied: bool = True, grey: bool = False) -> None:
    """Fix the random draws: brightness, contrast, saturation, hue, and the two coin flips."""
    numbers, coins = iter(values), iter([applied, grey])

    def fixed(value: Callable[[], float | bool]) -> Callable[..., Tensor]:
        return lambda n, *_: torch.full((n,), value())

    monkeypatch.setattr(module, "_uniform", fixed(lambda: next(numbers)))
    monkeypatch.setattr(module, "_chance", fixed(lambda: next(coins)))


def colour_of(rgb: tuple[float, float, float]) -> list[float]:
    """The colour of a uniform image after the jitter."""
    image = torch.tensor(rgb).view(1, 3, 1, 1).repeat(1, 1, 2, 2)
    seen: list[float] = augment(image, COLOUR, seeded())[0, :, 0, 0].tolist()
    return seen


def test_brightness_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 0.5, 1, 1, 0)
    assert colour_of((0.2, 0.4, 0.8)) == pytest.approx([0.1, 0.2, 0.4], abs=1e-6)


def test_brightness_is_clamped(monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 1.4, 1, 1, 0)
    assert colour_of((0.2, 0.5, 0.8)) == pytest.approx([0.28, 0.7, 1.0], abs=1e-6)


def test_saturation_blends_with_the_pixels_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 1, 1, 0.5, 0)
    luma = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.8  # 0.3858
    assert colour_of((0.2, 0.4, 0.8)) == pytest.approx([(c + luma) / 2 for c in (0.2, 0.4, 0.8)], abs=1e-6)


def test_contrast_blends_with_the_mean_grey_of_the_brightened_image(monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 0.8, 0.5, 1, 0)
    image = torch.tensor([0.1, 0.9]).view(1, 1, 1, 2).repeat(1, 3, 1, 1)  # mean 0.5, brightened 0.4
    seen = augment(image, COLOUR, seeded())[0, :, 0]
    torch.testing.assert_close(seen, torch.tensor([0.24, 0.56]).repeat(3, 1))  # (0.08, 0.72) half way to 0.4


def test_grey_is_the_luma(monkeypatch: pytest.MonkeyPatch) -> None:
    draws(monkeypatch, 1.3, 0.7, 1.2, 0.1, applied=False, grey=True)
    assert colour_of((0.2, 0.4, 0.8)) == pytest.approx([0.3858] * 3, abs=1e-6)


def test_hue_keeps_the_luma_and_rotates_about_as_far_as_in_hsv(monkeypatch: pytest.MonkeyPatch) -> None:
    base = (0.5, 0.4, 0.3)
    luma = 0.299 * base[0] + 0.587 * base[1] + 0.114 * base[2]
    turns = []
    for share in (-0.1, 0.1):
        draws(monkeypatch, 1, 1, 1, share)
        red, green, blue = colour_of(base)
        assert 0.299 * red + 0.587 * green + 0.114 * blue == pytest.approx(luma, abs=1e-5)
        difference = colorsys.rgb_to_hsv(red, green, blue)[0] - colorsys.rgb_to_hsv(*base)[0]
        turns.append((difference + 0.5) % 1 - 0.5)
    assert turns[0] * turns[1] < 0
    assert all(0.05 < abs(turn) < 0.16 for turn in turns)


def test_colour_needs_three_channels() -> None:
    with pytest.raises(ValueError, match="three channels, got 1"):
        augment(torch.rand(2, 1, 4, 4), COLOUR, seeded())


# ------------------------------------------------------------------------------------------------- all augmentations


@pytest.mark.parametrize("augmentation", EVERY)
@pytest.mark.parametrize("n", [0, 1, 33])
def test_views_keep_shape_range_and_layout(augmentation: Augmentation, n: int) -> None:
    images = unit_images(n, 6, 9).round(decimals=1)  # many exact zeros and ones
    before = images.clone()
    view = augment(images, augmentation, seeded())
    assert view.shape == images.shape
    assert view.dtype == torch.float32
    assert view.is_contiguous()
    assert bool(((view >= 0) & (view <= 1)).all())
    assert torch.equal(images, before)


@pytest.mark.parametrize("augmentation", EVERY)
def test_a_transposed_memory_layout_changes_nothing(augmentation: Augmentation) -> None:
    images = unit_images()
    last = images.to(memory_format=torch.channels_last)
    view = augment(last, augmentation, seeded())
    assert view.is_contiguous()
    torch.testing.assert_close(view, augment(images, augmentation, seeded()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("augmentation", EVERY[1:])
def test_same_seed_same_views_other_seed_other_views(augmentation: Augmentation) -> None:
    images = unit_images(n=16)
    torch.manual_seed(0)
    first = augment(images, augmentation, seeded(3))
    torch.manual_seed(1)  # the global generator is not used
    assert torch.equal(first, augment(images, augmentation, seeded(3)))
    assert not torch.equal(first, augment(images, augmentation, seeded(4)))


def test_the_generator_advances() -> None:
    images, generator = unit_images(), seeded()
    assert not torch.equal(augment(images, ALL, generator), augment(images, ALL, generator))


@pytest.mark.parametrize("images", [torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4)])
def test_augment_rejects_uint8_and_single_images(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"float \[n, 3, h, w\]"):
        augment(images, ALL, seeded())


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_area": (0.0, 1.0)},
        {"crop_area": (0.5, 0.2)},
        {"crop_area": (0.5, 1.5)},
        {"crop_ratio": (0.0, 1.0)},
        {"crop_ratio": (2.0, 1.0)},
        {"shift": -1},
        {"color": True},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Augmentation(**wrong)


# ------------------------------------------------------------------------------------------------- views of a learner


@pytest.mark.parametrize("order", ["paper", "authors"])
def test_contrastive_labels_of_two_images(order: Literal["paper", "authors"]) -> None:
    pixels, labels = byte_images(n=2), torch.tensor([0, 1])
    views, targets = contrastive_views(pixels, labels, 2, ALL, seeded(), order=order)
    assert targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] * 2
    assert views.shape == (16, 3, 8, 8)
    assert views.is_contiguous()
    assert views.dtype == torch.float32


@pytest.mark.parametrize("order", ["paper", "authors"])
def test_without_augmentation_views_are_view_rotation_image(order: Literal["paper", "authors"]) -> None:
    pixels = byte_images(n=3)
    views, _ = contrastive_views(pixels, torch.tensor([0, 1, 0]), 2, NOTHING, seeded(), order=order)
    for view in views.view(2, 4, 3, 3, 8, 8):
        for r in range(4):
            assert torch.equal(view[r], rotate(pixels, r) / 255)


def test_in_the_papers_order_rotations_of_a_view_are_rotations_of_one_image() -> None:
    views, _ = contrastive_views(byte_images(), torch.zeros(6, dtype=torch.int64), 2, ALL, seeded())
    first, second = views.view(2, 4, 6, 3, 8, 8)
    for view in (first, second):
        for r in range(1, 4):
            assert torch.equal(view[r], rotate(view[0], r))
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("augmentation", [COLOUR, CROP, ALL])
def test_in_the_authors_order_every_rotation_is_augmented_separately(augmentation: Augmentation) -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    views, _ = contrastive_views(byte_images(), labels, 2, augmentation, seeded(), order="authors")
    for view in views.view(2, 4, 6, 3, 8, 8):
        for r in range(1, 4):
            assert not torch.allclose(view[r], rotate(view[0], r), atol=1e-3)


def test_in_the_authors_order_all_rotations_of_a_view_share_the_flip() -> None:
    pixels = byte_images(n=40)
    views, _ = contrastive_views(pixels, torch.zeros(40, dtype=torch.int64), 2, FLIP, seeded(), order="authors")
    first, second = views.view(2, 4, 40, 3, 8, 8)
    for view in (first, second):
        assert all(torch.equal(view[r], rotate(view[0], r)) for r in range(4))
    assert not torch.equal(first, second)


def test_drawn_rotations_are_shared_by_both_views_of_an_image() -> None:
    pixels, labels = byte_images(n=40), torch.arange(40) % 3
    views, targets = contrastive_views(pixels, labels, 3, NOTHING, seeded(), order="drawn")
    assert views.shape == (80, 3, 8, 8)
    assert torch.equal(targets[:40], targets[40:])
    assert torch.equal(targets % 3, labels.repeat(2))
    assert set((targets // 3).tolist()) == {0, 1, 2, 3}
    for view, target, image in zip(views, targets, pixels.repeat(2, 1, 1, 1), strict=True):
        assert torch.equal(view, rotate(image[None], int(target) // 3)[0] / 255)


def test_single_views_hold_each_image_once_in_its_own_rotation() -> None:
    pixels, labels = byte_images(n=40), torch.arange(40) % 3
    views, targets = contrastive_views(pixels, labels, 3, NOTHING, seeded(), order="single")
    assert torch.equal(targets % 3, labels)
    assert set((targets // 3).tolist()) == {0, 1, 2, 3}
    for view, target, image in zip(views, targets, pixels, strict=True):
        assert torch.equal(view, rotate(image[None], int(target) // 3)[0] / 255)
    plain, unturned = contrastive_views(pixels, labels, 3, NOTHING, seeded(), rotations=1, order="single")
    assert torch.equal(plain, pixels / 255)
    assert torch.equal(unturned, labels)


@pytest.mark.parametrize("order", ["paper", "authors", "drawn"])
def test_one_rotation_gives_two_plain_views(order: Order) -> None:
    labels = torch.tensor([2, 0, 1, 1, 0, 2])
    views, targets = contrastive_views(byte_images(), labels, 3, ALL, seeded(), rotations=1, order=order)
    assert views.shape == (12, 3, 8, 8)
    assert targets.tolist() == labels.tolist() * 2


@pytest.mark.parametrize("order", ["paper", "authors", "drawn", "single"])
def test_contrastive_views_repeat_with_the_seed(order: Order) -> None:
    pixels, labels = byte_images(), torch.zeros(6, dtype=torch.int64)
    first = contrastive_views(pixels, labels, 1, ALL, seeded(5), order=order)[0]
    assert torch.equal(first, contrastive_views(pixels, labels, 1, ALL, seeded(5), order=order)[0])
    assert not torch.equal(first, contrastive_views(pixels, labels, 1, ALL, seeded(6), order=order)[0])


def test_classifier_views_rotate_one_view_of_each_image() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    views, targets = classifier_views(byte_images(), labels, 3, ALL, seeded(), rotations=4)
    assert targets.tolist() == [y + 3 * r for r in range(4) for y in labels.tolist()]
    turned = views.view(4, 6, 3, 8, 8)
    assert all(torch.equal(turned[r], rotate(turned[0], r)) for r in range(4))


def test_classifier_views_without_rotation_keep_the_labels() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    views, targets = classifier_views(byte_images(), labels, 3, NOTHING, seeded(), rotations=1)
    assert torch.equal(views, byte_images() / 255)
    assert torch.equal(targets, labels)


def test_one_channel_becomes_three() -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    for order in ("paper", "authors"):
        views, _ = contrastive_views(byte_images(channels=1), labels, 1, ALL, seeded(), order=order)
        assert views.shape == (48, 3, 8, 8)
        assert float((views.amax(1) - views.amin(1)).max()) < 1e-5


def test_invalid_batches_are_rejected() -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ValueError, match="uint8"):
        classifier_views(byte_images() / 255, labels, 1, ALL, seeded())
    with pytest.raises(ValueError, match="one for each image"):
        contrastive_views(byte_images(), labels[:5], 1, ALL, seeded())
    with pytest.raises(ValueError, match="'paper', 'authors', 'drawn' or 'single'"):
        contrastive_views(byte_images(), labels, 1, ALL, seeded(), order="other")  # type: ignore[arg-type]
