"""Illustrations that need no model: how words reach each other, and sinusoidal positions."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.figure import Figure

from glassformer.errors import require
from glassformer.figures.heat_maps import panel
from glassformer.figures.style import BLACK, RED, in_style, line, new_figure
from glassformer.layers.positions import SinusoidalPositions


@in_style
def draw_recurrent_and_parallel(sentence: str = "The cat sat on the mat") -> Figure:
    """How the first word's information comes to the last: step by step in a recurrence, at once in attention.

    Raises:
        InputError: Fewer than two words.
    """
    words = sentence.split()
    count = len(words)
    require(count >= 2, f"{count} words", "at least two", "Pass a sentence.")
    figure, panels = new_figure(2 * max(1.0, 0.13 * max(map(len, words))) * count + 1, 2.8, columns=2)
    nodes = range(count)
    recurrence = [*(((n, 0), (n, 1)) for n in nodes), *(((n, 1), (n + 1, 1)) for n in nodes[:-1])]
    attention = [((source, 0), (target, 1)) for source in nodes for target in nodes]
    for ax, name, links, path in (
        (panels[0], "Recurrence", recurrence, [(0, 0), *((n, 1) for n in nodes)]),
        (panels[1], "Attention", attention, [(0, 0), (count - 1, 1)]),
    ):
        ax.set(xlim=(-0.6, count - 0.4), ylim=(-0.15, 1.35))
        ax.set_axis_off()
        for start, end in links:
            first = (start, end) in pairwise(path)
            look = {"color": RED, "lw": 2.2} if first else {"color": "#909090", "lw": 0.8}
            arrow = {"arrowstyle": "->", "shrinkA": 9, "shrinkB": 7, **look}
            ax.annotate("", end, start, arrowprops=arrow, zorder=3 if first else 2)
        for place, word in enumerate(words):
            ax.plot(place, 1, "o", markersize=11, color="white", markeredgecolor=BLACK)
            ax.text(place, 0, word, ha="center", va="center", parse_math=False, zorder=4, backgroundcolor="white")
            if links is recurrence:
                ax.text(place, 1.2, f"step {place + 1}", ha="center", fontsize=8)
        after = f"{count} steps, one after another" if links is recurrence else "1 step for all"
        steps = len(path) - 1
        ax.set_title(f"{name}: {after}\nfrom the first word to the last: {steps} link{'s' * (steps > 1)}")
    return figure


@in_style
def draw_positions(num_positions: int = 50, hidden_dim: int = 64) -> Figure:
    """The sinusoidal positions, and the products of two of them by distance: sums of cosines, wherever one starts."""
    table = SinusoidalPositions(hidden_dim, num_positions).table.double().numpy()
    figure, (waves, products) = new_figure(11, 4.6, columns=2)
    image = panel(waves, table.T, "", "position", "coordinate", limits=(-1, 1), colormap="cividis")
    waves.set_title(f"What is added to each of {num_positions} positions", loc="left")
    waves.set(xticks=range(0, num_positions, 10), yticks=range(0, hidden_dim, max(1, hidden_dim // 8)))
    waves.set_box_aspect(None)
    figure.colorbar(image, ax=waves, label="value")
    for series, start in enumerate((0, num_positions // 4, num_positions // 2)):
        reached = table[start:] @ table[start]
        products.plot(reached, **line(series, len(reached)), label=f"from position {start}")
    products.set(xlabel="distance", ylabel="product of two encodings", title="A product depends on the distance alone")
    products.legend()
    return figure
