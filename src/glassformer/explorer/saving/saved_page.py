"""The page as one file that opens without a server and without network: the page's code and recorded answers.

Attention weights of short texts are held in float32. Of a long text, the head that is shown is held as finely as it
fits and the other heads in overview (:mod:`glassformer.explorer.saving.recorded_weights`); the page reports it. The
same state of the same models gives the same file.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import InputError, require
from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.api import Answering, refusal_of
from glassformer.explorer.saving.recorded_answers import Recorded, listed, page_state, recorded_answers
from glassformer.explorer.saving.recorded_weights import recorded_weights
from glassformer.explorer.saving.saved_model import saved_model
from glassformer.explorer.state import State, changed, to_words
from glassformer.files import new_directory, write_text
from glassformer.text import shown as safe

MOST_BYTES = 24_000_000


def save(backend: Answering, state: State, path: str | Path) -> Path:
    """Write :func:`page` to the file ``path``, in directories that are created where missing.

    On an error the file keeps its former content.
    """
    path = Path(path)
    require(not path.is_dir(), f"{safe(path)}, which is a directory", "a file", "Add a file name, such as page.html.")
    written = page(backend, state)
    try:
        write_text(path, written)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{safe(path)} ({reason})", "a writable path", "Choose another path.") from error
    return path


def save_all(backend: Answering, folder: Path) -> Iterator[str]:
    """Write a page for each bundled model, and an index of them, into one directory, for any host of static files.

    Args:
        folder: The directory, which appears when all is written; there is none yet.

    Yields:
        The name of each model before its page is written.
    """
    catalogue = backend.catalogue()
    cards = [card for card in catalogue.models if card.origin == "shipped"]
    with new_directory(folder) as draft:
        for card in cards:
            yield card.name
            write_text(draft / f"{card.name}.html", page(backend, State(model=card.name), pages=cards))
        models = _json(listed(backend, cards))
        empty: dict[str, Any] = {"rows": [], "matrices": [], "left_out": [], "model": None}
        names = [card.name for card in cards]
        saved = {"version": catalogue.version, "state": {}, "answers": [models], "pages": names, **empty}
        write_text(draft / "index.html", _document("Start", saved))


def page(backend: Answering, state: State, most_bytes: int = MOST_BYTES, pages: Sequence[m.ModelCard] = ()) -> str:
    """The page in HTML, with the answers to everything that can be asked of it.

    ``pages`` are the models that have pages beside it, and are opened there.

    Attention weights that do not fit into ``most_bytes`` are left out, and the page reports which. All else is held.
    """
    shown = page_state(state, backend.catalogue().models)
    answers = recorded_answers(backend, shown)
    model, left_out = saved_model(backend.model(shown.card.name))
    if pages:
        answers[0] = listed(backend, pages)
        for step in _steps(shown.card.name) if model is None else ():
            answers += recorded_answers(backend, page_state(step, pages))[1:]
    saved: dict[str, Any] = {
        "version": backend.catalogue().version,
        "state": to_words(shown.state),
        "answers": [_json(each) for each in answers],
        "rows": [],
        "matrices": [],
        "left_out": left_out,
        "pages": [card.name for card in pages],
        "model": model,
    }
    room = most_bytes - len(_document(shown.card.title, saved).encode())
    runs = [each.answer for each in answers if isinstance(each.answer, m.Run)]
    weights = recorded_weights(backend, shown, runs, room)
    return _document(shown.card.title, saved | weights | {"left_out": left_out + weights["left_out"]})


def _steps(model: str) -> Iterator[State]:
    """The states in which the steps of tours begin and end that are about a model."""
    for tour in json.loads((PAGE.parent / "tours.json").read_text(encoding="utf-8")):
        for step in tour["steps"]:
            if step["state"]["model"] == model:
                yield from (changed(State(), step["state"]), changed(State(), step["state"] | step["then"]))


def _json(recorded: Recorded) -> dict[str, Any]:
    asked, answer = {"call": recorded.call, "asked": recorded.request.model_dump(mode="json")}, recorded.answer
    if isinstance(answer, InputError):
        return {**asked, "refusal": refusal_of(answer).model_dump(mode="json")}
    return {**asked, "answer": answer.model_dump(mode="json")}


def _document(title: str, saved: dict[str, Any]) -> str:
    module, style, icon = (_page_file(name) for name in ("explorer.js", "explorer.css", "icon.svg"))
    # "</script" would end the element, so the data contains no "<"; the code must not contain the end of its own.
    data = json.dumps(saved, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    assert not any(end in code.lower() for code in (module, style) for end in ("</script", "<!--", "</style"))
    policy = (
        f"default-src 'none'; script-src '{_digest(module)}'; style-src '{_digest(style)}'; img-src data: blob:; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    icon_address = f"data:image/svg+xml;base64,{base64.b64encode(icon.encode()).decode()}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="glassformer {html.escape(saved["version"])}">\n'
        f"<title>{html.escape(title)} \u2013 glassformer</title>\n"
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
