"""A head's figures: every panel shows what the NumPy twin computes, every name has its place."""

import numpy as np
import pytest
from matplotlib.axes import Axes

from glassformer.figures.single_heads import Circuits, draw_circuit_comparison, draw_comparison
from glassformer.handcraft.single_head import HeadWeights, NumpyHead
from readable import check_readable
from refusals import refused

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
    computed = {
        "Attn": trace.weights,
        "K": trace.K,
        "Q": trace.Q,
        "V": trace.V,
        "Out": trace.output,
    }
    return {name: {**weights.matrices, **computed}[name].T for name in ORDER}


def named(ax: Axes) -> str:
    return ax.get_title().split(",")[0]


def check_scales(axes: list[Axes], heads: list[HeadWeights]) -> None:
    """Each panel shows its values on a scale centred at 0, whose limit stands in its title."""
    for place, ax in enumerate(axes):
        name = ORDER[place % 2 + 2 * (place // (2 * len(heads)))]
        block = place // 2 % len(heads)
        values = tables(heads[block])[name]
        np.testing.assert_array_equal(ax.images[0].get_array(), values)
        limit = 1 if name == "Attn" else np.abs(values).max()
        assert (named(ax), ax.images[0].get_clim(), ax.images[0].get_cmap().name) == (
            name,
            (-limit, limit),
            "RdBu_r",
        )
        assert ax.get_title().endswith("0 to 1" if name == "Attn" else f"±{limit:.3g}")


def test_each_panel_has_its_own_scale() -> None:
    figure = draw_comparison(head(), None, SEQ, NAMES, input_names=INPUTS, title="unique: A B C C")
    assert [named(ax) for ax in figure.axes] == ORDER
    check_scales(figure.axes, [head()])
    check_readable(figure)


def test_a_matrix_of_zeros_has_a_scale() -> None:
    zeros = HeadWeights(np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 1)))
    assert draw_comparison(zeros, None, np.eye(2)).axes[0].images[0].get_clim() == (-1, 1)


def test_axes_are_named_as_in_the_course_and_by_the_tokens() -> None:
    axes = dict(
        zip(ORDER, draw_comparison(head(), None, SEQ, NAMES, input_names=INPUTS).axes, strict=True)
    )
    labels = {name: (ax.get_xlabel(), ax.get_ylabel()) for name, ax in axes.items()}
    weights = ("d_in", "d_qk")
    results = ("seq", "d_qk")
    assert labels == {
        **{"Km": weights, "Qm": weights, "Vm": ("d_in", "d_v"), "Attn": ("Q", "K")},
        **{"K": results, "Q": results, "V": ("seq", "d_v"), "Out": ("seq", "d_v")},
    }
    ticks = {
        name: [label.get_text() for label in ax.get_xticklabels()] for name, ax in axes.items()
    }
    assert ticks["Km"] == ticks["Vm"] == [*INPUTS, "p0", "p1", "p2"]
    assert ticks["K"] == ticks["Attn"] == ticks["Out"] == NAMES
    numbered = draw_comparison(head(), None, SEQ).axes[0]
    assert [label.get_text() for label in numbered.get_xticklabels()] == [
        "0",
        "1",
        "2",
        "3",
        "p0",
        "p1",
        "p2",
    ]


def test_a_comparison_puts_one_head_beside_the_other() -> None:
    first = head(1)
    second = head(2, qk_dim=6)
    figure = draw_comparison(
        first, second, SEQ, NAMES, input_names=INPUTS, title="hand and learned"
    )
    check_scales(figure.axes, [first, second])
    assert [[text.get_text() for text in ax.texts] for ax in figure.axes[:4]] == [
        ["hand-designed"],
        [],
        ["learned"],
        [],
    ]
    check_readable(figure)


def test_what_does_not_fit_is_refused() -> None:
    with refused("2 names for 5 positions"):
        draw_comparison(head(), None, SEQ, ["A", "B"])
    with refused("3 input_names"):
        draw_comparison(head(), None, SEQ, NAMES, input_names=["A", "B", "C"])
    with refused("vectors of length 3"):
        draw_comparison(head(), None, np.eye(3))


def circuits(size: int, v_dim: int, scale: float = 1.0) -> Circuits:
    rng = np.random.default_rng(size)
    qk = scale * rng.normal(size=(size, size))
    values = rng.normal(size=(size, v_dim))
    qk[0, 1] = np.nan
    return qk, values


