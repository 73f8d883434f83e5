"""What the learner sees of an image: augmented and rotated copies, made for a whole batch at once.

The paper's step 1 turns N images into 2N augmented views and each of those into four rotations (8N); a rotation is
a class of its own. Every random number comes from the generator that is passed in, so the same generator state gives
the same views.
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

# Strengths of the paper's colour augmentation: the three factors lie in 1 ± 0.4, the hue turns by up to 0.1 of the
# circle, all that happens to 80% of the images, and 20% of all images lose their colour.
JITTER = 0.4
HUE = 0.1
JITTER_PROBABILITY = 0.8
GREY_PROBABILITY = 0.2

# Luma weights of the YIQ space and its two chroma axes; the chroma rows sum to zero, so grey has no chroma.
_LUMA = (0.299, 0.587, 0.114)
_YIQ = (_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


class Augmentation(Settings):
    """Which random changes a view gets; each can be switched off alone, as in the paper's ablation.

    `shift` is the largest translation in pixels, with black moving in from the border: the zero-padded random crop
    of cross-entropy baselines.
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
    """A new, contiguous float32 tensor with one random view of each image of `[n, 3, h, w]` in [0, 1].

    Colour comes first and the geometry second, as the paper lists them. Flip, crop and shift together are one bilinear
    sampling; a flip without them moves pixels and computes nothing, so it is exact.
    """
    _check_unit(images)
    view = images.to(torch.float32)
    if augmentation.colour:
        view = _jitter(view, generator)
    if augmentation.crop or augmentation.shift:
        view = _sample(view, augmentation, generator)
    elif augmentation.flip:
        view = _flip(view, generator)
    # Without any augmentation the caller still gets a tensor of its own, so writing to it never changes the source.
    return view.clone(memory_format=torch.contiguous_format) if view is images else view.contiguous()


def rotate(images: Tensor, r: int) -> Tensor:
    """`[n, c, h, w]` turned counter-clockwise by r quarter turns."""
    return torch.rot90(images, r, (2, 3))


def rotations(images: Tensor, count: int = 4) -> Tensor:
    """The first `count` quarter turns of `[n, c, h, w]`, rotation-major: `[count * n, c, h, w]`, turn 0 first.

    One turn is no turn: it returns the images themselves, of any shape; more need square images.
    """
    return _rotate_groups(images, groups=1, count=count)


def with_flipped(images: Tensor) -> Tensor:
    """`[n, c, h, w]` followed by their horizontal flips, `[2 * n, c, h, w]`."""
    return torch.cat([images, images.flip(3)])


def average_flipped(scores: Tensor) -> Tensor:
    """Scores of `with_flipped` images, averaged over each image and its flip."""
    return scores.reshape(2, -1, *scores.shape[1:]).mean(0)


def rotation_labels(labels: Tensor, n_classes: int, count: int = 4) -> Tensor:
    """The labels that belong to `rotations`: turn r of class y is class `y + r * n_classes`."""
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
    """Two views of each of N byte images in all rotations, `[view][rotation][image]`, and their rotation classes.

    `order="paper"`: augment 2N, then rotate each, so the four rotations of a view show the same crop and colours.
    `order="authors"`: flip 2N, rotate, then give each of the 8N its own colour and crop, as the authors' code does.
    `order="drawn"`: both views of an image in one rotation, drawn for it, so 2N views: the same classes in expectation,
    and four times the images in the same time.
    `order="single"`: one view of each in a rotation drawn for it, N views: an image's positives are the others of its
    rotation class, and a batch shows twice the images in the same time.
    `rotations=1` gives 2N plain views with plain labels (CLOM without OOD).
    """
    _check_batch(pixels, labels)
    twice = pixels.repeat(2, 1, 1, 1)
    if order == "paper":
        views = _rotate_groups(augment(to_unit(twice), augmentation, generator), groups=2, count=rotations)
    elif order == "authors":
        # Flipping and rotating bytes moves a quarter of the memory that floats would, and is just as exact.
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
    """One view of each of N byte images in all rotations, `[rotation][image]`, and their rotation classes.

    Step 2 takes four rotations, a plain cross-entropy learner one.
    """
    _check_batch(pixels, labels)
    views = augment(to_unit(pixels), augmentation, generator)
    return _rotate_groups(views, groups=1, count=rotations), rotation_labels(labels, n_classes, rotations)


# ---------------------------------------------------------------------------------------------------------- rotation


