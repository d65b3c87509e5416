"""Hundreds of requests that no page of ours would make: the server refuses each, and serves on."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from glassformer.explorer.backend import Backend
from glassformer.explorer.guards import MOST_BYTES
from glassformer.explorer.messages import Ask
from glassformer.explorer.server import HOST

CLOSED = 0
"""In place of a status: the connection was ended without an answer."""
MALFORMED = {400, CLOSED}

Request = Callable[[int], bytes]


def head_of(port: int, first: str = "POST /api/models HTTP/1.1", **headers: str) -> bytes:
    given = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value != "-"]
    return "\r\n".join([first, *lines, "", ""]).encode("latin-1")


def with_body(port: int, body: bytes, path: str = "/api/models", **headers: str) -> bytes:
    length = {"Content_Length": str(len(body)), **headers}
    return head_of(port, f"POST {path} HTTP/1.1", **length) + body


def answer(port: int, request: bytes, *, end: bool = False) -> int:
    """The status of the answer to ``request``, sent as it stands. ``end``: nothing more is sent,
    and that is said.
    """
    with socket.create_connection((HOST, port), timeout=300) as connection:
        try:
            connection.sendall(request)
            if end:
                connection.shutdown(socket.SHUT_WR)
            line = connection.recv(64)
        except TimeoutError:
            raise
        except OSError:  # reset, or gone before what was left to say
            return CLOSED
    return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else CLOSED


def serves(port: int) -> bool:
    return answer(port, with_body(port, b"{}")) == 200


HOSTS = [
    "-", "", "evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "localhost.evil.example",
    "127.0.0.1.evil.example", "evil.example:{port}", "127.0.0.1:{port}:80", "127.0.0.1:{port}@evil.example",
    "evil.example#127.0.0.1:{port}", "0.0.0.0:{port}", "[::]:{port}", "127.1:{port}", "2130706433:{port}",
    "0x7f.1:{port}", "127.0.0.1:{port}, evil.example", "127.0.0.1:0{port}", "localhost.:{port}", "\xff\xfe", "a" * 5000,
    "127.0.0.1\t:{port}", "http://127.0.0.1:{port}",
]  # fmt: skip
ORIGINS = [
    "null", "http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.1:1", "", "*",
    "file://", "http://localhost:{port}", "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}/",
    "http://[::1]:{port}", "chrome-extension://abcdef", "http://evil.example:{port}",
    "http://127.0.0.1:{port} http://evil.example", "\xff",
]  # fmt: skip
KINDS = [
    "-", "", "text/plain", "text/html", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "*/*",
    "application/json; charset=utf-16", "application/json-patch+json", "text/plain; application/json", "json", "\xff",
    "application/jsonp",
]  # fmt: skip
PATHS = [
    "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/../../server.py",
    "/page/../server.py", "/explorer.js/../../server.py", "//etc/passwd", "/etc/passwd", "/explorer.js%00", "/%00",
    "/%ff%fe", "/explorer.js/", "/..\\..\\windows\\win.ini", "/shipped/", "/api", "/api/", "/api/run/../models2",
    "/index.html.bak", "/.git/config", "/index.htm", "/messages.py", "/page/index.html", "/api/run/", "/docs", "/redoc",
    "/openapi.json", "/api/" + "x" * 4000, "/?a=" + "x" * 4000, "/%", "/%zz", "/;/explorer.js",
]  # fmt: skip
JSON: list[bytes] = [
    b"", b" ", b"nul", b"null", b"true", b"1", b'""', b"[]", b"[{}]", b"{", b"}", b"{}}", b"{} {}", b"{'model': 1}",
    b"{,}", b'{"a":1}', b'{"__proto__": {}}', b"{}\x00", b"\x00", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"\xff", b"\xc3",
    b"/**/{}", "{}".encode("utf-16"), "{}".encode("utf-32"), b"[" * 100_000, b'{"a":' * 100_000,
    b"[" * 500_000 + b"]" * 500_000, b"NaN", b"Infinity", b"9" * 100_000, b"1e999999999", b'"' + b"a" * 500_000,
    b"\x1f\x8b\x08\x00", b"<xml/>", b"a=b&c=d", b'{"a":"' + b"\\" * 99_999, b'{"\\ud800":1}',
    b'{"' + b"k" * 500_000 + b'":1}', b"-", b"+1", b"0x10",
]  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 1.5, "1", [], {}, [[]], 10**400, -(10**30), 1e308, float("nan"), float("inf"), -float("inf"),
    "\x00", "\ud800", "../../etc/passwd", "decoder\x00", "a" * 200_000, "\u202e\U0001f600", "$" * 80, " ", "%00",
    ["a"] * 5000,
]  # fmt: skip
ABOUT: dict[str, Any] = {"ask": {"model": "decoder", "text": "1 2"}, "place": 0, "target": 0}
EDITS: dict[str, Any] = {
    "removed": {"part": "self", "layer": 0, "head": 0},
    "forbidden": {"part": "self", "layer": 0, "head": 0, "query": 1, "key": 0},
    "steer": {"layer": 0, "toward": 1, "away": 0, "strength": 1},
    "swaps": {"layer": 0, "expert": 0, "instead": 1},
}
CHANGES = {name: edit if name == "steer" else [edit] for name, edit in EDITS.items()}
FIELDS: dict[str, dict[str, Any]] = {
    "run": {"model": "lookup", "text": "4", "source": ["1", "2"], "order": [1, 0]},
    "weights": {
        "run": "",
        "part": "self",
        "layer": 0,
        "head": 0,
        "level": 0,
        "row": 0,
        "column": 0,
    },
    "rows": {"run": "", "part": "self", "query": 0, "layer": 0, "head": 0},
    "measures": {"run": "", "part": "self"},
    "experts": {"run": ""},
    "head": {"model": "unique"},
    "check": {"model": "identity", "weights": {"Km": [[1]], "Qm": [[1]], "Vm": [[1]]}, "text": "A"},
    "scramble": {"model": "lookup", "text": "4", "source": ["1", "2"], "order": [1, 0]},
    "next": {"model": "decoder", "text": "1", "temperature": 1, "top_k": 1, "top_p": 1},
    "find": {"model": "decoder", "text": "1"},
    "steps": {
        "model": "decoder",
        "text": "1",
        "temperature": 1,
        "top_k": 1,
        "top_p": 1,
        "seed": 0,
        "steps": 1,
    },
    "whatif": {**ABOUT, "other": 1, **CHANGES},
    "sweep": ABOUT,
    "patches": {**ABOUT, "second": "2 1"},
    "lens": {**ABOUT, "first": 0},
    "contributions": {**ABOUT, "other": 1},
    "ffn": {**ABOUT, "layer": 0},
    "page": {"state": {"model": "decoder"}},
}


def requests() -> Iterator[tuple[str, set[int], Request]]:
    """What each is called, the statuses that it may be answered with, and how it reads."""
    for host in HOSTS:
        yield (
            f"host {host}",
            {421, 400},
            lambda port, host=host: with_body(port, b"{}", Host=host.format(port=port)),
        )
    yield "no host", {421}, lambda port: b"GET / HTTP/1.0\r\n\r\n"
    for origin in ORIGINS:
        yield (
            f"origin {origin}",
            {403},
            lambda port, it=origin: with_body(port, b"{}", Origin=it.format(port=port)),
        )
    for kind in KINDS:
        yield (
            f"kind {kind}",
            {415},
            lambda port, kind=kind: with_body(port, b"{}", Content_Type=kind),
        )
    for path in PATHS:
        wanted = {200} if path.startswith("/?") else {404, 400}
        yield (
            f"path {path[:60]}",
            wanted,
            lambda port, path=path: head_of(port, f"GET {path} HTTP/1.1"),
        )
    for number, body in enumerate(JSON):
        yield (
            f"json {number} {body[:20]!r}",
            {400},
            lambda port, body=body: with_body(port, body, "/api/run"),
        )
    yield (
        "announced too long",
        {413},
        lambda port: head_of(port, Content_Length=str(MOST_BYTES + 1)),
    )
    yield (
        "announced far too long",
        {413, *MALFORMED},
        lambda port: head_of(port, Content_Length="9" * 30),
    )
    yield (
        "chunks too long",
        {413, CLOSED},
        lambda port: head_of(port, Transfer_Encoding="chunked") + CHUNK * 20,
    )
    yield "too long", {413, CLOSED}, lambda port: with_body(port, b" " * 4 * MOST_BYTES)
    for first in FIRST_LINES:
        yield f"line {first[:40]!r}", MALFORMED | {404, 405, 421}, lambda port, first=first: first
    wanted = MALFORMED | {403, 413, 415, 421}
    for lines in HEADERS:
        yield f"header {lines[:40]!r}", wanted, lambda port, lines=lines: _spliced(port, lines)


CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
FIRST_LINES = [
    b"\r\n\r\n\r\n", b"\x00\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"A" * 200_000, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 300, b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n",
]  # fmt: skip
HEADERS = [
    b"Content-Length: -1", b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: 2, 3", b"Content-Length: 0x2",
    b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked", b"X: \x00", b"X: a\r\n folded: b\x00", b": empty", b"no colon", b"X y: z",
    b"X: " + b"a" * 100_000, b"\r\n".join(b"X-%d: y" % n for n in range(5000)), b"Host: evil.example",
    b"Expect: 200-ok\r\nContent-Length: x",
]  # fmt: skip


def _spliced(port: int, lines: bytes) -> bytes:
    return head_of(port)[:-2] + lines + b"\r\n\r\n" + b"{}"


REQUESTS = list(requests())


@pytest.mark.parametrize(
    ("wanted", "request_"), [each[1:] for each in REQUESTS], ids=[each[0] for each in REQUESTS]
)
def test_it_is_refused_and_the_next_one_served(
    wanted: set[int], request_: Request, small_server: int
) -> None:
    # What is no whole request is answered once it is clear that nothing more comes.
    assert answer(small_server, request_(small_server), end=CLOSED in wanted) in wanted
    assert serves(small_server)


@pytest.mark.parametrize("name", FIELDS)
def test_no_value_of_a_field_is_a_fault_of_ours(
    name: str, small_server: int, small_backend: Backend
) -> None:
    fields = dict(FIELDS[name])
    if "run" in fields:
        fields["run"] = small_backend.answer("run", Ask(model="decoder", text="1 2")).run
    for field in fields:
        for odd in [*ODD, 2, 4095]:
            asked = json.dumps({**fields, field: odd})
            status = answer(small_server, with_body(small_server, asked.encode(), f"/api/{name}"))
            assert status in (200, 400, 404, 422), (field, str(odd)[:40])
    assert serves(small_server)


@pytest.mark.parametrize("name", EDITS)
def test_no_value_in_an_edit_is_a_fault_of_ours(name: str, small_server: int) -> None:
    for field in EDITS[name]:
        for odd in [*ODD, 4095, 2**31 - 1]:
            edit = {**EDITS[name], field: odd}
            asked = json.dumps({**ABOUT, name: edit if name == "steer" else [edit]})
            status = answer(small_server, with_body(small_server, asked.encode(), "/api/whatif"))
            assert status in (200, 400, 422), (field, str(odd)[:40])
    everything = {name: edit if name == "steer" else [edit] * 64 for name, edit in EDITS.items()}
    body = json.dumps({**ABOUT, **everything}).encode()
    assert answer(small_server, with_body(small_server, body, "/api/whatif")) == 200


@pytest.mark.parametrize(
    "cells",
    [[], [[]], [[1], [1, 2]], [[1e300] * 3] * 3, [[-1e300, 5e-324, 1e300]] * 3, [[0] * 5] * 900],
)
@pytest.mark.parametrize("matrix", ["Km", "Qm", "Vm", "pos"])
def test_no_matrix_is_a_fault_of_ours(
    cells: list[list[float]], matrix: str, small_server: int
) -> None:
    unit = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    asked = {
        "model": "identity",
        "text": "ABC",
        "weights": {"Km": unit, "Qm": unit, "Vm": unit, matrix: cells},
    }
    body = json.dumps(asked).encode()
    assert answer(small_server, with_body(small_server, body, "/api/check")) in (200, 422)
    assert serves(small_server)


@pytest.mark.parametrize("cut", range(0, 160, 7))
@pytest.mark.parametrize("hard", [False, True])
def test_connections_that_are_cut_harm_nobody(cut: int, hard: bool, small_server: int) -> None:
    whole = with_body(small_server, json.dumps(FIELDS["next"]).encode(), "/api/next")
    with socket.create_connection((HOST, small_server), timeout=300) as connection:
        connection.sendall(whole[: cut or len(whole)])
        if hard:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert serves(small_server)


def test_answers_that_nobody_takes_harm_nobody(small_server: int) -> None:
    connections = [socket.create_connection((HOST, small_server), timeout=300) for _ in range(30)]
    for connection in connections:
        connection.sendall(head_of(small_server, "GET /explorer.js HTTP/1.1") * 20)
    assert serves(small_server)
    for connection in connections:
        connection.close()
    assert serves(small_server)
