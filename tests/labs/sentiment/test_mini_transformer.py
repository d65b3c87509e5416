"""The course's model: trained alike from one seed, with padding seen or left out."""

import pytest
import torch

from glassformer.data.examples import Example
from glassformer.labs.sentiment.experiments import mini_transformer
from glassformer.labs.sentiment.experiments.mini_transformer import SeesPadding, train_course

FEW = tuple(
    Example(f"a {word} {thing}", label)
    for thing in ("film", "book")
    for word, label in (("good", 1), ("bad", 0))
)


def test_the_same_seed_trains_the_same_model_and_leaves_the_generator_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (train_course(FEW, FEW[:2], seed, epochs=1) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.history == same.history
    assert torch.equal(one.model.classifier.weight, same.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)
    assert not one.model.training
    assert set(one.tokenizer.vocab) >= {"good", "bad", "film", "book", "a"}
    assert capsys.readouterr().out == ""


def test_seeing_padding_is_what_the_model_computes_with_a_mask_of_ones() -> None:
    model, tokenizer, _ = train_course(FEW, FEW[:2], seed=0, epochs=1, sees_padding=True)
    row = torch.tensor([tokenizer.tokenize("a good film", max_length=7)])
    expected = model(row, torch.ones_like(row))[0]
    assert torch.allclose(SeesPadding(model).eval()(row), expected, atol=1e-6)
    assert not torch.allclose(model(row)[0], expected, atol=1e-4)


def test_ctrl_c_is_no_shorter_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mini_transformer, "train_transformer", lambda *arguments: {"val_acc": [50.0]}
    )
    with pytest.raises(KeyboardInterrupt):
        train_course(FEW, FEW[:2], seed=0, epochs=2)
