"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Device = Annotated[
    str, Parameter(name="--device", help="auto (a GPU if available), cpu, cuda, cuda:0, cuda:1, ... or mps.")
]
Precision = Annotated[
    str,
    Parameter(
        name="--precision",
        help="Training precision: auto (bfloat16 where it is faster), float32, bfloat16 or float16.",
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
