"""Runs are kept within bounds, and one that had to go comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import Exhibit
from glassformer.explorer.runs import Kept, Runs
from glassformer.explorer.unknown import UnknownName


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.booleans()), max_size=60))
def test_what_is_kept_is_what_was_used_last(steps: list[tuple[int, int, bool]]) -> None:
    kept = Kept(100)
    used: list[tuple[int, int]] = []  # the plain way: a list, the newest last
    for name, size, asks in steps:
        if asks:
            found = next((each for each in used if each[0] == name), None)
            assert kept.get(name) == (None if found is None else found[1])
            if found is not None:
                used.remove(found)
                used.append(found)
            continue
        used = [each for each in used if each[0] != name] + [(name, size)]
        while sum(each for _, each in used) > 100 and len(used) > 1:
            used.pop(0)
        kept.put(name, size, size)
        assert kept.total == sum(each for _, each in used)
    for name in range(10):
        assert kept.get(name) == dict(used).get(name)


def test_asked_again_it_is_the_same_run(by_name: dict[str, Exhibit]) -> None:
    runs = Runs(by_name.__getitem__)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    assert runs.run(m.Ask(model="decoder", text="1 2 3")) is first
    assert runs.of(first.message.run) is first
    assert runs.run(m.Ask(model="decoder", text="1 2 4")) is not first


def test_a_run_that_had_to_go_comes_back(by_name: dict[str, Exhibit]) -> None:
    runs = Runs(by_name.__getitem__, most_bytes=1)
    first = runs.run(m.Ask(model="decoder", text="1 2 3"))
    runs.run(m.Ask(model="decoder", text="4 5 6"))
    again = runs.of(first.message.run)
    assert again is not first
    assert again.message == first.message
    assert all((a.q == b.q).all() for a, b in zip(again.layers("self"), first.layers("self"), strict=True))


@pytest.mark.parametrize("name", ["r0", "decoder", "r" + 20 * "f"])
def test_a_run_that_nobody_asked_for_is_unknown(by_name: dict[str, Exhibit], name: str) -> None:
    with pytest.raises(UnknownName, match=name):
        Runs(by_name.__getitem__).of(name)
