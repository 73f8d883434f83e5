"""Charts for the report, as inline SVG with the colours and font of the page.

Matplotlib draws with placeholder colours, which are replaced by CSS variables for light and dark pages. Text stays text
rather than paths, so that it is small and searchable.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import matplotlib
import torch
from markupsafe import Markup, escape
from torch import Tensor

from clom.evaluation.metrics import Evaluation
from clom.experiments.task_result import TaskResult, used_shares
from clom.reporting.labels import cil_label
from clom.reporting.paper.numbers import Number

matplotlib.use("Agg")  # works without a display
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, LINE, PAPER, ACCENT = "#010203", "#010204", "#010205", "#010206", "#010207"
SERIES = tuple(f"#0102{number:02x}" for number in range(0x10, 0x16))
_VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line", PAPER: "paper", ACCENT: "accent"} | {
    colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "clom",
    "text.color": INK,
    "text.parse_math": False,  # class names may contain dollar signs
    "xtick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.color": LINE,
    "ytick.labelcolor": SOFT,
}
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
_MARKERS = "osv^D*"


class Charts:
    """Draws the charts of one page and numbers them, because ids inside inline SVGs must be unique in the page."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def learning(self, history: Sequence[Evaluation]) -> Markup:
        """TIL and every CIL over all tasks so far, after each task."""

        def draw(axes: Axes) -> None:
            x = range(1, len(history) + 1)
            axes.plot(x, [100 * e.til for e in history], "o-", color=INK, markersize=4, lw=1.4, label="TIL, task given")
            for number, name in enumerate(history[-1].by_calibration):
                values = [100 * e.by_calibration[name].cil for e in history]
                colour = SOFT if number else ACCENT
                label = cil_label(name) if len(history[-1].by_calibration) > 1 else "CIL, task not given"
                style: dict[str, Any] = {
                    "color": colour,
                    "linestyle": _DASHES[number % 6],
                    "marker": _MARKERS[(number + 1) % 6],
                }
                axes.plot(x, values, markersize=4, lw=1.2 if number else 1.8, label=label, **style)
            _percent_by_task(axes, len(history))

        return self._draw(draw, 4.3, 3.4, "Accuracy over all tasks so far, after each task")

    def runs(self, histories: Mapping[str, Sequence[Evaluation]]) -> Markup:
        """The CIL of several runs, after each task."""

        def draw(axes: Axes) -> None:
            for number, (name, history) in enumerate(histories.items()):
                style: dict[str, Any] = {"color": SERIES[number % 6], "linestyle": _DASHES[number % 6]}
                values = [100 * evaluation.preferred.cil for evaluation in history]
                axes.plot(
                    range(1, len(history) + 1),
                    values,
                    marker=_MARKERS[number % 6],
                    markersize=4,
                    lw=1.6,
                    label=name,
                    **style,
                )
            _percent_by_task(axes, max(map(len, histories.values())))

        return self._draw(draw, 5.0, 3.0 + 0.2 * len(histories), "CIL of every run over all tasks so far")

    def histogram(
        self, groups: Mapping[str, Tensor], label: str, line: float | None = None, wide: bool = False
    ) -> Markup:
        """Score distributions: the first group filled with colour, the second grey, others as lines."""

        def draw(axes: Axes) -> None:
            edges = _edges(list(groups.values()))
            for number, (name, values) in enumerate(groups.items()):
                inside = values.double().clamp(float(edges[0]), float(edges[-1]))
                heights = torch.histogram(inside, edges).hist / len(values)
                if number < 2:
                    colour, alpha = (ACCENT, 0.55) if number == 0 else (SOFT, 0.45)
                    axes.stairs(heights, edges, fill=True, color=colour, alpha=alpha, label=name, lw=0)
                else:
                    axes.stairs(heights, edges, color=INK, ls=_DASHES[(number - 2) % 6], lw=1.2, label=name)
            if line is not None:
                axes.axvline(line, color=INK, lw=1, ls=(0, (3, 2)), label="rejected to the left")
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.margins(x=0.01)
            if wide:
                axes.set_xlabel("largest calibrated score")
                _legend_below(axes)

        return self._draw(draw, *((4.3, 2.7) if wide else (2.1, 1.15)), label)

    def capacity(self, tasks: Sequence[TaskResult]) -> Markup:
        """Units in use by layer, in the order of the tasks that opened them: the earlier, the fainter."""
        groups = list(tasks[-1].capacity)

        def draw(axes: Axes) -> None:
            before = dict.fromkeys(groups, 0.0)
            axes.barh(groups, 100, color=LINE, alpha=0.35, height=0.62)
            for number, used in enumerate(used_shares(tasks)):
                opened = [100 * max(0.0, used[group] - before[group]) for group in groups]
                left = [100 * before[group] for group in groups]
                shade = 0.3 + 0.7 * (number + 1) / len(tasks)
                axes.barh(groups, opened, left=left, color=ACCENT, alpha=shade, height=0.62, lw=0)
                before = used
            axes.invert_yaxis()
            axes.set(xlim=(0, 100), xlabel="% of the layer's units")
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)

        return self._draw(draw, 4.3, 0.75 + 0.3 * len(groups), "Share of each layer's units in use, by task")

    def beside_paper(self, systems: Mapping[str, Number], ours: Mapping[str, float], title: str) -> Markup:
        """The paper's systems and our runs on one line each, best on top."""
        rows = [(name, value.mean, value.std or 0.0, False) for name, value in systems.items()]
        rows += [(name, value, 0.0, True) for name, value in ours.items()]
        rows.sort(key=lambda row: row[1])

        def draw(axes: Axes) -> None:
            for y, (_, mean, std, is_ours) in enumerate(rows):
                axes.plot([0, mean], [y, y], color=ACCENT if is_ours else LINE, lw=1.6 if is_ours else 0.8)
                axes.errorbar(mean, y, xerr=std, color=SOFT, lw=1)
                axes.plot(
                    mean, y, "D" if is_ours else "o", color=ACCENT if is_ours else SOFT, markersize=5 if is_ours else 4
                )
                axes.annotate(
                    f"{mean:.1f}", (mean + std, y), (7, 0), textcoords="offset points", va="center", fontsize=8
                )
            axes.set_yticks(range(len(rows)), [row[0] for row in rows])
            for text, row in zip(axes.get_yticklabels(), rows, strict=True):
                text.set_color(ACCENT if row[3] else SOFT)
            axes.set(xlim=(0, 110), xlabel="CIL (%)", xticks=range(0, 101, 20), ylim=(-0.6, len(rows) - 0.4))
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)

        return self._draw(draw, 4.6, 0.7 + 0.2 * len(rows), title)

    def _draw(self, draw: Drawing, width: float, height: float, label: str) -> Markup:
        with plt.rc_context(_STYLE):
            figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
            figure.patch.set_visible(False)
            axes.patch.set_visible(False)
            draw(axes)
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            plt.close(figure)
        return _inline(file.getvalue(), label, next(self._numbers))


