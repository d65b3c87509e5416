"""Maps of heads: what the cells show, that no strong weight is lost in an overview, where names and
panels stand.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.figures.attention_maps import (
    attention_grid,
    attention_map,
    compare_heads,
    cross_attention,
    end_of_scale,
    overview,
)
from glassformer.figures.style import new_figure
from readable import check_readable
from refusals import refused

TEXT = [
    "<CLS>",
    "I",
    "paid",
    "$",
    "10",
    "for",
    "this",
    "unbelievably",
    "long",
    "film",
    "and",
    "$",
    "5",
]
WORDS = ["<CLS>", "not", "a", "remarkable", "film"]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.3), shape[:-1])


def ticks(ax: Axes) -> tuple[list[str], list[str]]:
    return [label.get_text() for label in ax.get_xticklabels()], [
        label.get_text() for label in ax.get_yticklabels()
    ]


@given(
    values=arrays(
        float, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(0, 1)
    ),
    most=st.integers(1, 10),
)
def test_an_overview_holds_the_largest_of_each_block(values: np.ndarray, most: int) -> None:
    found = overview(values, most)
    rows, columns = ((size + most - 1) // most for size in values.shape)
    assert max(found.shape) <= most
    for (row, column), value in np.ndenumerate(found):
        block = values[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        assert value == max(block.ravel())
    assert found.max() == values.max()


def test_a_map_shows_its_weights_with_names_and_numbers() -> None:
    expected = weights(13, 13)
    figure = attention_map(expected, TEXT, title="Layer 1, head 2")
    ax, bar = figure.axes
    np.testing.assert_array_equal(ax.images[0].get_array(), expected)
    assert ax.images[0].get_clim() == (0, expected.max())
    assert ticks(ax) == (TEXT, TEXT)
    assert (ax.get_xlabel(), ax.get_ylabel(), bar.get_ylabel()) == (
        "key",
        "query",
        "attention weight",
    )
    assert len(ax.texts) == 169
    assert figure.get_suptitle() == "Layer 1, head 2"


def test_words_that_leave_no_mark_or_are_long_are_spelled_out_and_cut() -> None:
    ax = attention_map(weights(1, 3), ["\n", "b" * 40, "中"], ["$x$"]).axes[0]
    assert ticks(ax) == (["\\n", "b" * 15 + "…", "□"], ["$x$"])


def test_names_of_keys_name_queries_only_where_there_are_as_many() -> None:
    assert ticks(attention_map(weights(2, 3), ["a", "b", "c"]).axes[0])[1] != ["a", "b"]
    assert ticks(attention_map(weights(3, 3), ["a", "b", "c"], []).axes[0])[1] != ["a", "b", "c"]


def test_thousands_of_tokens_become_an_overview_that_keeps_one_strong_weight() -> None:
    large = np.zeros((4100, 2050), dtype=np.float32)
    large[3001, 1234] = 0.75
    ax, bar = attention_map(large).axes
    cells = np.asarray(ax.images[0].get_array())
    assert max(cells.shape) <= 512
    ((row, column),) = np.argwhere(cells > 0)
    assert cells[row, column] == 0.75
    left, right, bottom, top = ax.images[0].get_extent()
    # Where the strong cell is drawn, in tokens.
    high = (bottom - top) / cells.shape[0]
    wide = (right - left) / cells.shape[1]
    assert top + row * high <= 3001 <= top + (row + 1) * high
    assert left + column * wide <= 1234 <= left + (column + 1) * wide
    assert (high, wide) == (9, 5)
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 2049.5), (4099.5, -0.5))
    assert bar.get_ylabel() == "attention weight,\nlargest of each 9 × 5"
    assert 2 <= len(ax.get_xticks()) <= 8
    assert len(ax.texts) == 0


def test_numbers_count_tokens_where_names_do_not_fit() -> None:
    ax = attention_map(weights(41, 41), ["w"] * 41).axes[0]
    shown = [tick for tick in ax.get_xticks() if 0 <= tick <= 40]
    assert 3 <= len(shown) <= 8
    assert all(tick == int(tick) for tick in shown)


def test_a_map_in_given_axes_writes_numbers_where_there_is_room() -> None:
    expected = weights(4, 4)
    for side, written in ((4.0, 16), (1.6, 0)):
        figure, axes = new_figure(2 * side, side, columns=2)
        assert attention_map(expected, list("abcd"), title="here", ax=axes[1]) is figure
        assert (axes[1].get_title(loc="left"), len(axes[0].images)) == ("here", 0)
        np.testing.assert_array_equal(axes[1].images[0].get_array(), expected)
        assert len(axes[1].texts) == written


def panels(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.images]


def test_a_grid_has_a_row_for_each_layer_on_one_scale() -> None:
    expected = weights(2, 3, 5, 5)
    axes = panels(attention_grid(expected, WORDS, title="A text"))
    assert [ax.get_title() for ax in axes] == [
        f"Layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)
    ]
    for ax, one in zip(axes, expected.reshape(6, 5, 5), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), one)
        assert ax.images[0].get_clim() == (0, expected.max())
        assert [label.get_text() for label in ax.get_xticklabels()] == WORDS
    corners = [(ax.get_position().x0, -ax.get_position().y0) for ax in axes]
    assert corners == sorted(corners, key=lambda corner: (round(corner[1], 3), corner[0]))


def test_dollar_signs_in_names_of_heads_are_no_formula() -> None:
    figure = attention_grid(weights(1, 1, 2, 2), head_names=[r"costs $\no$"])
    figure.draw_without_rendering()
    assert panels(figure)[0].get_title() == r"Layer 1, costs $\no$"


def test_layers_may_have_different_numbers_of_heads() -> None:
    layers = [weights(1, 4, 4), weights(3, 4, 4, seed=1)]
    axes = panels(
        attention_grid(layers, head_names=("x", "y", "z"), layer_names=("first", "second"))
    )
    assert [ax.get_title() for ax in axes] == ["First, x", "Second, x", "Second, y", "Second, z"]
    layers[0] = layers[0][:0]
    assert [ax.get_title() for ax in panels(attention_grid(layers))] == [
        f"Layer 2, head {head}" for head in (1, 2, 3)
    ]


def test_a_grid_of_long_texts_keeps_their_strongest_weight() -> None:
    large = np.zeros((1, 2, 600, 600))
    large[0, 1, 577, 31] = 1
    one, other = panels(attention_grid(large))
    assert np.asarray(one.images[0].get_array()).max() == 0
    cells = np.asarray(other.images[0].get_array())
    assert max(cells.shape) <= 250
    assert np.argwhere(cells == 1).tolist() == [[577 // 3, 31 // 3]]


def test_a_figure_of_pyplot_can_be_drawn_in() -> None:
    plt.switch_backend("Agg")
    mine = plt.figure()
    assert attention_grid(weights(1, 2, 3, 3), figure=mine) is mine
    assert len(panels(mine)) == 2
    plt.close(mine)


def test_cross_attention_of_one_layer_or_of_several() -> None:
    expected = weights(3, 2, 5)
    one = panels(cross_attention(expected, WORDS, ["[SOS]", "RED"]))
    assert [ax.get_title() for ax in one] == ["Head 1", "Head 2", "Head 3"]
    for ax, head in zip(one, expected, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), head)
        assert ax.images[0].get_clim() == (0, 1)
        assert [label.get_text() for label in ax.get_yticklabels()] == ["[SOS]", "RED"]
        assert len(ax.texts) == 10
    assert (one[0].get_xlabel(), one[0].get_ylabel()) == ("encoder token", "decoder token")
    several = panels(cross_attention(np.stack([expected, expected]), WORDS, ["[SOS]", "RED"]))
    assert [ax.get_title() for ax in several][3] == "Layer 2, head 1"


def test_a_comparison_shows_both_and_what_each_reads_more() -> None:
    first, second = weights(2, 5, 5)
    figure = compare_heads(first, second, WORDS, title="Layer 1", names=("head 3", "head 8"))
    axes = panels(figure)
    shown = [np.asarray(ax.images[0].get_array()) for ax in axes]
    np.testing.assert_array_equal(shown[0], first)
    np.testing.assert_array_equal(shown[1], second)
    np.testing.assert_allclose(shown[2] - shown[3], first - second, atol=1e-12)
    assert (np.minimum(shown[2], shown[3]) == 0).all()
    assert {ax.images[0].get_clim() for ax in axes} == {(0, max(first.max(), second.max()))}
    assert [ax.get_title() for ax in axes] == [
        "Head 3",
        "Head 8",
        "Head 3, more than head 8",
        "Head 8, more than head 3",
    ]
    middle = (first + second) / 2
    both = [(np.where(p > 0, p * np.log(p / middle), 0)).sum(1) for p in (first, second)]
    assert figure.get_suptitle() == f"Layer 1: divergence {np.mean(both):.2f} of at most 0.69 nats"
    assert "no divergence" in compare_heads(np.zeros((1, 2)), np.zeros((1, 2))).get_suptitle()


@pytest.mark.slow
def test_figures_can_be_read() -> None:
    check_readable(attention_map(weights(13, 13), TEXT, title="Layer 1, head 2"))
    check_readable(attention_map(weights(40, 40), [f"word{place}" for place in range(40)]))
    check_readable(attention_map(weights(1, 1), ["one"], title="A single word"))
    check_readable(attention_map(weights(3, 600), queries=["a", "b", "c"]))
    figure, (left, right) = new_figure(11, 5, columns=2)
    attention_map(weights(13, 13), TEXT, title="left", ax=left)
    attention_map(weights(2, 3), list("abc"), ["long name", "b"], title="right", ax=right)
    check_readable(figure)
    check_readable(attention_grid(weights(2, 4, 5, 5), WORDS, title="A text"))
    check_readable(attention_grid(weights(1, 2, 300, 300), title="A long text"))
    check_readable(cross_attention(weights(2, 3, 5), WORDS, ["[SOS]", "RED", "is"]))
    check_readable(cross_attention(weights(2, 1, 9), ["encoder"] * 9, ["[SOS]"]))
    check_readable(
        cross_attention(weights(2, 3, 1, 9), ["a"] * 9, ["[SOS]"], layer_names=("before", "after"))
    )
    check_readable(attention_grid(weights(1, 1, 1, 1), ["one"]))
    first, second = weights(2, 5, 5)
    check_readable(compare_heads(first, second, WORDS, title="Layer 1"))


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_map_or_grid_is_refused() -> None:
    square = np.full((2, 2), 0.5)
    few = weights(1, 2, 3, 3)
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: attention_map(-square), "values from -0.5 to -0.5"),
        (lambda: attention_map(square * np.nan), "values from nan"),
        (lambda: attention_map(square, largest=0.4), "a value of 0.5 with largest = 0.4"),
        (lambda: attention_map(square[:0]), r"shapes \[\[0, 2\]\]"),
        (lambda: attention_map(torch.tensor(square)), r"a Tensor of shape \[2, 2\]"),  # type: ignore[arg-type]
        (lambda: attention_map(square[None]), r"a ndarray of shape \[1, 2, 2\]"),
        (lambda: attention_map(square, ["a"]), "1 names for 2 keys"),
        (lambda: attention_map(square, ["a", "b"], ["c"]), "1 names for 2 queries"),
        (lambda: overview(square, 0), "most = 0"),
        (lambda: end_of_scale([], None), r"shapes \[\]"),
        (lambda: attention_grid([]), "0 layers"),
        (lambda: attention_grid(few[:, :0]), "of up to 0 heads"),
        (lambda: attention_grid(weights(5, 13, 2, 2)), "5 layers of up to 13 heads"),
        (lambda: attention_grid([few[0], weights(1, 2, 2)]), "maps of shapes"),
        (lambda: attention_grid(-few), "values from -"),
        (lambda: attention_grid(few, layer_names=("a", "b")), "2 names"),
        (lambda: attention_grid(few, ["a"]), "1 names for 3 keys"),
        (lambda: attention_grid([torch.tensor(few)]), r"a Tensor of shape \[2, 3, 3\]"),  # type: ignore[list-item]
        (lambda: attention_grid(few[0]), r"a ndarray of shape \[3\]"),
        (lambda: cross_attention(2 * few, WORDS[:3], WORDS[:3]), "largest = 1.0"),
        (lambda: compare_heads(few[0, 0], few[0, 1][:2]), "weights of shapes"),
    ]
    for attempt, message in attempts:
        with refused(message):
            attempt()
    used, _ = new_figure(2, 2)
    with refused("a figure with 1 axes"):
        attention_grid(few, figure=used)
    assert end_of_scale([np.zeros((1, 1))], None) == 1.0
