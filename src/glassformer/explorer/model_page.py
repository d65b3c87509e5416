"""Show the explorer from Python: in a notebook, as a saved file, or from a server."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from glassformer.errors import InputError
from glassformer.explorer import import_extra
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.codecs import text_of, tokens_in, units_of
from glassformer.explorer.loading.discovery import list_models
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedModel,
    ModelEntry,
    of_kind,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import Run
from glassformer.explorer.saving.page_state import ask_of, page_state
from glassformer.explorer.saving.recorded_weights import coarse_enough, matrix
from glassformer.explorer.saving.saved_page import save
from glassformer.explorer.state import State, changed, from_words, to_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from glassformer.explorer.server import ServerThread
    from glassformer.explorer.widget import ExplorerWidget

_DPI = 144
_MOST_CELLS = 512
"""Largest number of rows and columns of a figure."""


class ModelPage:
    """Result of :func:`glassformer.explore`. The last line of a notebook's cell shows it as a page.

    Args:
        backend: The models and their answers.
        state: What to show, by the names of the page's address: ``view``, ``layer``, ``head``,
            ``pin`` and so on.
    """

    def __init__(self, backend: Backend, state: dict[str, Any] | None = None) -> None:
        self.backend = backend
        self._widget: ExplorerWidget | None = None
        self._server: ServerThread | None = None
        self._words = self._checked(changed(State(), state or {}))

    @property
    def words(self) -> dict[str, str]:
        """State of the page, as the words of its address."""
        return dict(self._words if self._widget is None else self._widget.state)

    @property
    def state(self) -> dict[str, Any]:
        """State of the page, as values; includes choices made in the widget."""
        return from_words(self.words).model_dump(exclude_defaults=True)

    def set(self, **changes: Any) -> None:
        """Change what is shown: ``set(layer=2, head=1, view="attention")``. An open widget follows.

        Changes of the model in the view What if are messages as dictionaries, such as
        ``set(view="whatif", removed=[{"part": "self", "layer": 2, "head": 1}])``; see
        :class:`~glassformer.explorer.state.State`.
        """
        before = from_words(self.words)
        if changes.get("model", before.model) != before.model:
            before = State()  # another model begins with the text of its card
        if "text" in changes:
            changes = {"written": [], **changes}  # no token was generated on the page
        words = self._checked(changed(before, changes))
        self._words = words
        if self._widget is not None:
            self._widget.state = words

    def save(self, path: str | Path) -> Path:
        """Write the page in its current state to one file, which opens without server and network.

        An existing file is replaced only if it is a saved page.
        """
        return save(self.backend, from_words(self.words), path)

    def figure(self) -> Figure:
        """Draw the attention of the chosen head with matplotlib; a long text as an overview."""
        from glassformer.figures.attention_maps import attention_map
        from glassformer.figures.heat_maps import MOST_NAMES

        page = page_state(from_words(self.words), self.backend.catalogue().models)
        run: Run = self.backend.answer("run", ask_of(self.backend, page))
        stack = page.stack(run)
        place = page.heads(stack)[0]
        level = coarse_enough(max(stack.queries, stack.keys), _MOST_CELLS)
        weights = matrix(self.backend, run, stack, place.layer, place.head, level)
        texts = {"tokens": run.tokens, "source": run.source or []}
        has_names = level == 0 and max(stack.queries, stack.keys) <= MOST_NAMES
        keys: list[str] = []
        queries: list[str] = []
        if has_names:
            keys = texts[stack.keys_are]
            queries = texts[stack.queries_are]
        label = f"{stack.label[:1].upper()}{stack.label[1:]}"
        title = f"{label}, layer {place.layer}, head {place.head}"
        axis_names = ("token that is read", "token that reads")
        return attention_map(weights, keys, queries, title, axis_names=axis_names)

    def serve(self, port: int = 8017, *, browser: bool = True) -> None:
        """Serve the page on this machine alone until Ctrl-C, and open it in the browser.

        In a notebook's cell, where an event loop runs, this returns at once. The server runs in a
        thread until :meth:`stop`, the next call of this method, or the end of the kernel.

        Args:
            port: The port, or the next free one if it is in use. With 0, the system chooses one.
            browser: Whether to open the page.
        """
        server = import_extra("server")
        self.stop()
        listener = server.listen(port)
        address = f"http://{server.HOST}:{listener.getsockname()[1]}/#{urlencode(self.words)}"
        print(address)
        if server.in_event_loop():
            self._server = server.ServerThread(self.backend, listener, address, browser=browser)
        else:
            server.serve(self.backend, listener, address, browser=browser)

    def stop(self) -> None:
        """Stop the server that :meth:`serve` started in a notebook, if there is one."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def widget(self) -> ExplorerWidget:
        """Return the widget of anywidget, the same one at each call."""
        if self._widget is None:
            self._widget = import_extra("widget").ExplorerWidget(self.backend, self._words)
        return self._widget

    def __repr__(self) -> str:
        uses = "save(path) writes a page, serve() opens one, a notebook shows it"
        return f"<{self._words['model']}: {uses}>"

    def _checked(self, state: State) -> dict[str, str]:
        """Return words that also name a model and its text, since a page may open from them."""
        return to_words(page_state(state, self.backend.catalogue().models).state)

    def _repr_mimebundle_(
        self, include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {"text/plain": repr(self)}
        metadata: dict[str, Any] = {}
        try:
            widget_data, metadata = self.widget()._repr_mimebundle_() or ({}, {})
            data = {**widget_data, **data}
            metadata = dict(metadata)
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)
        # A notebook that is read without a kernel, as on GitHub, shows a picture.
        with suppress(InputError):
            data["image/png"], metadata["image/png"] = _png(self.figure())
        return data, metadata


