"""``glassformer explore``: the page on which one looks inside models, served on this machine or
written to one file.
"""

import gc
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import urlencode

from glassformer.cli.flags import ExploreFlags
from glassformer.cli.terminal import say
from glassformer.errors import InputError
from glassformer.explorer import import_extra
from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.codecs import halves
from glassformer.explorer.loading.discovery import find_models, list_models
from glassformer.explorer.saving.saved_page import save, save_all
from glassformer.explorer.state import from_words
from glassformer.files import local_path, require_absent
from glassformer.text import short, shown


def main(flags: ExploreFlags) -> int:
    """Serve the page until Ctrl-C, or write it."""
    text = flags.text or ""
    if len(text) > m.MOST_CHARACTERS:
        raise InputError(
            got=f"--text of {len(text):,} characters",
            expected=f"at most {m.MOST_CHARACTERS:,}",
            fix="Shorten it.",
        )
    if halves(text):
        raise InputError(
            got=f"--text {text[:40]!a}",
            expected="text in UTF-8",
            fix="Set the terminal's encoding to UTF-8.",
        )
    if flags.all:
        _save_all(flags)
        return 0
    if flags.save is not None:
        require_absent(flags.save, flags.overwrite)
    else:
        server = import_extra("server")
    backend = backend_of(flags)
    words = _words(flags, backend)
    if flags.save is not None:
        say(
            f"page: {shown(save(backend, from_words(words), flags.save, overwrite=flags.overwrite))}"
        )
        return 0
    listener = server.listen(flags.port)
    host, port = listener.getsockname()
    address = f"http://{host}:{port}/" + (f"#{urlencode(words)}" if words else "")
    # Flushed, because a program that reads it through a pipe would otherwise wait until the end.
    print(f"{address}\nCtrl-C ends it.", flush=True)
    # All that is loaded now is kept until the end; frozen, it is not scanned again by the garbage
    # collector at exit.
    gc.freeze()
    server.serve(backend, listener, address, browser=flags.browser)
    return 0


def backend_of(flags: ExploreFlags) -> Backend:
    """Of the named model, the bundled and installed ones, and the runs there are whenever the page
    asks for models.
    """
    first = list_models(flags.run)
    named = None if flags.run is None else local_path(flags.run)
    runs = partial(find_models, flags.runs, {entry.card.name for entry in first}, named, {})
    return Backend([*first, *runs()], runs)


def _save_all(flags: ExploreFlags) -> None:
    alone = flags.run is flags.text is flags.view is None and not flags.overwrite
    if not alone:
        raise InputError(
            got="--all with a model, a text, a view or --overwrite",
            expected="--save DIR --all alone",
            fix="Leave them out.",
        )
    if flags.save is None:
        raise InputError("--all without --save", "--save DIR --all", "Name the directory.")
    for name in save_all(Backend(list_models()), flags.save):
        say(f"page of {name} ...")
    say(f"pages: {shown(flags.save / 'index.html')}")


def _words(flags: ExploreFlags, backend: Backend) -> dict[str, str]:
    """What to show first, as the words of the page's address; none where the page may choose."""
    cards = backend.catalogue().models
    if flags.run is not None:
        card = cards[0]
    else:
        card = _fitting(flags, backend, cards)
    chosen = {"view": flags.view, "text": flags.text}
    words = {name: word for name, word in chosen.items() if word is not None}
    if not words and flags.run is None and flags.save is None:
        return {}
    if flags.view is not None and flags.view not in card.views:
        raise InputError(
            got=f"--view {flags.view} of {card.name}",
            expected=f"one of {', '.join(card.views)}",
            fix="Choose one of these, or name another model.",
        )
    return {"model": card.name, **words}


def _fitting(flags: ExploreFlags, backend: Backend, cards: Sequence[m.ModelCard]) -> m.ModelCard:
    """Where no model is named: the first that has the view and reads the text."""
    with_view = [card for card in cards if flags.view is None or flags.view in card.views]
    if len(with_view) <= 0:
        raise InputError(
            got=f"--view {flags.view}",
            expected="a view of one of the models here",
            fix="Name a model that has it.",
        )
    text = flags.text
    if text is None:
        return with_view[0]
    for card in with_view:
        with suppress(InputError):
            backend.answer("run", m.Ask(model=card.name, text=text))
            return card
    known = ", ".join(card.name for card in with_view)
    got = f"--text {short(text)}, which none of the models here reads"
    fix = "Name the model to see what is wrong."
    raise InputError(got, f"a text for one of {known}", fix)
