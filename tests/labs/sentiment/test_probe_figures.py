"""Figures of text classifiers: what was measured is what is drawn."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from glassformer.labs.sentiment.probe_figures import draw_effects
from glassformer.labs.sentiment.word_probes import Look


def test_effects_share_one_scale_and_rounding_is_no_effect(check_readable: Callable[[Figure], None]) -> None:
    looks = [
        Look("good and bad", None, 1, 0.9, ["good", "and", "bad"], [0.4, -0.004, -0.2]),
        Look("fine", None, 1, 0.6, ["fine"], [0.1]),
    ]
    figure = draw_effects(looks, ("negative", "positive"))
    for ax in figure.axes[:-1]:
        ax.set(xticks=[], yticks=[])  # switched off with their axes, and still in the list of texts
    check_readable(figure)
    assert [ax.get_title(loc="left") for ax in figure.axes[:-1]] == ["positive, 90.0 %", "positive, 60.0 %"]
    assert [len(ax.lines) for ax in figure.axes[:-1]] == [1, 0]  # only "bad" is underlined
    assert figure.axes[-1].get_xlim() == (-0.4, 0.4)
