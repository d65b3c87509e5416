"""What stands between a local server and the rest of the world: pure ASGI, with no knowledge of what is served.

A server on 127.0.0.1 is reached by every page that its user has open. Such a page can send requests to it, and under
a name of its own that it lets point to 127.0.0.1 (DNS rebinding) could read the answers too. So a request is refused
unless it names this server as its host, and comes from this server's own page or from no page at all. Bodies are read
whole before anybody sees them, up to a size and within a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from glassformer.explorer.messages import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 1 << 20
"""The longest body of a request."""
BODY_WITHIN = 10.0
"""Seconds within which a body has to arrive."""
LEFT_WITHIN = 1.0
"""Seconds for which the rest of a refused body is taken, and thrown away: clients that still send miss the answer."""
MOST_AT_ONCE = 64
"""The most requests that are being answered, and the most bodies that have come in part; a browser has six."""

_THROWN_AWAY = 32

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content Security Policy: the page loads nothing but what this server gives, and nobody frames it."""

SECURITY_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def hosts_of(port: int) -> frozenset[str]:
    """What a browser may call a server at ``port`` of this machine."""
    names = ("127.0.0.1", "localhost")
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(with_port | set(names) if port == 80 else with_port)


class Refused(Exception):
    """A request that is not passed on.

    Args:
        status: Of the answer.
        reason: What the answer says.
    """

    def __init__(self, status: int, reason: Refusal) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason.got)


class Guard:
    """ASGI middleware that passes on what comes from this server's own page, or from a program on this machine.

    Refused, as JSON that says why:

    - 421: a Host that is none of ``hosts``, none at all, or several;
    - 403: an Origin that is another than the Host; what a browser marks as coming from another site, but for opening
      the page by a link; a websocket;
    - 413: a body of more than ``most_bytes``, as announced or as it arrives;
    - 408: a body that has not arrived within ``body_within`` seconds;
    - 415: a POST whose body is no ``application/json``, which a form of another page could send, or is compressed;
    - 503: more than ``most_at_once`` requests that are being answered, or as many bodies that have come in part. What
      is refused for another reason takes no place, and a body that comes at once waits behind no slow one.

    All answers get :data:`SECURITY_HEADERS`.

    Args:
        app: Whom to pass requests on to.
        hosts: What this server may be called, with its port, in small letters.
        most_bytes: The longest body.
        body_within: Seconds that a body may take to arrive.
        left_within: Seconds for which the rest of a refused body is taken, so that its sender hears why.
        most_at_once: The most requests that are answered, and the most bodies that are waited for, at a time.
    """

    def __init__(
        self,
        app: App,
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
        """Refuse the request of ``scope``, or pass it on with its body read."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        try:
            require_own(scope, self.hosts)
            body = await self._body(scope, receive)
            if self._answered >= self.most_at_once:
                raise _refused(503, f"more than {self.most_at_once} requests at once", "fewer", "Ask again later.")
        except Refused as refused:
            if refused.status not in (408, 503) and _header(scope, b"expect") is None:
                await self._throw_away(receive)
            await _answer(refused, send_guarded)
            return
        if body is None:
            return
        self._answered += 1
        try:
            await self.app(scope, _replay(body, receive), send_guarded)
        finally:
            self._answered -= 1

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left before its end."""
        _require_json(scope)
        announced = _header(scope, b"content-length")
        if announced is not None and (not announced.isdigit() or int(announced[:20]) > self.most_bytes):
            raise self._too_large(f"{announced[:20].decode('latin-1')} bytes announced")
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
                            got = f"more than {self.most_at_once} bodies that came in part"
                            raise _refused(503, got, "fewer", "Ask again later.")
                        self._in_part, waits = self._in_part + 1, True
        except TimeoutError as error:
            reason = f"a body of which {len(body):,} bytes came in {self.body_within:g} seconds"
            raise _refused(408, reason, "all of it by then", "Send it at once.") from error
        finally:
            self._in_part -= waits

    async def _throw_away(self, receive: Receive) -> None:
        room = _THROWN_AWAY * self.most_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(self.left_within):
                while room > 0:
                    message = await receive()
                    room -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _too_large(self, got: str) -> Refused:
        return _refused(413, got, f"a body of at most {self.most_bytes:,} bytes", "Ask for less at a time.")


def require_own(scope: Scope, hosts: frozenset[str]) -> None:
    """Check that a request names this server as its host and comes from its page or from no page.

    Raises:
        Refused: 421 or 403; see :class:`Guard`.
    """
    named = [value for name, value in scope["headers"] if name == b"host"]
    host = named[0].decode("latin-1").lower() if len(named) == 1 else ""
    if host not in hosts:
        got = f"the host {host[:100]!r}" if len(named) == 1 else f"{len(named)} hosts"
        known = ", ".join(sorted(hosts))
        raise _refused(421, got, f"one of {known}", "Open the address that the server printed.")
    origins = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"origin"]
    if any(origin != f"http://{host}" for origin in origins):
        got = f"a request from {origins[0][:100]!r}"
        raise _refused(403, got, f"one from http://{host}", "Open the page at this server's own address.")
    site = _header(scope, b"sec-fetch-site")
    if site not in (None, b"same-origin", b"none") and not _opens_page(scope):
        raise _refused(403, "a request from another site's page", "one from this page", "Open this page itself.")


def _opens_page(scope: Scope) -> bool:
    """Whether a link on any page opens ours: nothing of the answer can be read by that page."""
    kind = (_header(scope, b"sec-fetch-mode"), _header(scope, b"sec-fetch-dest"))
    return scope["method"] == "GET" and scope["path"] == "/" and kind == (b"navigate", b"document")


def _require_json(scope: Scope) -> None:
    if scope["method"] != "POST":
        return
    kind = _header(scope, b"content-type")
    media, *parameters = [part.strip().lower() for part in (kind or b"").split(b";")]
    if media != b"application/json" or any(each not in (b"charset=utf-8", b'charset="utf-8"') for each in parameters):
        got = "no Content-Type" if kind is None else f"the Content-Type {kind[:100].decode('latin-1')!r}"
        raise _refused(415, got, "application/json", "Send the request as JSON in UTF-8.")
    if _header(scope, b"content-encoding") not in (None, b"identity"):
        raise _refused(415, "a compressed body", "a plain one", "Leave Content-Encoding away.")


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    found: list[bytes] = [value for name, value in scope["headers"] if name == wanted]
    return b", ".join(found) if found else None


def _refused(status: int, got: str, expected: str, fix: str) -> Refused:
    return Refused(status, Refusal(got=got, expected=expected, fix=fix))


async def _answer(refused: Refused, send: Send) -> None:
    body = refused.reason.model_dump_json().encode()
    # What is left of the body is not read, so the connection cannot serve another request.
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """``body`` once, then what the connection says: that the client has left."""
    waiting: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replayed
