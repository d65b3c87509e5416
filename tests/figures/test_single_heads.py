"""A head's figures: every panel shows what the NumPy twin computes, every name has its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.figures.single_heads import draw_attention, draw_comparison, draw_head
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from refusals import refused

Check = Callable[[Figure], None]

SEQ = np.eye(4)[[3, 0, 1, 2, 2]]
NAMES = ["CLS", "A", "B", "C", "C"]
INPUTS = ["A", "B", "C", "CLS"]
ORDER = ["Km", "K", "Qm", "Q", "Vm", "V", "Attn", "Out"]


def head(seed: int = 0, qk_dim: int = 3) -> HeadWeights:
    rng = np.random.default_rng(seed)
    shapes = ((7, qk_dim), (7, qk_dim), (7, 2), (5, 3))
    return HeadWeights(*(rng.normal(size=shape) for shape in shapes))


def tables(weights: HeadWeights) -> dict[str, np.ndarray]:
    """What the panels show, before they are rescaled."""
    trace = NumpyHead(weights).trace(SEQ)
    computed = {"Attn": trace.weights, "K": trace.K, "Q": trace.Q, "V": trace.V, "Out": trace.output}
    return {name: {**weights.matrices, **computed}[name].T for name in ORDER}


def shown(ax: Axes) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def test_each_panel_is_rescaled_by_itself(check_readable: Check) -> None:
    figure = draw_head(head(), SEQ, NAMES, input_names=INPUTS, title="unique: A B C C")
    assert [ax.get_title() for ax in figure.axes] == ORDER
    for ax, values in zip(figure.axes, tables(head()).values(), strict=True):
        np.testing.assert_allclose(shown(ax), (values - values.min()) / np.ptp(values), atol=1e-12)
        assert ax.images[0].get_clim() == (0, 1)
        assert ax.images[0].get_cmap().name == "Reds"
    check_readable(figure)


def test_axes_are_named_as_in_the_course_and_by_the_tokens() -> None:
    axes = dict(zip(ORDER, draw_head(head(), SEQ, NAMES, input_names=INPUTS).axes, strict=True))
    labels = {name: (ax.get_xlabel(), ax.get_ylabel()) for name, ax in axes.items()}
    weights, results = ("d_in", "d_qk"), ("seq", "d_qk")
    assert labels == {
        **{"Km": weights, "Qm": weights, "Vm": ("d_in", "d_v"), "Attn": ("Q", "K")},
        **{"K": results, "Q": results, "V": ("seq", "d_v"), "Out": ("seq", "d_v")},
    }
    ticks = {name: [label.get_text() for label in ax.get_xticklabels()] for name, ax in axes.items()}
    assert ticks["Km"] == ticks["Vm"] == [*INPUTS, "p0", "p1", "p2"]
    assert ticks["K"] == ticks["Attn"] == ticks["Out"] == NAMES
    numbered = draw_head(head(), SEQ).axes[0]
    assert [label.get_text() for label in numbered.get_xticklabels()] == ["0", "1", "2", "3", "p0", "p1", "p2"]


def test_labels_give_the_true_values(check_readable: Check) -> None:
    figure = draw_head(head(), SEQ, NAMES, input_names=INPUTS, labels=True)
    for ax, values in zip(figure.axes, tables(head()).values(), strict=True):
        assert len(ax.texts) == values.size
        for text in ax.texts:
            column, row = map(int, text.get_position())
            assert float(text.get_text()) == pytest.approx(values[row, column], abs=0.0051)
    check_readable(figure)


def test_a_comparison_puts_one_head_above_the_other(check_readable: Check) -> None:
    first, second = head(1), head(2, qk_dim=6)
    figure = draw_comparison(first, second, SEQ, NAMES, input_names=INPUTS, title="hand and learned")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [*ORDER, *ORDER]
    expected = [values for each in (first, second) for values in tables(each).values()]
    for ax, values in zip(figure.axes, expected, strict=True):
        np.testing.assert_allclose(shown(ax), (values - values.min()) / np.ptp(values), atol=1e-12)
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["hand-designed", "learned"]
    check_readable(figure)


@pytest.mark.parametrize(("queries", "keys"), [(1, 2), (5, 5), (22, 22), (45, 45)])
def test_attention_maps_at_every_size(check_readable: Check, queries: int, keys: int) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(keys), size=queries)
    names = [f"L{i}" for i in range(keys)]
    title = "the first sequence that fails, with quite a long title that has to go somewhere"
    figure = draw_attention(weights, names[:queries], names, title)
    ax = figure.axes[0]
    np.testing.assert_array_equal(shown(ax), weights)
    assert ax.images[0].get_clim() == (0, 1)
    assert len(ax.texts) == (weights.size if keys <= 22 else 0)
    check_readable(figure)


def test_what_does_not_fit_is_refused() -> None:
    with refused("2 names for 5 positions"):
        draw_head(head(), SEQ, ["A", "B"])
    with refused("3 input_names"):
        draw_head(head(), SEQ, NAMES, input_names=["A", "B", "C"])
    with refused("vectors of length 3"):
        draw_head(head(), np.eye(3))
    with refused("1 names for 2 queries"):
        draw_attention(np.eye(2), ["A"], ["A", "B"])
