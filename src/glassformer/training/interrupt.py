"""Turning Ctrl-C into a request that the training loop honours between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """Lets SIGINT (Ctrl-C) and SIGTERM set ``requested`` instead of ending the process, within a ``with`` block.

    A second signal acts as it would have without this, so that a hung update can still be interrupted. Outside the
    main thread, where Python delivers no signals, this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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
