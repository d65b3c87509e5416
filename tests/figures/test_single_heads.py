"""A head's figures: every panel shows what the NumPy twin computes, every name has its place."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glassformer.figures.single_heads import (
    draw_attention,
    draw_circuit_comparison,
    draw_circuits,
    draw_comparison,
    draw_head,
)
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from refusals import refused

Check = Callable[[Figure], None]

SEQ = np.eye(4)[[3, 0, 1, 2, 2]]
NAMES = ["CLS", "A", "B", "C", "C"]
INPUTS = ["A", "B", "C", "CLS"]
ORDER = ["Km", "K", "Qm", "Q", "Vm", "V", "Attn", "Out"]


def head(seed: int = 0, qk_dim: int = 3) -> HeadWeights:
    rng = np.random.default_rng(seed)
    shapes = ((7, qk_dim), (7, qk_dim), (7, 2), (5, 3))
    return HeadWeights(*(rng.normal(size=shape) for shape in shapes))


def tables(weights: HeadWeights) -> dict[str, np.ndarray]:
    """What the panels show, before they are rescaled."""
    trace = NumpyHead(weights).trace(SEQ)
    computed = {"Attn": trace.weights, "K": trace.K, "Q": trace.Q, "V": trace.V, "Out": trace.output}
    return {name: {**weights.matrices, **computed}[name].T for name in ORDER}


def shown(ax: Axes) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def named(ax: Axes) -> str:
    return ax.get_title().split(",")[0]


def check_scales(axes: list[Axes], heads: list[HeadWeights]) -> None:
    """Each panel shows its values on a scale centred at 0, whose limit stands in its title."""
    for place, ax in enumerate(axes):
        name, block = ORDER[place % 2 + 2 * (place // (2 * len(heads)))], place // 2 % len(heads)
        values = tables(heads[block])[name]
        np.testing.assert_array_equal(shown(ax), values)
        limit = 1 if name == "Attn" else np.abs(values).max()
        assert (named(ax), ax.images[0].get_clim(), ax.images[0].get_cmap().name) == (name, (-limit, limit), "RdBu_r")
        assert ax.get_title().endswith("0 to 1" if name == "Attn" else f"±{limit:.3g}")


def test_each_panel_has_its_own_scale(check_readable: Check) -> None:
    figure = draw_head(head(), SEQ, NAMES, input_names=INPUTS, title="unique: A B C C")
    assert [named(ax) for ax in figure.axes] == ORDER
    check_scales(figure.axes, [head()])
    check_readable(figure)


def test_a_matrix_of_zeros_has_a_scale() -> None:
    zeros = HeadWeights(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1)))
    assert draw_head(zeros, np.eye(2)).axes[0].images[0].get_clim() == (-1, 1)


def test_axes_are_named_as_in_the_course_and_by_the_tokens() -> None:
    axes = dict(zip(ORDER, draw_head(head(), SEQ, NAMES, input_names=INPUTS).axes, strict=True))
    labels = {name: (ax.get_xlabel(), ax.get_ylabel()) for name, ax in axes.items()}
    weights, results = ("d_in", "d_qk"), ("seq", "d_qk")
    assert labels == {
        **{"Km": weights, "Qm": weights, "Vm": ("d_in", "d_v"), "Attn": ("Q", "K")},
        **{"K": results, "Q": results, "V": ("seq", "d_v"), "Out": ("seq", "d_v")},
    }
    ticks = {name: [label.get_text() for label in ax.get_xticklabels()] for name, ax in axes.items()}
    assert ticks["Km"] == ticks["Vm"] == [*INPUTS, "p0", "p1", "p2"]
    assert ticks["K"] == ticks["Attn"] == ticks["Out"] == NAMES
    numbered = draw_head(head(), SEQ).axes[0]
    assert [label.get_text() for label in numbered.get_xticklabels()] == ["0", "1", "2", "3", "p0", "p1", "p2"]


def test_labels_give_the_true_values(check_readable: Check) -> None:
    figure = draw_head(head(), SEQ, NAMES, input_names=INPUTS, labels=True)
    for ax, values in zip(figure.axes, tables(head()).values(), strict=True):
        assert len(ax.texts) == values.size
        for text in ax.texts:
            column, row = map(int, text.get_position())
            assert float(text.get_text()) == pytest.approx(values[row, column], abs=0.0051)
    check_readable(figure)


def test_a_comparison_puts_one_head_beside_the_other(check_readable: Check) -> None:
    first, second = head(1), head(2, qk_dim=6)
    figure = draw_comparison(first, second, SEQ, NAMES, input_names=INPUTS, title="hand and learned")
    check_scales(figure.axes, [first, second])
    assert [[text.get_text() for text in ax.texts] for ax in figure.axes[:4]] == [
        ["hand-designed"],
        [],
        ["learned"],
        [],
    ]
    check_readable(figure)


@pytest.mark.parametrize(("queries", "keys"), [(1, 2), (5, 5), (22, 22), (45, 45)])
def test_attention_maps_at_every_size(check_readable: Check, queries: int, keys: int) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(keys), size=queries)
    names = [f"L{i}" for i in range(keys)]
    title = "the first sequence that fails, with quite a long title that has to go somewhere"
    figure = draw_attention(weights, names[:queries], names, title)
    ax = figure.axes[0]
    np.testing.assert_array_equal(shown(ax), weights)
    assert ax.images[0].get_clim() == (0, 1)
    assert len(ax.texts) == (weights.size if keys <= 22 else 0)
    check_readable(figure)


def test_what_does_not_fit_is_refused() -> None:
    with refused("2 names for 5 positions"):
        draw_head(head(), SEQ, ["A", "B"])
    with refused("3 input_names"):
        draw_head(head(), SEQ, NAMES, input_names=["A", "B", "C"])
    with refused("vectors of length 3"):
        draw_head(head(), np.eye(3))
    with refused("1 names for 2 queries"):
        draw_attention(np.eye(2), ["A"], ["A", "B"])


PLACES = ["A", "B", "CLS", "@CLS", "@0"]


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
    figure = draw_circuits(qk, values, PLACES, value_names=["A", "B"], split=3)
    lines = [sorted({float(x) for line in ax.lines for x in line.get_xydata().ravel()}) for ax in figure.axes[:2]]
    assert [2.5 in each for each in lines] == [True, True]
    assert [len(ax.lines) for ax in figure.axes[:2]] == [2, 1]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == PLACES
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["A", "B"]
    check_readable(figure)


@pytest.mark.parametrize("common", [True, False])
def test_two_heads_share_a_scale_if_asked(check_readable: Check, common: bool) -> None:
    first, second = circuits(13, 1, scale=20), circuits(13, 1)
    names = ["CLS", *(f"A{i}" for i in range(12))]
    figure = draw_circuit_comparison(first, second, names, "unique", value_names=["out"], common_scale=common)
    limits = [ax.images[0].get_clim()[1] for ax in figure.axes[:4]]
    shown_tables = (first[0], first[1], second[0], second[1])
    own = [np.nanmax(np.abs(table)) for table in shown_tables]
    assert limits == ([max(own[0], own[2]), max(own[1], own[3])] * 2 if common else [1] * 4)
    for ax, table, limit in zip(figure.axes[:4], shown_tables, own, strict=True):
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_allclose(drawn, table if common else table / limit)
        assert ax.get_title().endswith(f", ±{limit:.3g}") != common
        written = {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in ax.texts}
        for place, value in np.ndenumerate(table):
            assert np.isnan(value) or float(written[place]) == pytest.approx(value, abs=0.51 if limit >= 10 else 0.051)
    assert len(figure.axes) == 6
    assert {"hand-designed", "learned"} <= {text.get_text() for ax in figure.axes[:4:2] for text in ax.texts}
    assert "grey" in figure.get_supxlabel()
    check_readable(figure)


def test_a_head_that_prefers_nothing_is_drawn(check_readable: Check) -> None:
    figure = draw_circuits(np.zeros((2, 2)), np.zeros((2, 1)), ["A", "B"])
    assert figure.axes[0].images[0].get_clim() == (-1, 1)
    assert figure.get_supxlabel() == ""
    check_readable(figure)


def test_small_numbers_are_not_written_as_zero(check_readable: Check) -> None:
    figure = draw_circuits(np.array([[0.003, 0.0], [-0.02, 0.004]]), np.array([[0.001], [2.0]]), ["A", "B"])
    written = [[text.get_text() for text in ax.texts] for ax in figure.axes[:2]]
    assert written == [["3e-3", "0", "-0.02", "4e-3"], ["0.0", "2.0"]]
    check_readable(figure)


@pytest.mark.usefixtures("without_type_checks")
def test_circuits_that_do_not_fit_are_refused() -> None:
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