def _rotate_each(images: Tensor, turns: Tensor) -> Tensor:
    """Every image by its own number of quarter turns."""
    turned = images.clone()
    for r in range(1, 4):
        chosen = turns == r
        turned[chosen] = rotate(images[chosen], r)
    return turned


def _rotate_groups(images: Tensor, groups: int, count: int) -> Tensor:
    """`[groups * n]` images as `[group][rotation][image]`, each rotation written straight to its place."""
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
    """Half of the images mirrored left to right; pixels are moved, not computed."""
    mirrored = _chance(len(images), 0.5, generator, images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def _sample(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Flip, crop and shift as one bilinear sampling.

    A crop alone repeats the border: its box lies inside the image, but the outermost half pixel has a neighbour on one
    side only. A shift looks beyond the border, where everything is black.
    """
    grid = _grid(images, augmentation, generator)
    padding = "zeros" if augmentation.shift else "border"
    # The four weights of a sample sum to one only up to rounding, so an almost white pixel may end above 1.
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp_(0, 1)


def _grid(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Where each output pixel looks, `[n, h, w, 2]` in [-1, 1].

    Boxes are parallel to the axes, so x depends on the column and y on the row only: filling the two planes takes a
    fifth of the time of `F.affine_grid`, which multiplies a matrix with every pixel.
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
    if augmentation.flip:  # reading the box from right to left
        scale_x = torch.where(_chance(n, 0.5, generator, device), -scale_x, scale_x)
    grid = torch.empty(n, height, width, 2, device=device)
    grid[..., 0] = torch.addcmul(centre_x[:, None], scale_x[:, None], _pixel_centres(width, device))[:, None, :]
    grid[..., 1] = torch.addcmul(centre_y[:, None], scale_y[:, None], _pixel_centres(height, device))[:, :, None]
    return grid


def _boxes(
    n: int, height: int, width: int, augmentation: Augmentation, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Width and height of n Inception crops as shares of the image's.

    The area is uniform and the ratio log-uniform. A box that would be wider or higher than the image gets the nearest
    ratio that fits, so that the drawn area always holds (the usual loop redraws instead, which cannot be batched).
    """
    area = _uniform(n, *augmentation.crop_area, generator, device)
    low, high = augmentation.crop_ratio
    # Ratio of the box relative to the image's own: share_x / share_y. It fits while both shares are at most 1.
    relative = _uniform(n, math.log(low), math.log(high), generator, device).exp() * (height / width)
    relative = torch.clamp(relative, min=area, max=1 / area)
    return (area * relative).sqrt().clamp(max=1), (area / relative).sqrt().clamp(max=1)


def _pixel_centres(size: int, device: torch.device) -> Tensor:
    """Centres of `size` pixels when the image spans -1 to 1 from edge to edge."""
    return (torch.arange(size, device=device) * 2 + 1) / size - 1


# ------------------------------------------------------------------------------------------------------------ colour


def _jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness, contrast, saturation, hue (always in this order) for 80% of the images, then grey for 20% of all.

    All five are affine in the pixel, so they are one 3x4 matrix per image. Two approximations make that possible:
    values are clamped once at the end and not between the operations, and the hue turns around the grey axis of YIQ,
    which keeps the luma, where HSV would keep the maximum.
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
    Contrast adds a grey offset, which saturation, hue and grey leave alone.
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
    # Written with the identity instead of A, so that an image that is left alone is left alone to the last bit.
    weights = torch.stack((straight, gain - straight, turned), dim=1)
    basis = _COLOUR_BASIS.to(device)
    luma = mean @ basis[1, :3]
    offset = torch.where(applied, (1 - contrast) * bright * luma, zero)
    return (weights @ basis).view(n, 3, 3), offset


def _colour_basis() -> Tensor:
    """The matrices 1, G and K of `_colour_maps`, flattened: `[3, 9]`; computed in float64, kept in float32."""
    to_yiq = torch.tensor(_YIQ, dtype=torch.float64)
    quarter_turn = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    identity = torch.eye(3, dtype=torch.float64)
    to_grey = to_yiq[0].expand(3, 3)
    turn = torch.linalg.solve(to_yiq, quarter_turn @ to_yiq)
    return torch.stack((identity, to_grey, turn)).flatten(1).to(torch.float32)


_COLOUR_BASIS = _colour_basis()


# ------------------------------------------------------------------------------------------------ chance, and checks


def _uniform(n: int, low: float, high: float, generator: torch.Generator, device: torch.device) -> Tensor:
    # Drawn where the generator lives: a CPU generator then gives the same views whatever the images' device.
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
