"""Padding: the changes recomputed from the model, none where it is masked."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.data.examples import Example, split_by_text
from glassformer.labs.sentiment.experiments import pitfalls
from glassformer.labs.sentiment.experiments.mini_transformer import SPLIT, train_course
from glassformer.labs.sentiment.experiments.pitfalls import measure_padding

THINGS = ("film", "book", "soup", "phone", "song", "play", "cake", "lamp", "chair", "show")
EXAMPLES = tuple(
    Example(f"a {word} {thing}{' , all in all' * (index % 2)}", label)
    for index, thing in enumerate(THINGS)
    for word, label in (("good", 1), ("bad", 0), ("lovely", 1))
)


@pytest.fixture(autouse=True)
def _few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pitfalls, "plain_reviews", lambda: EXAMPLES)


def test_only_seen_padding_changes_anything() -> None:
    result = measure_padding(seeds=(0,), lengths=(6, 20, 60), epochs=2)
    (seen,), (left_out,) = result.of("seen"), result.of("left out")
    assert 0 < seen.num_compared < seen.num_validated
    assert result.largest_change("left out") <= 1e-6
    assert left_out.order_change <= 1e-6
    assert result.mean("left out", "flipped") == {6: 0, 20: 0, 60: 0}
    assert len(set(result.mean("left out", "accuracy").values())) == 1
    assert result.largest_change("seen") > 1e-3
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)


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
        expected = max(expected, *(abs(p[max(batch) + 1] - p[index // 8 * 8 + 8]) for index in batch))
    assert pitfalls._order_change(Widths(), rows, seed=5) == pytest.approx(expected, abs=1e-7)
    assert expected > 0.1


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
    right = [(p > 0.5) == bool(example.label) for p, example in zip(probabilities[16], held_out, strict=True)]
    assert padded.accuracy == pytest.approx(sum(right) / len(right))
    flipped = [(one > 0.5) != (other > 0.5) for one, other in zip(*probabilities.values(), strict=True)]
    assert padded.flipped == pytest.approx(sum(flipped) / len(flipped))
    assert run.validation_accuracy == pytest.approx(history["val_acc"][-1] / 100)
