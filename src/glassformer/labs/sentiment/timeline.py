"""When models were published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.figures.style import LINES, in_style, new_figure

EVENTS = json.loads((Path(__file__).parent / "timeline.json").read_text(encoding="utf-8"))
"""When models became public, and the parameters of their largest versions, all experts included, where known.

In sparse ones a token passes through some of the parameters only. Not complete.
"""


@in_style
def draw_timeline() -> Figure:
    """When models became public, against their numbers of parameters where these are known."""
    figure, (sizes, unknown) = new_figure(11.5, 6, rows=2, sharex=True, height_ratios=(4, 1))
    placed = [(event["year"] + (event["month"] - 0.5) / 12, event) for event in EVENTS]
    sizes.set(yscale="log", ylabel="parameters: $10^6$ M, $10^9$ B, $10^{12}$ T", title="Transformers since 2017")
    sizes.set_xlim(EVENTS[0]["year"] - 0.3, placed[-1][0] + 1)
    sizes.yaxis.set_major_formatter(lambda value, _: _size(value))
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
    ends: list[float] = []
    for date, event in placed:
        if (size := event["parameters"]) is not None:
            look = LINES[int(event["sparse"])]
            sizes.plot(date, size, look["marker"], color=look["color"], markersize=7)
            # Below, where the name of an earlier one that is a little larger reaches over here.
            near = [each["parameters"] or 0 for other, each in placed if 0 < date - other < 1.2]
            lift = -15 if any(size < each < 3 * size for each in near) else 7
            sizes.annotate(f"{event['name']}, {_size(size)}", (date, size), (0, lift), ha="center", **beside)
            continue
        # The first row whose last name ends before this one starts; a letter is about 0.065 years wide.
        row = next((row for row, end in enumerate(ends) if end < date), len(ends))
        ends[row:] = [date + 0.065 * len(event["name"]) + 0.25, *ends[row + 1 :]]
        unknown.plot(date, row, LINES[2]["marker"], color=LINES[2]["color"], markersize=7)
        unknown.annotate(event["name"], (date, row), (7, 0), va="center", **beside)
    unknown.set(ylim=(len(ends) - 0.4, -0.6), yticks=[], xlabel="year", ylabel="size not\npublished")
    unknown.xaxis.set_major_locator(MaxNLocator(integer=True))
    unknown.grid(True, axis="x")
    sizes.margins(y=0.12)
    for look, share in zip(LINES, ("all", "some"), strict=False):
        label = f"{share} parameters at work for each token"
        sizes.plot([], [], look["marker"], color=look["color"], markersize=7, label=label)
    sizes.legend(loc="lower right")
    return figure


def _size(parameters: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {name}"
    return f"{parameters:,.0f}"
