"""Serve the explorer over HTTP to one machine: the page, and its calls as a small JSON API."""

import asyncio
import errno
import logging
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from glassformer.errors import InputError
from glassformer.explorer import PAGE
from glassformer.explorer.api import Abandoned, NotDescribed, UnknownName, abandoned, not_described
from glassformer.explorer.backend import CALLS, Backend, Call
from glassformer.explorer.guards import Guard, hosts_of, refusal
from glassformer.explorer.messages import Refusal

HOST = "127.0.0.1"
PORTS_TRIED = 20

QUICK = frozenset({"models", "head", "weights", "rows", "experts", "find"})
"""Calls that mostly look something up, with a limit of their own so that they stay quick."""
SHORT = frozenset({"run", "next", "steps", "whatif"})
"""Calls of about one forward pass; a limit of their own keeps longer calls from delaying them."""
QUICK_AT_ONCE = 4
OTHERS_AT_ONCE = 2

REFUSALS = MappingProxyType(
    {
        400: "The body is not JSON, or not of the described form.",
        403: "The request comes from another site's page.",
        404: "There is no model or run of this name.",
        405: "Calls are made with POST.",
        413: "The body is too long.",
        415: "The body is not declared as JSON, or is compressed.",
        421: "The request names another host than this server.",
        422: (
            "The request is well formed but cannot be answered: a text that the model cannot read, "
            "for example."
        ),
        503: "The server is ending.",
    }
)
"""Reasons for refusing a request, by status. The answer is a ``Refusal``."""

