"""What the report says of rankings of words, and how they are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glassformer.labs.run import render
from glassformer.labs.sentiment import LAB
from glassformer.labs.sentiment.experiments import Results
from glassformer.labs.sentiment.experiments.ranking import draw_ranking
from glassformer.labs.sentiment.word_rankings import ATTENTION, EDGES, MASKED, SIGNED


def test_claims_turn_with_the_numbers(results: Results) -> None:
    report = render(LAB, results)
    assert "So attention does rank words, in each training" in report
    assert "ranks words the wrong way round" in report
    networks = {
        name: [replace(each, correlations=dict.fromkeys(each.correlations, each.correlations[ATTENTION]))
               for each in found]
        for name, found in results.ranking.networks.items()
    }  # fmt: skip
    alike = render(LAB, replace(results, ranking=replace(results.ranking, networks=networks)))
    assert "ranks words the wrong way round" not in alike
    assert "It does not say for which class a word speaks" not in alike
    weak = dict.fromkeys((EDGES, MASKED, SIGNED), (0.05, 0.05))
    networks["the course's model"] = [
        replace(each, correlations={**each.correlations, ATTENTION: weak}) for each in networks["the course's model"]
    ]
    assert "So attention does rank words" not in render(
        LAB, replace(results, ranking=replace(results.ranking, networks=networks))
    )


def test_each_training_is_drawn(results: Results) -> None:
    figure = draw_ranking(results.ranking)
    assert len(figure.axes) == 4
    drawn = {float(x) for line in figure.axes[0].lines for x in np.ravel(line.get_xdata())}
    assert set(results.ranking.means("encoder from scratch", ATTENTION, EDGES)) <= drawn
