"""The figure of the README: CIL while the tasks are learned, of the systems that its table shows."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from clom.files import write_atomically
from clom.methods.registry import method_label
from clom.reporting.figures.across_runs import Curve, classes_learned, curves_of
from clom.reporting.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, STYLE, panels
from clom.reporting.paper.numbers import REFERENCES, Results, experiment_label

_ACROSS = 4
_RIVALS = (RED, GREEN, ORANGE, PURPLE)
_MARKERS = ("s", "D", "^", "v")
Curves = Mapping[str, Mapping[str, Curve]]
"""Experiment -> method -> curve."""


def readme_curves(results: Results, experiments: Sequence[str], methods: Sequence[str]) -> Curves:
    found = {experiment: curves_of(results, experiment, "cil") for experiment in experiments}
    shown = {name: {method: curves[method] for method in methods if method in curves} for name, curves in found.items()}
    return {name: curves for name, curves in shown.items() if curves}


def described(curves: Curves) -> str:
    """The numbers drawn, which the picture carries with it, so that a test can tell whether it is up to date."""
    numbers = {
        experiment: {method: [round(mean, 2) for mean in curve.means] for method, curve in found.items()}
        for experiment, found in curves.items()
    }
    return json.dumps(numbers)


def draw_readme_curves(curves: Curves, path: Path) -> Path:
    """One panel per experiment, on an opaque white ground, which dark pages need."""
    methods = list(dict.fromkeys(method for found in curves.values() for method in found))
    looks = _looks(methods)
    with plt.rc_context(STYLE):
        figure, axes = panels(len(curves) + 1, 2.6, 2.3, _ACROSS)  # the legend has the last one
        for axis, (experiment, found) in zip(axes, curves.items(), strict=False):
            for method, curve in found.items():
                axis.plot(classes_learned(experiment, curve), curve.means, **looks[method])
            axis.set_title(experiment_label(experiment), fontsize=9)
            axis.grid(alpha=0.25)
        for axis in axes[:-1:_ACROSS]:
            axis.set_ylabel("CIL (%)")
        for axis in axes[max(0, len(curves) - _ACROSS) : -1]:
            axis.set_xlabel("classes learned")
        axes[-1].set_axis_off()
        handles = [Line2D([], [], **looks[method], label=method_label(method)) for method in methods]
        axes[-1].legend(handles=handles, loc="center", frameon=False, fontsize=9, handlelength=3)
        content = io.BytesIO()
        about = {"Description": described(curves), "Software": None}
        figure.savefig(content, format="png", dpi=140, facecolor="white", metadata=about)
        plt.close(figure)
    write_atomically(path, content.getvalue())
    return path


def _looks(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """CLOM thick and black, CLOM+ thick and blue, references grey and dotted, rivals in their order."""
    own: dict[str, dict[str, Any]] = {
        "clom": {"color": BLACK, "marker": "o", "linewidth": 2.4},
        "clom+": {"color": BLUE, "marker": "*", "linewidth": 2.4, "markersize": 8},
    }
    rivals = [method for method in methods if method not in own and method not in REFERENCES]
    looks = dict(own)
    for place, method in enumerate(rivals):
        looks[method] = {"color": _RIVALS[place % len(_RIVALS)], "marker": _MARKERS[place % len(_MARKERS)]}
    for method in REFERENCES:
        looks[method] = {"color": GREY, "linestyle": ":", "marker": "x"}
    return {method: {"linewidth": 1.4, "markersize": 4.5, **looks[method]} for method in methods}
