"""The leak, counted by hand and on the course's own sentences; padding, with changes recomputed
from the model.
"""

import dataclasses
import math
import os
import re
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch import nn

from glassformer.course.lessons import read_lesson
from glassformer.data.examples import Example, split_by_text
from glassformer.data.sentiment import leaky_examples
from glassformer.labs.sentiment.experiments import pitfalls
from glassformer.labs.sentiment.experiments.mini_transformer import SPLIT, train_course
from glassformer.labs.sentiment.experiments.pitfalls import (
    LeakResult,
    LeakRun,
    draw_leak,
    measure_leak,
    measure_padding,
)
from readable import check_readable


@pytest.fixture(scope="module")
def result() -> LeakResult:
    return measure_leak(seeds=(3,), epochs=1)


def test_the_counts_are_those_of_the_set(result: LeakResult) -> None:
    copies = Counter(example.text for example in leaky_examples())
    assert (
        (result.num_examples, result.num_texts) == (sum(copies.values()), len(copies)) == (200, 20)
    )
    for run in (*result.leaky, *result.clean):
        assert run.num_validated == 40
    assert result.leaky[0].num_seen == 40
    assert result.clean[0].num_seen == 0
    # Four texts are held out, and their ten copies are judged alike.
    assert (4 * result.clean[0].transformer).is_integer()
    assert (4 * result.clean[0].tfidf).is_integer()
    assert result.mean("leaky", "tfidf") == 1.0
    assert all(len(values) == 1 for values in result.histories["leaky"].values())
    assert result.histories["clean"]["val_acc"][-1] == pytest.approx(
        100 * result.clean[0].transformer
    )


def test_the_figure_shows_every_split(result: LeakResult) -> None:
    accuracies = [0.25, 0.5, 0.5, 1.0]
    clean = [LeakRun(40, 0, share, 1 - share) for share in accuracies]
    several = dataclasses.replace(result, clean=clean, leaky=result.leaky * 4)
    assert several.mean("clean", "transformer") == 0.5625
    assert several.error("clean", "tfidf") == pytest.approx(statistics.stdev(accuracies) / 2)
    figure = draw_leak(several)
    check_readable(figure)
    points = [np.asarray(drawn.get_ydata(), dtype=float) for drawn in figure.axes[0].lines[:4]]
    np.testing.assert_allclose(points[2], [25, 50, 50, 100])
    np.testing.assert_allclose(points[3], [75, 50, 50, 0])


@pytest.mark.slow
def test_the_leak_makes_a_model_perfect_that_is_not() -> None:
    result = measure_leak(seeds=(0,))
    assert result.mean("leaky", "transformer") == 1.0
    assert result.mean("clean", "transformer") < 0.9


DOCUMENT = Path(
    os.environ.get("GLASSFORMER_COURSE_TEXTS", Path(__file__).parents[4] / "shared" / "seeds"),
    "sentiment.txt",
)


def sentences(name: str) -> list[str]:
    document = DOCUMENT.read_text(encoding="utf-8")
    begin = document.index(f"{name} = [")
    return re.findall(r'"(.+)"', document[begin : document.index("]", begin)])


@pytest.mark.slow
@pytest.mark.skipif(
    not DOCUMENT.exists(), reason="the course's document is not here; set GLASSFORMER_COURSE_TEXTS"
)
def test_the_courses_sentences_leak_as_ours_do(monkeypatch: pytest.MonkeyPatch) -> None:
    praise = sentences("positive_samples")
    blame = sentences("negative_samples")
    assert len(set(praise)) == len(set(blame)) == 10
    examples = [Example(text, 1) for text in praise * 10] + [
        Example(text, 0) for text in blame * 10
    ]
    monkeypatch.setattr(pitfalls, "leaky_examples", lambda: examples)
    found = measure_leak(seeds=range(5))
    assert (found.num_examples, found.num_texts) == (200, 20)
    assert all(run.num_seen == run.num_validated == 40 for run in found.leaky)
    assert found.mean("leaky", "transformer") == found.mean("leaky", "tfidf") == 1
    # Four sentences are held out in each split: a coin's mean over five splits has a standard error
    # of 11 points.
    assert all(run.num_seen == 0 for run in found.clean)
    assert 0.25 <= found.mean("clean", "transformer") <= 0.75


