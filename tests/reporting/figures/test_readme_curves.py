"""The picture of the README: what it draws, that it can be seen on dark pages, and that it is up to date."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from clom.experiments.ledger import read
from clom.methods.registry import COMPARED_METHODS
from clom.reporting.figures.readme_curves import _looks, described, draw_readme_curves, readme_curves
from clom.reporting.paper.numbers import EXPERIMENTS, Results
from clom.reporting.readme_block import CURVES, digest_curves
from reporting.paper.test_tables import made_up

ROOT = Path(__file__).parents[3]


def picture_of(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        picture.load()
    return picture


def test_the_picture_in_the_repository_is_up_to_date() -> None:
    drawn = picture_of(ROOT / CURVES).info["Description"]
    rows = read(ROOT / "results" / "ledger.jsonl")
    assert drawn == described(digest_curves(rows)), f"{CURVES} is out of date: run 'make results'"


def test_it_draws_means_over_seeds_of_the_systems_asked_for(tmp_path: Path) -> None:
    rows = [made_up(), made_up(seed=1), made_up("hat"), made_up("joint"), made_up(experiment="digits-5t")]
    rows[1].by_task["cil"] = [0.9, 0.7]
    curves = readme_curves(Results(rows, "cpu"), ["mnist-5t", "digits-5t", "cifar10-5t"], ["clom", "joint"])
    path = draw_readme_curves(curves, tmp_path / "curves.png")
    assert json.loads(picture_of(path).info["Description"]) == {
        "mnist-5t": {"clom": [95.0, 80.0], "joint": [100.0, 90.0]},
        "digits-5t": {"clom": [100.0, 90.0]},
    }


def test_it_is_opaque_and_the_same_every_time(tmp_path: Path) -> None:
    rows = [made_up(method, experiment=name) for name in (*EXPERIMENTS, "digits-5t") for method in ("clom", "joint")]
    curves = readme_curves(Results(rows, "cpu"), (*EXPERIMENTS, "digits-5t"), ["clom", "joint"])
    one, two = (draw_readme_curves(curves, tmp_path / name) for name in ("one.png", "two.png"))
    assert one.read_bytes() == two.read_bytes()
    picture = picture_of(one).convert("RGBA")
    assert picture.getpixel((0, 0)) == (255, 255, 255, 255)
    assert picture.getchannel("A").getextrema() == (255, 255)
    assert picture.width > picture.height, "seven experiments and the legend in two rows"


def test_six_systems_look_different() -> None:
    looks = _looks(["clom", "clom+", "bic", "hat", "icarl", "joint"])
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == 6
    assert len({look["color"] for look in looks.values()}) == 6
    assert set(_looks(COMPARED_METHODS)) == set(COMPARED_METHODS)
