"""Numbers of heads and experts as figures: tables by layer and head, shares on sinks, loads of experts, one query.

Layers, heads and experts are counted from 1 unless they are given names.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from jaxtyping import Float, Integer, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.observe.attention_measures import HeadMeasures
from glassformer.observe.figures.attention_maps import numbered
from glassformer.observe.figures.coloured_words import SEQUENTIAL, coloured_text
from glassformer.observe.figures.heat_maps import MOST_TEXTS, Names, finish, panel, write_values
from glassformer.observe.figures.style import BLACK, BLUE, RED, in_style, new_figure

_CELL, _BARE_CELL = 0.42, 0.2
"""Inches: of a cell with its number in it, and of one without."""

_WIDEST = 11.0


@in_style
def head_table(
    values: Shaped[np.ndarray, "layer head"],
    title: str = "",
    *,
    label: str = "",
    largest: float | None = None,
    layer_names: Names = (),
    head_names: Names = (),
    head: str = "head",
    ax: Axes | None = None,
) -> Figure:
    """A number for each head of each layer, as a colour and, in tables of up to 22 x 22, in digits.

    Args:
        values: From 0 on; NaN, which is drawn grey, where there is no such head or nothing was measured.
        title: Above the table.
        label: What the numbers are, with their unit.
        largest: The number with the darkest colour; the largest of ``values`` when None.
        layer_names: One for each row; numbers from 1 when none are given.
        head_names: Likewise for columns.
        head: What the columns are, if not heads.
        ax: Where to draw; a figure of its own when None.

    Returns:
        The figure that was drawn in.

    Raises:
        InputError: No layers or heads, numbers below 0, above ``largest`` or infinite, or names of another number.
    """
    if ax is not None:
        _table(ax, values, title, label, largest, layer_names, head_names, head)
        return _figure(ax)
    across, down = _size(values)
    figure, (place,) = new_figure(max(3.6, across + 1.9), down + 1.1)
    _table(place, values, "", label, largest, layer_names, head_names, head)
    finish(figure, title)
    return figure


@in_style
def head_spread(measures: HeadMeasures, title: str = "", *, layer_names: Names = (), head_names: Names = ()) -> Figure:
    """How spread every head's attention is and how far it reaches: entropy, its share of the largest, and distance.

    Args:
        measures: Of heads ``[layer, head]``, from
            :func:`~glassformer.observe.attention_measures.head_measures`.
        title: Above the figure.
        layer_names: As for :func:`head_table`.
        head_names: Likewise.

    Raises:
        InputError: Measures without the axes layer and head, or names of another number.
    """
    return _tables(
        measures,
        (
            ("Entropy, nats", measures.entropy, None),
            ("Entropy, share of the largest", measures.entropy_share, 1.0),
            ("Distance, positions", measures.distance, None),
        ),
        title,
        layer_names,
        head_names,
    )


@in_style
def head_targets(measures: HeadMeasures, title: str = "", *, layer_names: Names = (), head_names: Names = ()) -> Figure:
    """Where every head's attention rests: its share on the first token, the query's own, the one before, and the sink.

    Args:
        measures: As for :func:`head_spread`, and so are the other arguments.

    Raises:
        InputError: As for :func:`head_spread`.
    """
    shares = (
        ("On the first token", measures.first),
        ("On itself", measures.itself),
        ("On the token before", measures.previous),
        ("On the sink", measures.sink),
    )
    return _tables(measures, tuple((name, values, 1.0) for name, values in shares), title, layer_names, head_names)


def sink_shares(
    shares: Float[np.ndarray, "layer head"],
    title: str = "Share of attention on each head's sink",
    *,
    layer_names: Names = (),
    head_names: Names = (),
    ax: Axes | None = None,
) -> Figure:
    """How much of every head's attention goes to its sink, and so to no token: :func:`head_table` from 0 to 1.

    Raises:
        InputError: As for :func:`head_table`, or shares above 1.
    """
    return head_table(shares, title, label="share", largest=1.0, layer_names=layer_names, head_names=head_names, ax=ax)


@in_style
def expert_load(
    tokens: Integer[np.ndarray, "layer expert"],
    title: str = "Load of experts",
    *,
    layer_names: Names = (),
    ax: Axes | None = None,
) -> Figure:
    """How unevenly the routers share out tokens: each expert's load over the even one, layer by layer.

    The even load of a layer is the mean over its experts; the line at 1 is balance. The busiest expert of each layer
    has a square and its number.

    Args:
        tokens: How many tokens, or token-expert pairs, every expert got.
        title: Above the panel.
        layer_names: One for each layer; numbers from 1 when none are given.
        ax: Where to draw; a figure of its own when None.

    Raises:
        InputError: No layers or experts, counts below 0, a layer without tokens, or names of another number.
    """
    layers, experts = _counts(tokens)
    figure, place = (_figure(ax), ax) if ax is not None else _single(max(5.2, 0.42 * layers + 2), 3.8)
    loads = tokens / tokens.mean(axis=1, keepdims=True)
    where = np.arange(layers)
    place.vlines(where, loads.min(axis=1), loads.max(axis=1), color="#b0b0b0", linewidth=1, zorder=1)
    place.plot(np.repeat(where, experts), loads.ravel(), "o", color=BLUE, markersize=4, alpha=0.7, label="an expert")
    place.plot(where, loads.max(axis=1), "s", color=RED, markersize=5, label="the busiest, with its number")
    place.axhline(1, color=BLACK, linestyle="--", linewidth=1, label="balance")
    for layer, busiest in enumerate(loads.argmax(axis=1)):
        place.annotate(
            str(busiest + 1), (layer, loads[layer, busiest]), (0, 5), textcoords="offset points", ha="center"
        )
    step = -(-layers // 24)
    place.set_xticks(where[::step], numbered(layer_names, layers, "")[::step])
    place.set(xlim=(-0.6, layers - 0.4), ylim=(0, 1.15 * max(1.0, float(loads.max()))))
    place.set(title=title, xlabel="layer", ylabel="load, even load = 1")
    place.grid(False, axis="x")
    place.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=4.5, ncols=3, fontsize=9)
    return figure


@in_style
def router_load(
    tokens: Integer[np.ndarray, "layer expert"], title: str = "", *, layer_names: Names = (), expert_names: Names = ()
) -> Figure:
    """The tokens of every expert in every layer, and beside it :func:`expert_load`.

    Args:
        tokens: As for :func:`expert_load`.
        title: Above the figure.
        layer_names: One for each layer; numbers from 1 when none are given.
        expert_names: Likewise for experts.

    Raises:
        InputError: As for :func:`expert_load`.
    """
    layers, _ = _counts(tokens)
    across, down = _size(tokens, 0.5)
    right = max(4.8, 0.42 * layers + 1.5)
    figure, (left, beside) = new_figure(
        across + right + 2.4, max(4.0, down + 1.6), columns=2, width_ratios=(across + 1.6, right)
    )
    _table(left, tokens, "Tokens of each expert", "tokens", None, layer_names, expert_names, "expert")
    expert_load(tokens, "Balance", layer_names=layer_names, ax=beside)
    finish(figure, title)
    return figure


def query_text(
    words: Names,
    weights: Float[np.ndarray, "query key"],
    query: int,
    title: str | None = None,
    *,
    largest: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """What one query of a head reads, over the text: every word on a ground as dark as its weight, the query framed.

    Args:
        words: The text.
        weights: Of the words to one another.
        query: The place of the query, from 0, or from -1 backwards.
        title: Above the text.
        largest: As for :func:`~glassformer.observe.figures.coloured_words.coloured_text`.
        ax: Likewise.

    Raises:
        InputError: A query that is not there, or as for
            :func:`~glassformer.observe.figures.coloured_words.coloured_text`.
    """
    count = len(words)
    require(
        weights.shape == (count, count),
        f"weights of shape {list(weights.shape)} for {count} words",
        f"{[count] * 2}",
        "Pass the weights of self-attention.",
    )
    require(
        -count <= query < count,
        f"query = {query}",
        f"a place from {-count} to {count - 1}",
        "Pass the place of a word.",
    )
    return coloured_text(
        words, weights[query], title, ax=ax, label="attention weight", largest=largest, framed=query % count
    )


def _tables(
    measures: HeadMeasures,
    shown: tuple[tuple[str, np.ndarray, float | None], ...],
    title: str,
    layer_names: Names,
    head_names: Names,
) -> Figure:
    shape = measures.entropy.shape
    require(
        len(shape) == 2,
        f"measures of heads {list(shape)}",
        "[layer, head]",
        "Measure weights of shape [layer, head, query, key].",
    )
    across, down = _size(measures.entropy)
    width, height = max(3.2, across + 1.7), down + 1.0
    rows = -(-len(shown) // max(1, int(16 / width)))
    beside = -(-len(shown) // rows)
    figure, axes = new_figure(beside * width, rows * height + 0.4, rows, beside)
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    for place, (ax, (name, values, largest)) in enumerate(zip(axes, shown, strict=False)):
        _table(ax, values, name, "", largest, layer_names, head_names, "head")
        if place % beside:
            ax.set_ylabel("")
    finish(figure, title)
    return figure


def _table(
    ax: Axes,
    values: np.ndarray,
    title: str,
    label: str,
    largest: float | None,
    layer_names: Names,
    head_names: Names,
    head: str,
) -> None:
    rows, columns = values.shape
    down, across = numbered(layer_names, rows, ""), numbered(head_names, columns, "")
    known = values[~np.isnan(values)] if values.size else values
    low, high = float(known.min(initial=0)), float(known.max(initial=0))
    require(
        values.size > 0 and low >= 0 and bool(np.isfinite(high)),
        f"numbers from {low:g} to {high:g} of shape {list(values.shape)}",
        "finite ones from 0 on",
        "Draw differences with heat_maps.panel.",
    )
    require(
        largest is None or high <= largest + 1e-2,
        f"{high:g} with largest = {largest}",
        "none beyond the end of the scale",
        "Pass the largest of all, or None.",
    )
    limits = (0.0, largest or high or 1.0)
    image = panel(ax, values.astype(float), "", head, "layer", limits=limits, colormap=SEQUENTIAL)
    # The figure's size makes near squares of the cells; axes that were given are filled.
    ax.set_box_aspect(None)
    ax.set_title(title, loc="left")
    for axis, names, most in ((ax.xaxis, across, 20), (ax.yaxis, down, 24)):
        # A number for each would be one on the other.
        step = -(-len(names) // most) if len(names) > MOST_TEXTS else 1
        rotation = 90 if axis is ax.xaxis and max(map(len, names)) > 3 else 0
        axis.set_ticks(range(0, len(names), step), names[::step], fontsize=8, rotation=rotation)
    _figure(ax).colorbar(image, ax=ax, label=label, fraction=0.05, pad=0.02)
    if max(values.shape) <= MOST_TEXTS:
        write_values(ax, values.astype(float), image, limits[1])


def _size(values: np.ndarray, cell: float = _CELL) -> tuple[float, float]:
    """Inches of a table."""
    side = cell if max(values.shape) <= MOST_TEXTS else _BARE_CELL
    return min(_WIDEST, side * values.shape[1]), max(0.5, min(_WIDEST, side * values.shape[0]))


def _counts(tokens: np.ndarray) -> tuple[int, int]:
    """The number of layers and of experts, if the counts can be loads."""
    layers, experts = tokens.shape
    require(
        tokens.size > 0 and int(tokens.min()) >= 0 and int(tokens.sum(axis=1).min()) > 0,
        f"counts of shape {list(tokens.shape)}, by layer {tokens.sum(axis=1).tolist()}",
        "counts from 0 on, with tokens in every layer",
        "Count how often each expert was chosen, with np.bincount.",
    )
    return layers, experts


def _figure(ax: Axes) -> Figure:
    return cast(Figure, ax.get_figure(root=True))


def _single(width: float, height: float) -> tuple[Figure, Axes]:
    figure, (ax,) = new_figure(width, height)
    return figure, ax
