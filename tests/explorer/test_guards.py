"""What reaches a local server and what does not, told from outside in every way that a browser or a program asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from glassformer.explorer.guards import SECURITY_HEADERS, Guard, hosts_of

JSON = (b"content-type", b"application/json")
HOST = (b"host", b"127.0.0.1:8017")


class Asked:
    """A request put to a guard before an application that echoes what it is given."""

    def __init__(self, *headers: tuple[bytes, bytes], method: str = "POST", path: str = "/api/x", **changes: Any):
        self.bodies: list[bytes] = []
        self.sent: list[MutableMapping[str, Any]] = []
        self.scope = {"type": "http", "method": method, "path": path, "headers": list(headers), **changes}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["more_body"] is False
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"{}"})

    def put(self, *chunks: bytes | None, within: float = 5.0, most: int = 100) -> int:
        """The status; a chunk of None: nothing comes any more."""
        waiting = list(chunks)

        async def receive() -> MutableMapping[str, Any]:
            if waiting and waiting[0] is None:
                await asyncio.sleep(60)
            if not waiting:
                return {"type": "http.disconnect"}
            body = waiting.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(waiting)}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        guard = Guard(self.app, hosts_of(8017), most_bytes=most, body_within=within, left_within=0.05)
        asyncio.run(guard(self.scope, receive, send))
        return int(self.sent[0].get("status", 0)) if self.sent else 0

    @property
    def refusal(self) -> dict[str, str]:
        said = json.loads(self.sent[1]["body"])
        assert set(said) == {"got", "expected", "fix"}
        return said


def test_our_own_page_gets_through_with_its_body_whole() -> None:
    asked = Asked(HOST, JSON, (b"origin", b"http://127.0.0.1:8017"), (b"sec-fetch-site", b"same-origin"))
    assert asked.put(b"{", b"", b"}") == 200
    assert asked.bodies == [b"{}"]
    assert {name for name, _ in SECURITY_HEADERS} < {name for name, _ in asked.sent[0]["headers"]}
    assert (b"x-own", b"1") in asked.sent[0]["headers"]


@pytest.mark.parametrize("host", [b"localhost:8017", b"LOCALHOST:8017", b"127.0.0.1:8017"])
def test_every_name_of_this_machine_is_ours(host: bytes) -> None:
    assert Asked((b"host", host), JSON).put(b"{}") == 200
    assert Asked((b"host", host), JSON, (b"origin", b"http://" + host)).put(b"{}") == 200


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [b""],
        [b"evil.example"],
        [b"evil.example:8017"],
        [b"127.0.0.1"],
        [b"127.0.0.1:8018"],
        [b"127.0.0.1:8017.evil.example"],
        [b"127.0.0.1:8017@evil.example"],
        [b"localhost.evil.example:8017"],
        [b"0.0.0.0:8017"],
        [b"[::1]:8017"],
        [b"127.0.0.1:8017", b"evil.example"],
        [b"127.0.0.1:8017", b"127.0.0.1:8017"],
        [b"\xff\xfe:8017"],
        [b"127.0.0.1:08017"],
        [b" 127.0.0.1:8017"],
    ],
)
def test_any_other_host_is_refused(hosts: list[bytes]) -> None:
    asked = Asked(*((b"host", host) for host in hosts), JSON)
    assert asked.put(b"{}") == 421
    assert "127.0.0.1:8017" in asked.refusal["expected"]
    assert asked.bodies == []


@pytest.mark.parametrize(
    "origin",
    [
        b"null",
        b"",
        b"http://evil.example",
        b"https://127.0.0.1:8017",
        b"http://127.0.0.1",
        b"http://127.0.0.1:3000",
        b"http://localhost:8017",
        b"http://127.0.0.1:8017.evil.example",
        b"http://127.0.0.1:8017/",
        b"\xff",
    ],
)
def test_any_other_origin_is_refused(origin: bytes) -> None:
    asked = Asked(HOST, JSON, (b"origin", origin))
    assert asked.put(b"{}") == 403
    assert "http://127.0.0.1:8017" in asked.refusal["expected"]
    assert Asked(HOST, JSON, (b"origin", b"http://127.0.0.1:8017"), (b"origin", origin)).put(b"{}") == 403


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"something-new"])
def test_other_sites_open_the_page_and_no_more(site: bytes) -> None:
    marks = [(b"sec-fetch-site", site)]
    opening = [*marks, (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")]
    framing = [*marks, (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"iframe")]
    assert Asked(HOST, *opening, method="GET", path="/").put(b"") == 200
    assert Asked(HOST, *framing, method="GET", path="/").put(b"") == 403
    assert Asked(HOST, *opening, method="GET", path="/explorer.js").put(b"") == 403
    assert Asked(HOST, *opening, JSON, path="/").put(b"{}") == 403
    assert Asked(HOST, *marks, method="GET", path="/").put(b"") == 403
    assert Asked(HOST, *marks, JSON).put(b"{}") == 403
    assert Asked(HOST, (b"sec-fetch-site", b"none"), JSON).put(b"{}") == 200


def test_port_80_needs_no_number() -> None:
    assert "localhost" in hosts_of(80)
    assert "localhost" not in hosts_of(8080)


@pytest.mark.parametrize("length", [b"101", b"9" * 5000, b"-1", b"+5", b"1e1", b"", b"5, 5"])
def test_a_body_announced_too_long_is_never_read(length: bytes) -> None:
    asked = Asked(HOST, JSON, (b"content-length", length))
    assert asked.put(None) == 413
    assert asked.bodies == []


def test_a_body_that_grows_too_long_is_cut_short() -> None:
    asked = Asked(HOST, JSON)
    assert asked.put(*[b"x" * 10] * 11, None) == 413
    assert (b"connection", b"close") in asked.sent[0]["headers"]
    assert Asked(HOST, JSON).put(*[b"x" * 10] * 10) == 200
    assert Asked(HOST, JSON, (b"content-length", b"100")).put(b"x" * 100) == 200


def test_the_rest_of_a_refused_body_is_taken_so_that_its_sender_hears_why() -> None:
    for announced in ([(b"content-length", b"300")], []):
        asked = Asked(HOST, JSON, *announced)
        left = [b"x" * 100] * 3
        read: list[bytes] = []

        async def receive(left: list[bytes] = left, read: list[bytes] = read) -> MutableMapping[str, Any]:
            read.append(left.pop())
            return {"type": "http.request", "body": read[-1], "more_body": bool(left)}

        async def send(message: MutableMapping[str, Any], asked: Asked = asked, left: list[bytes] = left) -> None:
            assert not left
            asked.sent.append(message)

        asyncio.run(Guard(asked.app, hosts_of(8017), most_bytes=100)(asked.scope, receive, send))
        assert asked.sent[0]["status"] == 413
        assert len(read) == 3


def test_a_refused_body_without_end_is_not_taken_for_ever() -> None:
    asked = Asked(HOST, JSON)
    read: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        read.append(10)
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        asked.sent.append(message)

    asyncio.run(Guard(asked.app, hosts_of(8017), most_bytes=100)(asked.scope, receive, send))
    assert asked.sent[0]["status"] == 413
    assert sum(read) <= 34 * 100


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    asked = Asked(HOST, JSON)
    assert asked.put(b"{", None, within=0.05) == 408
    assert "1 bytes" in asked.refusal["got"]


def test_who_leaves_gets_no_answer() -> None:
    asked = Asked(HOST, JSON)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        asked.sent.append(message)

    asyncio.run(Guard(asked.app, hosts_of(8017))(asked.scope, receive, send))
    assert (asked.sent, asked.bodies) == ([], [])


@pytest.mark.parametrize(
    "kinds",
    [
        [],
        [b""],
        [b"text/plain"],
        [b"text/plain; application/json"],
        [b"application/x-www-form-urlencoded"],
        [b"multipart/form-data"],
        [b"application/jsonp"],
        [b"application/json; charset=utf-16"],
        [b"application/json", b"text/plain"],
        [b"\xff"],
    ],
)
def test_only_json_is_taken(kinds: list[bytes]) -> None:
    asked = Asked(HOST, *((b"content-type", kind) for kind in kinds))
    assert asked.put(b"{}") == 415
    assert asked.refusal["expected"] == "application/json"


def test_json_may_name_its_charset_but_not_be_compressed() -> None:
    assert Asked(HOST, (b"content-type", b"Application/JSON; charset=UTF-8")).put(b"{}") == 200
    assert Asked(HOST, JSON, (b"content-encoding", b"gzip")).put(b"{}") == 415
    assert Asked(HOST, method="GET").put(b"") == 200


def test_more_than_so_many_at_once_are_sent_away() -> None:
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(app, hosts_of(8017), most_at_once=3)

    async def ask() -> None:
        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        await guard({"type": "http", "method": "GET", "path": "/", "headers": [HOST]}, receive, send)

    async def ask_often() -> None:
        await asyncio.gather(*(ask() for _ in range(5)))
        await ask()

    asyncio.run(ask_often())
    assert sorted(statuses) == [200, 200, 200, 200, 503, 503]


def _statuses(guard: Guard, *asked: tuple[list[tuple[bytes, bytes]], bytes, bool]) -> list[int]:
    """What each request is answered with, one asked a moment after the other: headers, a body, whether more follows."""
    statuses = [0] * len(asked)

    async def ask(place: int, headers: list[tuple[bytes, bytes]], body: bytes, more: bool) -> None:
        told = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal told
            if told:
                await asyncio.sleep(0.5)
            told = True
            return {"type": "http.request", "body": body, "more_body": more}

        async def send(message: MutableMapping[str, Any]) -> None:
            statuses[place] = message.get("status", statuses[place])

        await asyncio.sleep(0.02 * place)
        await guard({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(place, *each) for place, each in enumerate(asked)))

    asyncio.run(ask_all())
    return statuses


def _guard() -> Guard:
    return Guard(Asked().app, hosts_of(8017), body_within=0.3, left_within=0.3, most_at_once=2)


def test_what_other_pages_send_takes_no_place_of_ours() -> None:
    strange: tuple[list[tuple[bytes, bytes]], bytes, bool]
    strange = [HOST, JSON, (b"origin", b"http://evil.example")], b"x", True
    assert _statuses(_guard(), strange, strange, strange, ([HOST, JSON], b"{}", False)) == [403, 403, 403, 200]


def test_bodies_that_come_slowly_hold_up_no_other() -> None:
    slow: tuple[list[tuple[bytes, bytes]], bytes, bool] = [HOST, JSON], b"{", True
    assert _statuses(_guard(), slow, slow, slow, ([HOST, JSON], b"{}", False)) == [408, 408, 503, 200]


def test_a_fault_of_the_application_frees_its_place() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    guard = Guard(app, hosts_of(8017), most_at_once=1)
    asked = Asked(HOST, JSON)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        pytest.fail("an answer")

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(guard(asked.scope, receive, send))
