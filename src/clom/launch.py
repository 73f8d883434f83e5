"""What torchrun told this process about the others that were started with it."""

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
    def leads(self) -> bool:
        """Whether this is the process that writes files and talks to people."""
        return self.rank == 0


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Alone unless `WORLD_SIZE` says otherwise; whatever it needs besides is then set by torchrun too."""
    size = _number(environment, "WORLD_SIZE", 1)
    if size <= 1:
        return Launch()
    if missing := [name for name in _NEEDED if not environment.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set. Start the processes with torchrun, or unset "
            "WORLD_SIZE to run alone."
        )
    rank = _number(environment, "RANK", 0)
    if rank >= size:
        raise UserError(f"RANK is {rank}, but WORLD_SIZE is {size}. Start the processes with torchrun.")
    return Launch(
        rank, size, _number(environment, "LOCAL_RANK", rank), max(1, _number(environment, "LOCAL_WORLD_SIZE", 1))
    )


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name) or str(usual)
    if not text.isdecimal():
        raise UserError(f"{name} must be a whole number, it is '{text}'. torchrun sets it.")
    return int(text)