def open_page(
    model: Any = None, text: Any = None, *, tokenizer: Any = None, source: Any = None, **state: Any
) -> ModelPage:
    """Open a page; see :func:`glassformer.explore`."""
    if not (model is None or isinstance(model, str | Path | ModelEntry | LoadedModel)):
        return ModelPage(Backend([wrap_model(model, text, tokenizer, source)]), state)
    names_model = model is not None
    if model == "":
        raise InputError(
            got="a model without a name",
            expected="a name, a directory or a model",
            fix="Omit it to explore all models.",
        )
    entries: Sequence[Any] = [model]
    if not isinstance(model, ModelEntry | LoadedModel):
        entries = list_models(model)
    card = entries[0].card
    if tokenizer is not None:
        raise InputError(
            got=f"a tokenizer for {card.name}",
            expected="none, since it is stored with the model",
            fix="Omit it, or pass the model itself.",
        )
    if not names_model and not (text is None and source is None):
        names = ", ".join(entry.card.name for entry in entries)
        raise InputError(
            got=f"a {'source' if text is None else 'text'} without a model",
            expected="both",
            fix=f"Name one of {names}.",
        )
    backend = Backend(entries)
    if names_model:
        state = {**state, "model": card.name}
    if text is not None:
        tokens = tokens_in(text)
        if tokens is not None:
            expected = "a model that takes them: a decoder"
            loaded = of_kind(LoadedDecoder, backend.model(card.name), "tokens", expected)
            text = text_of(tokens, loaded.encode, [loaded.join])
        state["text"] = text
    if source is not None:
        if card.kind != "encoder_decoder":
            raise InputError(
                got=f"a source for {card.title}",
                expected="an encoder-decoder",
                fix="Omit source.",
            )
        state["source"] = units_of(source)
    return ModelPage(backend, state)


def _png(figure: Figure) -> tuple[str, dict[str, int]]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    width, height = (round(inches * 72) for inches in figure.get_size_inches())
    return base64.b64encode(file.getvalue()).decode(), {"width": width, "height": height}
