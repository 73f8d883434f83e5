"""Links of the repository become links of the site."""

from __future__ import annotations

import pytest

from website.links import place_on_site, with_site_links


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/photos.md", "photos.md"),
        ("docs/systems/clom.md", "systems/clom.md"),
        ("results/README.md", "results/index.md"),
        ("results/cifar10.md", "results/cifar10.md"),
        ("results/many-tasks.svg", "results/many-tasks.svg"),
        ("README.md", "index.md"),
        ("CHANGELOG.md", "changelog.md"),
        ("results/ledger.jsonl", None),
        ("tests/test_api.py", None),
    ],
)
def test_places(path: str, place: str | None) -> None:
    assert place_on_site(path) == place


@pytest.mark.parametrize(
    ("text", "source", "place", "shown"),
    [
        ("[a](predictors.md)", "docs/photos.md", "photos.md", "[a](predictors.md)"),
        ("[a](../results/README.md#x)", "docs/photos.md", "photos.md", "[a](results/index.md#x)"),
        ("[a](../docs/protocol.md)", "results/README.md", "results/index.md", "[a](../protocol.md)"),
        ("[a](docs/photos.md)", "CONTRIBUTING.md", "contributing.md", "[a](photos.md)"),
        ("![a](many-tasks.svg)", "results/many-tasks.md", "results/many-tasks.md", "![a](many-tasks.svg)"),
        ("[a](../how-it-works.md)", "docs/systems/hat.md", "systems/hat.md", "[a](../how-it-works.md)"),
        ("[a](#there), [b](https://arxiv.org)", "docs/a.md", "a.md", "[a](#there), [b](https://arxiv.org)"),
        ("[examples/photos.py](../examples/photos.py)", "docs/a.md", "a.md", "`examples/photos.py`"),
        ("[ledger.jsonl](ledger.jsonl)", "results/README.md", "results/index.md", "`results/ledger.jsonl`"),
        ("[the test](../tests/test_api.py)", "docs/a.md", "a.md", "the test (`tests/test_api.py`)"),
    ],
)
def test_links(text: str, source: str, place: str, shown: str) -> None:
    assert with_site_links(text, source, place) == shown


def test_code_stays_as_it_is() -> None:
    text = "```python\nrow[0](../tests)\n```\n[a](../tests/a.py)\n"
    assert with_site_links(text, "docs/a.md", "a.md") == "```python\nrow[0](../tests)\n```\na (`tests/a.py`)\n"
