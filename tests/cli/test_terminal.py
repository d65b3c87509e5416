"""Attention as text: nothing is wider than the terminal, and what is drawn says what the numbers say."""

from __future__ import annotations

import re
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.cli.terminal import (
    MOST_ROWS,
    draw_attention_map,
    draw_outputs,
    needs_plain,
    say,
    terminal_width,
)

PERCENT = re.compile(r"[·.](?![\d])|[░▒▓█\-+*#] *(\d+)")


def columns(line: str) -> int:
    """Columns of the terminal that ``line`` takes, counted character by character."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in line
    )


def random_map(queries: int, keys: int, seed: int = 0) -> np.ndarray:
    """Rows that add up to 1, some sharp and some even."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(queries, keys)) * rng.choice([0.1, 3, 30], size=(queries, 1))
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_a_map_that_is_known() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.24, 0.26, 0.5], [0.004, 0.746, 0.25]])
    drawn = draw_attention_map(weights, ["CLS", "0 A", "1 B"], ["CLS", "A", "B"], marked=2)
    assert drawn.splitlines() == [
        "        CLS     A     B",
        "  CLS █ 100     ·     ·",
        "  0 A ░  24 ▒  26 ▓  50",
        "> 1 B     · ▓  75 ▒  25",
        "  rows: queries; columns: keys; numbers: per cent of a query's attention",
    ]
    plain = draw_attention_map(weights, ["CLS", "0 A", "1 B"], ["CLS", "A", "B"], plain=True)
    assert plain.isascii()
    assert plain.splitlines()[1:4] == ["  CLS # 100     .     .", "  0 A -  24 +  26 *  50", "  1 B     . *  75 +  25"]


def test_a_narrow_map_has_one_shade_for_each_key() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.24, 0.26, 0.5]])
    lines = draw_attention_map(weights, ["CLS", "0 A"], ["CLS", "A", "B"], marked=0, width=22).splitlines()
    assert lines[:3] == ["      ^AB", "> CLS █··", "  0 A ░▒▓"]
    assert "^ stands for CLS" in lines[-1]
    assert [line for line in lines if columns(line) > 22] == []


@given(
    queries=st.integers(1, 60),
    keys=st.integers(1, 60),
    width=st.integers(20, 120),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_every_cell_says_the_per_cent_and_no_line_is_too_wide(
    queries: int, keys: int, width: int, seed: int, data: st.DataObject
) -> None:
    weights = random_map(queries, keys, seed)
    marked = data.draw(st.none() | st.integers(0, queries - 1))
    names = [f"{i} A" for i in range(queries)]
    letters = data.draw(st.lists(st.sampled_from(["A", "CLS", "語", "é"]), min_size=keys, max_size=keys))
    lines = draw_attention_map(weights, names, letters, marked, width=width).splitlines()
    assert [line for line in lines if columns(line) > width] == []
    rows = [line for line in lines[1:] if re.match(r"[> ] *\d+ A ", line)]
    assert len(rows) == min(queries, MOST_ROWS)
    pointed = [line for line in rows if line.startswith(">")]
    assert len(pointed) == (marked is not None)
    assert all(line.split()[1] == str(marked) for line in pointed)
    with_numbers = any("numbers:" in line for line in lines)
    drawn_keys = len(PERCENT.findall(rows[0])) if with_numbers else len(rows[0].split(" ")[-1])
    for what, count, drawn in (("queries", queries, len(rows)), ("keys", keys, drawn_keys)):
        notes = [line for line in lines if f"drawn: {what}" in line]
        assert len(notes) == (drawn < count)
    for line in rows:
        query = int(re.search(r"\d+", line)[0])
        cells = line[line.index(" A ") + 2 :]
        if with_numbers:
            shares = [int(number or 0) for number in PERCENT.findall(cells)]
            assert len(shares) == keys
            assert np.abs(np.array(shares) / 100 - weights[query]).max() <= 0.0051
        elif len(cells.strip()) == keys:
            steps = np.array(["·░▒▓█".index(shade) for shade in cells.strip()])
            assert np.array_equal(steps > 0, weights[query] >= 0.005)
            assert np.abs(steps * 0.25 - 0.125 - weights[query])[steps > 0].max() <= 0.1251


def test_of_a_long_sequence_the_marked_query_and_its_strongest_key_are_drawn() -> None:
    weights = np.full((100, 200), 0.001)
    weights[70, 150] = 0.801
    drawn = draw_attention_map(
        weights, [f"{i} A" for i in range(100)], ["A"] * 149 + ["C", "B"] + ["D"] * 49, 70, width=40
    )
    (pointed,) = [line for line in drawn.splitlines() if line.startswith(">")]
    assert pointed.startswith("> 70 A ")
    assert pointed.count("█") == 1
    assert drawn.splitlines()[0][pointed.index("█")] == "B"
    assert "drawn: queries 59 to 82 of 100" in drawn
    assert re.search(r"drawn: keys 1\d\d to 1\d\d of 200", drawn)


def test_outputs_beside_what_was_wanted() -> None:
    wanted = np.array([[1.0, 0.0], [0.0, 1.0]])
    got = np.array([[0.9996, 4e-9], [0.25, 0.75]])
    lines = draw_outputs(["0 A", "1 B"], wanted, got, np.array([True, False]), marked=1).splitlines()
    assert lines == [
        "       wanted  got        largest error",
        "  0 A  1 0     0.9996 0   0.0004",
        "> 1 B  0 1     0.25 0.75  0.25  wrong",
    ]


@given(count=st.integers(1, 60), v_dim=st.integers(1, 30), width=st.integers(20, 100), data=st.data())
@settings(max_examples=20, deadline=None)
def test_outputs_keep_to_the_width(count: int, v_dim: int, width: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, count - 1))
    rng = np.random.default_rng(count)
    wanted, got = rng.normal(size=(2, count, v_dim)) * 1e5
    drawn = draw_outputs(
        [f"{i} 語" for i in range(count)], wanted, got, np.zeros(count, dtype=bool), marked, width=width
    )
    lines = drawn.splitlines()
    assert [line for line in lines if columns(line) > width] == []
    assert [line.split()[1] for line in lines if line.startswith(">")] == [str(marked)]
    assert ("listed:" in drawn) == (count > MOST_ROWS)


def test_where_shades_can_be_shown() -> None:
    assert [needs_plain(encoding) for encoding in ("utf-8", "ascii", "latin-1", "cp437", "no-such-encoding")] == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_saying_what_the_terminal_has_no_character_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, open("/dev/null", "w", encoding="ascii") as narrow:
        patched.setattr(sys, "stdout", narrow)
        assert needs_plain()
        say("語 é A")


def test_the_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "57")
    assert terminal_width() == 57
    monkeypatch.setenv("COLUMNS", "3")
    assert terminal_width() == 20
