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
"""Largest body of a request, in bytes."""
# A refused body is read for a while, since a client that still sends would miss the answer.
_DROPPED = 32
"""Largest part of a refused body that is read, in bodies of the largest size."""
_DROPPED_WITHIN = 1.0
"""Seconds for which a refused body is read."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
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
    """Return the Host headers by which a browser may address a local server at ``port``."""
    names = {"127.0.0.1", "localhost"}
    hosts = {f"{name}:{port}" for name in names}
    if port == 80:
        hosts |= names
    return frozenset(hosts)


class Refused(InputError):
    """Request that is answered with an error status and not passed on."""

    def __init__(self, status: int, got: str, expected: str, fix: str) -> None:
        self.status = status
        super().__init__(got, expected, fix)


def refusal(status: int, error: InputError, headers: dict[str, str] | None = None) -> Response:
    """Return the response that reports why a request was refused."""
    return Response(refusal_of(error).model_dump_json(), status, headers, "application/json")


class Guard:
    """ASGI middleware that passes on requests of this server's own page or of a local program.

    Other requests are refused with a :class:`~glassformer.explorer.messages.Refusal`:

    - 421: a Host that is not in ``hosts``, none, or several. A browser gets a page that says what
      to do.
    - 403: an Origin other than the Host, or a request that the browser marks as coming from another
      site. Opening the page by a link is allowed.
    - 413: a body of more than ``most_bytes``, as announced or as received.
    - 415: a POST whose body is compressed, or is not ``application/json``, as a form of another
      page could send it.

    All answers get :data:`SECURITY_HEADERS` and may not be stored. The page's files may be stored
    if they are revalidated.
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
                is_page_file = not scope["path"].startswith("/api/") and message["status"] < 400
                cache_control = b"no-cache" if is_page_file else b"no-store"
                message["headers"] = [
                    *message.get("headers", ()),
                    *SECURITY_HEADERS,
                    (b"cache-control", cache_control),
                ]
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
            reads_html = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
            if refused.status == 421 and reads_html:
                page = _other_address(headers.get("host", ""), self.hosts)
                response = HTMLResponse(page, refused.status, close)
            await response(scope, receive, send_guarded)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send_guarded)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the whole body; None if the client has disconnected before its end."""
        announced = "0"
        if "content-length" in headers:
            announced = ", ".join(headers.getlist("content-length"))
        is_number = announced.isascii() and announced.isdigit()
        if not is_number or int(announced[:20]) > self.most_bytes:
            raise self._too_large(f"{announced[:20]} bytes announced")
        body = bytearray()
        is_more = True
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
            if len(body) > self.most_bytes:
                raise self._too_large(f"more than {self.most_bytes:,} bytes")
        return bytes(body)

    async def _drop_body(self, receive: Receive) -> None:
        remaining = _DROPPED * self.most_bytes
        is_more = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_DROPPED_WITHIN):
                while is_more and remaining > 0:
                    message = await receive()
                    remaining -= len(message.get("body", b""))
                    is_more = message.get("more_body", False)

    def _too_large(self, got: str) -> Refused:
        expected = f"a body of at most {self.most_bytes:,} bytes"
        return Refused(413, got, expected, fix="Ask for less at a time.")


def _other_address(requested_host: str, hosts: frozenset[str]) -> str:
    """Return a page that names the server's address and says how to forward its port."""
    address = min(hosts, key=lambda host: (host.partition(":")[0] != "127.0.0.1", host))
    port = address.partition(":")[2] or "80"
    requested_name, _, requested_port = requested_host.rpartition(":")
    advice = (
        "<p>If you forward a port of your machine to this one, forward the same number, and open "
        "the address above:</p>"
        f"<pre>ssh -L {port}:127.0.0.1:{port} NAME-OF-THIS-MACHINE</pre>"
    )
    if (
        requested_name in ("localhost", "127.0.0.1")
        and requested_port.isdecimal()
        and len(requested_port) <= 5
    ):
        advice += (
            "<p>Or start it with the number that you opened:</p>"
            f"<pre>glassformer explore --port {requested_port}</pre>"
        )
    return (
        '<!doctype html>\n<html lang="en">\n'
        '<head><meta charset="utf-8"><title>glassformer: another address</title></head>\n'
        f'<body>\n<h1>This page is at <a href="http://{address}/">http://{address}/</a></h1>\n'
        f"<p>It was asked for as <code>{html.escape(requested_host[:100])}</code>, and answers "
        "under no other name: otherwise any web page could read it.</p>\n"
        f"{advice}\n</body>\n</html>\n"
    )


def require_own(scope: Scope, hosts: frozenset[str]) -> None:
    """Check that a request names this server as its host, and comes from its page or no page."""
    headers = Headers(scope=scope)
    # Starlette's TrustedHostMiddleware ignores the port and all but the first of several Host
    # headers.
    named_hosts = headers.getlist("host")
    host = named_hosts[0].lower() if len(named_hosts) == 1 else ""
    if host not in hosts:
        is_single = len(named_hosts) == 1
        known = ", ".join(sorted(hosts))
        raise Refused(
            421,
            got=f"the host {host[:100]!r}" if is_single else f"{len(named_hosts)} hosts",
            expected=f"one of {known}",
            fix="Open the address that the server printed.",
        )
    foreign = [origin for origin in headers.getlist("origin") if origin.lower() != f"http://{host}"]
    if foreign:
        raise Refused(
            403,
            got=f"a request from {foreign[0][:100]!r}",
            expected=f"a request from http://{host}",
            fix="Open the page at the server's own address.",
        )
    site = headers.get("sec-fetch-site", "none")
    # A link on any page may open ours: that page can read nothing of the answer.
    opens_page = (
        headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and scope["method"] == "GET"
        and scope["path"] == "/"
    )
    if site not in ("same-origin", "none") and not opens_page:
        raise Refused(
            403,
            got="a request from another site's page",
            expected="one from this page",
            fix="Open this page itself.",
        )


def require_json(scope: Scope) -> None:
    """Check that the body of a POST is plain JSON in UTF-8.

    Browsers let other pages send such a body only after asking the server, which refuses.
    """
    if scope["method"] != "POST":
        return
    headers = Headers(scope=scope)
    content_type = ", ".join(headers.getlist("content-type"))
    # FastAPI's own check takes any application/*+json in any character set.
    media, *parameters = [part.strip().lower() for part in content_type.split(";")]
    is_utf8 = set(parameters) <= {"charset=utf-8", 'charset="utf-8"'}
    if media != "application/json" or not is_utf8:
        raise Refused(
            415,
            got=f"the Content-Type {content_type[:100]!r}",
            expected="application/json",
            fix="Send the request as JSON in UTF-8.",
        )
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "a compressed body", "a plain one", "Remove Content-Encoding.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives ``body`` once, then what the connection reports."""
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def replayed() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return replayed
