"""The lab's figures: what is drawn is what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glassformer.handcraft.circuits import centred_scores
from glassformer.handcraft.single_head import NumpyHead
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.hand_designed import figures
from glassformer.labs.hand_designed.results import Results


def image(ax) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def named(figure, title: str) -> list:
    return [ax for ax in figure.axes if ax.get_title() == title or ax.get_title(loc="left") == title]


def test_every_figure_is_a_png_and_an_svg(tiny_run: Path) -> None:
    files = {path.name for path in (tiny_run / "figures").iterdir()}
    names = {Path(name).stem for name in files}
    assert {"identity-heads", "copy-first-circuits", "unique-signs", "what-can-be-compared"} <= names
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}


def test_the_heads_are_drawn_on_the_courses_sequence(results: Results) -> None:
    comparison = results.comparison("unique")
    figure = figures.draw_heads(comparison)
    attention = [image(ax) for ax in named(figure, "Attn")]
    x = np.eye(4)[[3, 0, 1, 2, 2]]
    for drawn, head in zip(attention, (comparison.hand_head, comparison.learned_head), strict=True):
        weights = NumpyHead(head).trace(x).weights.T
        np.testing.assert_allclose(drawn, (weights - weights.min()) / (weights.max() - weights.min()), atol=1e-12)


def test_circuits_are_centred_and_leave_out_what_never_meets(results: Results) -> None:
    comparison = results.comparison("copy_first")
    task = TASKS["copy_first"]()
    scores, values, names = figures.circuits(comparison.learned_head, task)
    np.testing.assert_array_equal(scores, centred_scores(comparison.learned_head, task.space))
    assert names[:4] == ["A0", "B0", "C0", "A1"]
    assert values.shape == (12, 3)
    content = results.comparison("identity")
    scores, values, names = figures.circuits(content.learned_head, TASKS["identity"]())
    head = content.learned_head
    np.testing.assert_allclose(scores.sum(axis=1), 0, atol=1e-12)
    product = head.Qm @ head.Km.T / np.sqrt(3)
    np.testing.assert_allclose(scores[:, 0] - scores[:, 1], product[:, 0] - product[:, 1], atol=1e-12)
    np.testing.assert_allclose(values, head.Vm)
    assert names == ["A", "B", "C"]


def test_the_last_figure_shows_signs_with_their_numbers(results: Results) -> None:
    comparison = results.comparison("unique")
    figure = figures.draw_signs(comparison)
    assert [ax.get_title() for ax in figure.axes] == ["Hand-designed", "Trained", "Expected"]
    assert image(figure.axes[0]).tolist() == image(figure.axes[2]).tolist() == [[1, 1, -1, -1]]
    outputs = NumpyHead(comparison.learned_head)(np.eye(4)[[3, 0, 1, 2, 2]])[1:, 0]
    assert image(figure.axes[1]).tolist() == [np.sign(outputs).tolist()]
    assert [text.get_text() for text in figure.axes[1].texts] == [f"{output:+.2f}" for output in outputs]


def test_cosines_stand_where_they_were_measured(results: Results) -> None:
    figure = figures.draw_cosines(results)
    for ax, comparison in zip(figure.axes, results.comparisons, strict=True):
        lines = {line.get_label(): line.get_xdata() for line in ax.lines}
        pairs = comparison.hand_learned, comparison.learned_again, comparison.learned_moved
        assert list(lines["entries of Qm"]) == [pair.entries["Qm"] for pair in pairs]
        assert list(lines["QK circuit"]) == [pair.distance.qk_cosine for pair in pairs]
        assert lines["QK circuit"][2] == pytest.approx(1)
