"""``glassformer explore``: the page that shows models, served locally or written to a file."""

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
        page = save(backend, from_words(words), flags.save, overwrite=flags.overwrite)
        say(f"page: {shown(page)}")
        return 0
    listener = server.listen(flags.port)
    host, port = listener.getsockname()
    address = f"http://{host}:{port}/"
    if words:
        address += f"#{urlencode(words)}"
    # Flushed: a program that reads it through a pipe would otherwise wait until the end.
    print(f"{address}\nCtrl-C ends it.", flush=True)
    # All that is loaded now is kept until the end; frozen, it is not scanned again by the garbage
    # collector at exit.
    gc.freeze()
    server.serve(backend, listener, address, browser=flags.browser)
    return 0


def backend_of(flags: ExploreFlags) -> Backend:
    """Return the backend of the named model, the bundled and installed ones, and the runs.

    Runs are looked up again whenever the page asks for models.
    """
    first = list_models(flags.run)
    named_path = None
    if flags.run is not None:
        named_path = local_path(flags.run)
    taken_names = {entry.card.name for entry in first}
    runs = partial(find_models, flags.runs, taken_names, named_path, {})
    return Backend([*first, *runs()], runs)


def _save_all(flags: ExploreFlags) -> None:
    others = (flags.run, flags.text, flags.view)
    if any(value is not None for value in others) or flags.overwrite:
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
    """Return what to show first, as words of the page's address; empty if the page chooses."""
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
    """Return the first model that has the view and reads the text."""
    with_view = [card for card in cards if flags.view is None or flags.view in card.views]
    if not with_view:
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
    raise InputError(
        got=f"--text {short(text)}, which none of the models here reads",
        expected=f"a text for one of {', '.join(card.name for card in with_view)}",
        fix="Name the model to see what is wrong.",
    )
