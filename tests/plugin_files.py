"""What tests of plug-ins share: code as somebody would bring it, packages that look installed, clean registries."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clom.errors import UserError
from clom.plugins import Registry, loading


class Shape:
    """A kind of thing that one could bring."""


class Circle(Shape):
    """The one that is built in."""


def _check(thing: object) -> None:
    if not isinstance(thing, type) or not issubclass(thing, Shape):
        raise UserError(f"{thing!r} is not a shape.")


SHAPES: Registry[Any] = Registry("shape", "clom.test_shapes", {"circle": ("plugin_files:Circle", "built in")}, _check)

SHAPES_FILE = """
from plugin_files import Shape

class Square(Shape):
    pass

class Named(Shape):
    name = "my-name"

class Child(Named):
    pass

LIMIT = 3
"""

METHOD = '''
"""A method of one class: the nearest class mean of pixels."""

import torch

import clom


class Mine(clom.Method):
    """The nearest mean image."""

    def _open_task(self, task):
        self.register_buffer(f"means{len(self.tasks) - 1}", torch.zeros(task.n_classes, 3 * self.image_shape[-1] ** 2))

    def _learn(self, task, context):
        means = getattr(self, f"means{len(self.tasks) - 1}")
        for label in range(task.n_classes):
            means[label] = self._rows(task.train.pixels[task.train.labels == label]).mean(0)

    def blocks(self, pixels):
        rows = self._rows(pixels)
        return [-torch.cdist(rows, getattr(self, f"means{task}")) for task in range(len(self.tasks))]

    def _rows(self, pixels):
        return (pixels.float() / 255).expand(-1, 3, -1, -1).flatten(1)
'''

NETWORK = """
from torch import nn

class MyNet(nn.Sequential):
    def __init__(self, width: int = 8):
        super().__init__(nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def install(folder: Path, name: str, version: str, code: str, points: dict[str, dict[str, str]]) -> None:
    """A package as pip leaves it, for whoever has `folder` in `sys.path`; `points` by group and name."""
    write(folder, f"{name}/__init__.py", code)
    info = f"{name}-{version}.dist-info"
    write(folder, f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in points.items()
    ]
    write(folder, f"{info}/entry_points.txt", "\n".join(lines))


@contextmanager
def clean(*registries: Registry[Any]) -> Iterator[None]:
    """Registries and plug-ins as they were, afterwards; inside, installed packages are looked for anew."""
    loaded, path = dict(loading._loaded), list(sys.path)
    entries = [dict(registry._entries) for registry in registries]
    for registry in registries:
        registry._packages = None
    try:
        yield
    finally:
        sys.path[:] = path
        loading._loaded.clear()
        loading._loaded.update(loaded)
        for registry, before in zip(registries, entries, strict=True):
            registry._entries, registry._packages = before, None
