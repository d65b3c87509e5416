"""Parts that are computed once: written, read, refused when damaged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glassformer.labs.run import kept
from refusals import refused


@dataclass(frozen=True)
class Inner:
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    table: dict[str, float]
    note: str | None = None
    more: list[int] = field(default_factory=list)


PART = Outer([Inner("é", (0.1, 1e-300)), Inner("b", ())], {"x": 0.1 + 0.2}, more=[2**60])


def test_a_part_is_computed_once_and_comes_back_as_it_was(tmp_path: Path) -> None:
    calls = []

    def compute() -> Outer:
        calls.append(1)
        return PART

    path = tmp_path / "parts" / "one.json"
    assert [kept(path, Outer, compute) for _ in range(3)] == [PART] * 3
    assert len(calls) == 1


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    found = kept(tmp_path / "part.json", Inner, lambda: Inner("a", (math.inf, math.nan)))
    assert found.values[0] == math.inf
    assert math.isnan(found.values[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"inner": 3}', '{"inner": [], "table": {"x": "much"}}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    path.write_text(text)
    with refused(r"part\.json", fix="Remove the file"):
        kept(path, Outer, lambda: PART)
    assert path.read_text() == text


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Outer:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "part.json", Outer, fail)
    assert list(tmp_path.iterdir()) == []
