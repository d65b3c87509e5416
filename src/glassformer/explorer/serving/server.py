"""The explorer over HTTP, for one machine: the page, and its calls as a small JSON API."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import socket
import threading
import time
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from glassformer.errors import InputError, require
from glassformer.explorer import PAGE
from glassformer.explorer.messages import Message
from glassformer.explorer.messages.calls import CALLS
from glassformer.explorer.messages.requests import NotDescribed, parse, refusal_of
from glassformer.explorer.messages.unknown import UnknownName
from glassformer.explorer.service import Explorer
from glassformer.explorer.serving.guards import BODY_WITHIN, Guard, hosts_of
from glassformer.explorer.serving.openapi import description

HOST = "127.0.0.1"
PORT = 8017
PORTS_TRIED = 20

QUICK = frozenset({"models", "head", "weights", "rows", "experts"})
"""Calls that mostly look something up. The others compute; fewer of them run at once, so that these stay quick."""
QUICK_AT_ONCE, OTHERS_AT_ONCE = 4, 2

REQUEST_WITHIN = 10.0
"""Seconds within which a connection has to say what it wants, from its beginning or from the last answer."""
ANSWER_WITHIN = 300.0
"""Seconds within which a request has to be answered and the answer taken."""

_WHY_NOT = MappingProxyType({errno.EADDRINUSE: "taken", errno.EACCES: "kept by the system for others"})
_MEDIA = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)


def create_app(explorer: Explorer, hosts: frozenset[str], *, body_within: float = BODY_WITHIN) -> Guard:
    """The ASGI application: ``POST /api/NAME`` for every call, ``GET`` for the page and its files.

    Requests are read strictly: JSON in UTF-8, of the described types and within the described bounds. A refused request
    is answered with a :class:`~glassformer.explorer.messages.Refusal`; :mod:`glassformer.explorer.serving.openapi` says
    which status means what. The files are read here, once, so that no request reaches the file system.

    Args:
        explorer: Who answers.
        hosts: What the server may be called; see :func:`~glassformer.explorer.serving.guards.hosts_of`.
        body_within: Seconds within which a request's body has to arrive.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", redirect_slashes=False)
    described = description(explorer.catalogue().version)
    app.openapi = lambda: described  # type: ignore[method-assign]
    quick, others = CapacityLimiter(QUICK_AT_ONCE), CapacityLimiter(OTHERS_AT_ONCE)
    for name in CALLS:
        answers = _caller(explorer, name, quick if name in QUICK else others)
        app.add_api_route(f"/api/{name}", answers, methods=["POST"])
    for path, page_file in page_files().items():
        app.add_api_route(path, _giver(page_file), methods=["GET", "HEAD"])
    app.add_exception_handler(InputError, _not_answerable)
    app.add_exception_handler(HTTPException, _no_such_address)
    app.add_exception_handler(Exception, _our_fault)
    return Guard(app, hosts, body_within=body_within)


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Args:
        content: What is in it.
        media: Its type.
    """

    content: bytes
    media: str

    @property
    def tag(self) -> str:
        """Its ETag: another one for another content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def page_files() -> dict[str, PageFile]:
    """The built page by the paths that it is asked for with."""
    found = {}
    for entry in PAGE.iterdir():
        media = _MEDIA.get(entry.suffix)
        if media is not None and entry.is_file():
            found[f"/{entry.name}"] = PageFile(entry.read_bytes(), media)
    for path, same in (("/", "/index.html"), ("/favicon.ico", "/icon.svg")):
        if same in found:
            found[path] = found[same]
    return found


def refusal(status: int, error: InputError) -> Response:
    """The answer that says why a request was refused."""
    return Response(_json(refusal_of(error)), status, {"cache-control": "no-store"}, "application/json")


def listen(port: int) -> socket.socket:
    """A socket that listens at ``port`` of this machine alone, or at the next free one; 0: at any.

    Raises:
        InputError: No port from 0 to 65535; or this one and the 19 after it are taken, or kept by the system.
        OSError: The system has no place for another socket.
    """
    require(0 <= port < 1 << 16, f"port {port}", "0 to 65535", f"Pass {PORT}, for example, or 0 for any.")
    candidates = range(port, min(port + (PORTS_TRIED if port else 1), 1 << 16))
    faults = set()
    for candidate in candidates:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Elsewhere than on Windows, where it would share the port with others, it spares the wait after a restart.
            if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            fault = _WHY_NOT.get(error.errno or 0)
            if fault is None:
                raise
            faults.add(fault)
        else:
            return listener
    others = f" like the {len(candidates) - 1} after it" if len(candidates) > 1 else ""
    raise InputError(
        f"port {port}, which{others} is {' or '.join(sorted(faults, reverse=True))}",
        "a free one",
        "Pass --port 0 for any.",
    )


