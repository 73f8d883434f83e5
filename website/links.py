"""Links between files of the repository, as links between pages of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import PurePosixPath

RENAMED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "results/README.md": "results/index.md",
}
"""Pages whose place on the site is not their place in docs/ or results/."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)")


def place_on_site(path: str) -> str | None:
    """Where a file of the repository is on the site; None if it is not there."""
    if path in RENAMED:
        return RENAMED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_page = path.startswith("results/") and PurePosixPath(path).suffix in (".md", ".png", ".svg")
    return path if is_page else None


def with_site_links(text: str, source: str, place: str) -> str:
    """The Markdown of the file `source`, with links as needed at `place` on the site.

    Links to files that are not on the site, such as tests, become their names.
    """
    lines, in_code = [], False
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            in_code = not in_code
        lines.append(line if in_code else _LINK.sub(lambda link: _on_site(link, source, place), line))
    return "".join(lines)


def _on_site(link: re.Match[str], source: str, place: str) -> str:
    image, text, target = link["image"], link["text"], link["target"]
    if re.match(r"[a-z]+:|#", target):  # an address, or an anchor of the same page
        return link[0]
    path, hash_sign, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    found = place_on_site(path)
    if found is None:
        return f"`{path}`" if text.strip("`") in (path, posixpath.basename(path)) else f"{text} (`{path}`)"
    return f"{image}[{text}]({posixpath.relpath(found, posixpath.dirname(place))}{hash_sign}{anchor})"