THINGS = ("film", "book", "soup", "phone", "song", "play", "cake", "lamp", "chair", "show")
EXAMPLES = tuple(
    Example(f"a {word} {thing}{' , all in all' * (index % 2)}", label)
    for index, thing in enumerate(THINGS)
    for word, label in (("good", 1), ("bad", 0), ("lovely", 1))
)


@pytest.fixture
def few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pitfalls, "plain_reviews", lambda: EXAMPLES)


@pytest.mark.usefixtures("few_examples")
def test_only_seen_padding_changes_anything() -> None:
    result = measure_padding(seeds=(0,), lengths=(6, 20, 60), epochs=2)
    (seen,), (left_out,) = result.of("seen"), result.of("left out")
    assert 0 < seen.num_compared < seen.num_validated
    assert result.largest_change("left out") <= 1e-6
    assert left_out.order_change <= 1e-6
    assert [(each.length, each.flipped) for each in left_out.padded] == [(6, 0), (20, 0), (60, 0)]
    assert result.largest_change("seen") > 1e-3


class Widths(nn.Module):
    """Gives all texts of a batch the logit of its width."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, tokens.shape[1] / 10]]).expand(len(tokens), 2)


def test_the_order_of_texts_decides_how_far_they_are_padded() -> None:
    rows = [[1] * (1 + index) for index in range(24)]
    order = np.random.default_rng(5).permutation(24)
    p = {width: 1 / (1 + math.exp(-width / 10)) for width in range(1, 25)}
    expected = 0.0
    for start in range(0, 24, 8):
        batch = order[start : start + 8].tolist()
        expected = max(
            expected, *(abs(p[max(batch) + 1] - p[index // 8 * 8 + 8]) for index in batch)
        )
    assert pitfalls._order_change(Widths(), rows, seed=5) == pytest.approx(expected, abs=1e-7)
    assert expected > 0.1


@pytest.mark.usefixtures("few_examples")
def test_the_numbers_are_those_of_the_course_without_masks() -> None:
    result = measure_padding(seeds=(1,), lengths=(16,), epochs=1)
    train, held_out = split_by_text(EXAMPLES, SPLIT, 1)
    model, tokenizer, history = train_course(train, held_out, 1, 1, sees_padding=True)
    probabilities = {}
    for length in (None, 16):
        probabilities[length] = []
        for example in held_out:
            row = torch.tensor([tokenizer.tokenize(example.text, length or 16)])
            row = row if length else row[row != 0][None]
            x = model.embeddings(row)
            for block in model.transformer_blocks:
                x, _ = block(x)
            logits = model.classifier(model.ln_f(x).mean(1)).double()
            probabilities[length].append(float(logits.detach().softmax(-1)[0, 1]))
    changes = [abs(one - other) for one, other in zip(*probabilities.values(), strict=True)]
    (run,) = result.of("seen")
    (padded,) = run.padded
    assert run.num_compared == len(held_out)
    assert padded.largest_change == pytest.approx(max(changes), abs=1e-6)
    flipped = [
        (one > 0.5) != (other > 0.5) for one, other in zip(*probabilities.values(), strict=True)
    ]
    assert padded.flipped == pytest.approx(sum(flipped) / len(flipped))
    assert run.validation_accuracy == pytest.approx(history["val_acc"][-1] / 100)


def test_the_lessons_random_split_is_stratified_as_the_documents_is() -> None:
    (source,) = [
        cell.source for cell in read_lesson("sentiment") if "toy_held_out = " in cell.source
    ]
    names = {"leaky_examples": leaky_examples, "train_test_split": train_test_split}
    exec(source, names)
    train = names["toy_train"]
    held_out = names["toy_held_out"]
    assert Counter(map(id, [*train, *held_out])) == Counter(map(id, names["toy"]))
    assert [(len(part), sum(each.label for each in part)) for part in (train, held_out)] == [
        (160, 80),
        (40, 20),
    ]
    # The document's arguments, on positions in place of texts.
    labels = [1] * 100 + [0] * 100
    rows = train_test_split(range(200), test_size=0.2, random_state=42, stratify=labels)
    assert [[names["toy"][row] for row in part] for part in rows] == [train, held_out]
