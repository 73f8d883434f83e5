"""What MkDocs calls while it builds the site: adds generated pages, adapts links, and converts formulas."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from clom.experiments.ledger import Row, read
from clom.methods.registry import BUILT_IN
from website.commands import commands_page
from website.formulas import with_mathml
from website.links import RENAMED, place_on_site, with_site_links
from website.systems import index_page, system_page

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in ("CHANGELOG.md", "CONTRIBUTING.md", *_results()):
        place = place_on_site(path)
        if place is not None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "systems/index.md", content=index_page()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    folder, _, name = place.rpartition("/")
    if folder == "systems" and name.removesuffix(".md") in BUILT_IN:
        markdown = system_page(name.removesuffix(".md"), markdown, _ledger())
    return with_site_links(markdown, _source(place), place)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_mathml(html)


def _results() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "results").glob("*.*"))]


def _source(place: str) -> str:
    """The file of the repository that is at `place` on the site."""
    renamed = {on_site: path for path, on_site in RENAMED.items() if path != "README.md"}
    return renamed.get(place) or (place if place.startswith("results/") else f"docs/{place}")


@cache
def _ledger() -> list[Row]:
    return read(ROOT / "results" / "ledger.jsonl")
