"""Bad YAML: settings of a run, lists of runs, and values on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from benchmarks.bad.cases import Make, Reader
from benchmarks.bad.damage import NASTY, spoil, spoil_value
from benchmarks.bad.places import in_folder
from clom.experiments.config import parse_overrides, read_settings_file, resolve
from clom.experiments.grid import cells, read_grid
from clom.settings import flatten

EXPERIMENT = "digits-5t"


def laughs(levels: int, first: str, more: str) -> str:
    """A value that names its predecessor nine times, which does the same."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} {more.format(*[f'*a{level - 1}'] * 9)}")
    return "\n".join(lines)


_LISTS, _GROUPS = "[{}, {}, {}, {}, {}, {}, {}, {}, {}]", "{{a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}}}"
_MERGES = "{{<<: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}}"
TEXTS = {
    "empty": "",
    "a word": "hello",
    "a list": "[1, 2]",
    "open": "{a: [1, ",
    "tabs": "\tlearning:\n\t\tplan: 1",
    "zero byte": "a: \0",
    "lists of lists": laughs(12, "[x, x]", _LISTS),
    "groups of groups": laughs(12, "{x: 1}", _GROUPS),
    "groups of groups in data": "data: {sizes: *x}\n" + laughs(12, "{x: 1}", _GROUPS),
    "merged groups": laughs(12, "{x: 1}", _MERGES),
    "laughs as a setting": laughs(12, "[x, x]", _LISTS) + "\nlearning: {plan: {epochs: *a11}}",
    "group in itself": "learning: &x {plan: *x}",
    "list in itself": "data: {sizes: &x [*x]}",
    "deep lists": "a: " + "[" * 5000 + "]" * 5000,
    "deep groups": "a: " + "{a: " * 3000 + "1" + "}" * 3000,
    "deep by indents": "".join(" " * level + "a:\n" for level in range(800)),
    "deep but legal": "a: " + "{a: " * 90 + "1" + "}" * 90,
    "python object": "a: !!python/object/apply:os.mkdir ['executed']",
    "python name": "a: !!python/name:os.system",
    "unknown tag": "a: !thing 1",
    "not a number": "a: !!int hello",
    "not a float": "a: !!float hello",
    "not a truth": "a: !!bool hello",
    "not a date": "a: !!timestamp hello",
    "impossible date": "a: 2001-99-99",
    "impossible time": "a: 2001-01-01 99:99:99",
    "bytes": "data: {set: !!binary ZGlnaXRz}",
    "a set": "data: {sizes: !!set {2, 3}}",
    "pairs": "a: !!pairs [b: 1, b: 2]",
    "a number of 5000 digits": "seed: " + "9" * 5000,
    "a number in base 60": "a: " + ":".join(["59"] * 3000),
    "binary number": "a: 0b" + "1" * 100_000,
    "a float beyond": "learning: {plan: {epochs: 1e999}}",
    "keys that are lists": "? [1, 2]\n: 3",
    "keys that are numbers": "1: 2\nnull: 3\ntrue: 4\n2.5: 6",
    "dotted keys": "data.set.set: 1\n'': 2\n.: 3\n...x: 4",
    "two documents": "a: 1\n---\nb: 2",
    "a million keys": "\n".join(f"k{number}: {number}" for number in range(20_000)),
    "a long line": "a: " + "x" * 3_000_000,
    "megabytes of keys": "\n".join(f"k{number}: {number}" for number in range(300_000)),
    "surrogate": 'a: "\\ud800"',
    "value where a group is": "learning: 3\ndata: 4\nnet: 5",
    "group where a value is": "data: {validation: {a: 1}}",
    "settings of no kind": "settings: {learning: 3}\nexperiment: digits-5t\ndata: 3\nnet: x",
    "network of no kind": "net: {kind: vgg}",
    "network kind a list": "net: {kind: [1]}",
    "network kind a group": "net: {kind: {a: b}}",
    "huge network": "net: {hidden: 1000000000000}",
    "larger network": "net: {channels: [100000, 100000, 100000]}",
    "network beyond numbers": "net: {hidden: 99999999999999999999999999}",
    "huge kernel": "net: {kernels: [9999999999, 1, 1], paddings: [9999999999, 0, 0]}",
    "sizes beyond": "data: {classes_per_task: null, sizes: [99999999999999999999]}",
    "order seed beyond": "data: {order_seed: 99999999999999999999999}",
    "train per class beyond": "data: {train_per_class: 99999999999999999999999}",
    "test per class beyond": "data: {test_per_class: 99999999999999999999999}",
    "validation no number": "data: {validation: .nan}",
    "set of another kind": "data: {set: mnist-from-elsewhere}",
    "set that climbs": "data: {set: ../../../etc/passwd}",
    "a hundred mistakes": "\n".join(f"mistake{number}: " + "x" * 1000 for number in range(100)),
}


@cache
def good_settings() -> dict[str, Any]:
    return resolve(EXPERIMENT, "clom", "smoke").model_dump(mode="json")


