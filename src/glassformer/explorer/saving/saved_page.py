"""Save the page as one file that opens without a server and without network.

The file holds the page's code, the answers that its view shows
(:mod:`glassformer.explorer.saving.recorded_answers`), and the model if it is small. The same state
of the same models gives the same file.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import InputError
from glassformer.explorer import PAGE
from glassformer.explorer import messages as m
from glassformer.explorer.api import Answering, refusal_of
from glassformer.explorer.saving.page_state import page_state
from glassformer.explorer.saving.recorded_answers import Recorded, listed, record
from glassformer.explorer.saving.saved_model import saved_model
from glassformer.explorer.state import State, to_words
from glassformer.files import (
    any_file,
    holds,
    local_path,
    new_directory,
    require_replaceable,
    write_text,
)
from glassformer.text import shown as safe

_GENERATOR = '<meta name="generator" content="glassformer '


def save(backend: Answering, state: State, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write :func:`page` to the file ``path``; create missing directories.

    On an error the file keeps its former content. An existing file is replaced only if it is a
    saved page, or with ``overwrite``.
    """
    path = local_path(path)
    if path.is_dir():
        raise InputError(
            got=f"{safe(path)}, which is a directory",
            expected="a file",
            fix="Add a file name, such as page.html.",
        )
    replaces = any_file if overwrite else is_page
    require_replaceable(path, replaces)
    written = page(backend, state)
    try:
        write_text(path, written, replaces=replaces)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            got=f"{safe(path)} ({reason})",
            expected="a writable path",
            fix="Choose another path.",
        ) from error
    return path


def is_page(file: Path) -> bool:
    """Check if :func:`save` wrote a file."""
    return holds(file, _GENERATOR.encode(), 4096)


def save_all(backend: Answering, folder: Path) -> Iterator[str]:
    """Write a page for each bundled model, and an index of the pages, for any static file host.

    Args:
        folder: A directory that does not exist. It appears once everything is written.

    Yields:
        The name of each model before its page is written.
    """
    catalogue = backend.catalogue()
    cards = [card for card in catalogue.models if card.origin == "shipped"]
    with new_directory(local_path(folder)) as draft:
        for card in cards:
            yield card.name
            model_page = page(backend, State(model=card.name), pages=cards)
            write_text(draft / f"{card.name}.html", model_page)
        saved: dict[str, Any] = {
            "version": catalogue.version,
            "state": {},
            "answers": [_json(listed(backend, cards))],
            "pages": [card.name for card in cards],
            "rows": [],
            "matrices": [],
            "left_out": [],
            "model": None,
        }
        write_text(draft / "index.html", _document("Start", saved))


def page(backend: Answering, state: State, pages: Sequence[m.ModelCard] = ()) -> str:
    """Return the page in HTML. ``pages`` are the models that have pages in the same directory."""
    shown = page_state(state, backend.catalogue().models)
    words = to_words(shown.state)
    model, left_out = saved_model(backend.model(shown.card.name))
    recorded = record(backend, shown, computes=model is not None)
    answers = [listed(backend, pages or [shown.card]), *recorded.answers]
    saved = {
        "version": backend.catalogue().version,
        "state": words,
        "answers": [_json(answer) for answer in answers],
        "rows": recorded.rows,
        "matrices": recorded.matrices,
        "left_out": left_out + recorded.left_out,
        "pages": [card.name for card in pages],
        "model": model,
    }
    return _document(shown.card.title, saved)


def _json(recorded: Recorded) -> dict[str, Any]:
    asked = {"call": recorded.call, "asked": recorded.request.model_dump(mode="json")}
    answer = recorded.answer
    if isinstance(answer, InputError):
        return {**asked, "refusal": refusal_of(answer).model_dump(mode="json")}
    return {**asked, "answer": answer.model_dump(mode="json")}


def _document(title: str, saved: dict[str, Any]) -> str:
    module = _page_file("explorer.js")
    style = _page_file("explorer.css")
    icon = _page_file("icon.svg")
    # "</script" would end the element, so the data contains no "<".
    data = json.dumps(saved, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    code = (module + style).lower()
    assert not any(end in code for end in ("</script", "<!--", "</style"))
    policy = (
        f"default-src 'none'; script-src '{_digest(module)}'; style-src '{_digest(style)}'; "
        "img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    icon_address = f"data:image/svg+xml;base64,{base64.b64encode(icon.encode()).decode()}"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'{_GENERATOR}{html.escape(saved["version"])}">\n'
        f"<title>{html.escape(title)} \u2013 glassformer</title>\n"
        f'<link rel="icon" type="image/svg+xml" href="{icon_address}">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="explorer"></div>\n<noscript>This page needs JavaScript.</noscript>\n'
        f'<script type="application/json" id="glassformer-saved">{data}</script>\n'
        f'<script type="module">{module}</script>\n</body>\n</html>\n'
    )


def _page_file(name: str) -> str:
    file = PAGE / name
    if not file.is_file():
        raise InputError(
            got=f"no {name} in glassformer/explorer/page",
            expected="the built page",
            fix="Run 'make page'.",
        )
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
