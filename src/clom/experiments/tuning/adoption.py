"""Built-in recipes from recorded searches."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from clom.errors import UserError
from clom.experiments.config import RunConfig
from clom.files import read_json, write_atomically

_HEADER = "# Found by `clom tune` and written by `clom recipes` from results/searches. Do not edit.\n"


def recipe_part(search: str, config: RunConfig) -> dict[str, Any]:
    """The section of one experiment in a recipe that a search found: its name and complete settings."""
    # The experiment's own network need not be repeated.
    net = {} if config.common_net is None else {"net": config.net.model_dump(mode="json")}
    return {"search": search, config.budget: {**net, **config.settings}}


def write_recipe(path: Path, parts: dict[str, Any], header: str = "") -> None:
    text = yaml.safe_dump(plain(parts), sort_keys=False, default_flow_style=None, width=120)
    write_atomically(path, (header + text).encode())


def adopt(searches: Path, out: Path | None = None) -> list[Path]:
    """Write the recipes of all searches in a folder, a file per method, which runs use from then on.

    An experiment that was searched itself has that recipe, whatever another search was transferred to it.
    """
    folder = out or Path(str(resources.files("clom.experiments") / "recipes" / "searched"))
    records = [read_json(path) for path in sorted(searches.glob("*.json"))]
    if not records:
        raise UserError(f"There are no searches in {searches}. 'clom tune --record {searches}' adds one.")
    found: dict[str, dict[str, Any]] = {}
    for own in (False, True):  # own searches last, so that they count
        for record in records:
            for experiment, part in record["recipe"].items():
                if (experiment == record["experiment"]) == own:
                    found.setdefault(record["method"], {})[experiment] = part
    for method, parts in found.items():
        write_recipe(folder / f"{method}.yaml", dict(sorted(parts.items())), _HEADER)
    return [folder / f"{method}.yaml" for method in found]


def plain(content: Any) -> Any:
    """As it is read back from a file: lists instead of tuples."""
    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    return [plain(value) for value in content] if isinstance(content, list | tuple) else content