def make_server(
    explorer: Explorer,
    listener: socket.socket,
    *,
    request_within: float = REQUEST_WITHIN,
    body_within: float = BODY_WITHIN,
) -> uvicorn.Server:
    """A server for :func:`create_app`; ``run(sockets=[listener])`` runs it until its ``should_exit`` is set.

    Args:
        explorer: Who answers.
        listener: From :func:`listen`.
        request_within: Seconds within which a connection has to say what it wants.
        body_within: Seconds within which a request's body has to arrive.
    """
    patrol = _Patrol(request_within)
    config = uvicorn.Config(
        create_app(explorer, hosts_of(listener.getsockname()[1]), body_within=body_within),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        timeout_notify=1,
        callback_notify=patrol.round,
    )
    server = uvicorn.Server(config)
    patrol.server = server
    return server


def serve(explorer: Explorer, listener: socket.socket, address: str, *, browser: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        explorer: Who answers.
        listener: From :func:`listen`.
        address: What to open.
        browser: Whether to open the address in a browser.
    """
    server = make_server(explorer, listener)
    if browser:
        # The listener keeps the browser's requests until they are taken. A browser in the terminal never returns.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    log = logging.getLogger("uvicorn.error")

    def still_serves(record: logging.LogRecord) -> bool:
        return not server.should_exit

    # What is being computed at Ctrl-C is given up: nothing that anybody has to be told of.
    log.addFilter(still_serves)
    try:
        # It ends by itself at Ctrl-C, then passes the signal on.
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        log.removeFilter(still_serves)


def _caller(explorer: Explorer, name: str, limiter: CapacityLimiter) -> Callable[[Request], Awaitable[Response]]:
    def work(body: bytes) -> Response:
        answer = explorer.answer(name, parse(name, body))
        fresh = {"cache-control": "no-store"}
        if isinstance(answer, bytes):
            return Response(answer, 200, fresh, "application/octet-stream")
        if isinstance(answer, str):
            return Response(
                answer, 200, {**fresh, "content-disposition": 'attachment; filename="explorer.html"'}, "text/html"
            )
        return Response(_json(answer), 200, fresh, "application/json")

    async def answer(request: Request) -> Response:
        body = await request.body()
        try:
            async with limiter:
                # Whoever types leaves behind what was asked before.
                if await request.is_disconnected():
                    return Response(status_code=499)
                return await to_thread.run_sync(work, body)
        except asyncio.CancelledError:
            return refusal(503, InputError("a server that is ending", "one that runs", "Start it again."))

    answer.__name__ = name
    return answer


def _giver(page_file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def give(request: Request) -> Response:
        headers = {"cache-control": "no-cache", "etag": page_file.tag}
        known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
        if page_file.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(page_file.content, 200, headers, page_file.media)

    return give


def _json(message: Message) -> bytes:
    return message.model_dump_json().encode()


async def _not_answerable(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    status = 400 if isinstance(error, NotDescribed) else 404 if isinstance(error, UnknownName) else 422
    return refusal(status, error)


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    got = f"{request.method[:20]} {request.url.path[:100]}"
    known = "a method that this address takes" if error.status_code == 405 else "an address that there is"
    answer = refusal(error.status_code, InputError(got, known, "See /api/openapi.json."))
    answer.headers.update(error.headers or {})
    return answer


async def _our_fault(request: Request, error: Exception) -> Response:
    return refusal(500, InputError("a fault of ours", "an answer", "Look at what the server printed, and report it."))


class _Patrol:
    """Ends connections that hold a place and say nothing: those that send a request byte by byte, or none at all."""

    def __init__(self, request_within: float) -> None:
        self.request_within = request_within
        self.server: uvicorn.Server | None = None
        self._since: dict[Any, tuple[Any, float]] = {}

    async def round(self) -> None:
        """Look at every connection."""
        assert self.server is not None
        now, before, self._since = time.monotonic(), self._since, {}
        for connection in list(self.server.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            waits = cycle is None or cycle.response_complete
            seen, since = before.get(connection, (None, now))
            since = since if seen == (cycle, waits) else now
            self._since[connection] = (cycle, waits), since
            if now - since > (self.request_within if waits else ANSWER_WITHIN):
                connection.transport.abort()
