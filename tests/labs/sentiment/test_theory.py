"""What theory says: the two LayerNorms by their formulas, gradients by the chain rule, growth with the length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from glassformer.labs.sentiment.course import LayerNorm
from glassformer.labs.sentiment.course_training import analyze_complexity, overtakes
from glassformer.labs.sentiment.experiments import reach
from glassformer.labs.sentiment.experiments.growth import (
    D_FF,
    D_MODEL,
    HEADS,
    GrowthResult,
    draw_growth,
    measure_growth,
)
from glassformer.labs.sentiment.experiments.norms import NormsResult, draw_norms, measure_norms
from glassformer.labs.sentiment.experiments.reach import ENCODERS, RECURRENT, Network, measure_reach


@pytest.fixture(scope="module")
def norms() -> NormsResult:
    return measure_norms()


def test_the_ratio_is_the_predicted_one(norms: NormsResult) -> None:
    assert norms.predicted_ratio == pytest.approx(0.99216, abs=5e-6)
    # What is left is eps against a variance of 25.
    assert norms.ratio == pytest.approx(norms.predicted_ratio, rel=1e-6)
    assert 0 < norms.largest <= norms.bound + 1e-6


def test_the_bound_is_reached_by_one_number_among_equal_ones(norms: NormsResult) -> None:
    x = torch.zeros(1, 64, dtype=torch.float64)
    x[0, 0] = 1e6
    apart = (LayerNorm(64).double()(x) - torch.nn.LayerNorm(64).double()(x)).abs().max()
    assert apart.item() == pytest.approx(norms.bound, rel=1e-6)


def test_the_largest_difference_is_that_of_the_formulas(norms: NormsResult) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 10 + 5 * torch.randn(1000, 64, generator=generator, dtype=torch.float64).numpy()
    centred = x - x.mean(1, keepdims=True)
    course = centred / (np.sqrt((centred**2).sum(1, keepdims=True) / 63) + 1e-6)
    plain = centred / np.sqrt((centred**2).sum(1, keepdims=True) / 64 + 1e-5)
    assert norms.largest == pytest.approx(np.abs(course - plain).max(), abs=1e-12)


def test_eps_acts_where_the_formulas_say(norms: NormsResult) -> None:
    for each in norms.sizes:
        d = each.deviation
        assert each.course == pytest.approx(d / (d * (64 / 63) ** 0.5 + 1e-6), rel=1e-9)
        assert each.torch == pytest.approx(d / (d**2 + 1e-5) ** 0.5, rel=1e-9)
    (tiny,) = (each for each in norms.sizes if each.deviation == 1e-3)  # which the report shows
    assert tiny.torch < 0.5 < 0.99 < tiny.course


def test_the_figure_shows_the_sample_and_the_scales(
    norms: NormsResult, check_readable: Callable[[Figure], None]
) -> None:
    figure = draw_norms(norms)
    check_readable(figure)
    for ax, name in zip(figure.axes, norms.sample, strict=False):
        assert sum(bar.get_height() for bar in ax.patches) == 20 * 64
        assert ax.get_title(loc="left").startswith(name)
    for drawn, name in zip(figure.axes[3].lines, ("course", "torch"), strict=True):
        np.testing.assert_array_equal(drawn.get_ydata(), [getattr(each, name) for each in norms.sizes])


def test_the_influence_is_that_of_the_gradient_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "WIDTH", 8)
    monkeypatch.setattr(reach, "TRAINED", ())
    result = measure_reach(distance=5, seeds=(2,), length=2, updates=0)
    torch.manual_seed(2)
    layer = nn.RNN(8, 8, batch_first=True).double()
    x = torch.randn(64, 6, 8, dtype=torch.float64)
    direction = torch.randn(64, 8, dtype=torch.float64)
    inside, state = layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach()
    states = layer(x)[0].detach()
    # Back through h = tanh(W x + U h'): the error times 1 - h**2, then U (or W for the input).
    error, norms = direction, []
    for place in range(5, -1, -1):
        error = error * (1 - states[:, place] ** 2)
        norms.append(float((error @ inside).norm(dim=1).mean()))
        error = error @ state
    found = result.influences["RNN"]
    np.testing.assert_allclose([found.last, found.one_back, found.far], [norms[0], norms[1], norms[5]], rtol=1e-9)
    assert found.per_step(5) == pytest.approx((norms[5] / norms[1]) ** 0.25)


def test_recurrent_networks_forget_and_encoders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "TRAINED", ())
    result = measure_reach(distance=48, seeds=(0,), length=2, updates=0)
    assert list(result.influences) == [*RECURRENT, *ENCODERS]
    relative = {name: each.far / each.one_back for name, each in result.influences.items()}
    assert all(relative[name] < 1e-6 for name in RECURRENT)
    assert all(0.2 < relative[name] < 5 for name in ENCODERS)


def test_the_encoder_over_vectors_is_the_encoder() -> None:
    network = Network("encoder, 2 blocks", 5).eval()
    encoder = network.body
    encoder.embedding = nn.Embedding(7, 64)
    tokens = torch.randint(1, 7, (3, 5))
    vectors = encoder.embedding(tokens) * 8.0  # sqrt(64)
    assert torch.allclose(network(vectors), encoder.hidden(tokens)[:, -1], atol=1e-6)


def test_short_texts_are_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "WIDTH", 16)
    monkeypatch.setattr(reach, "RATES", (0.02,))
    result = measure_reach(distance=2, seeds=(0, 1), length=4, updates=60)
    assert [(run.name, run.learning_rate) for run in result.recalled] == [("GRU", 0.02), ("encoder, 1 block", 0.02)]
    assert (result.chance, result.num_seeds) == (0.25, 2)
    assert all(len(run.accuracies) == 2 and min(run.accuracies) > 0.5 for run in result.recalled)
    assert reach._recall("GRU", 4, 0, 60, 0.02) == result.recalled[0].accuracies[0]


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
    assert [line.get_label() for line in parts.lines[:2]] == [
        "scores and values, exponent 2.00",
        "projections, exponent 1.00",
    ]
    assert memory.lines[0].get_label() == f"encoder, exponent {found.exponent(first.peak_bytes):.2f}"
    assert len({line.get_color() for line in memory.lines}) == 4
    marked = draw_growth(replace(found, overtakes=33)).axes[0]
    assert [text.get_text() for text in marked.texts] == ["attention overtakes\nfeed-forward: 33"]
    for elsewhere in (15, 65):
        assert len(draw_growth(replace(found, overtakes=elsewhere)).axes[0].texts) == 0
