"""The figure of costs: what its lines show is what was predicted and measured, and its legend tells the exponents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from glassformer.figures.style import save_figure
from glassformer.labs.sentiment.complexity_curves import CostCurve, draw_complexity
from glassformer.models.encoder import EncoderConfig
from glassformer.observe.complexity import complexity, overtakes
from glassformer.observe.complexity_measured import Measurement, fitted_exponent
from refusals import refused

LENGTHS = (32, 128, 512, 2048)
CONFIG = EncoderConfig(vocab_size=50, num_layers=1, hidden_dim=32, ff_dim=300, num_heads=4)
MEASURED = Measurement(LENGTHS, (0.001, 0.003, 0.02, 0.2), (10**5, 4 * 10**5, 2 * 10**6, 2 * 10**7))


def growth(name: str = "encoder", weights_held: int = 0) -> CostCurve:
    return CostCurve(name, tuple(complexity(CONFIG, 1, length) for length in LENGTHS), MEASURED, weights_held)


def line(axes: Axes, number: int) -> list[float]:
    data = axes.lines[number].get_ydata()
    return np.asarray(data).tolist()


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_the_lines_are_what_was_predicted_and_measured() -> None:
    parts, seconds, memory = draw_complexity([growth(), growth("held", 2)]).axes
    operations = [complexity(CONFIG, 1, length).operations for length in LENGTHS]
    assert line(parts, 0) == pytest.approx([each.attention / 1e9 for each in operations])
    assert line(parts, 3) == pytest.approx([each.total / 1e9 for each in operations])
    assert line(seconds, 0) == pytest.approx([1, 3, 20, 200])
    rate = [each.total / operations[-1].total for each in operations]
    assert line(seconds, 1) == pytest.approx([200 * each for each in rate])
    assert line(memory, 0) == pytest.approx([each / 2**20 for each in MEASURED.peak_bytes])
    costs = [complexity(CONFIG, 1, length) for length in LENGTHS]
    assert line(memory, 1) == pytest.approx([each.activations / 2**20 for each in costs])
    assert line(memory, 3) == pytest.approx([(each.activations + 2 * each.attention_weights) / 2**20 for each in costs])


def test_legends_tell_the_exponents_of_the_tail() -> None:
    parts, seconds, memory = draw_complexity([growth()], tail=2).axes
    assert labels(parts)[:3] == [
        "scores and values, exponent 2.00",
        "projections, exponent 1.00",
        "feed-forward, exponent 1.00",
    ]
    measured, predicted = (fitted_exponent(LENGTHS, each, tail=2) for each in (MEASURED.seconds, growth().operations))
    thin = "thin: operations, scaled to the longest text"
    assert labels(seconds) == [f"encoder: {measured:.2f} / {predicted:.2f}", thin]
    assert labels(memory)[0].startswith(f"encoder: {fitted_exponent(LENGTHS, MEASURED.peak_bytes, tail=2):.2f} / 1.00")


def test_times_are_drawn_where_they_were_measured() -> None:
    untimed = CostCurve("encoder", growth().predicted, Measurement(LENGTHS, (), MEASURED.peak_bytes))
    parts, memory = draw_complexity([untimed]).axes
    timed = draw_complexity([growth()]).axes
    assert [labels(parts), labels(memory)] == [labels(timed[0]), labels(timed[2])]


def test_the_length_of_overtaking_is_marked_where_it_is_in_the_range() -> None:
    length = overtakes(CONFIG)
    marked = draw_complexity([growth()], overtakes=length).axes[0]
    assert [text.get_text() for text in marked.texts] == ["attention overtakes\nfeed-forward: 301"]
    assert line(marked, 0)[2] > line(marked, 2)[2]  # at 512 it has
    for elsewhere in (None, 31, 2049):
        assert len(draw_complexity([growth()], overtakes=elsewhere).axes[0].texts) == 0


def test_predicted_lines_look_like_the_measured_ones_without_markers() -> None:
    _, seconds, _ = draw_complexity([growth(), growth("held", 2)]).axes
    for measured, predicted in ((0, 1), (2, 3)):
        solid, thin = seconds.lines[measured], seconds.lines[predicted]
        assert solid.get_color() == thin.get_color()
        assert thin.get_linewidth() < solid.get_linewidth()
        assert (thin.get_marker(), solid.get_marker() not in (None, "None")) == ("None", True)
    assert seconds.lines[0].get_color() != seconds.lines[2].get_color()


def test_the_figure_is_saved(tmp_path: Path) -> None:
    paths = save_figure(draw_complexity([growth()]), tmp_path, "complexity")
    assert all(path.stat().st_size > 0 for path in paths)


def test_a_prediction_is_wanted_for_each_length() -> None:
    predicted = growth().predicted
    with refused("3 predictions for 4 lengths"):
        CostCurve("encoder", predicted[:3], MEASURED)
    with refused("1 predictions for 1 lengths"):
        CostCurve("encoder", predicted[:1], Measurement((1,), (1.0,), (1,)))
    with refused("no curves"):
        draw_complexity([])
    with refused("tail = 5"):
        draw_complexity([growth()], tail=5)
