from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.model_page import ModelPage
from refusals import refused


def drawn(figure: Figure) -> np.ndarray:
    cells = np.asarray(figure.axes[0].images[0].get_array())
    return cells


def test_it_shows_the_chosen_head(small_backend: Backend, check_readable: Callable[[Figure], None]) -> None:
    text = "1 2 3 4 5 6"
    figure = ModelPage(small_backend, {"model": "decoder", "text": text, "layer": 1, "head": 1}).figure()
    run = small_backend.answer("run", m.Ask(model="decoder", text=text))
    assert isinstance(run, m.Run)
    tile = small_backend.answer("weights", m.AskTile(run=run.run, part="self", layer=1, head=1))
    assert isinstance(tile, bytes)
    np.testing.assert_array_equal(drawn(figure), np.frombuffer(tile, "<f4").reshape(6, 6))
    assert "layer 1, head 1" in figure.get_suptitle() + figure.axes[0].get_title()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == run.tokens
    check_readable(figure)


def test_cross_attention_has_the_source_across(
    small_backend: Backend, check_readable: Callable[[Figure], None]
) -> None:
    figure = ModelPage(small_backend, {"model": "lookup", "text": "4", "part": "cross"}).figure()
    assert drawn(figure).shape[1] == 5
    check_readable(figure)


def test_a_long_text_is_drawn_in_overview(
    small_backend: Backend, monkeypatch: pytest.MonkeyPatch, check_readable: Callable[[Figure], None]
) -> None:
    monkeypatch.setattr("glassformer.explorer.model_page.EXACT_TOKENS", 20)
    figure = ModelPage(small_backend, {"model": "decoder", "text": " ".join(["1 2 3"] * 15)}).figure()
    assert drawn(figure).shape == (12, 12)
    check_readable(figure)


def test_absent_layers_and_heads_are_the_last(small_backend: Backend) -> None:
    last, beyond = (
        drawn(ModelPage(small_backend, {"model": "decoder", "layer": place, "head": place}).figure())
        for place in (1, 9)
    )
    np.testing.assert_array_equal(beyond, last)


def test_a_refused_text(small_backend: Backend) -> None:
    with refused(expected="numbers between spaces"):
        ModelPage(small_backend, {"model": "decoder", "text": "words"}).figure()
