"""The common style of all figures.

The palette is Okabe and Ito's, which is safe for colour-blind readers; lines have distinct markers and heat maps darken
with their values, so that figures remain readable in black and white.

Tested by tests/reporting/figures/test_run_overview.py.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # works without a display
from matplotlib import pyplot as plt

from clom.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#7F7F7F"
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "clom"}


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Save as SVG and PNG; return the paths."""
    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 160}}
    paths = []
    for kind, arguments in options.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, **arguments)
        paths.append(out / f"{name}.{kind}")
        write_atomically(paths[-1], content.getvalue())
    plt.close(figure)
    return paths


def panels(count: int, width: float, height: float, across: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of at most `across`."""
    columns = min(across, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_axis_off()
    return figure, flat[:count]
