"""Graceful shutdown: Ctrl-C and SIGTERM take effect at the next point where no work is lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """Raised where no work is lost, after the process was asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """By shell convention: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


class StopRequest:
    """A context in which the first signal only sets a flag; a second one raises immediately."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only it may set signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: object, where: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise Stopped(number)
        self.number = number

    @property
    def requested(self) -> bool:
        return self.number is not None

    def raise_if_requested(self) -> None:
        """Raise `Stopped` if a signal has arrived; call it where no work would be lost."""
        if self.number is not None:
            raise Stopped(self.number)
