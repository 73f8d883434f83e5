"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Device = Annotated[
    str, Parameter(name="--device", help="auto (a GPU if there is one), cpu, cuda, cuda:0, cuda:1, ... or mps.")
]
Precision = Annotated[
    str,
    Parameter(
        name="--precision",
        help="Of the network in training: auto (bfloat16 where it is faster), float32, bfloat16 or float16.",
    ),
]
