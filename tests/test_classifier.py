"""Text classifiers: predictions, what is saved and read again, and effects against texts without
the word.
"""

import dataclasses
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from glassformer.classifier import (
    Classifier,
    load_classifier,
    predict,
    save_classifier,
    token_effects,
)
from glassformer.data.subword import Tokenizer
from glassformer.data.tokenizer import WordTokenizer
from glassformer.models.encoder import Encoder, EncoderConfig
from refusals import refused
from trained_subwords import train_subwords

ROWS = [[2, 5], [2, 6, 3, 4], [2, 7, 5], [2], [2, 6, 6, 6, 6]]
TEXTS = ["the film is great !", "a dull and awful plot", "not great , not awful"]


def classifier(tokenizer: Tokenizer | None = None, **options: object) -> Classifier:
    """With random weights and a large head, so that every word has an effect."""
    tokenizer = tokenizer or WordTokenizer.from_texts(TEXTS)
    sizes = {
        "num_layers": 2,
        "hidden_dim": 16,
        "ff_dim": 16,
        "num_heads": 2,
        "max_seq_len": 12,
        "positions": "none",
    }
    options = {
        "vocab_size": tokenizer.vocab_size,
        "pad_id": tokenizer.pad_id,
        "num_classes": 3,
        **sizes,
        **options,
    }
    config = EncoderConfig(**options)  # type: ignore[arg-type]
    encoder = Encoder(config).eval()
    nn.init.normal_(encoder.classifier.weight)
    return Classifier(encoder, tokenizer, ("bad", "middling", "good"))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_without_positions_it_is_the_text_without_the_word(pooling: str, batch_size: int) -> None:
    judge = classifier(pooling=pooling)
    words = ["the", "dull", "unseen", "film", "is", "great"]
    for label in range(3):
        found = token_effects(judge, " ".join(words), label, batch_size)
        assert [token for token, _ in found] == ["the", "dull", "<UNK>", "film", "is", "great"]
        shorter = [" ".join(words[:i] + words[i + 1 :]) for i in range(6)]
        whole, *without = judge.probabilities([" ".join(words), *shorter])[:, label].tolist()
        assert [effect for _, effect in found] == pytest.approx(
            [whole - rest for rest in without], abs=1e-6
        )
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
        assert effect == pytest.approx(
            float(whole - judge.encoder(hidden).softmax(-1)[0, 2]), abs=1e-6
        )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_tokens_around_every_text_are_never_left_out(kind: str) -> None:
    tokenizer = train_subwords(TEXTS, kind, 400)
    judge = classifier(tokenizer)
    found = token_effects(judge, "the film", 0)
    assert "".join(token for token, _ in found).replace("##", "").replace(" ", "") == "thefilm"


def test_an_empty_text_has_none_and_a_long_one_is_cut() -> None:
    judge = classifier()
    assert [len(row) for row in judge.rows(["great " * 1000, "", "great"])] == [12, 1, 2]
    assert token_effects(judge, "", 0) == []
    assert len(token_effects(judge, "great " * 100_000, 0)) == 11


