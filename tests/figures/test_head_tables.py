"""Tables of heads, loads of experts and one query's text: what they show, and that they can be read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from glassformer.figures.coloured_words import coloured_text
from glassformer.figures.head_tables import (
    expert_load,
    head_spread,
    head_table,
    head_targets,
    router_load,
)
from glassformer.figures.style import new_figure, save_figure
from glassformer.observe.attention_measures import HeadMeasures, head_measures
from refusals import refused

COUNTS = np.array([[10, 30, 0, 0], [10, 10, 10, 10], [5, 5, 10, 20]])
WORDS = ["<CLS>", "it", "is", "good"]


def measures(layers: int = 2, heads: int = 3, tokens: int = 6) -> HeadMeasures:
    rng = np.random.default_rng(0)
    return head_measures(0.9 * rng.dirichlet(np.ones(tokens), (layers, heads, tokens)))


def shown(ax: Axes) -> np.ndarray:
    """What the panel's image holds."""
    return np.ma.filled(np.ma.asarray(ax.images[0].get_array()), np.nan)


def drawn(line: Line2D) -> np.ndarray:
    """The coordinates of a line's points."""
    return np.asarray(line.get_xydata())


def panels(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if ax.images]


def test_a_table_shows_each_number_in_its_place() -> None:
    values = np.array([[0.25, 0.5, np.nan], [1.5, 0.0, 2.0]])
    (ax,) = panels(head_table(values, "Entropy", label="nats"))
    np.testing.assert_array_equal(shown(ax), values)
    cells = {text.get_position(): text.get_text() for text in ax.texts}
    assert cells == {(0, 0): "0.25", (1, 0): "0.5", (0, 1): "1.5", (1, 1): "0", (2, 1): "2"}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_large_tables_have_some_numbers_on_their_axes_and_none_in_their_cells() -> None:
    (ax,) = panels(head_table(np.random.default_rng(0).random((36, 64))))
    assert len(ax.texts) == 0
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["1", "5", "9"]
    assert [label.get_text() for label in ax.get_yticklabels()][:3] == ["1", "3", "5"]


def test_rounding_is_no_share() -> None:
    (ax,) = panels(head_table(np.array([[6e-8, 0.5]]), largest=1.0))
    assert [text.get_text() for text in ax.texts] == ["0", "0.5"]
    assert ax.images[0].get_clim() == (0, 1)


def test_spread_and_targets_are_the_measures() -> None:
    found = measures()
    for figure, expected in (
        (head_spread(found, "A model"), (found.entropy, found.entropy_share, found.distance)),
        (head_targets(found), (found.first, found.itself, found.previous, found.sink)),
    ):
        axes = panels(figure)
        assert len(axes) == len(expected)
        for ax, values in zip(axes, expected, strict=True):
            np.testing.assert_array_equal(shown(ax), values)
    names = head_spread(found, layer_names=("below", "above"), head_names=("a", "b", "c"))
    assert [label.get_text() for label in panels(names)[2].get_yticklabels()] == ["below", "above"]


def test_loads_are_over_the_even_one() -> None:
    ax = expert_load(COUNTS).axes[0]
    every, busiest, balance = ax.lines
    loads = [1, 3, 0, 0, 1, 1, 1, 1, 0.5, 0.5, 1, 2]
    np.testing.assert_allclose(drawn(every), list(zip(np.repeat([0, 1, 2], 4), loads, strict=True)))
    np.testing.assert_allclose(drawn(busiest), [[0, 3], [1, 1], [2, 2]])
    np.testing.assert_allclose(drawn(balance)[:, 1], [1, 1])
    assert [text.get_text() for text in ax.texts] == ["2", "1", "4"]


def test_the_router_has_counts_beside_the_balance() -> None:
    figure = router_load(COUNTS, "A model", layer_names=("x", "y", "z"))
    table, balance = figure.axes[:2]
    np.testing.assert_array_equal(table.images[0].get_array(), COUNTS)
    assert table.get_xlabel() == "expert"
    assert [label.get_text() for label in balance.get_xticklabels()] == ["x", "y", "z"]
    assert len(balance.lines) == 3


def test_one_query_is_framed_in_the_text_that_it_reads() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 4)
    ax, bar = coloured_text(WORDS, weights[2], "A query", framed=2).axes
    assert [text.get_text() for text in ax.texts] == WORDS
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    grounds, (frame,) = ([box for box in boxes if box.get_fill() is filled] for filled in (True, False))
    assert frame.get_bbox().bounds == grounds[2].get_bbox().bounds
    assert bar.get_xlim()[1] == pytest.approx(weights[2].max())
    darkest = min(range(4), key=lambda place: sum(to_rgb(grounds[place].get_facecolor())))
    assert darkest == weights[2].argmax()


def test_panels_are_drawn_in_given_axes() -> None:
    figure, axes = new_figure(12, 8, 2, 2)
    figures = (
        head_table(np.eye(3), "one", largest=1.0, ax=axes[0]),
        expert_load(COUNTS, "two", ax=axes[1]),
        head_table(np.eye(2), "three", ax=axes[2]),
        coloured_text(WORDS, [0.25] * 4, "four", framed=1, ax=axes[3]),
    )
    assert all(each is figure for each in figures)
    assert [ax.get_title(loc="left") for ax in axes] == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_figures_can_be_read_and_saved(
    check_readable: Callable[[Figure], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("figures")
    rng = np.random.default_rng(0)
    for name, figure in {
        "spread": head_spread(measures(4, 8), "A model"),
        "targets": head_targets(measures(1, 2), "A model"),
        "large": head_spread(measures(24, 40, 3), "A large model"),
        "sinks": head_table(rng.random((6, 8)), "Share on the sink", label="share", largest=1.0),
        "single": head_table(rng.random((1, 1)), "Share on the sink", label="share", largest=1.0),
        "load": expert_load(COUNTS),
        "router": router_load(COUNTS, "A model"),
        "large-router": router_load(rng.multinomial(4096, np.full(32, 1 / 32), 24), "A large model"),
        "named": head_table(rng.random((2, 3)), head_names=("decoder", "encoder", "both"), layer_names=("one", "two")),
        "query": coloured_text(WORDS, [0.25] * 4, "A query", label="attention weight", framed=0),
    }.items():
        check_readable(figure)
        if name in ("spread", "load"):
            paths = save_figure(figure, directory, name, formats=("png", "svg", "pdf"))
            assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_drawn_is_refused() -> None:
    square = np.full((2, 2), 0.5)
    flat = head_measures(np.full((3, 2, 2), 0.5))
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: head_table(-square), "values from -0.5"),
        (lambda: head_table(square * np.inf), "inf"),
        (lambda: head_table(square[:0]), r"shapes \[\[0, 2\]\]"),
        (lambda: head_table(square, head_names=("a",)), "1 names"),
        (lambda: head_table(3 * square, largest=1.0), "1.5 with largest = 1.0"),
        (lambda: head_spread(flat), r"heads \[3\]"),
        (lambda: head_targets(flat), r"heads \[3\]"),
        (lambda: expert_load(COUNTS - 1), "by layer"),
        (lambda: expert_load(COUNTS[:, 2:]), r"by layer \[0, 20, 30\]"),
        (lambda: router_load(COUNTS[:0]), r"shape \[0, 4\]"),
        (lambda: router_load(COUNTS, layer_names=("a",)), "1 names"),
        (lambda: coloured_text(WORDS, square[0]), "for 4 words"),
        (lambda: coloured_text(["a", "b"], -square[0]), "a weight of -0.5"),
    ]
    for attempt, message in attempts:
        with refused(message):
            attempt()
