"""Several heads: which map stands where, on which scale, and what a comparison shows of either."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.figures.attention_maps import attention_grid, compare_heads, cross_attention
from glassformer.figures.style import new_figure
from refusals import refused

TEXT = ["<CLS>", "not", "a", "remarkable", "film"]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.3), shape[:-1])


def panels(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.images]


def test_a_grid_has_a_row_for_each_layer_on_one_scale() -> None:
    expected = weights(2, 3, 5, 5)
    axes = panels(attention_grid(expected, TEXT, title="A text"))
    assert [ax.get_title() for ax in axes] == [f"Layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)]
    for ax, one in zip(axes, expected.reshape(6, 5, 5), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), one)
        assert ax.images[0].get_clim() == (0, expected.max())
        assert [label.get_text() for label in ax.get_xticklabels()] == TEXT
    corners = [(ax.get_position().x0, -ax.get_position().y0) for ax in axes]
    assert corners == sorted(corners, key=lambda corner: (round(corner[1], 3), corner[0]))


def test_layers_may_have_different_numbers_of_heads() -> None:
    layers = [weights(1, 4, 4), weights(3, 4, 4, seed=1)]
    axes = panels(attention_grid(layers, head_names=("x", "y", "z"), layer_names=("first", "second")))
    assert [ax.get_title() for ax in axes] == ["First, x", "Second, x", "Second, y", "Second, z"]
    layers[0] = layers[0][:0]
    assert [ax.get_title() for ax in panels(attention_grid(layers))] == [f"Layer 2, head {head}" for head in (1, 2, 3)]


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
    one = panels(cross_attention(expected, TEXT, ["[SOS]", "RED"]))
    assert [ax.get_title() for ax in one] == ["Head 1", "Head 2", "Head 3"]
    for ax, head in zip(one, expected, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), head)
        assert ax.images[0].get_clim() == (0, 1)
        assert [label.get_text() for label in ax.get_yticklabels()] == ["[SOS]", "RED"]
        assert len(ax.texts) == 10
    assert (one[0].get_xlabel(), one[0].get_ylabel()) == ("encoder token", "decoder token")
    several = panels(cross_attention(np.stack([expected, expected]), TEXT, ["[SOS]", "RED"]))
    assert [ax.get_title() for ax in several][3] == "Layer 2, head 1"


def test_a_comparison_shows_both_and_what_each_reads_more() -> None:
    first, second = weights(2, 5, 5)
    figure = compare_heads(first, second, TEXT, title="Layer 1", names=("head 3", "head 8"))
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
def test_figures_can_be_read(check_readable: Callable[[Figure], None]) -> None:
    check_readable(attention_grid(weights(2, 4, 5, 5), TEXT, title="A text"))
    check_readable(attention_grid(weights(1, 2, 300, 300), title="A long text"))
    check_readable(cross_attention(weights(2, 3, 5), TEXT, ["[SOS]", "RED", "is"]))
    check_readable(cross_attention(weights(2, 1, 9), ["encoder"] * 9, ["[SOS]"]))
    check_readable(cross_attention(weights(2, 3, 1, 9), ["a"] * 9, ["[SOS]"], layer_names=("before", "after")))
    check_readable(attention_grid(weights(1, 1, 1, 1), ["one"]))
    first, second = weights(2, 5, 5)
    check_readable(compare_heads(first, second, TEXT, title="Layer 1"))


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_grid_is_refused() -> None:
    few = weights(1, 2, 3, 3)
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: attention_grid([]), "0 layers"),
        (lambda: attention_grid(few[:, :0]), "of up to 0 heads"),
        (lambda: attention_grid(weights(5, 13, 2, 2)), "5 layers of up to 13 heads"),
        (lambda: attention_grid([few[0], weights(1, 2, 2)]), "maps of shapes"),
        (lambda: attention_grid(-few), "values from -"),
        (lambda: attention_grid(few, layer_names=("a", "b")), "2 names"),
        (lambda: attention_grid(few, ["a"]), "1 names for 3 keys"),
        (lambda: cross_attention(2 * few, TEXT[:3], TEXT[:3]), "largest = 1.0"),
        (lambda: compare_heads(few[0, 0], few[0, 1][:2]), "weights of shapes"),
    ]
    for attempt, message in attempts:
        with refused(message):
            attempt()
    used, _ = new_figure(2, 2)
    with refused("a figure with 1 axes"):
        attention_grid(few, figure=used)
