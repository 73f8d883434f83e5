"""Small pictures in folders, as people have them, for experiments of their own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

FOUR_TASKS = {
    "birds": ("robin", "tit", "wren"),
    "tools": ("axe", "saw"),
    "moons": ("luna",),
    "fruit": ("apple", "fig", "pear", "plum"),
}


def write_pictures(
    folder: Path, tasks: Mapping[str, Sequence[str]], count: int = 6, size: tuple[int, int] = (10, 8)
) -> None:
    """Speckled pictures, of a colour for each class."""
    chance = random.Random(0)

    def colour() -> tuple[int, int, int]:
        return chance.randrange(256), chance.randrange(256), chance.randrange(256)

    for task, classes in tasks.items():
        for name in classes:
            (folder / task / name).mkdir(parents=True)
            ground = colour()
            for number in range(count):
                picture = Image.new("RGB", size, ground)
                for _ in range(size[0]):
                    picture.putpixel((chance.randrange(size[0]), chance.randrange(size[1])), colour())
                picture.save(folder / task / name / f"{number}.png")


def write_experiment(folder: Path, tasks: Mapping[str, Sequence[str]] | None = None, more: str = "") -> Path:
    """An experiment that has a folder of pictures for each task."""
    tasks = tasks or FOUR_TASKS
    write_pictures(folder / "pictures", tasks)
    path = folder / "mine.yaml"
    listed = ", ".join(f"pictures/{task}" for task in tasks)
    path.write_text(f"title: My own pictures\ndata: {{folders: [{listed}]}}\n{more}")
    return path
