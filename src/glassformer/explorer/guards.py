"""Protection of a local server: checks of every request as pure ASGI middleware, and time limits for connections.

A server on 127.0.0.1 can be reached by every page that is open in the user's browser. Such a page can send requests
to it, and under a host name of its own that it resolves to 127.0.0.1 (DNS rebinding) could read the answers. So a
request is refused unless it names this server as its host, and comes from this server's own page or from no page.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from glassformer.errors import InputError
from glassformer.explorer.calls import refusal_of

MOST_BYTES = 1 << 20
"""Largest body of a request, in bytes."""
BODY_WITHIN = 10.0
"""Seconds within which a body has to arrive."""
LEFT_WITHIN = 1.0
"""Seconds for which the rest of a refused body is read and dropped: a client that still sends misses the answer."""
MOST_AT_ONCE = 64
"""Largest number of requests being answered, and of bodies received in part; a browser has six connections."""
REQUEST_WITHIN = 10.0
"""Seconds within which a connection has to send the head of a request, from its start or from the last answer."""
ANSWER_WITHIN = 300.0
"""Seconds within which a request has to be answered and the answer read by the client."""

_DROPPED = 32

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content Security Policy: the page loads only what this server sends, and cannot be framed."""

SECURITY_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def hosts_of(port: int) -> frozenset[str]:
    """The Host headers by which a browser may address a server at ``port`` of this machine."""
    names = ("127.0.0.1", "localhost")
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(with_port | set(names) if port == 80 else with_port)


class Refused(InputError):
    """A request that is answered with an error status and not passed on."""

    def __init__(self, status: int, got: str, expected: str, fix: str) -> None:
        self.status = status
        super().__init__(got, expected, fix)


def refusal(status: int, error: InputError, headers: dict[str, str] | None = None) -> Response:
    """The response that reports why a request was refused."""
    return Response(refusal_of(error).model_dump_json(), status, headers, "application/json")


class Guard:
    """ASGI middleware that passes on requests of this server's own page, or of a program on this machine.

    Others are refused with a :class:`~glassformer.explorer.messages.Refusal`:

    - 421: a Host that is not in ``hosts``, none, or several;
    - 403: an Origin other than the Host; a request that the browser marks as coming from another site, except for
      opening the page by a link;
    - 413: a body of more than ``most_bytes``, as announced or as received;
    - 408: a body that has not arrived within ``body_within`` seconds;
    - 415: a POST whose body is not ``application/json``, which a form of another page could send, or is compressed;
    - 503: more than ``most_at_once`` requests being answered, or as many bodies received in part. Requests refused for
      another reason are not counted, and a body that arrives at once does not wait for slow ones.

    All answers get :data:`SECURITY_HEADERS` and may not be stored; files of the page may be, if revalidated.

    Args:
        app: The application.
        hosts: The names of this server, with its port, in lower case.
        most_bytes, body_within, left_within, most_at_once: See the constants of these names.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        *,
        most_bytes: int = MOST_BYTES,
        body_within: float = BODY_WITHIN,
        left_within: float = LEFT_WITHIN,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        self.app, self.hosts = app, hosts
        self.most_bytes, self.body_within, self.left_within = most_bytes, body_within, left_within
        self.most_at_once = most_at_once
        self._answered, self._in_part = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request of ``scope``, or pass it on with its whole body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                stored = b"no-store" if scope["path"].startswith("/api/") or message["status"] >= 400 else b"no-cache"
                more = (*SECURITY_HEADERS, (b"cache-control", stored))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        headers = Headers(scope=scope)
        try:
            require_own(scope, self.hosts)
            require_json(scope)
            body = await self._body(headers, receive)
            if self._answered >= self.most_at_once:
                raise Refused(503, f"more than {self.most_at_once} requests at once", "fewer", "Ask again later.")
        except Refused as refused:
            if refused.status not in (408, 503) and "expect" not in headers:
                await self._drop_body(receive)
            # The rest of the body is not read, so the connection cannot serve another request.
            await refusal(refused.status, refused, {"connection": "close"})(scope, receive, send_guarded)
            return
        if body is None:
            return
        self._answered += 1
        try:
            await self.app(scope, _replay(body, receive), send_guarded)
        finally:
            self._answered -= 1

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client has disconnected before its end."""
        announced = ", ".join(headers.getlist("content-length")) if "content-length" in headers else "0"
        if not (announced.isascii() and announced.isdigit()) or int(announced[:20]) > self.most_bytes:
            raise self._too_large(f"{announced[:20]} bytes announced")
        body = bytearray()
        waits = False
        try:
            async with asyncio.timeout(self.body_within):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self.most_bytes:
                        raise self._too_large(f"more than {self.most_bytes:,} bytes")
                    if not message.get("more_body", False):
                        return bytes(body)
                    if not waits:
                        if self._in_part >= self.most_at_once:
                            got = f"more than {self.most_at_once} incomplete bodies"
                            raise Refused(503, got, "fewer", "Ask again later.")
                        self._in_part, waits = self._in_part + 1, True
        except TimeoutError as error:
            got = f"a body of which {len(body):,} bytes arrived in {self.body_within:g} seconds"
            raise Refused(408, got, "the whole body by then", "Send it at once.") from error
        finally:
            self._in_part -= waits

    async def _drop_body(self, receive: Receive) -> None:
        room = _DROPPED * self.most_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(self.left_within):
                while room > 0:
                    message = await receive()
                    room -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _too_large(self, got: str) -> Refused:
        return Refused(413, got, f"a body of at most {self.most_bytes:,} bytes", "Ask for less at a time.")


