"""Rank and world size of this process, from the environment variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from clom.errors import UserError

_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """Process `rank` of `size`; `local_rank` of `local_size` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the process that writes files and prints."""
        return self.rank == 0


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the environment; a single process unless `WORLD_SIZE` is greater than 1."""
    size = _number(environment, "WORLD_SIZE", 1)
    if size <= 1:
        return Launch()
    if missing := [name for name in _NEEDED if not environment.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set. Start the processes with torchrun, or unset "
            "WORLD_SIZE to run a single process."
        )
    rank = _number(environment, "RANK", 0)
    if rank >= size:
        raise UserError(f"RANK is {rank}, but WORLD_SIZE is {size}. Start the processes with torchrun.")
    return Launch(
        rank, size, _number(environment, "LOCAL_RANK", rank), max(1, _number(environment, "LOCAL_WORLD_SIZE", 1))
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise UserError(f"{name} must be an integer, not '{text}'. Start the processes with torchrun, which sets it.")
    return int(text)
