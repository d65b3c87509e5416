"""What is kept is what was used last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer.answers.kept import Kept


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
