"""Turning Ctrl-C and the like into a request that the training loop honours between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """Lets SIGINT (Ctrl-C), SIGTERM and SIGHUP set ``requested`` instead of ending the process in a ``with`` block.

    SIGHUP comes when a terminal closes; where it is ignored, as under nohup, it stays ignored.

    A second signal acts as it would have without this, so that a hung update can still be interrupted. Outside the
    main thread, where Python delivers no signals, this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # which Windows lacks
            ignored = signal.getsignal(hangup) == signal.SIG_IGN  # as nohup has it
            for number in {signal.SIGINT, signal.SIGTERM, signal.SIGTERM if ignored else hangup}:
                self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            # None stands for a handler that was not installed from Python and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._earlier.clear()
