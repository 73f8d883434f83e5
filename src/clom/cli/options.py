"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from clom.cli import checks

Device = Annotated[
    str,
    Parameter(
        name="--device",
        help="auto (a GPU if available), cpu, cuda, cuda:0, cuda:1, ... or mps.",
        validator=checks.is_device,
    ),
]
Precision = Annotated[
    str,
    Parameter(
        name="--precision",
        help="Training precision: auto (bfloat16 where it is faster), float32, bfloat16 or float16.",
        validator=checks.is_precision,
    ),
]
Compile = Annotated[
    bool,
    Parameter(
        name="--compile",
        help="Train the network with torch.compile; needs a C++ compiler, and Triton on a GPU. Results may differ in "
        "rounding.",
    ),
]
Links = Annotated[
    bool,
    Parameter(
        name="--links", negative="--no-links", help="Read links in a folder that lead to files outside of it, as usual."
    ),
]
Allowance = Annotated[str, Parameter(name="--allowance")]
Track = Annotated[
    tuple[Literal["tensorboard", "wandb", "mlflow"], ...],
    Parameter(
        name="--track",
        negative=(),
        help="Also write curves to tensorboard, wandb (offline unless WANDB_MODE=online) or mlflow (repeatable).",
    ),
]
Assignments = Annotated[tuple[str, ...], Parameter(name="--set", negative=(), validator=checks.is_assignment)]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the full result as JSON instead.")]

# Paths that must exist. The mistakes are reported before anything is loaded.
DataFolder = Annotated[
    Path,
    Parameter(
        name="--data",
        help="Folder with the data sets; by default CLOM_DATA or the download cache.",
        validator=checks.is_folder,
    ),
]
SettingsFile = Annotated[Path, Parameter(validator=checks.is_file)]
ModelFile = Annotated[Path, Parameter(validator=checks.is_model)]
ClassFolder = Annotated[Path, Parameter(validator=checks.is_class_folder)]
RunFolder = Annotated[Path, Parameter(validator=checks.is_run)]
