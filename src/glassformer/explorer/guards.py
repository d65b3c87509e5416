"""Protection of a local server: checks of every request as pure ASGI middleware.

A server on 127.0.0.1 can be reached by every page that is open in the user's browser. Such a page
can send requests to it, and under a host name of its own that it resolves to 127.0.0.1 (DNS
rebinding) could read the answers. So a request is refused unless it names this server as its host,
and comes from this server's own page or from no page.
"""

import asyncio
import html
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.errors import InputError
from glassformer.explorer.api import refusal_of

MOST_BYTES = 1 << 20
_DROPPED = 32
_DROPPED_WITHIN = 1.0
"""Bodies of the largest size, and seconds, that a refused one is read: a client that still sends
misses the answer.
"""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; "
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
    """ASGI middleware that passes on requests of this server's own page, or of a program on this
    machine.

    Others are refused with a :class:`~glassformer.explorer.messages.Refusal`:

    - 421: a Host that is not in ``hosts``, none, or several; to a browser a page says what to do;
    - 403: an Origin other than the Host; a request that the browser marks as coming from another
      site, except for opening the page by a link;
    - 413: a body of more than ``most_bytes``, as announced or as received;
    - 415: a POST whose body is not ``application/json``, which a form of another page could send,
      or is compressed.

    All answers get :data:`SECURITY_HEADERS` and may not be stored; files of the page may be, if
    revalidated.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str], *, most_bytes: int = MOST_BYTES
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with its whole body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                if scope["path"].startswith("/api/") or message["status"] >= 400:
                    stored = b"no-store"
                else:
                    stored = b"no-cache"
                more = (*SECURITY_HEADERS, (b"cache-control", stored))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        headers = Headers(scope=scope)
        try:
            require_own(scope, self.hosts)
            require_json(scope)
            body = await self._body(headers, receive)
        except Refused as refused:
            if "expect" not in headers:
                await self._drop_body(receive)
            # The rest of the body is not read, so the connection cannot serve another request.
            close = {"connection": "close"}
            response = refusal(refused.status, refused, close)
            if (
                refused.status == 421
                and scope["method"] == "GET"
                and "text/html" in headers.get("accept", "")
            ):
                response = HTMLResponse(
                    _other_address(headers.get("host", ""), self.hosts), refused.status, close
                )
            await response(scope, receive, send_guarded)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send_guarded)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client has disconnected before its end."""
        if "content-length" in headers:
            announced = ", ".join(headers.getlist("content-length"))
        else:
            announced = "0"
        if (
            not (announced.isascii() and announced.isdigit())
            or int(announced[:20]) > self.most_bytes
        ):
            raise self._too_large(f"{announced[:20]} bytes announced")
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.most_bytes:
                raise self._too_large(f"more than {self.most_bytes:,} bytes")
        return bytes(body)

    async def _drop_body(self, receive: Receive) -> None:
        room = _DROPPED * self.most_bytes
        more = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_DROPPED_WITHIN):
                while more and room > 0:
                    message = await receive()
                    room -= len(message.get("body", b""))
                    more = message.get("more_body", False)

    def _too_large(self, got: str) -> Refused:
        return Refused(
            413, got, f"a body of at most {self.most_bytes:,} bytes", "Ask for less at a time."
        )


def _other_address(asked: str, hosts: frozenset[str]) -> str:
    """Return the page that says at which address the server answers, and how a forwarded port
    becomes one.
    """
    own = min(hosts, key=lambda host: (host.partition(":")[0] != "127.0.0.1", host))
    port = own.partition(":")[2] or "80"
    name, _, number = asked.rpartition(":")
    advice = (
        "<p>If you forward a port of your machine to this one, forward the same number, and open "
        "the address above:</p>"
        f"<pre>ssh -L {port}:127.0.0.1:{port} NAME-OF-THIS-MACHINE</pre>"
    )
    if name in ("localhost", "127.0.0.1") and number.isdecimal() and len(number) <= 5:
        advice += f"<p>Or start it with the number that you opened:</p><pre>glassformer explore --port {number}</pre>"
    return (
        '<!doctype html>\n<html lang="en">\n'
        '<head><meta charset="utf-8"><title>glassformer: another address</title></head>\n'
        f'<body>\n<h1>This page is at <a href="http://{own}/">http://{own}/</a></h1>\n'
        f"<p>It was asked for as <code>{html.escape(asked[:100])}</code>, and answers under no "
        "other name: "
        f"otherwise any web page could read it.</p>\n{advice}\n</body>\n</html>\n"
    )


def require_own(scope: Scope, hosts: frozenset[str]) -> None:
    """Check that a request names this server as its host and comes from its page or from no page."""
    headers = Headers(scope=scope)
    # Starlette's TrustedHostMiddleware ignores the port and all but the first of several Host
    # headers.
    named = headers.getlist("host")
    host = named[0].lower() if len(named) == 1 else ""
    if host not in hosts:
        if len(named) == 1:
            got = f"the host {host[:100]!r}"
        else:
            got = f"{len(named)} hosts"
        known = ", ".join(sorted(hosts))
        raise Refused(421, got, f"one of {known}", "Open the address that the server printed.")
    foreign = [origin for origin in headers.getlist("origin") if origin.lower() != f"http://{host}"]
    if foreign:
        expected = f"a request from http://{host}"
        raise Refused(
            403,
            f"a request from {foreign[0][:100]!r}",
            expected,
            "Open the page at the server's own address.",
        )
    site = headers.get("sec-fetch-site", "none")
    # A link on any page may open ours: that page can read nothing of the answer.
    opens = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
        "navigate",
        "document",
    )
    if site not in ("same-origin", "none") and not (
        opens and scope["method"] == "GET" and scope["path"] == "/"
    ):
        raise Refused(
            403,
            "a request from another site's page",
            "one from this page",
            "Open this page itself.",
        )


def require_json(scope: Scope) -> None:
    """Check that the body of a POST is plain JSON in UTF-8, which other pages cannot send without
    being asked first.
    """
    if scope["method"] != "POST":
        return
    headers = Headers(scope=scope)
    kind = ", ".join(headers.getlist("content-type"))
    # FastAPI's own check takes any application/*+json in any character set.
    media, *parameters = [part.strip().lower() for part in kind.split(";")]
    if media != "application/json" or any(
        each not in ("charset=utf-8", 'charset="utf-8"') for each in parameters
    ):
        got = f"the Content-Type {kind[:100]!r}"
        raise Refused(415, got, "application/json", "Send the request as JSON in UTF-8.")
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "a compressed body", "a plain one", "Remove Content-Encoding.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """``body`` once, then what the connection reports: that the client has disconnected."""
    waiting: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def replayed() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replayed
