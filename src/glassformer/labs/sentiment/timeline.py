"""When the models became public that the course's time line names, as data and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from glassformer.errors import require
from glassformer.observe.figures.style import LINES, in_style, new_figure


@dataclass(frozen=True)
class Event:
    """A model on the time line.

    Attributes:
        name: What it is called.
        year: When it was made public.
        month: From 1.
        parameters: Of its largest version, all experts included; None where it was not published.
        sparse: A token passes through some of the parameters only.
    """

    name: str
    year: int
    month: int
    parameters: float | None = None
    sparse: bool = False


EVENTS = (
    Event("Transformer", 2017, 6, 213e6),  # arXiv 1706.03762, table 3
    Event("GPT", 2018, 6, 117e6),
    Event("BERT", 2018, 10, 340e6),  # arXiv 1810.04805
    Event("GPT-2", 2019, 2, 1.5e9),
    Event("T5", 2019, 10, 11e9),  # arXiv 1910.10683
    Event("GPT-3", 2020, 5, 175e9),  # arXiv 2005.14165
    Event("Switch", 2021, 1, 1.6e12, sparse=True),  # arXiv 2101.03961
    Event("Codex", 2021, 7, 12e9),  # arXiv 2107.03374
    Event("PaLM", 2022, 4, 540e9),  # arXiv 2204.02311
    Event("ChatGPT (GPT-3.5)", 2022, 11),
    Event("LLaMA", 2023, 2, 65e9),  # arXiv 2302.13971
    Event("GPT-4", 2023, 3),  # arXiv 2303.08774, which gives no size
    Event("Claude", 2023, 3),
    Event("Bard", 2023, 3),
    Event("Mixtral 8x7B", 2023, 12, 46.7e9, sparse=True),  # arXiv 2401.04088
    Event("GPT-4o: text, images, sound", 2024, 5),
    Event("Llama 3.1", 2024, 7, 405e9),  # arXiv 2407.21783
    Event("o1: reasoning", 2024, 9),
    Event("gpt-oss-120b", 2025, 8, 117e9, sparse=True),  # arXiv 2508.10925
)
"""The course's list from 2017 to 2024, each at the month in which it became public, and four models since."""


@in_style
def timeline(events: Sequence[Event] = EVENTS) -> Figure:
    """When models became public, against their numbers of parameters where these are known.

    Raises:
        InputError: No event, a month outside 1 to 12, or parameters of 0 or less.
    """
    require(len(events) > 0, "no events", "at least one", "Leave the argument out for the course's.")
    for event in events:
        fits = 1 <= event.month <= 12 and (event.parameters is None or event.parameters > 0)
        require(fits, f"{event}", "a month from 1 to 12, and parameters above 0 or None", "Correct the event.")
    figure, (sizes, unknown) = new_figure(11.5, 6, rows=2, sharex=True, height_ratios=(4, 1))
    placed = sorted((event.year + (event.month - 0.5) / 12, index, event) for index, event in enumerate(events))
    sizes.set(yscale="log", ylabel="parameters: $10^6$ M, $10^9$ B, $10^{12}$ T", title="Transformers since 2017")
    sizes.set_xlim(int(placed[0][0]) - 0.3, placed[-1][0] + 1)
    sizes.yaxis.set_major_formatter(lambda value, _: _size(value))
    beside: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
    ends: list[float] = []
    for date, _, event in placed:
        if (size := event.parameters) is not None:
            look = LINES[int(event.sparse)]
            sizes.plot(date, size, look["marker"], color=look["color"], markersize=7)
            # Below, where the name of an earlier one that is a little larger reaches over here.
            near = [each.parameters or 0 for other, _, each in placed if 0 < date - other < 1.2]
            lift = -15 if any(size < each < 3 * size for each in near) else 7
            sizes.annotate(f"{event.name}, {_size(size)}", (date, size), (0, lift), ha="center", **beside)
            continue
        # The first row whose last name ends before this one starts; a letter is about 0.065 years wide.
        row = next((row for row, end in enumerate(ends) if end < date), len(ends))
        ends[row:] = [date + 0.065 * len(event.name) + 0.25, *ends[row + 1 :]]
        unknown.plot(date, row, LINES[2]["marker"], color=LINES[2]["color"], markersize=7)
        unknown.annotate(event.name, (date, row), (7, 0), va="center", **beside)
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
