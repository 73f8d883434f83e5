"""Subprocesses that report events as lines of JSON and end with their parent.

Tested by tests/serve/lessons/test_lessons.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import torch

from clom.plugins import loaded
from clom.serve.images.decoder_pool import child_environment

_LONGEST_LINE = 1 << 24
_SECONDS_TO_END = 5.0


class WorkerProcess:
    """One run of `clom.serve.lessons.worker`."""

    def __init__(
        self,
        purpose: Literal["learn", "inspect"],
        model: Path,
        threads: int,
        niceness: int,
        device: torch.device | None = None,
    ) -> None:
        self._words = [purpose, str(model), str(threads), str(niceness), str(device or "cpu"), *loaded()]
        self._process: Process | None = None

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield its events until it ends."""
        command = [sys.executable, "-m", "clom.serve.lessons.worker", *self._words]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE, env=child_environment()
        )
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                if line.startswith(b"{"):  # skips output of libraries
                    yield json.loads(line)
        finally:
            await self.end()

    async def end(self) -> int:
        """Terminate it if it is still running; returns its exit code."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()  # ends it, unless it hangs
            try:
                return await asyncio.wait_for(process.wait(), _SECONDS_TO_END)
            except TimeoutError:
                process.kill()
        return await process.wait()