def _config_chance(folder: Path, randomness: Random) -> None:
    content: Any = good_settings()
    if randomness.random() < 0.6:
        for _ in range(randomness.choice((1, 2, 3))):
            content = spoil_value(content, randomness)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")
    else:
        text = spoil(yaml.safe_dump(content, sort_keys=False).encode(), randomness)
    (folder / "bad.yaml").write_bytes(text)


def _special(extra: Mapping[str, str] | None = None) -> Mapping[str, Make]:
    texts = {**TEXTS, **(extra or {})}
    return {
        "not text": in_folder("bad.yaml", b"\xff\xfe\x00\x01"),
        "utf-16": in_folder("bad.yaml", "a: 1".encode("utf-16")),
        **{name: in_folder("bad.yaml", text.encode()) for name, text in texts.items()},
    }


def _read_config(folder: Path) -> None:
    """What `clom run --config` does before it learns."""
    config = resolve(EXPERIMENT, "clom", "smoke", 0, flatten(read_settings_file(folder / "bad.yaml", EXPERIMENT)))
    if config.data.set == "digits":
        config.data.stream(None, config.seed)
    config.make_method(config.image_shape())


def _run_command(folder: Path) -> list[str]:
    """A run into a file ends before anything is learned, but after everything is read."""
    (folder / "occupied").write_bytes(b"")
    words = ["run", EXPERIMENT, "--budget", "smoke", "--config", str(folder / "bad.yaml")]
    return [*words, "--out", str(folder / "occupied"), "--threads", "1"]


# --- grids -----------------------------------------------------------------------------------------------------------

_GRID = {
    "blocks": [
        {"experiments": [EXPERIMENT], "methods": ["clom", "hat"], "budget": "smoke", "seeds": [0, 1]},
        {"experiments": [EXPERIMENT], "variants": {"small": {"net.hidden": 8}, "": {}}},
    ]
}
_GRIDS = {
    "blocks of blocks": "blocks: [{blocks: []}]",
    "no blocks": "blocks: []",
    "blocks a text": "blocks: abc",
    "a million seeds": f"experiments: [digits-5t]\nseeds: [{', '.join(map(str, range(30_000)))}]",
    "experiments a text": "experiments: digits-5t",
    "unknown experiment": "experiments: [cifar11]",
    "method with a path": "experiments: [digits-5t]\nmethods: [../../x]",
    "variant that climbs": "experiments: [digits-5t]\nvariants: {../../../../elsewhere: {}}",
    "variant with a zero byte": 'experiments: [digits-5t]\nvariants: {"a\\0b": {}}',
    "variant too long": "experiments: [digits-5t]\nvariants: {" + "x" * 900 + ": {}}",
    "variant no group": "experiments: [digits-5t]\nvariants: {a: 3}",
    "variant keys": "experiments: [digits-5t]\nvariants: {a: {1: 2}}",
    "seed beyond": "experiments: [digits-5t]\nseeds: [999999999999999999999999]",
    "seed no number": "experiments: [digits-5t]\nseeds: [.nan]",
}


def _grid_chance(folder: Path, randomness: Random) -> None:
    if randomness.random() < 0.7:
        content = spoil_value(_GRID, randomness)
        text = yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "surrogatepass")
    else:
        text = spoil(yaml.safe_dump(_GRID).encode(), randomness)
    (folder / "bad.yaml").write_bytes(text)


def _read_grid(folder: Path) -> None:
    for cell in cells(read_grid(folder / "bad.yaml"), folder / "runs"):
        assert cell.state == "open"
        cell.command(None, None)


# --- the command line ------------------------------------------------------------------------------------------------

_PAIRS = ("data.set", "net.hidden", "learning.plan.epochs", "calibration", "attention", "data", "", ".", "a.b.c", "net")


def _pairs_special() -> Mapping[str, Make]:
    return {name: in_folder("pair", f"learning.plan.epochs={text}".encode()) for name, text in TEXTS.items()}


def _pairs_chance(folder: Path, randomness: Random) -> None:
    value = randomness.choice(NASTY)
    text = randomness.choice((str(value), yaml.safe_dump(value, allow_unicode=True), repr(value)))
    pair = f"{randomness.choice(_PAIRS)}{randomness.choice(('=', '=', '=', '', '=='))}{text}"
    (folder / "pair").write_bytes(pair.encode("utf-8", "surrogatepass"))


def _read_pair(folder: Path) -> None:
    pair = (folder / "pair").read_bytes().decode("utf-8", "surrogateescape")
    config = resolve(EXPERIMENT, "clom", "smoke", 0, parse_overrides([pair]))
    config.make_method(config.image_shape())


def readers() -> list[Reader]:
    return [
        Reader("settings (YAML)", _special, _config_chance, _read_config, _run_command),
        Reader(
            "grids (YAML)",
            lambda: _special(_GRIDS),
            _grid_chance,
            _read_grid,
            lambda folder: ["grid", str(folder / "bad.yaml"), "--out", str(folder / "runs"), "--dry-run"],
        ),
        Reader("--set", _pairs_special, _pairs_chance, _read_pair),
    ]
