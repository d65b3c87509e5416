"""Figures of models that answer from fresh facts hold what the results say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glassformer.labs.lookup.in_context_figures import draw_accuracy, draw_changes, draw_finding
from glassformer.labs.lookup.results import Results


def lines(ax) -> dict[str, np.ndarray]:
    return {line.get_label(): np.array(line.get_xydata()) for line in ax.lines}


def test_accuracy_is_shown_beside_what_a_bag_can_do(results: Results) -> None:
    (ax,) = draw_accuracy(results).axes
    drawn = lines(ax)
    np.testing.assert_allclose(drawn["best possible for a bag"], [[1, 1], [2, 0.5], [8, 0.125], [64, 1 / 64]])
    np.testing.assert_allclose(drawn["bag of tokens"], drawn["best possible for a bag"])
    np.testing.assert_allclose(drawn["slots"][:, 0], [1, 2, 8, 64, 1024])
    assert {"slots, plain", "slots, 1 to 32 facts, wider", "tokens with positions"} <= set(drawn)
    assert ax.get_xscale() == "log"


def test_without_changes_the_encodings_are_left(make_results: Callable[..., Results]) -> None:
    (ax,) = draw_accuracy(make_results(changes=False, seeds=1)).axes
    assert set(lines(ax)) == {"best possible for a bag", "bag of tokens", "slots", "tokens with positions"}


def test_finding_shows_shares_and_scores(results: Results) -> None:
    left, right = draw_finding(results).axes
    shares, scores, model = lines(left), lines(right), results.plain_slots
    np.testing.assert_allclose(
        shares["right slot has the largest weight"], [[each.num_facts, each.found] for each in model.lengths]
    )
    gaps = scores["right slot above the mean of the others"]
    np.testing.assert_allclose(gaps, [[count, 10.5] for count in (2, 8, 64, 1024)])
    growth = scores["log(number of facts)"]
    np.testing.assert_allclose(growth[:, 1], np.log(growth[:, 0]))


def test_changes_stand_in_the_order_of_their_reach(results: Results) -> None:
    (ax,) = draw_changes(results).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["post-norm", "plain", "wider", "1 to 32 facts, wider"]
    reach = lines(ax)["1,024 facts"][:, 0]
    assert list(reach) == sorted(reach)
    assert "above the line several together" in ax.get_title(loc="left")


def test_combinations_stand_above_the_single_changes_however_far_they_reach(results: Results) -> None:
    poor = [replace(results.combined[0], lengths=results.of_encoding("slots")[0].lengths[:1])]
    (ax,) = draw_changes(replace(results, combined=poor)).axes
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "1 to 32 facts, wider"
    (ax,) = draw_changes(replace(results, combined=[])).axes
    assert ax.get_title(loc="left") == "One thing changed at a time"


def test_the_best_of_all_is_the_one_of_the_numbers(results: Results) -> None:
    base, wider, *others = results.changes
    perfect = replace(wider, lengths=tuple(replace(length, accuracy=1.0) for length in wider.lengths))
    (ax,) = draw_accuracy(replace(results, changes=[base, perfect, *others])).axes
    assert "slots, wider" in lines(ax)
    (ax,) = draw_accuracy(replace(results, changes=[base], combined=[])).axes
    assert "slots, plain" in lines(ax)
