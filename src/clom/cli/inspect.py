"""`clom inspect`: the contents of a model file.

Tested by tests/cli/test_photos.py.
"""

from __future__ import annotations

import json as json_format
from typing import Any

from rich.table import Table

from clom.cli.console import Console
from clom.cli.learn import say
from clom.cli.options import Json, ModelFile


def inspect_command(model: ModelFile, *, json: Json = False) -> None:
    """Show a model's tasks, classes, training dates, photo counts and capacity.

    Parameters
    ----------
    model
        The model file.
    json
        Print the full result as JSON instead.
    """
    from clom.storage.describe import describe

    about = describe(model)
    if json:
        print(json_format.dumps(about, indent=2))
        return
    console = Console()
    _, height, width = about["image_shape"]
    say(
        console,
        f"{model}: {about['method']} on {about['backbone']}, images of {width} x {height}, seed {about['seed']}; "
        f"{about['bytes'] / 1e6:.1f} MB, {about['parameters'] / 1e6:.2f} M parameters, "
        f"{about['memory_bytes'] / 1000:.0f} kB of stored samples",
    )
    if not about["tasks"]:
        say(console, f"It has learned nothing yet: clom learn {model} FOLDER")
        return
    console.print(_table(about))
    if about["capacity"]:
        used = ", ".join(f"{group} {share:.0%}" for group, share in about["capacity"].items())
        say(console, f"Units in use: {used}")
    if grown := _grown(about["units_by_task"]):
        say(console, f"Units appended since the first task: {grown}")


def _grown(units_by_task: dict[str, list[int]]) -> str:
    changed = {group: (units[0], units[-1]) for group, units in units_by_task.items() if units[0] != units[-1]}
    return ", ".join(f"{group} {first} to {last}" for group, (first, last) in changed.items())


def _table(about: dict[str, Any]) -> Table:
    table = Table()
    for column in ("task", "learned (UTC)", "classes (training + validation photos)", "accuracy", "fingerprint"):
        table.add_column(column, justify="right" if column == "accuracy" else "left", overflow="fold")
    for task in about["tasks"]:
        if "learned" not in task:
            table.add_row(task["name"], "not recorded", ", ".join(task["classes"]), "", "")
            continue
        counts = zip(task["classes"], task["images"], task["validation_images"], strict=True)
        merged = {name: f", answered as {into}" for name, into in task.get("merged", {}).items()}
        judged_apart = not task.get("cross_fitted")  # else every photo is both learned from and held out once
        classes = "; ".join(
            f"{name} ({images}{f'+{held}' if judged_apart else ''}){merged.get(name, '')}"
            for name, images, held in counts
        )
        learned = task["learned"].replace("T", " ").removesuffix("Z")
        table.add_row(task["name"], learned, classes, f"{task['accuracy']:.1%}", task["fingerprint"][:8])
    return table
