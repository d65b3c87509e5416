from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from glassformer.training.stepper import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_handlers_come_back(number: int) -> None:
    before = signal.signal(number, signal.default_int_handler)  # where the tests run under nohup, it is ignored
    try:
        with StopRequest() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """Python's own handler of Ctrl-C; where the tests run in the background, the signal is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
def test_the_second_signal_acts_as_usual() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
