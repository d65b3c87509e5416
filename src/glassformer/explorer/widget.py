"""Show the page in a notebook's cell: the same code as on the server, answered by the kernel."""

import hashlib
import threading
from functools import cache
from typing import Any

import anywidget
import traitlets
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glassformer.errors import InputError
from glassformer.explorer import PAGE
from glassformer.explorer.api import UnknownName, refusal_of
from glassformer.explorer.backend import Backend, parse


class ExplorerWidget(anywidget.AnyWidget):
    """Widget that shows the page. A notebook may show several, and one in several places."""

    # A notebook's file stores this code for every widget. The page's long code comes in a message,
    # once for all widgets. The code is no Path, since anywidget would then hold the widget.
    _esm = (PAGE / "widget.js").read_text(encoding="utf-8")
    _css = (PAGE / "explorer.css").read_text(encoding="utf-8")
    state = traitlets.Dict(key_trait=traitlets.Unicode(), value_trait=traitlets.Unicode()).tag(
        sync=True
    )
    """Words of the page's address, synchronised with the page in both directions."""
    _page = traitlets.Unicode().tag(sync=True)
    """Hash of the page's code."""

    def __init__(self, backend: Backend, state: dict[str, str]) -> None:
        self.backend = backend
        super().__init__(state=state, _page=_code()[0])
        self.on_msg(_hear)


class Question(BaseModel):
    """A call of the page."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(pattern="^ask$")
    id: str = Field(min_length=1, max_length=80)
    call: str
    asked: dict[str, Any]


def reply(backend: Backend, content: object) -> tuple[dict[str, Any], list[bytes]] | None:
    """Answer a message of the page; return the answer and its binary buffers.

    Returns:
        ``{"id": ..., "answer": ...}``, or ``{"id": ..., "refusal": ...}`` as a
        :class:`~glassformer.explorer.messages.Refusal`, with ``"unknown": True`` for an unknown
        name. Binary answers are the only buffer, without ``answer``.
        None for a message that is not a call.
    """
    try:
        question = Question.model_validate(content)
    except ValidationError:
        return None
    try:
        answer = backend.answer(question.call, parse(question.call, question.asked))
    except InputError as error:
        message: dict[str, Any] = {
            "id": question.id,
            "refusal": refusal_of(error).model_dump(mode="json"),
        }
        if isinstance(error, UnknownName):
            message["unknown"] = True
        return message, []
    if isinstance(answer, bytes):
        return {"id": question.id}, [answer]
    if not isinstance(answer, str):
        answer = answer.model_dump(mode="json")
    return {"id": question.id, "answer": answer}, []


@cache
def _code() -> tuple[str, bytes]:
    """Return the hash of the page's code, and the code."""
    code = (PAGE / "explorer.js").read_bytes()
    return hashlib.sha256(code).hexdigest()[:16], code


def _hear(widget: ExplorerWidget, content: object, buffers: object) -> None:
    # JupyterLab may deliver messages to another thread while a cell runs. A forward pass there
    # would change the model's mode while the cell trains it.
    kernel = getattr(widget.comm, "kernel", None)
    if threading.current_thread() is threading.main_thread() or kernel is None:
        _answer(widget, content)
    else:
        kernel.io_loop.add_callback(_answer, widget, content)


def _answer(widget: ExplorerWidget, content: object) -> None:
    if content == {"kind": "code"}:
        widget.send({"kind": "code"}, [_code()[1]])
        return
    try:
        answered = reply(widget.backend, content)
    except Exception as error:
        # The page always needs an answer; the traceback goes to the notebook's log.
        internal = InputError(
            got=f"an internal error of glassformer: {type(error).__name__}",
            expected="an answer",
            fix="Please report it.",
        )
        refusal = refusal_of(internal)
        question = str(content["id"])  # type: ignore[index]
        widget.send({"id": question, "refusal": refusal.model_dump(mode="json")})
        raise
    if answered is not None:
        widget.send(*answered)