if TYPE_CHECKING:
    from collections.abc import Callable

    Drawing = Callable[[Axes], None]


def _percent_by_task(axes: Axes, n_tasks: int) -> None:
    step = 1 + n_tasks // 12
    axes.set(xlabel="tasks learned", ylabel="accuracy (%)", xticks=range(1, n_tasks + 1, step))
    axes.set_ylim(min(axes.get_ylim()[0], 50), 102)
    axes.grid(axis="y")
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    axes.figure.legend(loc="outside lower left", ncols=2, handlelength=2.6, columnspacing=1.2)


def _edges(groups: Sequence[Tensor], bins: int = 28) -> Tensor:
    """Equal bins between the 0.1 and 99.9 percentiles; values outside count in the outer bins."""
    values = torch.cat([group.double() for group in groups]).sort().values
    low, high = (float(values[round(share * (len(values) - 1))]) for share in (0.001, 0.999))
    return torch.linspace(low, high if high > low else low + 1.0, bins + 1, dtype=torch.float64)


def _inline(svg: str, label: str, number: int) -> Markup:
    """The SVG for inlining: no prolog, metadata or fixed size, only ids in use, and the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = re.sub(
        r"^<svg[^>]*>", f'<svg {box[0]} role="img" aria-label="{escape(label)}">'.replace("\\", r"\\"), svg, count=1
    )
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="c{number}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>c{number}-", svg).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    return Markup(svg)
