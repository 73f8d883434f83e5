"""Requests to end are noted first and obeyed at a safe moment; the second one is obeyed at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from clom.stopping import Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_and_the_second_does_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.obey()  # nobody asked so far
        os.kill(os.getpid(), number)
        assert stop.made
        with pytest.raises(Stopped) as stopped:
            stop.obey()
        assert stopped.value.number == number
        with pytest.raises(Stopped):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_it_is_what_ctrl_c_is() -> None:
    assert issubclass(Stopped, KeyboardInterrupt)


def test_other_threads_may_use_it_without_signals() -> None:
    made: list[bool] = []

    def work() -> None:
        with StopRequest() as stop:
            made.append(stop.made)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert made == [False]
