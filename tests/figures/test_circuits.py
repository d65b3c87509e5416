"""Circuit figures: scores and values on scales around 0, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.figures.single_heads import draw_circuit_comparison, draw_circuits
from refusals import refused

Check = Callable[[Figure], None]

NAMES = ["A", "B", "CLS", "@CLS", "@0"]


def circuits(size: int, v_dim: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    qk, values = scale * rng.normal(size=(size, size)), rng.normal(size=(size, v_dim))
    qk[0, 1] = np.nan
    return qk, values


@pytest.mark.parametrize(("size", "v_dim"), [(2, 1), (5, 1), (9, 3), (14, 3), (30, 26), (60, 4)])
def test_scores_and_values_stand_around_zero(check_readable: Check, size: int, v_dim: int) -> None:
    qk, values = circuits(size, v_dim)
    figure = draw_circuits(qk, values, [f"A{i}" for i in range(size)], "circuits between places")
    scores, worths = figure.axes[:2]
    for ax, table in ((scores, qk), (worths, values)):
        np.testing.assert_array_equal(np.ma.filled(ax.images[0].get_array(), np.nan), table)
        low, high = ax.images[0].get_clim()
        assert -low == high == np.nanmax(np.abs(table))
        assert ax.images[0].get_cmap().name == "RdBu_r"
    assert [ax.get_ylabel() for ax in figure.axes[2:]] == ["score", "value"]
    assert len(scores.texts) == (qk.size - 1 if size <= 12 else 0)
    check_readable(figure)


def test_tokens_and_positions_are_told_apart_by_a_line(check_readable: Check) -> None:
    qk, values = circuits(5, 2)
    figure = draw_circuits(qk, values, NAMES, value_names=["A", "B"], split=3)
    lines = [sorted({float(x) for line in ax.lines for x in line.get_xydata().ravel()}) for ax in figure.axes[:2]]
    assert [2.5 in each for each in lines] == [True, True]
    assert [len(ax.lines) for ax in figure.axes[:2]] == [2, 1]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == NAMES
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["A", "B"]
    check_readable(figure)


@pytest.mark.parametrize("common", [True, False])
def test_two_heads_share_a_scale_if_asked(check_readable: Check, common: bool) -> None:
    first, second = circuits(13, 1, scale=20), circuits(13, 1)
    names = ["CLS", *(f"A{i}" for i in range(12))]
    figure = draw_circuit_comparison(first, second, names, "unique", value_names=["out"], common_scale=common)
    limits = [ax.images[0].get_clim()[1] for ax in figure.axes[:4]]
    own = [np.nanmax(np.abs(table)) for table in (first[0], first[1], second[0], second[1])]
    assert limits == ([max(own[0], own[2]), max(own[1], own[3])] * 2 if common else own)
    assert len(figure.axes) == (6 if common else 8)
    assert [ax.texts[-1].get_text() for ax in figure.axes[:4:2]] == ["hand-designed", "learned"]
    assert "grey" in figure.get_supxlabel()
    check_readable(figure)


def test_a_head_that_prefers_nothing_is_drawn(check_readable: Check) -> None:
    figure = draw_circuits(np.zeros((2, 2)), np.zeros((2, 1)), ["A", "B"])
    assert figure.axes[0].images[0].get_clim() == (-1, 1)
    assert figure.get_supxlabel() == ""
    check_readable(figure)


@pytest.mark.usefixtures("without_type_checks")
def test_what_does_not_fit_is_refused() -> None:
    qk, values = circuits(3, 2)
    for names in (["A", "B"], ["A", "B", "C", "D"]):
        with refused(r"scores of shape \[3, 3\]"):
            draw_circuits(qk, values, names)
    with refused(r"values of shape \[2, 2\]"):
        draw_circuits(qk, values[:2], ["A", "B", "C"])
    for bad in (np.full((3, 3), np.nan), np.full((3, 3), np.inf)):
        with refused("NaN or infinity"):
            draw_circuits(bad, values, ["A", "B", "C"])
    with refused("NaN or infinity"):
        draw_circuits(qk, values * np.nan, ["A", "B", "C"])
    for split in (0, 3):
        with refused(f"split = {split}"):
            draw_circuits(qk, values, ["A", "B", "C"], split=split)
    with refused(expected="same shape for both"):
        draw_circuit_comparison((qk, values), (qk, values[:, :1]), ["A", "B", "C"])
