"""Limits of processor time, with one result on a fast, a slow and a busy machine.

Time by the clock passes while other programs run and while a laptop sleeps. The processor time of a
thread does not, but it is longer on a slower processor. Therefore all limits are in seconds of a
reference machine. A machine that takes longer for a fixed piece of work gets proportionally more.
"""

import signal
import sys
import threading
import time
from types import FrameType, TracebackType

REFERENCE = 0.0012
"""Seconds of the fixed work on the reference machine, a Xeon of 2.5 GHz with Python 3.11."""
WAITING = 30
"""A block that computes nothing ends after this many times its limit by the clock."""
_TICK = 0.25


def _fixed_work() -> int:
    total = 0
    for number in range(20_000):
        total += number * number % 7
    return total


def slowness() -> float:
    """Return how much longer the fixed work takes than on the reference machine; at least 1."""
    longest = REFERENCE
    for _ in range(3):
        start = time.thread_time()
        _fixed_work()
        longest = max(longest, time.thread_time() - start)
    return longest / REFERENCE


def allowed(seconds: float) -> float:
    """Return the processor seconds of this machine for ``seconds`` of the reference machine."""
    return seconds * slowness()


class Budget:
    """Processor time of the current thread: ``seconds`` of the reference machine, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self._limit = seconds
        self._start = time.thread_time()

    def is_over(self) -> bool:
        """Return whether the thread has used the time up.

        The machine's speed is measured only if that decides.
        """
        used = time.thread_time() - self._start
        if used > self._limit:
            self._limit = max(self._limit, allowed(self.seconds))
        return used > self._limit


class TooLong(BaseException):
    """The end of a block that exceeds its limit; not an Exception, which the block might catch."""


class ProcessorLimit:
    """Raise :class:`TooLong` in blocks that use too much processor time.

    The limit is ``seconds`` of the reference machine for all blocks together. The main thread may
    enter it any number of times; only its own time counts. Imports are neither counted nor
    interrupted. A block that waits, for a lock for example, uses no processor: it ends after
    ``WAITING`` times the limit by the clock, without the time of a stopped process or a sleeping
    laptop.

    Signals interrupt the block. So there is no limit on Windows, or in threads other than the main
    thread.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = self._limit = seconds
        self._tick = min(_TICK, seconds / 4)
        self._used = 0.0
        self._ticks = 0
        self._checks = False
        self.exceeded = False

    def __enter__(self) -> "ProcessorLimit":
        self._watches = (
            hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
        )
        if self._watches:
            self._block: FrameType | None = sys._getframe(1)
            self._entered = time.monotonic()
            self._since = time.thread_time()
            self._handler = signal.signal(signal.SIGALRM, self._check)
            # While a process is stopped at most one tick is due, so ticks measure the time in which
            # it runs. They go on after the limit, in case the block catches the error.
            self._timer = signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._watches:
            return
        try:
            self._used += time.thread_time() - self._since
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            self._block = None
            left, interval = self._timer
            if left:  # a timer of the caller
                left -= time.monotonic() - self._entered
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)
        if self.exceeded and kind is None:  # the block has caught the error
            raise TooLong

    def _check(self, _: int, frame: FrameType | None) -> None:
        ended = frame is not None and frame.f_code is ProcessorLimit.__exit__.__code__
        if ended or self._checks:
            return
        self._checks = True
        try:
            self._count(frame)
        finally:
            self._checks = False

    def _count(self, frame: FrameType | None) -> None:
        """Add the time since the last tick, and end the block if it is over its limit."""
        now = time.thread_time()
        imports = self._imports(frame)
        if not imports:
            self._used += now - self._since
            self._ticks += 1
        self._since = now
        if self._used > self._limit:
            self._limit = max(self._limit, allowed(self.seconds))
            self._since = time.thread_time()
        waited = self._ticks * self._tick > WAITING * self._limit
        if (self._used > self._limit or waited) and not imports:
            self.exceeded = True
            raise TooLong

    def _imports(self, frame: FrameType | None) -> bool:
        """Return whether the block is importing a module."""
        while frame is not None and frame is not self._block:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False
