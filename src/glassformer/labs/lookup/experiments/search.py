"""What limits slots: a plain model with keys enough for long contexts, and the same with things changed."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from glassformer.labs.lookup.experiments.fresh_facts import Answers, accuracies
from glassformer.observe.figures.style import BLACK, BLUE, ORANGE, RED, in_style, new_figure

if TYPE_CHECKING:
    from glassformer.labs.lookup.experiments import Results

_COUNTS = (64, 256, 1024)


@in_style
def draw_changes(results: Results) -> Figure | None:
    """Accuracy of the slots with one thing changed at a time, and above a line with several; the best at the top."""
    if not results.plain:
        return None
    singles = sorted([results.plain, *([model] for model in results.changes)], key=_reach)
    groups = [*singles, *sorted(([model] for model in results.combined), key=_reach)]
    figure, (ax,) = new_figure(8.5, 1.6 + 0.36 * len(groups))
    styles: tuple[dict[str, Any], ...] = (
        {"color": BLUE, "marker": "o"},
        {"color": ORANGE, "marker": "D"},
        {"color": RED, "marker": "s"},
    )
    for count, style in zip(_COUNTS, styles, strict=True):
        for place, models in enumerate(groups):
            values = accuracies(models, count)
            label = f"{count:,} facts" if place == 0 else None
            ax.plot(values, [place] * len(values), linestyle="none", markersize=7, label=label, **style)
    names = [models[0].recipe.name + (f" ({len(models)} seeds)" if len(models) > 1 else "") for models in groups]
    ax.set_yticks(range(len(groups)), [fill(name, 30) for name in names])
    ax.axhline(len(singles) - 0.5, color=BLACK, linewidth=0.8)
    title = "One thing changed at a time,\nabove the line several together"
    ax.set(title=title, xlabel="share answered right", xlim=(0, 1.02))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12 - 0.5 / len(groups)), ncols=3)
    return figure


def _reach(models: Sequence[Answers]) -> float:
    return float(np.median([model.lengths[-1].accuracy for model in models]))
