"""The lab's pictures: they show what was computed, and what they claim in words is so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from glassformer.labs.sentiment import pictures
from glassformer.labs.sentiment.compare import Bin
from glassformer.labs.sentiment.compare import reliability as binned
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import SimpleTokenizer
from glassformer.labs.sentiment.pictures import overfitting_from, wilson
from refusals import refused

WORDS = ["The", "cat", "sat", "on", "the", "mat"]
TEXT = "The cat sat on the mat"


def reader() -> tuple[MiniTransformer, SimpleTokenizer]:
    tokenizer = SimpleTokenizer(20)
    tokenizer.build_vocab([TEXT])
    return MiniTransformer(len(tokenizer.vocab), 32, 4, 1, 64, max_length=16, num_classes=2), tokenizer


def history(**changes: Sequence[float]) -> Mapping[str, Sequence[float]]:
    """Six epochs whose validation loss is lowest in the third."""
    losses = {"train_loss": [0.7, 0.5, 0.4, 0.3, 0.2, 0.1], "val_loss": [0.7, 0.6, 0.5, 0.52, 0.55, 0.6]}
    return {**losses, "train_acc": [50.0, 60, 70, 80, 90, 95], "val_acc": [50.0, 60, 68, 70, 69, 71], **changes}


def calibration() -> dict[str, list[Bin]]:
    rng = np.random.default_rng(0)
    probability = rng.random(400)
    labels = (rng.random(400) < probability).astype(int).tolist()
    sharp = np.where(probability > 0.5, 0.97, 0.02)
    return {name: binned(np.stack([1 - p, p], 1), labels) for name, p in (("honest", probability), ("sure", sharp))}


ACCURACIES = {"words": {"plain": 0.9, "irony": 0.2}, "encoder": {"plain": 1.0, "irony": 0.5}}
COUNTS = {"plain": 40, "irony": 10}


def drawings() -> dict[str, Figure]:
    rng = np.random.default_rng(0)
    return {
        "recurrent": pictures.recurrent_and_parallel(WORDS),
        "long words": pictures.recurrent_and_parallel(["pneumonoultramicroscopic", "$x_1$", "a"]),
        "positions": pictures.position_encoding(),
        "few positions": pictures.position_encoding(8, 2),
        "embeddings": pictures.embeddings_with_and_without_positions(*reader(), TEXT),
        "norms": pictures.norm_histograms(torch.randn(2, 10, 64) * 5 + 10),
        "curves": pictures.training_curves(history(), "A training"),
        "one epoch": pictures.training_curves({"train_loss": [1.0], "val_loss": [1.0], "val_acc": [50.0]}),
        "attention": pictures.attention_example(WORDS, rng.dirichlet(np.ones(6), 6)),
        "much attention": pictures.attention_example(["word"] * 22, rng.dirichlet(np.ones(22), 22)),
        "reliability": pictures.reliability(calibration()),
        "kinds": pictures.per_kind_bars(ACCURACIES, COUNTS),
    }


@pytest.mark.slow
def test_every_picture_can_be_read(check_readable: Callable[[Figure], None]) -> None:
    for figure in drawings().values():
        check_readable(figure)


def arrows(ax: Axes) -> list[tuple[Any, Any, bool]]:
    """Start, end, and whether it is highlighted."""
    found = [text for text in ax.texts if isinstance(text, Annotation) and text.arrow_patch is not None]
    return [(text.xyann, text.xy, text.arrow_patch.get_linewidth() > 2) for text in found if text.arrow_patch]


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_links_from_the_first_word_to_the_last(count: int) -> None:
    recurrence, attention = pictures.recurrent_and_parallel([f"w{n}" for n in range(count)]).axes
    for ax, links, expected in ((recurrence, 2 * count - 1, count), (attention, count**2, 1)):
        drawn = arrows(ax)
        assert len(drawn) == links
        at, steps, ways = (0, 0), 0, {start: end for start, end, highlighted in drawn if highlighted}
        while at != (count - 1, 1):
            at, steps = ways[at], steps + 1
        assert steps == expected
        assert f"{expected} link" in ax.get_title(loc="left")
    assert f"{count} steps" in recurrence.get_title(loc="left")


def test_products_of_positions_are_the_sum_of_cosines() -> None:
    waves, products, _ = pictures.position_encoding(40, 12).axes
    frequencies = 10000.0 ** (-np.arange(6) / 6)
    expected = np.cos(np.arange(40)[:, None] * frequencies).sum(axis=1)
    for drawn, start in zip(products.lines, (0, 10, 20), strict=True):
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), dtype=float), expected[: 40 - start], atol=1e-5)
    image = np.asarray(waves.images[0].get_array())
    np.testing.assert_allclose(image[[0, 1, 6, 7], 7], [np.sin(7), np.cos(7), np.sin(0.07), np.cos(0.07)], atol=1e-6)


def test_the_same_word_has_equal_columns_only_without_positions() -> None:
    model, tokenizer = reader()
    plain, added, _ = pictures.embeddings_with_and_without_positions(model, tokenizer, TEXT).axes
    without, with_positions = (np.asarray(ax.images[0].get_array()) for ax in (plain, added))
    assert without.shape == (16, 7)
    np.testing.assert_array_equal(without[:, 1], without[:, 5])
    assert np.abs(with_positions[:, 1] - with_positions[:, 5]).max() > 0.5
    sums = [math.sin(5), math.cos(5)]
    np.testing.assert_allclose((with_positions - without)[:2, 5], sums, atol=1e-5)
    assert "distance 0" in plain.get_title(loc="left")
    apart = (
        sum(4 * math.sin(2 * 10000 ** (-i / 16)) ** 2 for i in range(16)) ** 0.5
    )  # |wave(5) - wave(1)|, in closed form
    assert f"distance {apart:.2g}" in added.get_title(loc="left")
    framed = {patch.get_x() + 0.5 for patch in added.patches if isinstance(patch, Rectangle)}
    assert framed == {1, 5}
    assert plain.images[0].get_clim() == added.images[0].get_clim()


@pytest.mark.parametrize("features", [2, 5, 64])
def test_the_two_norms_differ_by_a_factor(features: int) -> None:
    x = torch.randn(50, features) * 5 + 10
    before, course, official, difference = pictures.norm_histograms(x).axes
    for ax in (before, course, official):
        bars = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        assert sum(bar.get_height() for bar in bars) == 50 * features
    factor = math.sqrt((features - 1) / features)
    points = np.asarray(difference.lines[0].get_data())
    np.testing.assert_allclose(points[1], (factor - 1) * points[0], atol=2e-3)
    assert f"= {factor:.5f}" in difference.get_title(loc="left")
    shown = float(difference.get_title(loc="left").split()[1])
    assert shown == pytest.approx(factor, abs=1e-3)
    assert "std 1.0000" in official.get_title(loc="left") or features == 2


@pytest.mark.parametrize(
    ("train", "held_out", "epoch"),
    [
        ([3, 2, 1], [3, 2, 1], None),  # still falling
        ([3, 2, 1], [3, 2, 2.5], 3),
        ([3, 2, 1, 0.5], [3, 2, 2.5, 1.9], None),  # it recovered
        ([3, 2, 2.5], [3, 2, 2.5], None),  # training itself went wrong
        ([3, 2, 1], [3, 2, 2.01], None),  # no more than a wobble
        ([3, 2, 1], [2, 2.5, 3], 2),
        ([3], [3], None),
    ],
)
def test_when_overfitting_starts(train: list[float], held_out: list[float], epoch: int | None) -> None:
    losses = {"train_loss": [float(x) for x in train], "val_loss": [float(x) for x in held_out]}
    assert overfitting_from(losses) == epoch
    figure = pictures.training_curves({**losses, "val_acc": [50.0] * len(train)})
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == (
        "no overfitting seen" if epoch is None else f"overfitting from epoch {epoch}"
    )
    for ax in figure.axes:
        spans = [patch.get_bbox() for patch in ax.patches if isinstance(patch, Rectangle)]
        assert [(span.x0, span.x1) for span in spans] == ([] if epoch is None else [(epoch - 1, len(train))])


def test_curves_are_the_history() -> None:
    loss, accuracy = pictures.training_curves(history(), "A training").axes
    for ax, names in ((loss, ("train_loss", "val_loss")), (accuracy, ("train_acc", "val_acc"))):
        for drawn, name in zip(ax.lines, names, strict=False):
            np.testing.assert_array_equal(drawn.get_data(), [range(1, 7), history()[name]])
        assert ax.lines[2].get_label() == "lowest validation loss, epoch 3"
    epochs = {name: values for name, values in history().items() if name != "train_acc"}
    assert [drawn.get_label() for drawn in pictures.training_curves(epochs).axes[1].lines][:1] == ["validation"]


def test_the_attention_example_writes_its_weights() -> None:
    weights = np.array([[0.25, 0.75], [0.125, 0.875]])
    ax = pictures.attention_example(["not", "bad"], weights).axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array(), weights)
    assert [text.get_text() for text in ax.texts] == ["0.25", "0.75", "0.12", "0.88"]


def test_calibration_shows_share_against_probability_and_sizes() -> None:
    bins = calibration()
    curves, sizes = pictures.reliability(bins).axes
    diagonal = curves.lines[0]
    np.testing.assert_array_equal(diagonal.get_data(), [[0, 1], [0, 1]])
    assert [container.get_label() for container in curves.containers] == ["honest", "sure"]
    for container, own in zip(curves.containers, bins.values(), strict=True):
        points = np.asarray(container[0].get_data())
        np.testing.assert_array_equal(points, [[b.predicted for b in own], [b.actual for b in own]])
    heights = [[bar.get_height() for bar in container] for container in sizes.containers]
    assert heights == [[b.count for b in own] for own in bins.values()]
    for container, own in zip(sizes.containers, bins.values(), strict=True):
        assert [int((bar.get_x() + bar.get_width() / 2) * 10) for bar in container] == [
            int(b.predicted * 10) for b in own
        ]


@given(count=st.integers(1, 10_000), share=st.floats(0, 1))
def test_wilsons_interval_is_where_the_score_test_stops(count: int, share: float) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share <= high <= 1
    for p in (low, high):
        if 1e-9 < p < 1 - 1e-9 and p != share:
            assert abs(share - p) / math.sqrt(p * (1 - p) / count) == pytest.approx(1.959964, rel=1e-4)


def test_known_intervals() -> None:
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=5e-5)  # Brown, Cai and DasGupta 2001
    assert wilson(0.0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


def test_bars_are_the_accuracies_in_groups() -> None:
    (ax,) = pictures.per_kind_bars(ACCURACIES, COUNTS).axes
    bars = [container for container in ax.containers if not hasattr(container, "has_yerr")]
    assert [[bar.get_height() for bar in container] for container in bars] == [[0.9, 0.2], [1.0, 0.5]]
    assert [container.get_label() for container in bars] == ["words", "encoder"]
    middles = [[bar.get_x() + bar.get_width() / 2 for bar in container] for container in bars]
    np.testing.assert_allclose(np.mean(middles, axis=0), [0, 1], atol=1e-12)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["plain\n40 reviews", "irony\n10 reviews"]
    (chance,) = (drawn for drawn in ax.lines if drawn.get_label() == "chance")
    assert np.asarray(chance.get_ydata()).tolist() == [0.5, 0.5]
    looks = {(to_rgb(container[0].get_facecolor()), container[0].get_hatch()) for container in bars}
    assert len({hatch for _, hatch in looks}) == len({colour for colour, _ in looks}) == 2


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_drawn_is_refused() -> None:
    square = np.full((2, 2), 0.5)
    model, tokenizer = reader()
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: pictures.recurrent_and_parallel(["one"]), "1 words"),
        (lambda: pictures.recurrent_and_parallel(["w"] * 13), "13 words"),
        (lambda: pictures.position_encoding(5), "num_positions = 5"),
        (lambda: pictures.position_encoding(50, 3), "hidden_dim = 3"),
        (lambda: pictures.embeddings_with_and_without_positions(model, tokenizer, "the cat"), "comes twice"),
        (lambda: pictures.embeddings_with_and_without_positions(model, tokenizer, TEXT * 5), "positions"),
        (lambda: pictures.norm_histograms(torch.full((3, 4), torch.nan)), "NaN"),
        (lambda: pictures.norm_histograms(torch.zeros(3, 1)), "features = 1"),
        (lambda: pictures.training_curves({}), "epochs"),
        (lambda: pictures.training_curves(history(val_acc=[1.0])), "'val_acc': 1"),
        (lambda: pictures.attention_example(["a"], square), "weights of shape"),
        (lambda: pictures.attention_example(["a", "b"], square / 2), r"row sums \[0.5, 0.5\]"),
        (lambda: pictures.attention_example(["a"] * 23, np.eye(23)), "23 words"),
        (lambda: pictures.reliability({}), "0 classifiers"),
        (lambda: pictures.per_kind_bars({}, COUNTS), "0 models"),
        (lambda: pictures.per_kind_bars(ACCURACIES, {}), "counts = {}"),
        (lambda: pictures.per_kind_bars(ACCURACIES, {"contrast": 3}), r"words without \['contrast'\]"),
    ]
    for attempt, message in attempts:
        with refused(anywhere=message):
            attempt()
