"""The server answers as the explorer does, says why where it does not, and stays quick while others
make it compute.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from glassformer.explorer import PAGE
from glassformer.explorer.answers import attention
from glassformer.explorer.api import abandoned
from glassformer.explorer.backend import CALLS, Backend
from glassformer.explorer.guards import Guard, hosts_of
from glassformer.explorer.messages import Message
from glassformer.explorer.server import HOST, OTHERS_AT_ONCE, create_api, listen, make_server
from refusals import refused
from serving import serving

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("models", {}),
    ("run", {"model": "decoder", "text": "1 2 3 4 5 6"}),
    ("run", {"model": "lookup", "text": "4", "source": ["1", "2"], "order": [1, 0]}),
    ("head", {"model": "unique"}),
    ("proof", {"model": "histogram"}),
    ("attempt", {"model": "histogram", "program": "tokens", "text": "abca"}),
    ("scramble", {"model": "lookup", "text": "4 2", "source": ["1", "2", "3"]}),
    ("next", {"model": "decoder", "text": "1 2 3", "temperature": 0.5, "top_k": 3}),
    ("find", {"model": "decoder", "text": "4 2"}),
    ("steps", {"model": "decoder", "text": "1 2 3", "steps": 4, "seed": 2}),
    ("page", {"state": {"model": "decoder", "view": "attention", "text": "1 2 3"}}),
    ("detect", {"model": "decoder"}),
    (
        "whatif",
        {
            "ask": {"model": "decoder", "text": "1 2 3"},
            "removed": [{"part": "self", "layer": 1, "head": 0}],
        },
    ),
    *(
        (name, {"ask": {"model": "decoder", "text": "1 2 3"}})
        for name in ("sweep", "lens", "contributions")
    ),
    ("ffn", {"ask": {"model": "decoder", "text": "1 2 3"}, "layer": 1}),
    ("patches", {"ask": {"model": "decoder", "text": "1 2 3"}, "second": "1 4 3"}),
]
OF_A_RUN: list[tuple[str, dict[str, Any]]] = [
    ("weights", {"part": "self", "layer": 1, "head": 0}),
    ("rows", {"part": "self", "query": 3}),
    ("measures", {"part": "self"}),
    ("experts", {}),
]


@pytest.fixture
def client(small_backend: Backend) -> Iterator[TestClient]:
    app = Guard(create_api(small_backend), hosts_of(8017))
    with TestClient(app, base_url="http://127.0.0.1:8017") as opened:
        yield opened


def begun_post(port: int, name: str, asked: Any) -> HTTPConnection:
    connection = HTTPConnection(HOST, port, timeout=300)
    connection.request(
        "POST", f"/api/{name}", json.dumps(asked), {"Content-Type": "application/json"}
    )
    return connection


def post(port: int, name: str, asked: Any) -> tuple[int, bytes]:
    connection = begun_post(port, name, asked)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def all_asked(client: TestClient) -> list[tuple[str, dict[str, Any]]]:
    run = client.post("/api/run", json=ASKED[1][1]).json()["run"]
    weights = client.post("/api/head", json={"model": "unique"}).json()["weights"]
    check = ("check", {"model": "unique", "text": "ABA", "weights": weights})
    counted = client.post("/api/run", json={"model": "histogram", "text": "abac"}).json()["run"]
    program = ("program", {"run": counted})
    # A sweep goes on with each call, until it is done.
    sweep = dict(ASKED)["sweep"]
    while (found := client.post("/api/sweep", json=sweep).json())["done"] < found["total"]:
        sweep = {**sweep, "done": found["done"]}
    return [*ASKED, check, program, *((name, {"run": run, **asked}) for name, asked in OF_A_RUN)]


def test_every_call_is_answered_as_the_explorer_answers_it(
    client: TestClient, small_backend: Backend
) -> None:
    asked = all_asked(client)
    assert {name for name, _ in asked} == set(CALLS)
    for name, request in asked:
        response = client.post(f"/api/{name}", json=request)
        answer = small_backend.answer(name, CALLS[name].asked.model_validate(request))
        assert response.status_code == 200, response.text
        assert isinstance(answer, CALLS[name].answered)
        assert response.headers["cache-control"] == "no-store"
        if isinstance(answer, bytes):
            assert response.headers["content-type"] == "application/octet-stream"
            assert response.content == answer
        elif isinstance(answer, str):
            assert response.headers["content-type"] == "text/html; charset=utf-8"
            assert response.headers["content-disposition"].startswith("attachment")
            assert response.text == answer
        else:
            assert response.headers["content-type"] == "application/json"
            assert type(answer).model_validate_json(response.content) == answer


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/run", {"model": "nobody", "text": "1"}, 404, "nobody"),
        ("/api/nothing", {}, 404, "POST /api/nothing"),
        ("/explorer.js", {}, 405, "POST /explorer.js"),
        ("/api/run", {"model": "decoder", "text": "x"}, 422, "'x'"),
        ("/api/run", {"model": "decoder"}, 400, "text"),
    ],
)
def test_a_refusal_says_why(
    path: str, body: Any, status: int, words: str, client: TestClient
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"got", "expected", "fix"}
    assert words in response.json()["got"]


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X" * 200]
)
def test_calls_are_made_with_post(method: str, client: TestClient) -> None:
    response = client.request(method, "/api/run")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_fault_of_ours_is_told_without_its_inside(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(call: str, request: Message) -> Message:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(small_backend, "answer", fails)
    app = Guard(create_api(small_backend), hosts_of(8017))
    client = TestClient(app, base_url="http://127.0.0.1:8017", raise_server_exceptions=False)
    response = client.post("/api/models", json={})
    assert response.status_code == 500
    assert set(response.json()) == {"got", "expected", "fix"}
    assert "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_page_and_all_that_it_loads_is_there(client: TestClient) -> None:
    index = client.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert index.content == (PAGE / "index.html").read_bytes()
    # The policy lets no script or style run that stands in the page itself.
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", index.text) == []
    loaded = re.findall(r'(?:src|href)="([^"]+)"', index.text)
    assert "explorer.css" in loaded
    for name in [*loaded, "explorer.js"]:
        response = client.get(f"/{name}")
        assert response.status_code == 200
        assert response.content == (PAGE / name).read_bytes()
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    assert client.get("/explorer.js").headers["content-type"].startswith("text/javascript")


def test_a_file_that_is_known_is_not_sent_again(client: TestClient) -> None:
    for path in ("/", "/favicon.ico", *(f"/{file.name}" for file in PAGE.iterdir())):
        first = client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_there_are_no_websockets(client: TestClient) -> None:
    for path in ("/", "/api/run"):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
            pass


class Slow:
    """Answers that wait until they are let go, but for the catalogue."""

    def __init__(self, backend: Backend) -> None:
        self.begin = backend.answer
        self.backend = backend
        self.may_end = threading.Event()
        self.running = 0
        self.most = 0
        self.done = 0
        self.lock = threading.Lock()

    def answer(self, call: str, request: Message) -> Message | bytes | str:
        if call != "models":
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            assert self.may_end.wait(300)
            with self.lock:
                self.running -= 1
                self.done += 1
        return self.begin(call, request)


@pytest.fixture
def slow(loaded_models: Any, monkeypatch: pytest.MonkeyPatch) -> Slow:
    found = Slow(Backend(loaded_models))
    monkeypatch.setattr(found.backend, "answer", found.answer)
    return found


def test_what_computes_leaves_room_for_what_looks_up(slow: Slow) -> None:
    with serving(slow.backend) as port, ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(post, port, "run", {"model": "decoder", "text": str(n)}) for n in range(6)
        ]
        while slow.running < OTHERS_AT_ONCE:
            threading.Event().wait(0.01)
        assert post(port, "models", {})[0] == 200
        slow.may_end.set()
        assert [each.result()[0] for each in waiting] == [200] * 6
    assert slow.most == OTHERS_AT_ONCE


def test_what_is_not_waited_for_any_more_is_not_computed(slow: Slow) -> None:
    with serving(slow.backend) as port, ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(post, port, "run", {"model": "decoder", "text": str(n)})
            for n in range(OTHERS_AT_ONCE)
        ]
        while slow.running < OTHERS_AT_ONCE:
            threading.Event().wait(0.01)
        left = [begun_post(port, "run", {"model": "decoder", "text": "9"}) for _ in range(5)]
        assert post(port, "models", {})[0] == 200
        for connection in left:
            connection.close()
        assert post(port, "models", {})[0] == 200
        slow.may_end.set()
        assert [each.result()[0] for each in waiting] == [200] * OTHERS_AT_ONCE
        assert post(port, "run", {"model": "decoder", "text": "1"})[0] == 200
    assert slow.done == OTHERS_AT_ONCE + 1


@pytest.mark.parametrize("call", ["measures", "sweep", "steps"])
def test_abandoned_answers_end_at_their_next_part(
    call: str, loaded_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend(loaded_models)
    parts: list[bool] = []
    begun = threading.Event()
    ended = threading.Event()

    def part(own: Any, *given: Any, **named: Any) -> Any:
        parts.append(True)
        begun.set()
        while not abandoned.get()():  # until the server has seen that the caller is gone
            assert not ended.wait(0.01)
        return own(*given, **named)

    def answered(call: str, request: Message) -> Message | bytes | str:
        try:
            return begin(call, request)
        finally:
            ended.set()

    begin = backend.answer
    with serving(backend) as port:
        ask = {"model": "decoder", "text": "1 2 3"}
        run = json.loads(post(port, "run", ask)[1])["run"]
        monkeypatch.setattr(backend, "answer", answered)
        monkeypatch.setattr(attention, "_pass", partial(part, attention._pass))
        block = backend.model("decoder").model.layers[0]
        monkeypatch.setattr(block, "forward", partial(part, block.forward))
        body = {
            "measures": {"run": run, "part": "self"},
            "sweep": {"ask": ask},
            "steps": {**ask, "steps": 3},
        }[call]
        connection = begun_post(port, call, body)
        assert begun.wait(300)
        connection.close()
        assert ended.wait(300)
        assert len(parts) == 1
        monkeypatch.undo()
        assert post(port, call, body)[0] == 200


def test_a_taken_port_gives_way_to_the_next(small_backend: Backend) -> None:
    first = listen(0)
    assert first.proto == socket.IPPROTO_TCP  # otherwise asyncio leaves Nagle's algorithm on
    taken = first.getsockname()[1]
    second = listen(taken)
    assert second.getsockname()[0] == HOST
    assert taken < second.getsockname()[1] <= taken + 20
    assert (
        f"127.0.0.1:{second.getsockname()[1]}"
        in make_server(small_backend, second).config.app.hosts
    )
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("port", "numbers", "said"),
    [
        (8017, [98], "port 8017, which like the 19 after it is in use"),
        (65535, [98], "port 65535, which is in use"),
        (
            1020,
            [13, 98],
            "port 1020, which like the 19 after it is in use or reserved by the system",
        ),
        (0, [98], "port 0, which is in use"),
    ],
)
def test_no_free_port_is_told(
    port: int, numbers: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = list(numbers)

    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(numbers.pop(0) if len(numbers) > 1 else numbers[0], "no")

    monkeypatch.setattr(socket, "socket", Taken)
    with refused(fix="--port 0") as caught:
        listen(port)
    assert caught.value.got == said


_ENDS_WHILE_IT_COMPUTES = """
import http.client, os, signal, threading, time
from glassformer.explorer.api import abandoned
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.server import listen, serve
from glassformer.explorer.backend import Backend

explorer, listener = Backend(bundled()), listen(0)

def slow(call, request):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    while not abandoned.get()():  # the server's end stops what computes
        time.sleep(0.01)
    return explorer.catalogue()

def ask():
    connection = http.client.HTTPConnection(*listener.getsockname())
    connection.request("POST", "/api/models", "{}", {"Content-Type": "application/json"})
    response = connection.getresponse()
    print(response.status, response.read().decode())

explorer.answer = slow
asking = threading.Thread(target=ask)
asking.start()
serve(explorer, listener, "", browser=False)
asking.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal")
def test_ctrl_c_while_something_computes_is_quiet() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ENDS_WHILE_IT_COMPUTES], capture_output=True, text=True, timeout=600
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith('503 {"got":"a server that is ending"')
    assert ran.returncode == 0