def test_dropout_stays_out_and_the_mode_stays() -> None:
    judge = classifier(dropout=0.5)
    expected = token_effects(judge, TEXTS[0], 1)
    judge.encoder.train()
    judge.encoder.layers[0].eval()
    assert token_effects(judge, TEXTS[0], 1) == expected
    assert judge.encoder.training
    assert not judge.encoder.layers[0].training


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    judge = classifier()
    with refused("label = 3"):
        token_effects(judge, "great", 3)
    with refused("batch_size = 0"):
        token_effects(judge, "great", 0, 0)
    with refused("of type int"):
        token_effects(judge, 7, 0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_type_checks")
def test_only_lists_of_texts_are_classified() -> None:
    judge = classifier()
    for texts, message in (
        ([], "no texts"),
        ("good", "one text"),
        (["good", None], "of type NoneType"),
    ):
        with refused(message):
            judge.probabilities(texts)  # type: ignore[arg-type]


def test_damaged_classifiers_are_refused(tmp_path: Path) -> None:
    judge = classifier()
    save_classifier(judge, tmp_path / "it")
    load_classifier(tmp_path / "it")
    (tmp_path / "it" / "classes.json").write_text(json.dumps(["one", "two"]))
    with refused(expected="one name for each class of the head"):
        load_classifier(tmp_path / "it")
    (tmp_path / "it" / "classes.json").write_text(json.dumps(["same", "same", "other"]))
    with refused(expected="a different name for each class"):
        load_classifier(tmp_path / "it")
    (tmp_path / "it" / "classes.json").write_text(json.dumps(judge.classes))
    load_classifier(tmp_path / "it")
    tokenizer = (tmp_path / "it" / "tokenizer.json").read_text()
    words = json.loads(tokenizer)
    for changed in (words["words"][:-1], [*words["words"], "onemore"]):
        (tmp_path / "it" / "tokenizer.json").write_text(json.dumps({**words, "words": changed}))
        with refused("a tokenizer of .* tokens", expected="exactly the encoder's"):
            load_classifier(tmp_path / "it")
    (tmp_path / "it" / "classes.json").unlink()
    with refused("without classes.json", expected="a classifier that was trained here"):
        load_classifier(tmp_path / "it")


def test_a_training_run_holds_its_classifier_in_a_directory_of_its_own(tmp_path: Path) -> None:
    judge = classifier()
    save_classifier(judge, tmp_path / "encoder")
    for place in (tmp_path, tmp_path / "encoder"):
        again = load_classifier(place)
        assert again.classes == judge.classes
        assert not again.encoder.training
        assert torch.equal(again.probabilities(TEXTS), judge.probabilities(TEXTS))


def test_a_subword_tokenizer_may_leave_rows_of_the_encoder_unused(tmp_path: Path) -> None:
    made = classifier(train_subwords(TEXTS, "wordpiece", 60))
    for rows, accepted in ((8, True), (-1, False)):
        size = made.tokenizer.vocab_size + rows
        encoder = Encoder(dataclasses.replace(made.encoder.config, vocab_size=size))
        save_classifier(Classifier(encoder, made.tokenizer, made.classes), tmp_path / "it")
        if accepted:
            assert load_classifier(tmp_path / "it").encoder.config.vocab_size == size
        else:
            with refused(expected="at most the encoder's"):
                load_classifier(tmp_path / "it")


def test_a_classifier_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = classifier()
    second = classifier()
    save_classifier(first, tmp_path / "it")
    with monkeypatch.context() as patch:
        patch.setattr(WordTokenizer, "to_json", Mock(side_effect=OSError("the disk is full")))
        with pytest.raises(OSError, match="the disk is full"):
            save_classifier(second, tmp_path / "it")
    assert torch.equal(
        load_classifier(tmp_path / "it").probabilities(TEXTS), first.probabilities(TEXTS)
    )
    save_classifier(second, tmp_path / "it")
    assert torch.equal(
        load_classifier(tmp_path / "it").probabilities(TEXTS), second.probabilities(TEXTS)
    )


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_predictions_are_those_of_each_text_alone_in_the_order_given(batch_size: int) -> None:
    model = classifier(dropout=0.5).encoder.train()
    model.layers[0].eval()
    together = predict(model, ROWS, 0, batch_size)
    assert model.training
    assert not model.layers[0].training
    model.eval()
    for row, probabilities in zip(ROWS, together, strict=True):
        alone = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool)).softmax(-1)[0]
        torch.testing.assert_close(probabilities, alone, atol=1e-6, rtol=0)


def test_texts_of_unknown_words_and_empty_ones_get_probabilities() -> None:
    found = predict(classifier().encoder, [[2], [2, 1, 1, 1], [2, 1]], 0)
    assert found.isfinite().all()
    torch.testing.assert_close(found.sum(1), torch.ones(3))
