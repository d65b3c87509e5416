"""Results as data: written and read back, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.errors import InputError
from glassformer.labs.lookup.results import HeadShares, OrdersMeasured, Results, at, median
from refusals import refused


def test_what_is_written_is_read(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


@pytest.mark.parametrize("text", ["", "{}", '{"plan": "full"}'])
def test_a_damaged_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"results.json, which cannot be read: .{3,80}expected a Results.*--resume"):
        Results.read(tmp_path / "results.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refused("cannot be read"):
        Results.read(tmp_path / "results.json")


def test_models_of_an_encoding_are_those_of_all_seeds(make_results: Callable[..., Results]) -> None:
    results = make_results(seeds=3)
    assert [model.seed for model in results.of_encoding("slots")] == [0, 1, 2]
    assert len(results.of_encoding("bag")) == 1
    assert results.of_encoding("letters") == []
    model = results.of_encoding("slots")[0]
    assert at(model, 8) is model.lengths[2]
    assert at(model, 9) is None


def test_plain_slots_are_those_where_the_search_begins(make_results: Callable[..., Results]) -> None:
    assert make_results().plain_slots.name == "plain"
    assert make_results(changes=False).plain_slots.name == "slots"


def test_the_sharpest_head_is_the_one_on_the_facts_tokens(results: Results) -> None:
    model = results.course[0]
    assert model.sharpest == 0
    assert HeadShares(0.25, 0.5, 0.1).fact == 0.75


@pytest.mark.parametrize(("changed", "largest", "holds"), [(0, 1e-5, True), (0, 1.1e-5, False), (1, 1e-6, False)])
def test_the_scrambling_test_holds_when_nothing_changes(changed: int, largest: float, holds: bool) -> None:
    measured = OrdersMeasured(2, 240, True, [0.0, largest], changed, 476, 1e-5)
    assert measured.largest_change == largest
    assert measured.holds is holds


def test_the_median_is_the_middle() -> None:
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with refused("no values"):
        median([])
