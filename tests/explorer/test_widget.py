import gc
import hashlib
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="no anywidget: pip install 'glassformer[explore]'")

from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer import widget as widget_module
from glassformer.explorer.backend import Backend
from glassformer.explorer.widget import ExplorerWidget, reply


def ask(call: str, **asked: Any) -> dict[str, Any]:
    return {"kind": "ask", "id": "7", "call": call, "asked": asked}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What widgets send to their pages."""
    messages: list[tuple[Any, Any]] = []

    def send(widget: ExplorerWidget, content: Any, buffers: Any = None) -> None:
        messages.append((content, buffers))

    monkeypatch.setattr(ExplorerWidget, "send", send)
    return messages


def test_an_answer_in_json(small_backend: Backend) -> None:
    asked = m.Ask(model="decoder", text="1 2 3")
    expected = {"id": "7", "answer": small_backend.answer("run", asked).model_dump(mode="json")}
    assert reply(small_backend, ask("run", model="decoder", text="1 2 3")) == (expected, [])


def test_numbers_come_as_a_buffer_and_a_page_as_text(small_backend: Backend) -> None:
    run = small_backend.answer("run", m.Ask(model="decoder", text="1 2 3"))
    asked = {"run": run.run, "part": "self", "layer": 0, "head": 1}
    expected = small_backend.answer("weights", m.AskTile(**asked))
    assert reply(small_backend, ask("weights", **asked)) == ({"id": "7"}, [expected])
    assert reply(small_backend, ask("page", state={"model": "identity"}))[0]["answer"].startswith(
        "<!doctype html>"
    )


@pytest.mark.parametrize(
    ("message", "got"),
    [
        (ask("run", model="nobody", text=""), "the model 'nobody'"),
        (ask("run", model="decoder", text="99"), "'99' at place 1"),
        (ask("steal"), "the call 'steal'"),
        (
            ask("next", model="decoder", text="1", temperature="1"),
            "temperature: Input should be a valid number",
        ),
        (ask("run", model="decoder", text=b"1"), "text: Input should be a valid string"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    small_backend: Backend, message: dict[str, Any], got: str
) -> None:
    answered = reply(small_backend, message)
    content, buffers = answered
    assert content["id"] == "7"
    assert content["refusal"]["got"].startswith(got)
    assert buffers == []
    m.Refusal(**content["refusal"])


@pytest.mark.parametrize(
    "message", [None, "ask", {}, {"kind": "told"}, {**ask("run"), "id": 3}, {**ask("run"), "x": 1}]
)
def test_other_messages_are_no_questions(small_backend: Backend, message: object) -> None:
    assert reply(small_backend, message) is None


def test_a_widget_answers_its_page(small_backend: Backend, sent: list[tuple[Any, Any]]) -> None:
    widget = ExplorerWidget(small_backend, {"model": "decoder"})
    widget._handle_custom_msg(ask("models"), [])
    widget._handle_custom_msg({"kind": "noise"}, [])
    assert sent == [({"id": "7", "answer": small_backend.catalogue().model_dump(mode="json")}, [])]


def test_a_question_in_another_thread_is_answered_in_the_main_one(
    small_backend: Backend, sent: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # JupyterLab brings it there while a cell trains the model, whose mode the answer would change.
    widget = ExplorerWidget(small_backend, {"model": "decoder"})
    later = []
    loop = SimpleNamespace(add_callback=lambda *call: later.append(call))
    monkeypatch.setattr(
        ExplorerWidget, "comm", SimpleNamespace(kernel=SimpleNamespace(io_loop=loop))
    )
    with ThreadPoolExecutor() as threads:
        threads.submit(widget._handle_custom_msg, ask("models"), []).result()
    assert sent == []
    ((answer, *given),) = later
    answer(*given)
    assert sent[0][0]["answer"]["models"]


def test_a_fault_of_ours_is_told_as_one(
    small_backend: Backend, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(small_backend, "answer", fail)
    widget = ExplorerWidget(small_backend, {"model": "decoder"})
    with pytest.raises(ZeroDivisionError):
        widget_module._hear(widget, ask("models"), [])
    ((content, _),) = sent
    assert content["refusal"]["got"] == "an internal error of glassformer: ZeroDivisionError"


def test_it_carries_the_page_and_the_state(small_backend: Backend) -> None:
    state = {"model": "decoder", "head": "1"}
    carried = ExplorerWidget(small_backend, state).get_state()
    assert carried["state"] == state
    for name, file in (("_esm", "widget.js"), ("_css", "explorer.css")):
        assert carried[name] == (PAGE / file).read_text(encoding="utf-8")
    assert PAGE.name == "page"


def test_the_code_of_the_page_comes_when_it_is_asked_for(
    small_backend: Backend, sent: list[tuple[Any, Any]]
) -> None:
    widget = ExplorerWidget(small_backend, {"model": "decoder"})
    widget_module._hear(widget, {"kind": "code"}, [])
    code = (PAGE / "explorer.js").read_bytes()
    assert sent == [({"kind": "code"}, [code])]
    assert hashlib.sha256(code).hexdigest().startswith(widget.get_state()["_page"])
    assert len(widget.get_state()["_esm"]) < 4000


def test_a_name_that_nothing_has_is_told_apart(small_backend: Backend) -> None:
    questions = ask("experts", run="r" + "0" * 20), ask("run", model="decoder", text="99")
    lost, refused = (reply(small_backend, question) for question in questions)
    assert (lost[0].get("unknown"), refused[0].get("unknown")) == (True, None)


def test_widgets_do_not_share_their_state(small_backend: Backend) -> None:
    one, other = (ExplorerWidget(small_backend, {"model": "decoder"}) for _ in range(2))
    one.state = {"model": "identity"}
    assert other.state == {"model": "decoder"}
    assert one.model_id != other.model_id


def test_a_widget_that_is_closed_leaves_nothing(small_backend: Backend) -> None:
    widget = ExplorerWidget(small_backend, {})
    left = weakref.ref(widget)
    widget.close()
    del widget
    gc.collect()
    assert left() is None
