"""Ending on request without losing anything: Ctrl-C and SIGTERM are obeyed at the next safe moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(KeyboardInterrupt):
    """The process was asked to end and is at a moment at which everything is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As shells count: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


class StopRequest:
    """While this context is open, the first signal to end is only noted; a second one ends the work at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: object, where: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise Stopped(number)
        self.number = number

    @property
    def made(self) -> bool:
        return self.number is not None

    def obey(self) -> None:
        """Called at safe moments: end here if that was asked for."""
        if self.number is not None:
            raise Stopped(self.number)
