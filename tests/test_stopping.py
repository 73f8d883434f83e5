"""The first stop signal sets a flag, the second raises immediately."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from clom.stopping import Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_only_the_second_signal_raises_immediately(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.raise_if_requested()  # no signal yet
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(Stopped) as stopped:
            stop.raise_if_requested()
        assert stopped.value.number == number
        with pytest.raises(Stopped):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_it_is_a_keyboard_interrupt() -> None:
    assert issubclass(Stopped, KeyboardInterrupt)


def test_it_works_without_signals_in_other_threads() -> None:
    requested: list[bool] = []

    def work() -> None:
        with StopRequest() as stop:
            requested.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [False]
