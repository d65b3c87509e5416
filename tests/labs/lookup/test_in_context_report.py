"""What is said of fresh facts follows from the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from glassformer.labs.lookup.in_context_report import (
    accuracy_at,
    bag_text,
    changes_table,
    changes_text,
    encodings_table,
    limits_text,
    measured_at,
    sampling_error,
    slots_text,
)
from glassformer.labs.lookup.recipes import BAG
from glassformer.labs.lookup.results import Results


def change(results: Results, encoding: str, **lengths: object) -> Results:
    """The results with fields of every length of an encoding changed."""
    models = [
        replace(model, lengths=tuple(replace(length, **lengths) for length in model.lengths))
        if model.encoding == encoding
        else model
        for model in results.encodings
    ]
    return replace(results, encodings=models)


def test_the_table_has_every_encoding_at_every_number_of_facts(results: Results) -> None:
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in encodings_table(results).splitlines()
        if row.startswith("| ")
    ]
    assert rows[0] == ["facts in the context", "1", "2", "8", "64", "1,024"]
    assert [row[0] for row in rows[1:]] == [
        "slots",
        "bag of tokens",
        "tokens with positions",
        "*best possible for a bag*",
    ]
    assert rows[2] == ["bag of tokens", "100.00%", "50.00%", "12.50%", "1.56%", ""]
    assert rows[1][5] == "74.40%"


def test_a_bag_at_its_ceiling_and_one_away_from_it(results: Results) -> None:
    text = bag_text(results)
    assert "comes to within 0.0 points of it at 1 to 8 facts" in text
    assert "nowhere passes it by more than chance" in text
    assert "stays up to 99.0 points away" in bag_text(change(results, "bag", accuracy=0.01))
    assert "passes it at 2 facts" in bag_text(change(results, "bag", accuracy=0.9))


def test_chance_is_no_passing(results: Results) -> None:
    lucky = change(results, "bag", accuracy=0.515)
    assert sampling_error(0.5, lucky.of_encoding("bag")[0].lengths[1]) == pytest.approx(0.0158, abs=1e-4)
    bag = replace(lucky.of_encoding("bag")[0], lengths=lucky.of_encoding("bag")[0].lengths[1:2])
    assert "nowhere passes" in bag_text(replace(lucky, encodings=[bag]))


def test_slots_that_mind_their_order_are_told(make_results: Callable[..., Results]) -> None:
    results = make_results()
    assert "changes no answer, and no logit by more than 1.0e-06" in slots_text(results)
    moved = [replace(model, order=replace(model.order, answers_changed=3)) for model in results.encodings]
    assert "changes 6 answers" in slots_text(replace(results, encodings=moved))
    poor = slots_text(make_results(good=False))
    assert "it has not learned to look up." in poor
    assert "less than a bag allows" in poor


def test_what_slots_learned_depends_on_what_they_were_asked(results: Results) -> None:
    assert "on pairings never trained on: it has learned to look up, and no table" in slots_text(results)
    half = slots_text(change(results, "slots", accuracy=0.5))
    assert "it has not learned to look up well" in half
    seen = [replace(model, recipe=replace(model.recipe, split="all")) for model in results.encodings]
    assert "on any pairings: it has learned to look up. " in slots_text(replace(results, encodings=seen))


def test_positions_that_learned_nothing_are_told_as_such(results: Results) -> None:
    assert "bind within 4,000 steps, at least in part: 99.82% at 2, 99.27% at 8 facts" in slots_text(results)
    placed = results.of_encoding("positions")[0]
    lengths = tuple(replace(each, accuracy=1 / each.num_facts + 0.004) for each in placed.lengths)
    others = [model for model in results.encodings if model.encoding != "positions"]
    text = slots_text(replace(results, encodings=[*others, replace(placed, lengths=lengths)]))
    assert "did not learn to within 4,000 steps: it comes to 50.40% at 2, 12.90% at 8 facts, what a bag allows" in text
    assert "Another order of its facts changes 10.00% of the answers." in text


def test_the_table_says_which_pairings_and_words_each_was_asked_about(results: Results) -> None:
    text = encodings_table(results)
    assert "Slots: 256 keys and 256 values, and questions about pairings of the two that no training context" in text
    assert "Tokens with positions: 64 keys and 64 values, and questions about any pairing" in text
    assert "need not come from the encoding" in text
    alike = [replace(model, recipe=replace(BAG, encoding=model.encoding)) for model in results.encodings]
    assert "need not come from the encoding" not in encodings_table(replace(results, encodings=alike))


def test_what_fails_is_named(make_results: Callable[..., Results]) -> None:
    results = make_results(changes=False)
    text = limits_text(results)
    assert (
        "at 1,024 facts, 74.4% of the answers are right; if the decoder is shown the right slot alone, 100.0%" in text
    )
    assert "So more is lost in finding: in 25.0% another slot has the largest weight." in text
    diluted = limits_text(change(results, "slots", accuracy=0.5))
    assert "and in at least 25.0% more the right one has it, and the answer is wrong all the same" in diluted
    assert "Reading is what fails" in limits_text(change(results, "slots", found=0.99, read=0.5))
    good = change(results, "slots", found=0.999, read=1.0, accuracy=0.99)
    assert "Neither step fails much" in limits_text(good)


def test_scores_are_told_beside_those_of_training(make_results: Callable[..., Results]) -> None:
    results = make_results(changes=False)
    text = limits_text(results)
    assert "10.5 above the mean of the others, whose deviation is 3.0" in text
    assert "from 8 facts on these two hardly change (10.5 and 3.0 there)" in text
    assert "the right slot is 0.5 above it" in text
    assert "the right slot is 0.5 below it" in limits_text(change(results, "slots", margin=(-0.4, -0.6)))
    assert limits_text(change(results, "slots", noise=None)).endswith("the largest weight.")
    slots = results.encodings[0]
    grown = [replace(each, gap=(20.0, 20.0)) if each.num_facts > 8 else each for each in slots.lengths]
    results = replace(results, encodings=[replace(slots, lengths=tuple(grown)), *results.encodings[1:]])
    assert "these two change (10.5" in limits_text(results)
    assert "a plain model that knows keys and values enough" in limits_text(make_results())


def test_changes_are_ranked(results: Results) -> None:
    text = changes_text(results)
    assert "Changing one thing at a time (*plain*: 74.4% at 1,024 facts)" in text
    assert "nothing gains more than sampling error; the best is *wider*, which comes to 74.9%" in text
    assert "the lowest is *post-norm*, with 72.4%." in text
    assert "Changing several things together, *1 to 32 facts, wider* comes to 94.4%." in text
    assert (
        "Of all, *1 to 32 facts, wider* reaches farthest: 94.4% at 1,024 facts and 100.0% at 64; the next lies bey"
        in text
    )
    assert "asked 4,000 questions at 1,024 facts" in text
    rows = [[cell.strip() for cell in row.split("|")] for row in changes_table(results).splitlines() if row[:2] == "| "]
    assert [row[1] for row in rows] == ["slots", "plain", "wider", "post-norm", "1 to 32 facts, wider"]
    assert [row[2] for row in rows] == ["changed", "nothing", "one thing", "one thing", "several"]


def test_a_change_that_helps_is_named(results: Results) -> None:
    base, wider, *others = results.changes
    better = replace(wider, lengths=tuple(replace(length, accuracy=0.99) for length in wider.lengths))
    text = changes_text(replace(results, changes=[base, better, *others]))
    assert "most is gained by *wider*, which comes to 99.0%; the lowest is *post-norm*, with 72.4%." in text
    assert "Of all, *wider* reaches farthest: 99.0%" in text
    alone = changes_text(replace(results, changes=[base, better], combined=[]))
    assert "most is gained by *wider*, which comes to 99.0%. Of all" in alone
    assert "together" not in alone
    assert "Changing one thing at a time (*plain*: 74.4% at 1,024 facts). Each" in changes_text(
        replace(results, changes=[base], combined=[])
    )


def test_a_close_second_is_told_and_what_was_not_measured_is_not_ranked(results: Results) -> None:
    base, wider, *_ = results.changes
    assert "the next lies within sampling error" in changes_text(replace(results, changes=[base, wider], combined=[]))
    same = replace(base, recipe=replace(base.recipe, name="same"))
    assert "*plain* and *same* reach" in changes_text(replace(results, changes=[same, base], combined=[])).replace(
        "*same* and *plain*", "*plain* and *same*"
    )
    short = replace(wider, lengths=wider.lengths[:2])
    text = changes_text(replace(results, changes=[base, short], combined=[]))
    assert "wider" not in text
    assert "| wider | one thing |" in changes_table(replace(results, changes=[base, short]))


def test_medians_are_over_seeds(make_results: Callable[..., Results]) -> None:
    results = make_results(seeds=3)
    first, *others = results.encodings
    low = replace(first, lengths=tuple(replace(length, accuracy=0.0) for length in first.lengths))
    results = replace(results, encodings=[low, *others])
    assert len(measured_at(results, "slots", 8)) == 3
    assert accuracy_at(results, "slots", 8) == 1 - 8 / 4000
