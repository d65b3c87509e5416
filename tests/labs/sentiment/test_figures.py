"""The lab's figures: they show what was measured, and all can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from glassformer.data.examples import Example
from glassformer.labs.sentiment.figures import (
    READ,
    draw_effects,
    draw_leak,
    draw_queries,
    draw_training,
    read,
    repeating,
)
from glassformer.labs.sentiment.leak import CourseTraining, train_course
from glassformer.labs.sentiment.results import Results


@pytest.fixture(scope="module")
def course() -> CourseTraining:
    texts = [Example(f"{word} {READ}", label) for word, label in (("good", 1), ("bad", 0)) for _ in range(8)]
    return train_course(texts, texts[:4], seed=0, epochs=1)


def test_training_shows_the_median_seeds(results: Results, check_readable: Callable[[Figure], None]) -> None:
    figure = draw_training(results)
    check_readable(figure)
    names = [name for name in results.names if results.median(name).epochs]
    accuracies = figure.axes[1].lines
    assert [drawn.get_label() for drawn in accuracies] == names
    for drawn, name in zip(accuracies, names, strict=True):
        shown = [100 * epoch.validation_accuracy for epoch in results.median(name).epochs]
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), dtype=float), shown)


def test_the_leak_shows_every_split(results: Results, check_readable: Callable[[Figure], None]) -> None:
    figure = draw_leak(results)
    check_readable(figure)
    leak = results.experiments.leak
    points = [np.asarray(drawn.get_ydata(), dtype=float) for drawn in figure.axes[0].lines[:4]]
    np.testing.assert_allclose(points[2], [100 * run.transformer for run in leak.clean])
    np.testing.assert_allclose(points[1], [100 * run.tfidf for run in leak.leaky])


@pytest.mark.slow
def test_effects_share_one_scale(results: Results, check_readable: Callable[[Figure], None]) -> None:
    looks = results.asked.looks
    figure = draw_effects(looks, ("negative", "positive"))
    for ax in figure.axes[:-1]:
        ax.set(xticks=[], yticks=[])  # switched off with their axes, and still in the list of texts
    check_readable(figure)
    assert len(figure.axes) == len(looks) + 1
    titles = [ax.get_title(loc="left") for ax in figure.axes[:-1]]
    assert titles[0].startswith(("negative", "positive"))
    harder = [dataclasses.replace(look, effects=[2 * effect for effect in look.effects]) for look in looks]
    draw_effects(harder, ("negative", "positive"))


def test_the_course_reads_a_text_with_all_its_heads(course: CourseTraining) -> None:
    words, weights = read(course, READ)
    assert words[0] == "<CLS>"
    assert weights.shape == (2, 8, len(words), len(words))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_queries_are_shown_by_place_where_the_vocabulary_lacks_them(
    course: CourseTraining, check_readable: Callable[[Figure], None]
) -> None:
    words, weights = read(course, READ)
    known = draw_queries(words, weights[-1].mean(axis=0))
    texts = [Example(word, label) for word, label in (("fine", 1), ("awful", 0)) for _ in range(8)]
    words, weights = read(train_course(texts, texts[:4], seed=0, epochs=1), READ)
    assert words == ["<CLS>"] + ["<UNK>"] * (len(words) - 1)
    unknown = draw_queries(words, weights[-1].mean(axis=0))
    check_readable(unknown)
    assert len(unknown.axes) == len(known.axes)


def test_a_review_repeats_a_word() -> None:
    words = repeating().lower().split()
    assert len(set(words)) < len(words)
