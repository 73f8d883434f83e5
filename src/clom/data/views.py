"""Views: augmented and rotated copies of images, computed for a whole batch at once.

The paper's step 1 turns N images into 2N augmented views and each of those into four rotations (8N); each rotation of a
class is a separate class. All random numbers come from the generator that is passed in, so the same generator state
yields the same views.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor

from clom.data.images import to_unit
from clom.settings import Settings

Order = Literal["paper", "authors", "drawn", "single"]

# The paper's colour augmentation: three factors in 1 ± 0.4 and a hue shift of up to 0.1 of the circle, applied to 80%
# of the images; 20% of all images become grey.
JITTER = 0.4
HUE = 0.1
JITTER_PROBABILITY = 0.8
GREY_PROBABILITY = 0.2

# Luma weights of the YIQ space and its two chroma axes; the chroma rows sum to zero, so grey has no chroma.
_LUMA = (0.299, 0.587, 0.114)
_YIQ = (_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


class Augmentation(Settings):
    """Random augmentations of a view; each can be switched off separately, as in the paper's ablation.

    `shift` is the maximum translation in pixels, with black padding: the zero-padded random crop of cross-entropy
    baselines.
    """

    flip: bool = True
    colour: bool = True
    crop: bool = True
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    shift: int = Field(default=0, ge=0)

    @field_validator("crop_area")
    @classmethod
    def _area_is_a_share(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if not 0 < low <= high <= 1:
            raise ValueError(f"crop_area must satisfy 0 < smallest <= largest <= 1, got {value}")
        return value

    @field_validator("crop_ratio")
    @classmethod
    def _ratio_is_positive(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if not (0 < low <= high and math.isfinite(high)):
            raise ValueError(f"crop_ratio must satisfy 0 < smallest <= largest, got {value}")
        return value


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """One random view of each image of `[n, 3, h, w]` in [0, 1], as a new, contiguous float32 tensor.

    Colour comes before geometry, as in the paper's list. Flip, crop and shift together are a single bilinear sampling;
    a flip alone only moves pixels, so it is exact.
    """
    _check_unit(images)
    view = images.to(torch.float32)
    if augmentation.colour:
        view = _jitter(view, generator)
    if augmentation.crop or augmentation.shift:
        view = _sample(view, augmentation, generator)
    elif augmentation.flip:
        view = _flip(view, generator)
    # Without any augmentation, return a copy, so that writing to it never changes the input.
    return view.clone(memory_format=torch.contiguous_format) if view is images else view.contiguous()


def rotate(images: Tensor, r: int) -> Tensor:
    """`[n, c, h, w]` rotated counter-clockwise by r quarter turns."""
    return torch.rot90(images, r, (2, 3))


def rotations(images: Tensor, count: int = 4) -> Tensor:
    """The first `count` quarter turns of `[n, c, h, w]`, rotation-major: `[count * n, c, h, w]`, unrotated first.

    `count=1` returns the images themselves, of any shape; otherwise images must be square.
    """
    return _rotate_groups(images, groups=1, count=count)


def with_flipped(images: Tensor) -> Tensor:
    """`[n, c, h, w]` followed by their horizontal flips, `[2 * n, c, h, w]`."""
    return torch.cat([images, images.flip(3)])


def average_flipped(scores: Tensor) -> Tensor:
    """Scores of `with_flipped` images, averaged over each image and its flip."""
    return scores.reshape(2, -1, *scores.shape[1:]).mean(0)


def rotation_labels(labels: Tensor, n_classes: int, count: int = 4) -> Tensor:
    """The labels for `rotations`: rotation r of class y is class `y + r * n_classes`."""
    _check_count(count)
    turns = torch.arange(count, device=labels.device, dtype=labels.dtype)
    return (turns[:, None] * n_classes + labels).flatten()


def contrastive_views(
    pixels: Tensor,
    labels: Tensor,
    n_classes: int,
    augmentation: Augmentation,
    generator: torch.Generator,
    *,
    rotations: int = 4,
    order: Order = "paper",
) -> tuple[Tensor, Tensor]:
    """Two views of each of N uint8 images in all rotations, `[view][rotation][image]`, and their rotation classes.

    `order="paper"`: augment 2N, then rotate each, so the four rotations of a view have the same crop and colours.
    `order="authors"`: flip 2N, rotate, then augment colour and crop of all 8N separately, as the authors' code does.
    `order="drawn"`: both views of an image in one random rotation, 2N views: the same classes in expectation, and four
    times as many images in the same time.
    `order="single"`: one view of each image in a random rotation, N views: its positives are the other images of its
    rotation class, and a batch holds twice as many images in the same time.
    `rotations=1` returns 2N unrotated views with their original labels (CLOM without OOD).
    """
    _check_batch(pixels, labels)
    twice = pixels.repeat(2, 1, 1, 1)
    if order == "paper":
        views = _rotate_groups(augment(to_unit(twice), augmentation, generator), groups=2, count=rotations)
    elif order == "authors":
        # Flipping and rotating uint8 moves a quarter of the memory of float32, and is exact too.
        turned = _rotate_groups(_flip(twice, generator) if augmentation.flip else twice, groups=2, count=rotations)
        views = augment(to_unit(turned), augmentation.model_copy(update={"flip": False}), generator)
    elif order in ("drawn", "single"):
        shown, copies = (twice, 2) if order == "drawn" else (pixels, 1)
        turns = torch.randint(rotations, labels.shape, generator=generator).to(labels.device)
        views = _rotate_each(augment(to_unit(shown), augmentation, generator), turns.repeat(copies))
        return views, (labels + turns * n_classes).repeat(copies)
    else:
        raise ValueError(f"order must be 'paper', 'authors', 'drawn' or 'single', got {order!r}")
    return views, rotation_labels(labels, n_classes, rotations).repeat(2)


def classifier_views(
    pixels: Tensor,
    labels: Tensor,
    n_classes: int,
    augmentation: Augmentation,
    generator: torch.Generator,
    rotations: int = 4,
) -> tuple[Tensor, Tensor]:
    """One view of each of N uint8 images in all rotations, `[rotation][image]`, and their rotation classes.

    Step 2 uses four rotations, a plain cross-entropy learner one.
    """
    _check_batch(pixels, labels)
    views = augment(to_unit(pixels), augmentation, generator)
    return _rotate_groups(views, groups=1, count=rotations), rotation_labels(labels, n_classes, rotations)


# ---------------------------------------------------------------------------------------------------------- rotation


def _rotate_each(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate every image by its own number of quarter turns."""
    turned = images.clone()
    for r in range(1, 4):
        chosen = turns == r
        turned[chosen] = rotate(images[chosen], r)
    return turned


