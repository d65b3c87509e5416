"""The figures under one roof: all that is promised is there, draws, and is told in the table."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.observe import figures

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 5))
"""[layer, head, query, key]"""
WORDS = ["a", "b", "c", "d", "e"]


def test_every_name_is_told_in_the_table() -> None:
    told = inspect.getdoc(figures)
    assert told is not None
    for name in figures.__all__:
        assert f"``{name}``" in told or name in told.split("The numbers come from")[1]


@pytest.mark.slow
def test_each_figure_draws() -> None:
    measures = figures.head_measures(WEIGHTS)
    tokens = np.array([[3, 1, 2], [2, 2, 2]])
    drawn = [
        figures.attention_map(WEIGHTS[0, 0], WORDS, WORDS),
        figures.attention_grid(list(WEIGHTS)),
        figures.attention_mosaic(list(WEIGHTS)),
        figures.cross_attention(WEIGHTS[0], WORDS, WORDS),
        figures.compare_heads(WEIGHTS[0, 0], WEIGHTS[0, 1]),
        figures.query_text(WORDS, WEIGHTS[0, 0], 1),
        figures.attention_rows(WORDS, WEIGHTS[0, 0], [0, 4]),
        figures.head_table(measures.entropy),
        figures.head_spread(measures),
        figures.head_targets(measures),
        figures.sink_shares(measures.entropy / 10),
        figures.expert_load(tokens),
        figures.router_load(tokens),
    ]
    assert all(isinstance(each, Figure) for each in drawn)
    assert len(drawn) == len(figures.__all__) - 2  # all but head_measures and save_figure
