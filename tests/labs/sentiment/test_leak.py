"""The leak: counted by hand, hidden by a random split, and absent from a split by text."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
import torch

pytest.importorskip("sklearn")

from glassformer.data.examples import Example
from glassformer.data.sentiment import leaky_examples
from glassformer.labs.sentiment.leak import SeesPadding, measure_leak, train_course
from refusals import refused

FEW = tuple(
    Example(f"a {word} {thing}", label) for thing in ("film", "book") for word, label in (("good", 1), ("bad", 0))
)


def test_the_counts_are_those_of_the_set_and_the_numbers_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = measure_leak(seeds=(3,), epochs=1)
    copies = Counter(example.text for example in leaky_examples())
    assert (result.num_examples, result.num_texts) == (sum(copies.values()), len(copies)) == (200, 20)
    for run in (*result.leaky, *result.clean):
        assert (run.seed, run.num_trained, run.num_validated) == (3, 160, 40)
    assert result.leaky[0].num_seen == 40
    assert result.clean[0].num_seen == 0
    # Four texts are held out, and their ten copies are judged alike.
    assert (4 * result.clean[0].transformer).is_integer()
    assert (4 * result.clean[0].tfidf).is_integer()
    assert result.leaky[0].tfidf == 1.0
    assert all(len(values) == 1 for values in result.leaky_history.values())
    assert result.clean_history["val_acc"][-1] == pytest.approx(100 * result.clean[0].transformer)
    assert result.mean("leaky", "tfidf") == 1.0
    assert json.loads(json.dumps(dataclasses.asdict(result))) == dataclasses.asdict(result)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_leak_makes_a_model_perfect_that_is_not() -> None:
    result = measure_leak(seeds=(0,))
    assert result.mean("leaky", "transformer") == 1.0
    assert result.mean("clean", "transformer") < 0.9


def test_the_same_seed_trains_the_same_model_and_leaves_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (train_course(FEW, FEW[:2], seed, epochs=1) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.history == same.history
    assert torch.equal(one.model.classifier.weight, same.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)
    assert not one.model.training
    assert set(one.tokenizer.vocab) >= {"good", "bad", "film", "book", "a"}


def test_seeing_padding_is_what_the_course_computes() -> None:
    model, tokenizer, _ = train_course(FEW, FEW[:2], seed=0, epochs=1, sees_padding=True)
    row = torch.tensor([tokenizer.tokenize("a good film", max_length=7)])
    # Without any mask, from the parts: attention over all positions, and their plain mean.
    x = model.embeddings(row)
    for block in model.transformer_blocks:
        x, _ = block(x)
    expected = model.classifier(model.ln_f(x).mean(1))
    seen = SeesPadding(model).eval()
    assert torch.allclose(seen(row), expected, atol=1e-6)
    assert not torch.allclose(model(row)[0], expected, atol=1e-4)


def test_no_seeds_are_refused() -> None:
    with refused("no seeds"):
        measure_leak(seeds=())


def test_ctrl_c_is_no_shorter_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.labs.sentiment import leak

    monkeypatch.setattr(leak, "train_transformer", lambda *arguments: {"val_acc": [50.0]})
    with pytest.raises(KeyboardInterrupt):
        train_course(FEW, FEW[:2], seed=0, epochs=2)
