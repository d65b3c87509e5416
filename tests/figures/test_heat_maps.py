"""Heat maps: what the cells show, what stands in them, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from matplotlib.axes import Axes

from glassformer.figures.heat_maps import finish, name_row, panel, rescaled, short, write_values
from glassformer.figures.style import new_figure
from refusals import refused

matrices = arrays(
    float, array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.floats(-1e300, 1e300)
)


def one_axes() -> Axes:
    return new_figure(3, 3)[1][0]


@given(values=matrices)
def test_rescaling_keeps_the_order_and_fills_0_to_1(values: np.ndarray) -> None:
    shown = rescaled(values)
    assert shown.min() == 0
    assert shown.max() == (0 if np.ptp(values / max(np.abs(values).max(), 1e-300)) == 0 else 1)
    a = values.ravel()[:, None]
    b = values.ravel()[None, :]
    assert not ((a < b) & (shown.ravel()[:, None] > shown.ravel()[None, :])).any()


def test_rescaling_as_the_course_does_it() -> None:
    values = np.array([[-3.0, 1.0, 2.5], [0.5, 7.0, 2.0]])
    lifted = values - values.min()
    np.testing.assert_allclose(rescaled(values), lifted / lifted.max(), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(rescaled([[5, 5], [5, 5]]), np.zeros((2, 2)))


def test_a_panel_shows_the_rescaled_matrix_with_its_names() -> None:
    ax = one_axes()
    image = panel(ax, [[0, 2], [4, 8]], "Km", "d_in", "d_qk", x_names=("A", "B"), labels=True)
    np.testing.assert_array_equal(image.get_array(), [[0, 0.25], [0.5, 1]])
    assert image.get_clim() == (0, 1)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("Km", "d_in", "d_qk")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["A", "B"]
    assert list(ax.get_yticks()) == []
    cells = {text.get_position(): text.get_text() for text in ax.texts}
    assert cells == {(0, 0): "0", (1, 0): "2", (0, 1): "4", (1, 1): "8"}
    assert [text.get_color() for text in ax.texts] == ["black", "black", "black", "white"]


def test_values_are_written_as_small_compared_with_the_given_largest() -> None:
    for largest, texts in ((None, ["1e-4", "2e-4", "-1e-4"]), (1.0, ["0", "0", "0"])):
        ax = one_axes()
        image = panel(ax, [[1e-4, 2e-4], [np.nan, -1e-4]], limits=(-1, 1))
        write_values(ax, np.array([[1e-4, 2e-4], [np.nan, -1e-4]]), image, largest)
        assert [text.get_text() for text in ax.texts] == texts


def test_limits_keep_the_values_and_leave_nan_grey() -> None:
    ax = one_axes()
    image = panel(ax, [[-3, np.nan, 3]], limits=(-3, 3), colormap="RdBu_r", labels=True)
    np.testing.assert_array_equal(np.ma.getmaskarray(image.get_array()), [[False, True, False]])
    assert np.ma.getdata(image.get_array())[0, [0, 2]].tolist() == [-3, 3]
    red, grey, blue = np.asarray(image.to_rgba(image.get_array()))[0, ::-1]
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert grey[0] == grey[1] == grey[2]
    assert [text.get_text() for text in ax.texts] == ["-3", "3"]


def test_crowded_panels_leave_names_and_values_away() -> None:
    ax = one_axes()
    panel(ax, np.eye(41), x_names=["A"] * 41, y_names=["A"] * 41, labels=True)
    assert list(ax.get_xticks()) == list(ax.get_yticks()) == []
    assert len(ax.texts) == 0


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        (0.0, 0.0, "0"),
        (1.0, 1.0, "1"),
        (-0.126, 1.0, "-0.13"),
        (0.996, 1.0, "1"),
        (9.996, 10.0, "10"),
        (74.32, 100.0, "74.3"),
        (99.96, 100.0, "100"),
        (-148.6, 149.0, "-149"),
        (100.0, 100.0, "100"),
        (0.0004, 1.0, "0"),
        (0.0006, 1.0, "6e-4"),
        (-3.1e-7, 4e-7, "-3e-7"),
        (12345.0, 2e4, "1e4"),
        (-1e300, 1e300, "-1e300"),
    ],
)
def test_numbers_are_written_short(value: float, largest: float, text: str) -> None:
    assert short(value, largest) == text


@given(value=st.floats(-1e12, 1e12))
def test_short_numbers_are_near_the_true_ones(value: float) -> None:
    text = short(value, abs(value))
    assert len(text) <= 7
    assert float(text) == pytest.approx(value, rel=0.5, abs=0)


def test_long_titles_are_broken_and_rows_are_named() -> None:
    figure, (ax,) = new_figure(3, 3)
    name_row(ax, "hand-designed")
    finish(figure, "costs $5 or $6 " * 9)
    assert len(figure.get_suptitle().splitlines()) > 2
    assert figure._suptitle is not None
    assert not figure._suptitle.get_parse_math()
    assert [text.get_text() for text in ax.texts] == ["hand-designed"]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1, 2], {}, r"shape \[2\]"),
        ([[]], {}, r"shape \[1, 0\]"),
        ([[np.nan]], {}, "NaN"),
        ([[np.inf]], {}, "infinity"),
        ([[np.inf, np.nan]], {"limits": (0, 1)}, "infinity"),
        ([[1, 2]], {"x_names": ("A",)}, "1 x_names for a matrix of shape"),
    ],
)
def test_what_is_no_matrix_of_numbers_with_its_names_is_refused(
    values: list[float], options: dict[str, Any], message: str
) -> None:
    with refused(message):
        panel(one_axes(), values, **options)
