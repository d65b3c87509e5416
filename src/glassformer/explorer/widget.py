"""The page in a notebook's cell: the same module as the server's, answered by the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.calls import CALLS
from glassformer.explorer.service import Explorer

PAGE = Path(__file__).parent / "page"


class ExplorerWidget(anywidget.AnyWidget):
    """A widget that shows the page. Several may stand in a notebook, and one in several places.

    Args:
        explorer: Who answers.
        state: The words of the page's address.
    """

    _esm = PAGE / "explorer.js"
    _css = PAGE / "explorer.css"
    state = traitlets.Dict(key_trait=traitlets.Unicode(), value_trait=traitlets.Unicode()).tag(sync=True)
    """What is shown, as the words of the page's address; whoever changes it, here or in the page, the other follows."""

    def __init__(self, explorer: Explorer, state: dict[str, str]) -> None:
        self.explorer = explorer
        super().__init__(state=state)
        self.on_msg(_hear)


class Question(BaseModel):
    """What the page asks of the kernel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(pattern="^ask$")
    id: str = Field(min_length=1, max_length=80)
    call: str
    asked: dict[str, Any]


def reply(explorer: Explorer, content: object) -> tuple[dict[str, Any], list[bytes]] | None:
    """The answer to a message of the page, and the numbers that go with it.

    Returns:
        ``{"id": ..., "answer": ...}``, or ``{"id": ..., "refusal": ...}`` as a
        :class:`~glassformer.explorer.messages.Refusal`. Answers in bytes come as the only buffer, without ``answer``.
        None for a message that is no question.
    """
    try:
        question = Question.model_validate(content)
    except ValidationError:
        return None
    try:
        answer = _answer(explorer, question)
    except InputError as error:
        refusal = m.Refusal(got=error.got, expected=error.expected, fix=error.fix)
        return {"id": question.id, "refusal": refusal.model_dump(mode="json")}, []
    if isinstance(answer, bytes):
        return {"id": question.id}, [answer]
    told = answer if isinstance(answer, str) else answer.model_dump(mode="json")
    return {"id": question.id, "answer": told}, []


def _answer(explorer: Explorer, question: Question) -> m.Message | bytes | str:
    if question.call not in CALLS:
        raise InputError(f"the call {question.call[:40]!r}", f"one of {', '.join(CALLS)}", "Mend the name.")
    try:
        request = CALLS[question.call].asked.model_validate(question.asked)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        raise InputError(f"{where}: {first['msg']}", f"what {question.call} is asked with", "Mend it.") from None
    return explorer.answer(question.call, request)


def _hear(widget: ExplorerWidget, content: object, buffers: object) -> None:
    try:
        answered = reply(widget.explorer, content)
    except Exception as error:
        # The page waits for an answer whatever happens here; the notebook's log gets the traceback.
        refusal = m.Refusal(
            got=f"A fault of glassformer: {type(error).__name__}", expected="an answer", fix="Please report it."
        )
        widget.send({"id": str(content["id"]), "refusal": refusal.model_dump(mode="json")})  # type: ignore[index]
        raise
    if answered is not None:
        widget.send(*answered)
