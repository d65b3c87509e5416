"""The page as one file that opens without a server and without network: the page's own code, and recorded answers.

Attention weights of short texts are held as they are, in float32. Of a long text the chosen head is held as finely as
it fits, the other heads in overview (:mod:`glassformer.explorer.saving.kept_weights`), and the page says so. The same
state of the same models gives the same file.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.answers.experts import without_probabilities
from glassformer.explorer.messages.calls import Answering
from glassformer.explorer.messages.requests import refusal_of
from glassformer.explorer.saving.calls_of import Asked, answers_of, runs_of
from glassformer.explorer.saving.kept_weights import kept_weights
from glassformer.explorer.saving.view_state import ViewState, Words, ask_page, view_state
from glassformer.files import write_text
from glassformer.text import shown

MOST_BYTES = 24_000_000
"""The largest file, in bytes."""


def save(explorer: Answering, state: Words, path: str | Path) -> Path:
    """Write :func:`page` to the file ``path``, which then holds the whole page or what it held before.

    Args:
        explorer: Who answers.
        state: The words of the page's address: at least ``model``.
        path: Where to; its directories are made where missing.

    Raises:
        InputError: As :func:`page`, or ``path`` is a directory or cannot be written to.
    """
    path = Path(path)
    require(
        not path.is_dir(),
        f"{shown(path)}, which is a directory",
        "the name of a file",
        "Add a name, such as page.html.",
    )
    written = page(explorer, ask_page(state))
    try:
        write_text(path, written)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{shown(path)} ({reason})", "a place that can be written to", "Choose another one."
        ) from error
    return path


def page(explorer: Answering, ask: m.AskPage, most_bytes: int = MOST_BYTES) -> str:
    """The whole page in HTML as it stands in a state, with the answers to all that can be asked of it.

    Args:
        explorer: Who answers.
        ask: The state, as the words of the address.
        most_bytes: The largest file. Where the answers take more than half of it, the routers' probabilities are left
            out; weights that would pass it are left out, and the page says which. Everything else is held in any case.

    Raises:
        UnknownName: No model of the state's name.
        InputError: The model refuses the text.
    """
    state = view_state(ask, explorer.catalogue().models)
    runs = runs_of(explorer, state)
    answers = answers_of(explorer, state, runs)
    saved: dict[str, Any] = {
        "version": explorer.catalogue().version,
        "state": {**ask.state, "model": state.card.name, "view": state.view, "text": state.text},
        "answers": [_answer(each) for each in answers],
        "rows": [],
        "matrices": [],
        "left_out": [],
    }
    told = []
    room = most_bytes - len(_document(state, saved).encode())
    if room < most_bytes / 2 and any(isinstance(each.answer, m.Experts) for each in answers):
        saved["answers"] = [_answer(_in_short(each)) for each in answers]
        told = ["The routers' probabilities are left out."]
        room = most_bytes - len(_document(state, saved).encode())
    saved.update(kept_weights(explorer, state, runs, room))
    saved["left_out"] = told + saved["left_out"]
    return _document(state, saved)


def _in_short(asked: Asked) -> Asked:
    if not isinstance(asked.answer, m.Experts):
        return asked
    return replace(asked, answer=without_probabilities(asked.answer))


def _answer(asked: Asked) -> dict[str, Any]:
    kept: dict[str, Any] = {"call": asked.call, "asked": asked.request.model_dump(mode="json")}
    if isinstance(asked.answer, InputError):
        return {**kept, "refusal": refusal_of(asked.answer).model_dump(mode="json")}
    return {**kept, "answer": asked.answer.model_dump(mode="json")}


def _document(state: ViewState, saved: dict[str, Any]) -> str:
    module, style, icon = (_page_file(name) for name in ("explorer.js", "explorer.css", "icon.svg"))
    # A data block ends at "</script", and no "<" is left in it; neither may the code end its own element.
    data = json.dumps(saved, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    assert not any(end in code.lower() for code in (module, style) for end in ("</script", "<!--", "</style"))
    policy = (
        f"default-src 'none'; script-src '{_digest(module)}'; style-src '{_digest(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = html.escape(f"{state.card.title} \u2013 glassformer")
    icon_address = f"data:image/svg+xml;base64,{base64.b64encode(icon.encode()).decode()}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="glassformer {html.escape(saved["version"])}">\n'
        f"<title>{title}</title>\n"
        f'<link rel="icon" type="image/svg+xml" href="{icon_address}">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="explorer"></div>\n<noscript>This page needs JavaScript.</noscript>\n'
        f'<script type="application/json" id="glassformer-saved">{data}</script>\n'
        f'<script type="module">{module}</script>\n</body>\n</html>\n'
    )


def _page_file(name: str) -> str:
    file = PAGE / name
    require(file.is_file(), f"no {name} in glassformer/explorer/page", "the built page", "Run 'make page'.")
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
