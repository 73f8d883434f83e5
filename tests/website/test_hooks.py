"""The site's navigation has every page; `make docs` checks the rest with --strict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

import clom
from clom.methods.registry import BUILT_IN
from website import hooks
from website.links import place_on_site

ROOT = Path(__file__).parents[2]
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


def test_the_navigation_has_every_page() -> None:
    written = [
        path.relative_to(ROOT).as_posix() for folder in ("docs", "results") for path in (ROOT / folder).rglob("*.md")
    ]
    written = [path for path in written if not path.startswith(("results/searches/", "results/grids/"))]
    expected = {place_on_site(path) for path in [*written, "CHANGELOG.md", "CONTRIBUTING.md"]}
    pages = pages_of(SITE["nav"])
    assert sorted(pages) == sorted({*(page for page in expected if page), "systems/index.md", "commands.md"})


def test_systems_are_in_the_order_of_the_registry() -> None:
    pages = [page for page in pages_of(SITE["nav"]) if page.startswith("systems/")]
    assert pages == ["systems/index.md", *(f"systems/{name}.md" for name in BUILT_IN)]


def test_nothing_is_loaded_from_other_hosts() -> None:
    assert SITE["theme"]["font"] is False
    addresses = re.findall(r"https?://\S+", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert addresses == []
    assert all((ROOT / "docs" / path).is_file() for path in [*SITE["extra_css"], *SITE["extra"]["polyfills"]])


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: clom\.(\w+)$", text, re.MULTILINE)) == {*clom.__all__, "testing"}


def test_pages_come_from_where_links_lead() -> None:
    for path in ("docs/photos.md", "docs/systems/hat.md", "results/README.md", "results/cifar10.md", "CHANGELOG.md"):
        place = place_on_site(path)
        assert place is not None
        assert hooks._source(place) == path