_NO_MESSAGE: dict[type, dict[str, Any]] = {
    bytes: {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    str: {"text/html": {"schema": {"type": "string"}}},
}
_PORT_ERRORS = MappingProxyType(
    {errno.EADDRINUSE: "in use", errno.EACCES: "reserved by the system"}
)


def create_api(backend: Backend) -> FastAPI:
    """Return the web application.

    It answers ``POST /api/NAME`` for every call, ``GET`` for the page and its files, and
    ``GET /api/openapi.json``.
    """
    app = FastAPI(
        title="The glassformer explorer",
        version=backend.catalogue().version,
        description=(
            "What the page asks its server. Binary answers are float32 numbers, little-endian, "
            "row by row; their shape follows from the request and from the answer of `run`."
        ),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
        separate_input_output_schemas=False,
        exception_handlers={
            RequestValidationError: _not_described,
            InputError: _not_answerable,
            HTTPException: _http_error,
            Exception: _our_fault,
        },
    )
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Refusal, "description": f"{HTTPStatus(status).phrase}. {reason}"}
        for status, reason in REFUSALS.items()
    }
    quick = CapacityLimiter(QUICK_AT_ONCE)
    short = CapacityLimiter(OTHERS_AT_ONCE)
    others = CapacityLimiter(OTHERS_AT_ONCE)
    for name, call in CALLS.items():
        if name in QUICK:
            limiter = quick
        elif name in SHORT:
            limiter = short
        else:
            limiter = others
        content = _NO_MESSAGE.get(call.answered)
        declare = app.post(
            f"/api/{name}",
            operation_id=name,
            summary=call.summary,
            responses=refusals if content is None else {200: {"content": content}, **refusals},
            response_description="The answer.",
            response_model=call.answered if content is None else None,
            response_class=JSONResponse if content is None else Response,
        )
        declare(_endpoint(backend, name, call, limiter))
    # Only the names of the page's own files reach the file system. An installer may have made links
    # of these files.
    files = StaticFiles(directory=PAGE, html=True, follow_symlink=True)
    for path in ("/", *(f"/{entry.name}" for entry in PAGE.iterdir())):
        app.add_route(path, files, include_in_schema=False)  # type: ignore[arg-type]

    async def icon(request: Request) -> Response:
        return await files.get_response("icon.svg", request.scope)

    app.add_route("/favicon.ico", icon, include_in_schema=False)
    return app


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone, at ``port`` or the next free port.

    If ``port`` is 0, the system chooses one.
    """
    if not 0 <= port < 1 << 16:
        raise InputError(
            got=f"port {port}",
            expected="0 to 65535",
            fix="Pass 8017, for example, or 0 for any.",
        )
    tried = PORTS_TRIED if port else 1
    candidates = range(port, min(port + tried, 1 << 16))
    reasons = set()
    for candidate in candidates:
        # asyncio turns Nagle's algorithm, which delays answers by 40 ms, off for sockets that name
        # TCP alone.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # SO_REUSEADDR avoids the wait after a restart; on Windows it would share the port with
            # other programs.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
            listener.bind((HOST, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            reason = _PORT_ERRORS.get(error.errno or 0)
            if reason is None:
                raise
            reasons.add(reason)
        else:
            return listener
    following = ""
    if len(candidates) > 1:
        following = f" like the {len(candidates) - 1} after it"
    raise InputError(
        got=f"port {port}, which{following} is {' or '.join(sorted(reasons))}",
        expected="a free one",
        fix="Pass --port 0 for any.",
    )


def make_server(backend: Backend, listener: socket.socket) -> uvicorn.Server:
    """Return a guarded server of :func:`create_api`.

    ``run(sockets=[listener])`` runs it until its ``should_exit`` is set.
    """
    config = uvicorn.Config(
        Guard(create_api(backend), hosts_of(listener.getsockname()[1])),
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
    )
    return uvicorn.Server(config)


def in_event_loop() -> bool:
    """Check if an event loop runs in this thread, as in a notebook's cell.

    A server then needs a thread of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ServerThread:
    """Server in a thread, which ends with the process or with :meth:`stop`.

    It takes the arguments of :func:`serve`.
    """

    def __init__(
        self, backend: Backend, listener: socket.socket, address: str, *, browser: bool
    ) -> None:
        self._listener = listener
        self._server = make_server(backend, listener)
        if browser:
            _open_browser(address)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the server ends."""
        self._thread.join()

    def stop(self) -> None:
        """End the server and free its port."""
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


def _open_browser(address: str) -> None:
    # The listener queues the browser's requests until the server runs. A thread is needed because
    # a browser in the terminal never returns.
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def serve(backend: Backend, listener: socket.socket, address: str, *, browser: bool) -> None:
    """Serve the page at ``address`` until Ctrl-C. With ``browser``, open it in the browser."""
    if in_event_loop():
        background = ServerThread(backend, listener, address, browser=browser)
        with suppress(KeyboardInterrupt):
            background.wait()
        background.stop()
        return
    server = make_server(backend, listener)
    if browser:
        _open_browser(address)
    log = logging.getLogger("uvicorn.error")

    def still_serves(record: logging.LogRecord) -> bool:
        return not server.should_exit

    # Requests that are cancelled by Ctrl-C are not worth a message.
    log.addFilter(still_serves)
    try:
        # uvicorn stops at Ctrl-C, then raises the signal again.
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    finally:
        log.removeFilter(still_serves)


def _endpoint(
    backend: Backend, name: str, call: Call, limiter: CapacityLimiter
) -> Callable[..., Awaitable[Response]]:
    async def endpoint(request: Request, asked: call.asked) -> Response:
        def work() -> Response:
            answer = backend.answer(name, asked)
            if isinstance(answer, bytes):
                return Response(answer, media_type="application/octet-stream")
            if isinstance(answer, str):
                return HTMLResponse(
                    answer, headers={"content-disposition": 'attachment; filename="explorer.html"'}
                )
            return Response(answer.model_dump_json(), media_type="application/json")

        # A page whose text is edited abandons its earlier requests. A server that ends abandons
        # all requests.
        disconnected = threading.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

        watcher = asyncio.create_task(watch())
        abandoned.set(disconnected.is_set)
        try:
            async with limiter:
                await asyncio.sleep(0)  # for watch() to begin
                if disconnected.is_set():
                    return Response(status_code=499)
                return await to_thread.run_sync(work)
        except Abandoned:
            return Response(status_code=499)
        except asyncio.CancelledError:
            return refusal(
                503, InputError("a server that is ending", "a running one", "Start it again.")
            )
        finally:
            disconnected.set()
            watcher.cancel()

    return endpoint


async def _not_described(request: Request, error: Any) -> Response:
    errors = []
    for entry in error.errors():
        # The first part of a location is "body". In a body that is not JSON, the rest is a place
        # in the text.
        location = () if entry["type"] == "json_invalid" else entry["loc"][1:]
        errors.append({**entry, "loc": location})
    return refusal(400, not_described(request.url.path.removeprefix("/api/"), errors))


async def _not_answerable(request: Request, error: Any) -> Response:
    if isinstance(error, NotDescribed):
        return refusal(400, error)
    if isinstance(error, UnknownName):
        return refusal(404, error)
    return refusal(422, error)


async def _http_error(request: Request, error: Any) -> Response:
    expectations = {400: "a body in JSON", 405: "a method of this address"}
    message = InputError(
        got=f"{request.method[:20]} {request.url.path[:100]}",
        expected=expectations.get(error.status_code, "an address of this API"),
        fix="See /api/openapi.json.",
    )
    return refusal(error.status_code, message, error.headers)


async def _our_fault(request: Request, error: Exception) -> Response:
    return refusal(
        500, InputError("an internal error", "an answer", "Report what the server printed.")
    )
