"""What is said of fresh facts follows from the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from glassformer.labs.lookup.in_context_report import (
    accuracy_at,
    bag_text,
    changes_table,
    changes_text,
    encodings_table,
    limits_text,
    measured_at,
    slots_text,
)
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
    bag = replace(lucky.of_encoding("bag")[0], lengths=lucky.of_encoding("bag")[0].lengths[1:2])
    assert "nowhere passes" in bag_text(replace(lucky, encodings=[bag]))


def test_slots_that_mind_their_order_are_told(make_results: Callable[..., Results]) -> None:
    results = make_results()
    assert "changes no answer, and no logit by more than 1.0e-06" in slots_text(results)
    assert "can bind a value to the key before it" in slots_text(results)
    moved = [replace(model, order=replace(model.order, answers_changed=3)) for model in results.encodings]
    assert "changes 6 answers" in slots_text(replace(results, encodings=moved))
    assert "have not learned to bind" in slots_text(make_results(good=False))


def test_what_fails_is_named(make_results: Callable[..., Results]) -> None:
    results = make_results(changes=False)
    text = limits_text(results)
    assert (
        "at 1,024 facts, 74.4% of the answers are right; if the decoder is shown the right slot alone, 100.0%" in text
    )
    assert "So finding is what fails: in 25.0% another slot has the largest weight." in text
    diluted = limits_text(change(results, "slots", accuracy=0.5))
    assert "and in 25.0% more the right one has it, but less than all others together" in diluted
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
    assert "plain: 74.4% at 1,024 facts" in text
    assert "None alone gains much; the best is wider, which comes to 74.9%" in text
    assert "post-norm, with 72.4%" in text
    assert "What is recommended, trained on up to 32 facts, comes to 94.4%, and to 100.0% at 64 facts" in text
    rows = [row for row in changes_table(results).splitlines() if row.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["slots", "plain", "wider", "post-norm", "recommended"]


def test_a_change_that_helps_is_named(results: Results) -> None:
    base, wider, *others = results.changes
    better = replace(wider, lengths=tuple(replace(length, accuracy=0.9) for length in wider.lengths))
    text = changes_text(replace(results, changes=[base, better, *others]))
    assert "Most is gained by wider, which comes to 90.0%; the least by post-norm, with 72.4%." in text
    assert "Most is gained by wider, which comes to 90.0%. What" in changes_text(
        replace(results, changes=[base, better, others[-1]])
    )
    assert "plain: 74.4%" in changes_text(replace(results, changes=[base, others[-1]]))


def test_medians_are_over_seeds(make_results: Callable[..., Results]) -> None:
    results = make_results(seeds=3)
    first, *others = results.encodings
    low = replace(first, lengths=tuple(replace(length, accuracy=0.0) for length in first.lengths))
    results = replace(results, encodings=[low, *others])
    assert len(measured_at(results, "slots", 8)) == 3
    assert accuracy_at(results, "slots", 8) == 1 - 8 / 4000
