"""A real server of the explorer in a thread of the tests' own process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from glassformer.explorer.backend import Backend
from glassformer.explorer.server import HOST, listen, make_server

PATIENCE = 300.0
"""Seconds after which a server that does not begin or end is taken to hang."""


@dataclass
class Served:
    """A server that can be stopped and started again at the same address.

    Args:
        explorer: Who answers.
        port: Where; 0 is any free one, at which it stays.
        at_once: Whether it ends without waiting for those who are connected.
    """

    backend: Backend
    port: int = 0
    at_once: bool = False
    _running: tuple[uvicorn.Server, threading.Thread] | None = None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def start(self) -> None:
        listener = listen(self.port)
        self.port = listener.getsockname()[1]
        server = make_server(self.backend, listener)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        self._running = server, thread
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive(), "the server ended at once"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._running is None:
            return
        server, thread = self._running
        self._running = None
        server.should_exit = True
        server.force_exit = self.at_once
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"


@contextmanager
def serving(backend: Backend) -> Iterator[int]:
    """The port at which an explorer is served as long as the context lasts."""
    served = Served(backend)
    served.start()
    try:
        yield served.port
    finally:
        served.stop()