@pytest.mark.parametrize(("size", "v_dim"), [(2, 1), (5, 1), (9, 3), (14, 3), (30, 8), (60, 4)])
def test_scores_and_values_stand_around_zero(size: int, v_dim: int) -> None:
    qk, values = circuits(size, v_dim)
    names = [f"A{i}" for i in range(size)]
    figure = draw_circuit_comparison(
        (qk, values), (qk, values), names, "circuits", value_names=[*"ABCDEFGH"][:v_dim]
    )
    scores, worths = figure.axes[:2]
    for ax, table in ((scores, qk), (worths, values)):
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_array_equal(drawn, table / np.nanmax(np.abs(table)))
        assert ax.images[0].get_clim() == (-1, 1)
        assert ax.images[0].get_cmap().name == "RdBu_r"
    kinds = ("score", "value")
    assert [ax.get_ylabel() for ax in figure.axes[4:]] == [
        f"share of the head's largest {kind}" for kind in kinds
    ]
    assert [label.get_text() for label in scores.get_xticklabels()] == (names if size <= 40 else [])
    assert [label.get_text() for label in worths.get_xticklabels()] == [*"ABCDEFGH"][:v_dim]
    assert len(scores.texts) == 1 + (qk.size - 1 if size <= 12 else 0)  # with the name of the row
    check_readable(figure)


def test_each_of_two_heads_has_its_own_scale() -> None:
    first = circuits(13, 1, scale=20)
    second = circuits(13, 1)
    names = ["CLS", *(f"A{i}" for i in range(12))]
    figure = draw_circuit_comparison(first, second, names, "unique", value_names=["out"])
    shown_tables = (first[0], first[1], second[0], second[1])
    own = [np.nanmax(np.abs(table)) for table in shown_tables]
    assert [ax.images[0].get_clim()[1] for ax in figure.axes[:4]] == [1] * 4
    for ax, table, limit in zip(figure.axes[:4], shown_tables, own, strict=True):
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_allclose(drawn, table / limit)
        assert ax.get_title().endswith(f", ±{limit:.3g}")
        written = {
            (round(text.get_position()[1]), round(text.get_position()[0])): text.get_text()
            for text in ax.texts
        }
        for place, value in np.ndenumerate(table):
            assert np.isnan(value) or float(written[place]) == pytest.approx(
                value, abs=0.51 if limit >= 10 else 0.051
            )
    assert len(figure.axes) == 6
    assert {"hand-designed", "learned"} <= {
        text.get_text() for ax in figure.axes[:4:2] for text in ax.texts
    }
    assert "grey" in figure.get_supxlabel()
    check_readable(figure)


def test_a_head_that_prefers_nothing_is_drawn() -> None:
    figure = draw_circuit_comparison(*[(np.zeros((2, 2)), np.zeros((2, 1)))] * 2, ["A", "B"])
    assert figure.axes[0].images[0].get_clim() == (-1, 1)
    assert figure.get_supxlabel() == ""
    check_readable(figure)


def test_small_numbers_are_not_written_as_zero() -> None:
    small = np.array([[0.003, 0.0], [-0.02, 0.004]]), np.array([[0.001], [2.0]])
    figure = draw_circuit_comparison(small, small, ["A", "B"])
    written = [[text.get_text() for text in ax.texts] for ax in figure.axes[:2]]
    assert written == [["hand-designed", "3e-3", "0", "-0.02", "4e-3"], ["0.0", "2.0"]]
    check_readable(figure)


@pytest.mark.usefixtures("without_type_checks")
def test_circuits_that_do_not_fit_are_refused() -> None:
    qk, values = circuits(3, 2)
    for names in (["A", "B"], ["A", "B", "C", "D"]):
        with refused(r"scores of shape \[3, 3\]"):
            draw_circuit_comparison((qk, values), (qk, values), names)
    with refused(r"values of shape \[2, 2\]"):
        draw_circuit_comparison((qk, values), (qk, values[:2]), ["A", "B", "C"])
    for bad in (np.full((3, 3), np.nan), np.full((3, 3), np.inf)):
        with refused("NaN or infinity"):
            draw_circuit_comparison((bad, values), (qk, values), ["A", "B", "C"])
    with refused("NaN or infinity"):
        draw_circuit_comparison((qk, values), (qk, values * np.nan), ["A", "B", "C"])
    with refused(expected="same shape for both"):
        draw_circuit_comparison((qk, values), (qk, values[:, :1]), ["A", "B", "C"])
