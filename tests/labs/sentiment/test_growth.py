"""Growth with the length: the operations and exponents that theory has, and the figure of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from glassformer.labs.run import kept
from glassformer.labs.sentiment.course_training import analyze_complexity, overtakes
from glassformer.labs.sentiment.experiments.growth import (
    D_FF,
    D_MODEL,
    HEADS,
    GrowthResult,
    draw_growth,
    measure_growth,
)

LENGTHS = (16, 32, 64)


@pytest.fixture(scope="module")
def found() -> GrowthResult:
    return measure_growth(LENGTHS)


def test_torch_counts_what_is_computed(found: GrowthResult) -> None:
    encoder, held, decoder, _ = found.growths
    for place, length in enumerate(LENGTHS):
        executed = analyze_complexity(D_MODEL, length, HEADS, D_FF)
        assert encoder.projections[place] == decoder.projections[place] == executed["executed_projections"]
        assert encoder.attention[place] == decoder.attention[place] == executed["executed_attention"]
        assert encoder.feed_forward[place] == executed["executed_feedforward"]
        assert decoder.feed_forward[place] == 1.5 * executed["executed_feedforward"]  # with a gate
        assert encoder.operations[place] == executed["executed_total"] + 2 * length * D_MODEL + 2 * D_MODEL * 2
    assert held.operations == encoder.operations
    assert (found.overtakes, found.overtakes_with_projections) == (D_FF + 1, D_FF - 2 * D_MODEL + 1)
    assert found.course_overtakes == 257


@pytest.mark.parametrize(("d_model", "d_ff"), [(8, 40), (8, 5), (64, 256)])
@pytest.mark.parametrize("joined", [False, True])
def test_attention_overtakes_at_the_first_length_at_which_it_takes_more(d_model: int, d_ff: int, joined: bool) -> None:
    def more(length: int) -> bool:
        parts = analyze_complexity(d_model, length, 4, d_ff)
        attention = parts["executed_attention"] + (parts["executed_projections"] if joined else 0)
        return attention > parts["executed_feedforward"]

    assert overtakes(d_model, d_ff, with_projections=joined) == next(n for n in range(1, 1000) if more(n))


def test_exponents_lie_between_linear_and_quadratic(found: GrowthResult) -> None:
    for growth in found.growths:
        assert 1.0 <= found.exponents(growth)["operations"] < 1.1  # short texts: projections and feed-forward network
    line = np.polyfit(np.log(LENGTHS[1:]), np.log(found.growths[0].peak_bytes[1:]), 1)[0]
    assert replace(found, tail=2).exponents(found.growths[0])["peak_bytes"] == pytest.approx(line)
    assert found.exponent([3 * length**2 for length in LENGTHS]) == pytest.approx(2)


def test_memory_is_about_what_is_kept_and_quadratic_where_weights_are_held() -> None:
    fused, held, *_ = measure_growth((512, 1024)).growths
    kept_numbers = (8 + 1 + 1) * D_MODEL + 2 * D_FF + 2 * 3 + HEADS  # of each token: inputs of norms and products
    weights = 3 * HEADS * 1024**2  # scores, without forbidden pairs, and their softmax
    for growth, expected in ((fused, 1024 * kept_numbers), (held, 1024 * kept_numbers + weights)):
        assert 0.8 < growth.peak_bytes[-1] / (4 * expected) < 1.1
    assert held.peak_bytes[-1] > 2 * fused.peak_bytes[-1]


def test_it_is_kept(found: GrowthResult, tmp_path: Path) -> None:
    assert kept(tmp_path / "growth.json", GrowthResult, lambda: found) == found


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_lines_are_what_was_measured_and_legends_give_exponents(found: GrowthResult) -> None:
    parts, memory = draw_growth(found).axes
    first = found.growths[0]
    for axes, number, values in (
        (parts, 0, first.attention),
        (parts, 3, first.operations),
        (memory, 0, first.peak_bytes),
    ):
        unit = 1e9 if axes is parts else 2**20
        assert np.asarray(axes.lines[number].get_ydata()).tolist() == pytest.approx([each / unit for each in values])
    assert labels(parts)[:2] == ["scores and values, exponent 2.00", "projections, exponent 1.00"]
    assert labels(memory)[0] == f"encoder, exponent {found.exponent(first.peak_bytes):.2f}"
    assert len({line.get_color() for line in memory.lines}) == 4


def test_the_length_of_overtaking_is_marked_where_it_is_in_the_range(found: GrowthResult) -> None:
    marked = draw_growth(replace(found, overtakes=33)).axes[0]
    assert [text.get_text() for text in marked.texts] == ["attention overtakes\nfeed-forward: 33"]
    for elsewhere in (15, 65):
        assert len(draw_growth(replace(found, overtakes=elsewhere)).axes[0].texts) == 0
