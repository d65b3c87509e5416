"""What reaches a local server and what does not, told from outside in every way that a browser or a
program asks.
"""

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

    def __init__(
        self,
        *headers: tuple[bytes, bytes],
        method: str = "POST",
        path: str = "/api/x",
        **changes: Any,
    ):
        self.bodies: list[bytes] = []
        self.sent: list[MutableMapping[str, Any]] = []
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
            **changes,
        }

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["more_body"] is False
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"{}"})

    def put(self, *chunks: bytes) -> int:
        """The status of the answer; 0 if there is none, as after the chunks the client disconnects."""
        self.left = list(chunks)

        async def receive() -> MutableMapping[str, Any]:
            if not self.left:
                return {"type": "http.disconnect"}
            body = self.left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self.left)}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        asyncio.run(Guard(self.app, hosts_of(8017), most_bytes=100)(self.scope, receive, send))
        return int(self.sent[0].get("status", 0)) if self.sent else 0

    @property
    def refusal(self) -> dict[str, str]:
        said = json.loads(self.sent[1]["body"])
        assert set(said) == {"got", "expected", "fix"}
        return said


def test_our_own_page_gets_through_with_its_body_whole() -> None:
    asked = Asked(
        HOST, JSON, (b"origin", b"http://127.0.0.1:8017"), (b"sec-fetch-site", b"same-origin")
    )
    assert asked.put(b"{", b"", b"}") == 200
    assert asked.bodies == [b"{}"]
    assert {name for name, _ in SECURITY_HEADERS} < {name for name, _ in asked.sent[0]["headers"]}
    assert (b"x-own", b"1") in asked.sent[0]["headers"]


def test_every_name_of_this_machine_is_ours() -> None:
    for host in (b"localhost:8017", b"LOCALHOST:8017", b"127.0.0.1:8017"):
        assert Asked((b"host", host), JSON).put(b"{}") == 200
        assert Asked((b"host", host), JSON, (b"origin", b"http://" + host)).put(b"{}") == 200
    assert "localhost" in hosts_of(80)
    assert "localhost" not in hosts_of(8080)


def test_a_host_or_origin_given_twice_is_refused() -> None:
    asked = Asked(HOST, HOST, JSON)
    assert asked.put(b"{}") == 421
    assert "127.0.0.1:8017" in asked.refusal["expected"]
    assert Asked(HOST, (b"host", b"evil.example"), JSON).put(b"{}") == 421
    asked = Asked(HOST, JSON, (b"origin", b"http://127.0.0.1:8017"), (b"origin", b"null"))
    assert asked.put(b"{}") == 403
    assert "http://127.0.0.1:8017" in asked.refusal["expected"]
    assert asked.bodies == []


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


@pytest.mark.parametrize("length", [b"101", b"9" * 5000, b"-1", b"+5", b"1e1", b"", b"5, 5"])
def test_a_body_announced_too_long_is_never_read(length: bytes) -> None:
    asked = Asked(HOST, JSON, (b"content-length", length))
    assert asked.put() == 413
    assert asked.bodies == []


def test_a_body_that_grows_too_long_is_cut_short() -> None:
    asked = Asked(HOST, JSON)
    assert asked.put(*[b"x" * 10] * 11) == 413
    assert (b"connection", b"close") in asked.sent[0]["headers"]
    assert Asked(HOST, JSON).put(*[b"x" * 10] * 10) == 200
    assert Asked(HOST, JSON, (b"content-length", b"100")).put(b"x" * 100) == 200


def test_the_rest_of_a_refused_body_is_taken_so_that_its_sender_hears_why() -> None:
    for announced in ([(b"content-length", b"300")], []):
        asked = Asked(HOST, JSON, *announced)
        assert asked.put(*[b"x" * 100] * 3) == 413
        assert asked.left == []
    # One without end is not taken for ever.
    endless = Asked(HOST, JSON)
    assert endless.put(*[b"x" * 10] * 1000) == 413
    assert 1000 - len(endless.left) <= 340


def test_who_leaves_gets_no_answer() -> None:
    asked = Asked(HOST, JSON)
    assert asked.put() == 0
    assert (asked.sent, asked.bodies) == ([], [])


def test_json_may_name_its_charset_but_not_be_compressed_or_named_twice() -> None:
    asked = Asked(HOST, JSON, (b"content-type", b"text/plain"))
    assert asked.put(b"{}") == 415
    assert asked.refusal["expected"] == "application/json"
    assert Asked(HOST, (b"content-type", b"Application/JSON; charset=UTF-8")).put(b"{}") == 200
    assert Asked(HOST, JSON, (b"content-encoding", b"gzip")).put(b"{}") == 415
    assert Asked(HOST, method="GET").put(b"") == 200


def opened(
    host: bytes, accept: bytes = b"text/html,*/*;q=0.8", method: str = "GET", path: str = "/"
) -> Asked:
    asked = Asked((b"host", host), (b"accept", accept), method=method, path=path)
    assert asked.put(b"") == 421
    return asked


@pytest.mark.parametrize(
    "host", [b"localhost:9000", b"127.0.0.1:9000", b"evil.example", b"evil.example:8017", b"x:<b>"]
)
def test_a_browser_at_another_address_gets_a_page_that_says_what_to_do(host: bytes) -> None:
    asked = opened(host)
    page = asked.sent[1]["body"].decode()
    headers = dict(asked.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/html")
    assert {name for name, _ in SECURITY_HEADERS} < headers.keys()
    assert headers[b"cache-control"] == b"no-store"
    assert 'href="http://127.0.0.1:8017/"' in page
    assert "ssh -L 8017:127.0.0.1:8017" in page
    assert ("glassformer explore --port 9000" in page) == host.endswith(b":9000")
    assert "<b>" not in page
    assert asked.bodies == []


def test_a_program_at_another_address_gets_json() -> None:
    for asked in (opened(b"localhost:9000", b"*/*"), opened(b"evil.example", b"application/json")):
        assert "127.0.0.1:8017" in asked.refusal["expected"]
    asked = Asked((b"host", b"evil.example"), JSON, (b"accept", b"text/html"))
    assert asked.put(b"{}") == 421
    assert "127.0.0.1:8017" in asked.refusal["expected"]
