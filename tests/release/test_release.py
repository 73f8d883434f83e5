"""What a release needs: a changelog, a citation and metadata that agree with the program."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import clom
from clom.storage.model_file import VERSION

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return content


def releases(text: str) -> list[tuple[str, str, str]]:
    """Version, date and text of each section, newest first."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return [(*heading.split(" - "), body) for heading, body in zip(parts[::2], parts[1::2], strict=True)]


def test_the_newest_section_of_the_changelog_is_this_version() -> None:
    version, _, body = releases(CHANGELOG)[0]
    assert version == clom.__version__
    assert f"Model files: version {VERSION[0]}.{VERSION[1]}." in body


def test_the_changelog_is_well_formed() -> None:
    found = releases(CHANGELOG)
    versions = [tuple(int(part) for part in version.split(".")) for version, _, _ in found]
    assert all(len(version) == 3 for version in versions)
    assert versions == sorted(set(versions), reverse=True)
    dates = [when for _, when, _ in found]
    released = [date.fromisoformat(when) for when in dates[dates[0] == "unreleased" :]]
    assert released == sorted(released, reverse=True)
    for _, _, body in found:
        headings = re.findall(r"^### (.+)$", body, re.MULTILINE)
        assert headings
        assert set(headings) <= set(KINDS)
        points = re.findall(r"^- (.+?)(?=\n- |\n\n|\n?\Z)", body, re.MULTILINE | re.DOTALL)
        assert points
        assert all(point.rstrip().endswith(".") for point in points)


def test_commands_in_the_changelog_exist() -> None:
    from clom.cli import COMMANDS

    named = set(re.findall(r"`clom ([a-z-]+)", CHANGELOG))
    assert named
    assert named <= set(COMMANDS)


def test_the_citation_has_this_version_and_the_paper(project: dict[str, Any]) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["type"], citation["license"]) == ("1.2.0", "software", project["license"])
    assert citation["version"] == clom.__version__
    assert citation["authors"] == project["authors"]
    assert citation["preferred-citation"]["url"] == project["urls"]["Paper"]


def test_classifiers_are_the_versions_of_python_that_were_tested(project: dict[str, Any]) -> None:
    start = "Programming Language :: Python :: 3."
    claimed = {name.removeprefix(start) for name in project["classifiers"] if name.startswith(start)}
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    assert claimed == set(re.findall(r"^\| 3\.(\d+) \|", page, re.MULTILINE))
    assert project["requires-python"] == f">=3.{min(map(int, claimed))}"


def test_public_names_are_listed() -> None:
    assert dir(clom) == sorted([*clom.__all__, "__version__"])
    assert (Path(clom.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", ["bug.md", "idea.md"])
def test_templates_of_issues_have_a_name(name: str) -> None:
    _, header, body = (ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8").split("---\n", 2)
    assert set(yaml.safe_load(header)) == {"name", "about", "labels"}
    assert body.strip()
