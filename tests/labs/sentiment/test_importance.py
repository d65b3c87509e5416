"""Effects of tokens against texts from which a word was really taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from glassformer.data.subword import train_subwords
from glassformer.data.tokenizer import Tokenizer, WordTokenizer
from glassformer.labs.sentiment.importance import token_effects
from glassformer.labs.sentiment.training_runs import Classifier
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from refusals import refused

TEXTS = ["the film is great !", "a dull and awful plot", "not great , not awful"]


def classifier(tokenizer: Tokenizer | None = None, positions: str = "none", pooling: str = "mean") -> Classifier:
    """With random weights that make much of every word."""
    tokenizer = tokenizer or WordTokenizer.from_texts(TEXTS)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        num_layers=2,
        hidden_dim=16,
        ff_dim=16,
        num_heads=2,
        max_seq_len=12,
        num_classes=3,
        positions=positions,  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
        pad_id=tokenizer.pad_id,
    )
    encoder = Encoder(config).eval()
    assert encoder.classifier is not None
    nn.init.normal_(encoder.classifier.weight)
    return Classifier(encoder, tokenizer, ("bad", "middling", "good"))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_without_positions_it_is_the_text_without_the_word(pooling: str, batch_size: int) -> None:
    judge, words = classifier(pooling=pooling), ["the", "dull", "unseen", "film", "is", "great"]
    for label in range(3):
        found = token_effects(judge, " ".join(words), label, batch_size)
        assert [token for token, _ in found] == ["the", "dull", "<UNK>", "film", "is", "great"]
        shorter = [" ".join(words[:i] + words[i + 1 :]) for i in range(6)]
        whole, *without = judge.probabilities([" ".join(words), *shorter])[:, label].tolist()
        assert [effect for _, effect in found] == pytest.approx([whole - rest for rest in without], abs=1e-6)
    assert max(abs(effect) for _, effect in found) > 0.01


@torch.no_grad()
def test_the_others_stay_at_their_positions() -> None:
    judge = classifier(positions="sinusoidal")
    (row,) = judge.rows([TEXTS[0]])
    tokens = torch.tensor([row])
    whole = judge.encoder(tokens).softmax(-1)[0, 2]
    found = token_effects(judge, TEXTS[0], 2)
    for place, (_, effect) in enumerate(found, start=1):
        hidden = tokens.clone()
        hidden[0, place] = judge.tokenizer.pad_id
        assert effect == pytest.approx(float(whole - judge.encoder(hidden).softmax(-1)[0, 2]), abs=1e-6)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_tokens_around_every_text_are_never_left_out(kind: str) -> None:
    tokenizer = train_subwords(TEXTS, kind, 400)  # type: ignore[arg-type]
    judge = classifier(tokenizer)
    found = token_effects(judge, "the film", 0)
    assert "".join(token for token, _ in found).replace("##", "").replace(" ", "") == "thefilm"


def test_an_empty_text_has_none_and_a_long_one_is_cut() -> None:
    judge = classifier()
    assert token_effects(judge, "", 0) == []
    assert len(token_effects(judge, "great " * 100_000, 0)) == 11


def test_dropout_stays_out_and_the_mode_stays() -> None:
    judge = classifier()
    expected = token_effects(judge, TEXTS[0], 1)
    judge.encoder.train()
    assert token_effects(judge, TEXTS[0], 1) == expected
    assert judge.encoder.training


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    judge = classifier()
    with refused("label = 3"):
        token_effects(judge, "great", 3)
    with refused("batch_size = 0"):
        token_effects(judge, "great", 0, 0)
    with refused("of type int"):
        token_effects(judge, 7, 0)  # type: ignore[arg-type]