def require_own(scope: Scope, hosts: frozenset[str]) -> None:
    """Check that a request names this server as its host and comes from its page or from no page.

    Raises:
        Refused: 421 or 403; see :class:`Guard`.
    """
    headers = Headers(scope=scope)
    # Starlette's TrustedHostMiddleware ignores the port and all but the first of several Host headers.
    named = headers.getlist("host")
    host = named[0].lower() if len(named) == 1 else ""
    if host not in hosts:
        got = f"the host {host[:100]!r}" if len(named) == 1 else f"{len(named)} hosts"
        known = ", ".join(sorted(hosts))
        raise Refused(421, got, f"one of {known}", "Open the address that the server printed.")
    foreign = [origin for origin in headers.getlist("origin") if origin.lower() != f"http://{host}"]
    if foreign:
        expected = f"a request from http://{host}"
        raise Refused(
            403, f"a request from {foreign[0][:100]!r}", expected, "Open the page at the server's own address."
        )
    site = headers.get("sec-fetch-site", "none")
    # A link on any page may open ours: that page can read nothing of the answer.
    opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    if site not in ("same-origin", "none") and not (opens and scope["method"] == "GET" and scope["path"] == "/"):
        raise Refused(403, "a request from another site's page", "one from this page", "Open this page itself.")


def require_json(scope: Scope) -> None:
    """Check that the body of a POST is plain JSON in UTF-8, which other pages cannot send without being asked first.

    Raises:
        Refused: 415.
    """
    if scope["method"] != "POST":
        return
    headers = Headers(scope=scope)
    kind = ", ".join(headers.getlist("content-type"))
    # FastAPI's own check takes any application/*+json in any character set.
    media, *parameters = [part.strip().lower() for part in kind.split(";")]
    if media != "application/json" or any(each not in ("charset=utf-8", 'charset="utf-8"') for each in parameters):
        got = f"the Content-Type {kind[:100]!r}"
        raise Refused(415, got, "application/json", "Send the request as JSON in UTF-8.")
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "a compressed body", "a plain one", "Remove Content-Encoding.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """``body`` once, then what the connection reports: that the client has disconnected."""
    waiting: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replayed


class Deadlines:
    """ASGI middleware that, with :meth:`protocol`, aborts connections that keep the server waiting.

    It needs only asyncio's and ASGI's documented interfaces: ``connection_made`` and ``connection_lost`` of a protocol,
    and the ``client`` of a request's scope, which is the peer's address of its connection. While a request is being
    answered whose connection is unknown, no connection is aborted.

    Args:
        app: The application.
        request_within, answer_within: See the constants of these names.
    """

    def __init__(
        self, app: ASGIApp, request_within: float = REQUEST_WITHIN, answer_within: float = ANSWER_WITHIN
    ) -> None:
        self.app, self.request_within, self.answer_within = app, request_within, answer_within
        self._transports: dict[Any, asyncio.WriteTransport] = {}
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._unknown = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the connection of a request ``answer_within`` seconds, then ``request_within`` for the next request."""
        client = tuple(scope.get("client") or ())
        known = client in self._transports
        self._unknown += not known
        self._allow(client, self.answer_within)
        try:
            await self.app(scope, receive, send)
        finally:
            self._unknown -= not known
            unread = known and client in self._transports and self._transports[client].get_write_buffer_size() > 0
            self._allow(client, self.answer_within if unread else self.request_within)

    def protocol(self) -> type[asyncio.Protocol]:
        """uvicorn's protocol, with a timer for each connection."""
        deadlines = self

        class TimedProtocol(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                self.peer = tuple(transport.get_extra_info("peername") or (self,))[:2]
                deadlines._transports[self.peer] = transport
                deadlines._allow(self.peer, deadlines.request_within)

            def connection_lost(self, error: Exception | None) -> None:
                super().connection_lost(error)
                del deadlines._transports[self.peer]
                deadlines._timers.pop(self.peer).cancel()

        return TimedProtocol

    def _allow(self, client: Any, seconds: float) -> None:
        if client in self._transports:
            if client in self._timers:
                self._timers[client].cancel()
            self._timers[client] = asyncio.get_running_loop().call_later(seconds, self._abort, client)

    def _abort(self, client: Any) -> None:
        if self._unknown > 0:
            self._allow(client, self.request_within)
        else:
            self._transports[client].abort()
