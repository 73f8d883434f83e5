"""Generated pictures for trying the photo commands: simple shapes and patterns with random variations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = 160
_SUPERSAMPLING = 2  # drawn larger and downsampled for smooth edges

Draw = Callable[[ImageDraw.ImageDraw, random.Random, int, tuple[int, int, int]], None]
Colour = tuple[int, int, int]


def write_example_photos(folder: Path, per_class: int = 20, per_class_new: int = 4, seed: int = 0) -> list[Path]:
    """Write the folders `shapes` and `patterns` for training, `new` with more of the same classes, and `other`."""
    paths = []
    for task, classes in TASKS.items():
        for name, draw in classes.items():
            paths += _write(folder / task / name, draw, per_class, seed)
            paths += _write(folder / "new" / name, draw, per_class_new, seed + 1)
    return paths + _write(folder / "other", _landscape, per_class_new, seed)


def _write(folder: Path, draw: Draw, count: int, seed: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02}.png" for number in range(count)]
    for path in paths:
        picture(draw, random.Random(f"{seed}/{folder.name}/{path.name}")).save(path)
    return paths


def picture(draw: Draw, chance: random.Random) -> Image.Image:
    """A drawing in one colour on a paler background, with random size, rotation and position."""
    side = SIZE * _SUPERSAMPLING
    dark, pale = _colour(chance, 40, 150), _colour(chance, 170, 255)
    image = Image.new("RGB", (side, side), pale)
    draw(ImageDraw.Draw(image), chance, side, dark)
    return image.resize((SIZE, SIZE), Image.Resampling.LANCZOS)


def _colour(chance: random.Random, low: int, high: int) -> Colour:
    red, green, blue = (chance.randint(low, high) for _ in range(3))
    return red, green, blue


# -------------------------------------------------------------------------------------------------------------- shapes


def _polygon(
    pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour, corners: int, *reach: float
) -> None:
    """A randomly rotated polygon whose corners have the relative distances `reach`, repeated, from its centre."""
    radius, turn = chance.uniform(0.25, 0.42) * side, chance.uniform(0, 2 * math.pi)
    x, y = (side / 2 + chance.uniform(-0.1, 0.1) * side for _ in range(2))
    points = []
    for corner in range(corners):
        angle, far = turn + 2 * math.pi * corner / corners, radius * reach[corner % len(reach)]
        points.append((x + far * math.cos(angle), y + far * math.sin(angle)))
    pen.polygon(points, fill=colour)


def _circle(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    radius = chance.uniform(0.22, 0.4) * side
    x, y = (side / 2 + chance.uniform(-0.1, 0.1) * side for _ in range(2))
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _square(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    _polygon(pen, chance, side, colour, 4, 1.0)


def _star(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    _polygon(pen, chance, side, colour, 10, 1.1, 0.45)


# ------------------------------------------------------------------------------------------------------------ patterns


def _stripes(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    step, slope = chance.uniform(0.09, 0.2) * side, chance.uniform(-1, 1)
    for number in range(-20, 41):
        x = number * step
        pen.line((x, -side * 0.1, x + slope * 1.2 * side, 1.1 * side), fill=colour, width=round(step / 2))


def _dots(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    step = chance.uniform(0.12, 0.22) * side
    radius, shift = step * chance.uniform(0.22, 0.36), chance.uniform(0, step)
    for row in range(-1, 10):
        for column in range(-1, 10):
            x, y = shift + (column + row % 2 / 2) * step, shift + row * step
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _checks(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    step, shift = chance.uniform(0.1, 0.2) * side, chance.uniform(-0.1, 0.0) * side
    for row in range(13):
        for column in range(row % 2, 13, 2):
            x, y = shift + column * step, shift + row * step
            pen.rectangle((x, y, x + step, y + step), fill=colour)


def _landscape(pen: ImageDraw.ImageDraw, chance: random.Random, side: int, colour: Colour) -> None:
    """Hills under a sky: neither a shape nor a pattern."""
    for row in range(side):
        light = 90 + 150 * row // side
        pen.line((0, row, side, row), fill=(light - 60, light - 20, min(255, light + 40)))
    for hill in range(4):
        start, height, waves = chance.uniform(0, 6), (0.45 + 0.13 * hill) * side, chance.uniform(2, 5)
        ridge = [(x, height + 0.08 * side * math.sin(start + waves * x / side)) for x in range(0, side + 8, 8)]
        pen.polygon([(0, side), *ridge, (side, side)], fill=(30 + 15 * hill, 90 - 10 * hill, 40))


TASKS: dict[str, dict[str, Draw]] = {
    "shapes": {"circles": _circle, "squares": _square, "stars": _star},
    "patterns": {"stripes": _stripes, "dots": _dots, "checks": _checks},
}
