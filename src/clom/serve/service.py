"""The components of the server and their lifetime.

Tested by tests/serve/answers/test_answers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clom import machine
from clom.errors import UserError
from clom.photos.previous import keeps_previous
from clom.serve.answers.engine import Engine
from clom.serve.images.decoder_pool import Decoders
from clom.serve.lessons.runner import LessonRunner
from clom.serve.metrics import Metrics
from clom.serve.security import Access
from clom.serve.traffic.bodies import Bodies
from clom.serve.traffic.limits import Limits
from clom.serve.worker_process import WorkerProcess

log = logging.getLogger("clom.serve")

_SECONDS_BETWEEN_CHECKS = 2.0
_MUCH = 16_000_000  # bytes of uploads, after which memory is given back
LEAST_PICTURES, LEAST_CLASSES, GOOD_PICTURES = 5, 2, 20


@dataclass(eq=False)
class Service:
    """The state behind the routes."""

    path: Path
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None
    window: float = 0.003
    most: int = 32
    niceness: int = 10
    """Niceness of the training process, 0 to 19."""
    metrics: Metrics = field(default_factory=Metrics)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where predictions are computed and lessons are learned."""

    def __post_init__(self) -> None:
        self.engine = Engine(self.path, self.window, self.most, self.metrics.batches.observe, self.threads, self.device)
        self.lessons = LessonRunner(self.engine, self.niceness, read_only=self.access.read_only)
        self.decoders = Decoders()
        self.bodies = Bodies(self.limits)
        self.streams = asyncio.Semaphore(self.limits.streams)
        """Clients that follow a training job."""
        self._inspecting = asyncio.Lock()
        self._inspected: tuple[str, dict[str, Any]] = ("", {})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.engine.start()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await self.lessons.stop()
            await self.engine.stop()
            await self.decoders.stop()

    def about(self) -> dict[str, Any]:
        """The content of `/model`: the model, and the limits and permissions of this server."""
        server = {
            "teaching": self.access.teaching,
            "token_needed": self.access.teaching and self.access.token is not None,
            "read_only": self.access.read_only,
            "least_pictures": LEAST_PICTURES,
            "good_pictures": GOOD_PICTURES,
            "most_pictures": self.limits.teach_pictures,
            "most_at_once": self.limits.ask_pictures,
            "most_bytes_at_once": self.limits.ask_bytes,
            "report": self.report is not None,
            "can_add": self.engine.active.method.offers("extend"),
            "can_undo": keeps_previous(self.path, self.engine.active.version),
        }
        return self.engine.active.about | {"server": server}

    @property
    def report(self) -> Path | None:
        """The report of the run that produced the model, if it is in the same folder."""
        place = self.path.resolve().with_name("report.html")
        return place if place.is_file() else None

    async def inspection(self) -> dict[str, Any]:
        """Fingerprint checks and AUC, computed in a subprocess once per version of the model."""
        async with self._inspecting:
            version = self.engine.active.version
            if self._inspected[0] != version:
                worker, found = WorkerProcess("inspect", self.path, 1, self.niceness), dict[str, Any]()
                async for event in worker.events():
                    found = event
                if found.get("event") != "done":
                    raise UserError(found.get("text", "The model could not be inspected."))
                self._inspected = version, {"checks": found["checks"], "separation": found["separation"]}
            return {"version": version, **self._inspected[1]}

    async def _watch(self) -> None:
        """Reload the model when another process replaces its file, take over what another server left, and give memory
        back after large requests."""
        received = 0
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_CHECKS)
            if not self.lessons.teaching:
                try:
                    await self.engine.refresh()
                    self.lessons.adopt()
                except (UserError, OSError) as problem:
                    log.warning("the model file changed, but it cannot be used: %s", problem)
            if self.bodies.received - received > _MUCH and self.bodies.total < _MUCH:
                received = self.bodies.received
                await asyncio.to_thread(machine.release_memory)