def _rotate_groups(images: Tensor, groups: int, count: int) -> Tensor:
    """Rotate `[groups * n]` images to `[group][rotation][image]`, writing into one preallocated tensor."""
    _check_count(count)
    if count == 1:
        return images
    total, channels, height, width = images.shape
    if height != width:
        raise ValueError(f"rotations need square images, got {height} x {width}; crop or pad them, or use 1 rotation")
    n = total // groups
    out = images.new_empty(groups, count, n, channels, height, width)
    for r in range(count):
        out[:, r] = rotate(images, r).view(groups, n, channels, height, width)
    return out.flatten(0, 2)


# ---------------------------------------------------------------------------------------------------------- geometry


def _flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip a random half of the images horizontally; exact, since pixels are only moved."""
    flipped = _chance(len(images), 0.5, generator, images.device)
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def _sample(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Flip, crop and shift as one bilinear sampling.

    A crop alone uses border padding: its box lies inside the image, but the outermost half pixel has a neighbour on one
    side only. A shift reads beyond the border, where the image is black.
    """
    grid = _grid(images, augmentation, generator)
    padding = "zeros" if augmentation.shift else "border"
    # The four weights of a sample sum to one only up to rounding, so an almost white pixel may exceed 1.
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp_(0, 1)


def _grid(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """The sampling position of each output pixel, `[n, h, w, 2]` in [-1, 1].

    Boxes are axis-aligned, so x depends only on the column and y only on the row: filling the two planes takes a fifth
    of the time of `F.affine_grid`, which multiplies every pixel by a matrix.
    """
    n, _, height, width = images.shape
    device = images.device
    scale_x = scale_y = torch.ones(n, device=device)
    if augmentation.crop:
        scale_x, scale_y = _boxes(n, height, width, augmentation, generator, device)
    # Uniform over all positions that keep the box inside the image.
    centre_x = (1 - scale_x) * _uniform(n, -1, 1, generator, device)
    centre_y = (1 - scale_y) * _uniform(n, -1, 1, generator, device)
    if augmentation.shift:
        centre_x = centre_x + _whole_pixels(n, augmentation.shift, generator, device) * (2 / width)
        centre_y = centre_y + _whole_pixels(n, augmentation.shift, generator, device) * (2 / height)
    if augmentation.flip:  # read the box from right to left
        scale_x = torch.where(_chance(n, 0.5, generator, device), -scale_x, scale_x)
    grid = torch.empty(n, height, width, 2, device=device)
    grid[..., 0] = torch.addcmul(centre_x[:, None], scale_x[:, None], _pixel_centres(width, device))[:, None, :]
    grid[..., 1] = torch.addcmul(centre_y[:, None], scale_y[:, None], _pixel_centres(height, device))[:, :, None]
    return grid


def _boxes(
    n: int, height: int, width: int, augmentation: Augmentation, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Width and height of n Inception crops relative to the image.

    The area is uniform and the ratio log-uniform. The ratio of a box that would exceed the image is clamped to the
    nearest one that fits, which preserves the area (the usual rejection loop cannot be batched).
    """
    area = _uniform(n, *augmentation.crop_area, generator, device)
    low, high = augmentation.crop_ratio
    # Ratio of the box relative to the image's: share_x / share_y. It fits if both shares are at most 1.
    relative = _uniform(n, math.log(low), math.log(high), generator, device).exp() * (height / width)
    relative = torch.clamp(relative, min=area, max=1 / area)
    return (area * relative).sqrt().clamp(max=1), (area / relative).sqrt().clamp(max=1)


def _pixel_centres(size: int, device: torch.device) -> Tensor:
    """Centres of `size` pixels if the image spans -1 to 1 from edge to edge."""
    return (torch.arange(size, device=device) * 2 + 1) / size - 1


# ------------------------------------------------------------------------------------------------------------ colour


def _jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness, contrast, saturation, hue (in this order) for 80% of the images, then grey for 20% of all images.

    All five are affine in the pixel, so they are one 3x4 matrix per image. Two approximations make that possible:
    values are clamped once at the end instead of between the operations, and the hue is rotated around the grey axis of
    YIQ, which preserves the luma, whereas HSV would preserve the maximum.
    """
    if images.shape[1] != 3:
        raise ValueError(f"colour augmentation needs three channels, got {images.shape[1]}")
    flat = images.flatten(2)
    matrix, offset = _colour_maps(flat.mean(2), generator)
    return torch.baddbmm(offset[:, None, None], matrix, flat).clamp_(0, 1).view(images.shape)


def _colour_maps(mean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Matrix `[n, 3, 3]` and offset `[n]` (equal for the three channels) of each image, given its mean colour `[n, 3]`.

    With G the projection to grey, A = 1 - G and K a quarter turn of the chroma (GK = KG = 0), saturation s is G + sA
    and hue t is G + cos(t) A + sin(t) K. Their product with gain c is cG + cs (cos(t) A + sin(t) K); grey is s = 0.
    Contrast adds a grey offset, which saturation, hue and grey do not change.
    """
    n, device = len(mean), mean.device
    bright, contrast, saturation = (_uniform(n, 1 - JITTER, 1 + JITTER, generator, device) for _ in range(3))
    angle = _uniform(n, -HUE, HUE, generator, device) * (2 * math.pi)
    applied = _chance(n, JITTER_PROBABILITY, generator, device)
    grey = _chance(n, GREY_PROBABILITY, generator, device)

    one, zero = mean.new_ones(()), mean.new_zeros(())
    gain = torch.where(applied, bright * contrast, one)
    chroma = torch.where(grey, zero, torch.where(applied, gain * saturation, one))
    angle = torch.where(applied, angle, zero)
    straight, turned = chroma * angle.cos(), chroma * angle.sin()
    # Written with the identity instead of A, so that images without jitter stay bit-identical.
    weights = torch.stack((straight, gain - straight, turned), dim=1)
    basis = _COLOUR_BASIS.to(device)
    luma = mean @ basis[1, :3]
    offset = torch.where(applied, (1 - contrast) * bright * luma, zero)
    return (weights @ basis).view(n, 3, 3), offset


def _colour_basis() -> Tensor:
    """The matrices 1, G and K of `_colour_maps`, flattened to `[3, 9]`; computed in float64, stored in float32."""
    to_yiq = torch.tensor(_YIQ, dtype=torch.float64)
    quarter_turn = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    identity = torch.eye(3, dtype=torch.float64)
    to_grey = to_yiq[0].expand(3, 3)
    turn = torch.linalg.solve(to_yiq, quarter_turn @ to_yiq)
    return torch.stack((identity, to_grey, turn)).flatten(1).to(torch.float32)


_COLOUR_BASIS = _colour_basis()


# ------------------------------------------------------------------------------------------ random draws and checks


def _uniform(n: int, low: float, high: float, generator: torch.Generator, device: torch.device) -> Tensor:
    # Drawn on the generator's device, so that a CPU generator yields the same views for images on any device.
    return torch.rand(n, generator=generator, device=generator.device).mul_(high - low).add_(low).to(device)


def _chance(n: int, probability: float, generator: torch.Generator, device: torch.device) -> Tensor:
    return _uniform(n, 0, 1, generator, device) < probability


def _whole_pixels(n: int, limit: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randint(-limit, limit + 1, (n,), generator=generator, device=generator.device).to(device)


def _check_unit(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(f"images must be float [n, 3, h, w] in [0, 1], got {images.dtype} {tuple(images.shape)}")


def _check_batch(pixels: Tensor, labels: Tensor) -> None:
    if pixels.ndim != 4 or pixels.dtype != torch.uint8:
        raise ValueError(f"pixels must be uint8 [n, c, h, w], got {pixels.dtype} {tuple(pixels.shape)}")
    if labels.shape != pixels.shape[:1]:
        raise ValueError(f"labels must be [{len(pixels)}], one for each image, got {tuple(labels.shape)}")


def _check_count(count: int) -> None:
    if not 1 <= count <= 4:
        raise ValueError(f"the number of rotations must be 1 to 4, got {count}")
