"""Hints on the quality of photos before they are learned: contradictions, copies, blur, size and balance.

Photos are compared as thumbnails, so that a copy is found even if it was resized or compressed again. Everything is
measured on the square that the model sees, except the size of the photo as taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from clom.data.folders import listed
from clom.data.images import Images, to_unit

Kind = Literal["two classes", "copies", "blurred", "tiny", "unbalanced"]

_SIDE = 16  # of a thumbnail, in pixels
# Largest difference of copies, as a share of the thumbnail's contrast. Photos made smaller and compressed hard differed
# by at most 0.1 of it, different photos of 300 by at least 0.5.
_COPY = 0.2
_FLAT = 2 / 255  # contrast below which a photo shows nothing
# Sharpness at 160 pixels below which a photo is blurred: 1 in 100 of 240 photos from the web is, and 96 if each is
# blurred by a Gaussian of three pixels (53 by two).
_BLURRED, _SHARPNESS_SIDE, _LEAST_SIDE = 1.3e-4, 160, 96
_UNBALANCED = 5  # times as many photos in the largest class as in the smallest
_ROWS = 512  # compared with all others at once
_MOST_COMPARED = 6000  # photos: the time grows with their square


@dataclass(frozen=True)
class Hint:
    """One thing to look at before learning."""

    kind: Kind
    text: str
    photos: tuple[int, ...]
    """The rows of the photos that it is about."""


def hints(
    images: Images, class_names: Sequence[str], files: Sequence[str], sizes: Sequence[tuple[int, int]] = ()
) -> tuple[Hint, ...]:
    """All that is noticed, the gravest first. `files` are names to show, `sizes` width and height in the files."""
    labels = images.labels.tolist()
    groups = copies(images.pixels[:_MOST_COMPARED])
    found = [
        _in_two_classes(groups, labels, files),
        _copied(groups, labels, files),
        _blurred(images.pixels, files),
        _tiny(sizes, images.pixels.shape[-1], files),
        _unbalanced(labels, class_names),
    ]
    return tuple(hint for hint in found if hint is not None)


def copies(pixels: Tensor) -> list[list[int]]:
    """Groups of rows that show the same photo, in ascending order."""
    if len(pixels) < 2:
        return []
    small = _thumbnails(pixels)
    channels = small.reshape(len(small), pixels.shape[1], -1)
    contrast = (channels - channels.mean(2, keepdim=True)).square().mean((1, 2)).sqrt().clamp(min=_FLAT)
    first = torch.arange(len(small))
    for rows in torch.split(torch.arange(len(small)), _ROWS):
        difference = torch.cdist(small[rows], small) / small.shape[1] ** 0.5
        same = difference <= _COPY * torch.minimum(contrast[rows, None], contrast)
        first[rows] = same.int().argmax(1)  # a photo is a copy of itself, so that there always is one
    groups: dict[int, list[int]] = {}
    for row, original in enumerate(first.tolist()):
        while first[original] != original:
            original = int(first[original])
        groups.setdefault(original, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def sharpness(pixels: Tensor) -> Tensor:
    """The variance of the Laplacian in the sharpest sixteenth of each photo: a blurred background does no harm."""
    side = _SHARPNESS_SIDE
    grey = functional.interpolate(to_unit(pixels).mean(1, keepdim=True), (side, side), mode="bilinear", antialias=True)
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], device=grey.device)[None, None]
    edges = functional.conv2d(grey, kernel, padding=1)[:, :, 1:-1, 1:-1]
    means, squares = (functional.avg_pool2d(values, side // 4 - 1) for values in (edges, edges.square()))
    return (squares - means.square()).flatten(1).max(1).values


def _thumbnails(pixels: Tensor) -> Tensor:
    parts = [functional.adaptive_avg_pool2d(to_unit(part), _SIDE).flatten(1) for part in torch.split(pixels, _ROWS)]
    return torch.cat(parts)


def _in_two_classes(groups: Iterable[list[int]], labels: Sequence[int], files: Sequence[str]) -> Hint | None:
    mixed = [group for group in groups if len({labels[row] for row in group}) > 1]
    if not mixed:
        return None
    examples = []
    for group in mixed:
        other = next(row for row in group if labels[row] != labels[group[0]])
        examples.append(f"{files[group[0]]} and {files[other]}")
    many = "One photo is" if len(mixed) == 1 else f"{len(mixed)} photos are"
    return Hint(
        "two classes",
        f"{many} in two classes: {listed(examples)}. Keep each in the class where it belongs: no model can learn both.",
        tuple(row for group in mixed for row in group),
    )


def _copied(groups: Iterable[list[int]], labels: Sequence[int], files: Sequence[str]) -> Hint | None:
    rows = dict[int, list[int]]()  # the first of each group and class -> its copies
    for group in groups:
        for label in dict.fromkeys(labels[row] for row in group):
            original, *same = (row for row in group if labels[row] == label)
            if same:
                rows[original] = same
    if not rows:
        return None
    count = sum(map(len, rows.values()))
    examples = listed(f"{files[same[0]]} of {files[original]}" for original, same in rows.items())
    many = "One photo is a copy" if count == 1 else f"{count} photos are copies"
    return Hint(
        "copies",
        f"{many} of another: {examples}. Copies teach nothing new, and held-out ones make the accuracy look better "
        "than it is.",
        tuple(row for same in rows.values() for row in same),
    )


def _blurred(pixels: Tensor, files: Sequence[str]) -> Hint | None:
    if pixels.shape[-1] < _LEAST_SIDE:  # too small to tell
        return None
    sharp = torch.cat([sharpness(part) for part in torch.split(pixels, _ROWS)])
    rows = tuple((sharp < _BLURRED).nonzero()[:, 0].tolist())
    if not rows:
        return None
    many = "One photo is blurred or shows" if len(rows) == 1 else f"{len(rows)} photos are blurred or show"
    return Hint("blurred", f"{many} hardly anything: {listed(files[row] for row in rows)}.", rows)


def _tiny(sizes: Sequence[tuple[int, int]], side: int, files: Sequence[str]) -> Hint | None:
    rows = tuple(row for row, size in enumerate(sizes) if min(size) < side)
    if not rows:
        return None
    many = "One photo is" if len(rows) == 1 else f"{len(rows)} photos are"
    examples = listed(f"{files[row]} ({sizes[row][0]} x {sizes[row][1]})" for row in rows)
    return Hint("tiny", f"{many} smaller than the {side} x {side} pixels that the model sees: {examples}.", rows)


def _unbalanced(labels: Sequence[int], class_names: Sequence[str]) -> Hint | None:
    counts = Counter(labels)
    if len(class_names) < 2:
        return None
    (most, high), *_, (least, low) = [(class_names[label], count) for label, count in counts.most_common()]
    if high < _UNBALANCED * low:
        return None
    return Hint(
        "unbalanced",
        f"'{most}' has {high} photos, '{least}' only {low}. Of a class with few photos it knows the least.",
        (),
    )
