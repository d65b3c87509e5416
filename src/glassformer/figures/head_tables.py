"""Numbers of heads and experts: tables by layer and head, shares of attention on sinks, loads of experts.

All functions take a ``title`` and names of layers, heads or experts, which are numbered from 1 if these are empty, and
return the figure. They draw in ``ax``, or in a new figure when it is None. They raise InputError where layers, heads or
experts are missing, for numbers below 0 or infinite, and for a wrong number of names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Integer, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.figures.attention_maps import end_of_scale, numbered
from glassformer.figures.heat_maps import (
    CELL,
    MOST_TEXTS,
    SEQUENTIAL,
    TABLE_CELL,
    Names,
    finish,
    panel,
    side,
    write_values,
)
from glassformer.figures.style import BLACK, BLUE, RED, axes_or_new, in_style, new_figure
from glassformer.observe.attention_measures import HeadMeasures


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
        values: From 0 on; NaN, which is drawn grey, for heads without a value.
        label: What the numbers are, with their unit.
        largest: The number with the darkest colour, which no other exceeds; the largest of ``values`` when None.
        head: What the columns are, if not heads.
    """
    down, across = numbered(layer_names, len(values), ""), numbered(head_names, values.shape[1], "")
    values = values.astype(float)
    end = end_of_scale([np.where(np.isnan(values), 0.0, values)], largest)
    width, height = _inches(values)
    figure, place = axes_or_new(ax, max(3.6, width + 1.9), height + 1.1)
    image = panel(place, values, "", head, "layer", limits=(0.0, end), colormap=SEQUENTIAL)
    # A new figure's size makes the cells nearly square; given axes are filled.
    place.set_box_aspect(None)
    for axis, names, most in ((place.xaxis, across, 20), (place.yaxis, down, 24)):
        # All numbers of a large table would overlap.
        step = -(-len(names) // most) if len(names) > MOST_TEXTS else 1
        rotation = 90 if axis is place.xaxis and max(map(len, names)) > 3 else 0
        axis.set_ticks(range(0, len(names), step), names[::step], fontsize=8, rotation=rotation)
    figure.colorbar(image, ax=place, label=label, fraction=0.05, pad=0.02)
    if max(values.shape) <= MOST_TEXTS:
        write_values(place, values, image, end)
    finish(figure, title, ax)
    return figure


@in_style
def head_spread(measures: HeadMeasures, title: str = "", *, layer_names: Names = (), head_names: Names = ()) -> Figure:
    """How concentrated every head's attention is and how far it reaches: entropy, its share of the maximum, distance.

    ``measures`` come from :func:`~glassformer.observe.attention_measures.head_measures` of heads ``[layer, head]``.
    """
    tables = {
        "Entropy, nats": (measures.entropy, None),
        "Entropy, share of the largest": (measures.entropy_share, 1.0),
        "Distance, positions": (measures.distance, None),
    }
    return _tables(tables, title, layer_names, head_names)


@in_style
def head_targets(measures: HeadMeasures, title: str = "", *, layer_names: Names = (), head_names: Names = ()) -> Figure:
    """Every head's share of attention on the first token, the query's own, the previous one, and the sink."""
    tables = {
        "On the first token": (measures.first, 1.0),
        "On itself": (measures.itself, 1.0),
        "On the token before": (measures.previous, 1.0),
        "On the sink": (measures.sink, 1.0),
    }
    return _tables(tables, title, layer_names, head_names)


@in_style
def expert_load(
    tokens: Integer[np.ndarray, "layer expert"],
    title: str = "Load of experts",
    *,
    layer_names: Names = (),
    ax: Axes | None = None,
) -> Figure:
    """How unevenly routers distribute tokens: each expert's load relative to the mean of its layer.

    The line at 1 is balance. The busiest expert of each layer has a square and its number.

    ``tokens`` is the number of tokens, or of token-expert pairs, of every expert; no layer may be without.
    """
    _check_counts(tokens)
    layers, experts = tokens.shape
    figure, place = axes_or_new(ax, max(5.2, 0.42 * layers + 2), 3.8)
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
    """A table of the tokens of every expert in every layer, next to :func:`expert_load`."""
    _check_counts(tokens)
    across, down = _inches(tokens, 0.5)
    right = max(4.8, 0.42 * len(tokens) + 1.5)
    figure, (left, balance) = new_figure(
        across + right + 2.4, max(4.0, down + 1.6), columns=2, width_ratios=(across + 1.6, right)
    )
    table: dict[str, Any] = {"layer_names": layer_names, "head_names": expert_names, "head": "expert"}
    head_table(tokens, "Tokens of each expert", label="tokens", ax=left, **table)
    expert_load(tokens, "Balance", layer_names=layer_names, ax=balance)
    finish(figure, title)
    return figure


def _tables(
    tables: Mapping[str, tuple[np.ndarray, float | None]], title: str, layer_names: Names, head_names: Names
) -> Figure:
    """A table with its largest value for each title, in rows of up to 16 inches."""
    first = next(iter(tables.values()))[0]
    require(
        first.ndim == 2,
        f"measures of heads {list(first.shape)}",
        "[layer, head]",
        "Measure weights of shape [layer, head, query, key].",
    )
    across, down = _inches(first)
    width, height = max(3.2, across + 1.7), down + 1.0
    rows = -(-len(tables) // max(1, int(16 / width)))
    columns = -(-len(tables) // rows)
    figure, axes = new_figure(columns * width, rows * height + 0.4, rows, columns)
    for ax in axes[len(tables) :]:
        ax.set_axis_off()
    for place, (ax, (name, (values, largest))) in enumerate(zip(axes, tables.items(), strict=False)):
        head_table(values, name, largest=largest, layer_names=layer_names, head_names=head_names, ax=ax)
        if place % columns:
            ax.set_ylabel("")
    finish(figure, title)
    return figure


def _inches(values: np.ndarray, cell: float = TABLE_CELL) -> tuple[float, float]:
    """Width and height of a table."""
    cell = cell if max(values.shape) <= MOST_TEXTS else CELL
    return side(values.shape[1], cell, 0.0, 11.0), side(values.shape[0], cell, 0.5, 11.0)


def _check_counts(tokens: np.ndarray) -> None:
    require(
        tokens.size > 0 and int(tokens.min()) >= 0 and int(tokens.sum(axis=1).min()) > 0,
        f"counts of shape {list(tokens.shape)}, by layer {tokens.sum(axis=1).tolist()}",
        "counts from 0 on, with tokens in every layer",
        "Count how often each expert was chosen, with np.bincount.",
    )
