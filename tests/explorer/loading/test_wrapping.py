"""Models that are handed over from Python become loaded_models that can be read with."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from glassformer.classifier import Classifier
from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.attention import measures, weights
from glassformer.explorer.answers.forward import read
from glassformer.explorer.answers.runs import Runs
from glassformer.explorer.answers.sampling import next_token, steps
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedModel,
    final_logits,
    last_logits,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.handcraft.designs import design
from glassformer.handcraft.tasks import TASKS
from glassformer.layers.options import LongRope
from glassformer.models import Decoder, Encoder
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import FAMILIES, bert, bert_classifier, gpt2, transformers

TOKENIZER = WordTokenizer(("a", "good", "film", "bad"))


def _read(loaded: LoadedModel) -> m.Run:
    return read(loaded, m.Ask(model=loaded.card.name, text=loaded.card.text)).message


def _decoder(vocab_size: int = 11, **options: Any) -> Decoder:
    return decoder(vocab_size=vocab_size, num_layers=2, **options)


def _encoder(num_classes: int | None = 2) -> Encoder:
    return encoder(vocab_size=TOKENIZER.vocab_size, max_seq_len=6, num_classes=num_classes)


@pytest.mark.parametrize(
    "text", ["3 1 4", [3, 1, 4], torch.tensor([3, 1, 4]), torch.tensor([[3, 1, 4]])]
)
def test_a_decoder_of_ours(text: Any) -> None:
    loaded = wrap_model(_decoder(num_experts=3, max_seq_len=8), text)
    assert loaded.card.views == ["flow", "attention", "sampling", "experts", "whatif", "patch"]
    assert loaded.card.text == "3 1 4"
    assert loaded.longest == 8
    run = _read(loaded)
    assert run.tokens == ["3", "1", "4"]
    assert run.attentions[0].causal


def test_bytes_where_the_vocabulary_is_bytes() -> None:
    run = _read(wrap_model(_decoder(256), "hi é"))
    assert run.tokens == ["h", "i", "␣", "é 1/2", "é 2/2"]


def test_a_classifier_and_an_encoder_with_its_tokenizer() -> None:
    run = _read(wrap_model(Classifier(_encoder(), TOKENIZER, ("no", "yes")), "a good film"))
    assert run.tokens == ["<CLS>", "a", "good", "film"]
    assert {name for name, _ in run.said.classes} == {"no", "yes"}
    loaded = wrap_model(_encoder(None), "a bad film and too many words", TOKENIZER)
    assert len(_read(loaded).tokens) == 6  # as many as it reads
    with refused("8 tokens"):  # what follows a part of the text is not what follows it
        wrap_model(_decoder(TOKENIZER.vocab_size, max_seq_len=6), loaded.card.text, TOKENIZER)
    assert (
        _read(wrap_model(_encoder(), "a good film", TOKENIZER))
        .said.classes[0][0]
        .startswith("class ")
    )


def test_a_classifier_reads_as_much_of_a_text_as_it_does_without_the_page() -> None:
    long = encoder(vocab_size=TOKENIZER.vocab_size, max_seq_len=300, num_classes=2)
    classifier = Classifier(long, TOKENIZER, ("no", "yes"))
    text = "good film " * 60 + "bad " * 120
    said = dict(_read(wrap_model(classifier, text)).said.classes)
    assert [said["no"], said["yes"]] == pytest.approx(
        classifier.probabilities([text])[0].tolist(), abs=1e-5
    )


def test_a_text_that_grows_past_the_border_of_long_factors_is_read_anew() -> None:
    model = decoder(head_dim=4, rope_scaling=LongRope((1.0,) * 2, (4.0,) * 2, 5)).eval()
    loaded = wrap_model(model, [1, 2])
    text = [3, 1, 4, 1]
    for token in (5, 9, 2):
        text.append(token)
        found = last_logits(loaded, text)
        torch.testing.assert_close(found, model(torch.tensor([text]))[0, -1], rtol=0, atol=1e-5)


def test_an_encoder_decoder_reads_on_the_device_that_it_is_on() -> None:
    model = encoder_decoder(vocab_size=12)
    loaded = wrap_model(model, [1, 2], source=[3, 4, 5])
    model.to("meta")  # which stands for a GPU
    source, target = loaded.inputs(["3", "4"], "1 2")
    assert source.is_meta
    assert target.is_meta


def test_an_encoder_decoder_of_tokens_and_of_slots() -> None:
    plain = encoder_decoder(vocab_size=12)
    run = _read(wrap_model(plain, [1], source=torch.tensor([3, 4, 5])))
    assert run.source == ["3", "4", "5"]
    slots = encoder_decoder(vocab_size=12, fields_per_slot=2)
    run = _read(wrap_model(slots, [1], source=[[3, 4], [5, 6]]))
    assert run.source == ["3=4", "5=6"]
    for source in ([[3, 4, 5]], [[3]], [], "3", None):
        with pytest.raises(InputError):
            wrap_model(slots, [1], source=source)
    with refused("without a text"):
        wrap_model(plain, None, source=[3])
    with refused("a tokenizer"):
        wrap_model(plain, [1], TOKENIZER, source=[3])


def test_the_weights_of_a_head_and_a_design() -> None:
    made = design(TASKS["unique"]())
    for model in (made, made.weights):
        loaded = wrap_model(model, "ABA")
        assert loaded.card.origin == "given"
        assert _read(loaded).said.words == ["-1", "+1", "-1"]
    with refused("the letter"):
        wrap_model(made, "AXE")


def test_an_exhibit_is_taken_as_it_is(by_name: dict[str, LoadedModel]) -> None:
    for loaded in by_name.values():
        assert wrap_model(loaded) is loaded


@pytest.mark.parametrize("family", [*FAMILIES, "classifier"])
def test_models_of_transformers(family: str) -> None:
    model: Any = {**FAMILIES, "classifier": bert_classifier}[family]()
    tokens = [(7 * number) % 30 for number in range(20)]
    loaded = wrap_model(model, tokens)
    assert loaded.card.kind == ("encoder" if family in ("bert", "classifier") else "decoder")
    assert ("experts" in loaded.card.views) == (family == "mixtral")
    runs = Runs(lambda _: loaded)
    run = runs.run(m.Ask(model="given", text=loaded.card.text)).message
    with torch.no_grad():
        model.set_attn_implementation("eager")
        wanted = model(torch.tensor([tokens]), output_attentions=True).attentions
    assert run.attentions[0].layers == len(wanted)
    for layer, head in product(range(2), range(4)):
        found = weights(runs, m.AskTile(run=run.run, part="self", layer=layer, head=head))
        np.testing.assert_allclose(found, wanted[layer][0, head], atol=1e-6)
    assert run.attentions[0].causal == (loaded.card.kind == "decoder")
    assert np.shape(measures(runs, m.AskMeasures(run=run.run, part="self")).entropy) == (2, 4)
    if family == "classifier":
        assert {name for name, _ in run.said.classes} == {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize(
    "kind", [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}]
)
def test_a_score_and_labels_of_their_own_are_no_classes(kind: dict[str, Any]) -> None:
    config = bert(**kind).config
    loaded = wrap_model(transformers.BertForSequenceClassification(config), [1, 2, 3])
    assert loaded.card.views == ["attention"]
    assert _read(loaded).said.classes == []


def test_labels_of_tokens_are_no_next_tokens() -> None:
    loaded = wrap_model(
        transformers.GPT2ForTokenClassification(gpt2(num_labels=3).config), [1, 2, 3]
    )
    assert loaded.card.views == ["attention"]
    assert _read(loaded).said.headline == "a vector for each token"


@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [
        (_decoder(), None),
        (_decoder(256, max_seq_len=9), None),
        (_encoder(), TOKENIZER),
        (_decoder(11, max_seq_len=6), WordTokenizer(tuple("abcdefgh"))),
        (Classifier(_encoder(), TOKENIZER, ("no", "yes")), None),
        (design(TASKS["unique"]()), None),
    ],
)
def test_without_a_text_there_is_one_that_suits(model: Any, tokenizer: Any) -> None:
    loaded = wrap_model(model, tokenizer=tokenizer)
    run = _read(loaded)
    assert len(run.tokens) > 2
    assert "<UNK>" not in run.tokens


def _letters(*, begins: bool = False) -> Any:
    """A tokenizer of transformers whose tokens are letters, with an end, and a beginning that it
    may add by itself.
    """
    vocabulary = {name: place for place, name in enumerate(["<bos>", "<eos>", *"abcdefgh", "?"])}
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="?"))
    engine.decoder = tokenizers.decoders.Fuse()
    if begins:
        added = {"single": "<bos> $A", "special_tokens": [("<bos>", 0)]}
        engine.post_processor = tokenizers.processors.TemplateProcessing(**added)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token="<bos>", eos_token="<eos>"
    )


@pytest.mark.parametrize("begins", [False, True])
def test_steps_after_a_special_token_are_the_same_one_by_one(begins: bool) -> None:
    loaded = wrap_model(_decoder(), "abc", _letters(begins=begins))
    ask = m.AskSteps(model="given", text="abc", first=1, steps=4, seed=3)
    at_once = steps(loaded, ask)
    text = steps(loaded, ask.model_copy(update={"steps": 1})).text
    assert text == "abc<eos>"
    for _ in range(3):
        text = steps(loaded, ask.model_copy(update={"steps": 1, "first": None, "text": text})).text
    assert at_once.text == text
    assert at_once.ended == "asked"


def test_tokens_are_those_that_are_read() -> None:
    assert _read(wrap_model(_decoder(), [0, 2, 3], _letters(begins=True))).tokens == [
        "<bos>",
        "a",
        "b",
    ]
    assert _read(wrap_model(_decoder(), np.array([2, 1, 3]), _letters())).tokens == [
        "a",
        "<eos>",
        "b",
    ]
    with refused(r"\[2, 3\], whose text 'ab' is read as \[0, 2, 3\]"):
        wrap_model(_decoder(), [2, 3], _letters(begins=True))
    assert _read(wrap_model(_encoder(), [2, 4], TOKENIZER)).tokens == ["<CLS>", "good"]
    with refused("is read as"):
        wrap_model(_encoder(), [4], TOKENIZER)


def test_whatever_has_logits_tells_the_next_token() -> None:
    reads = bert(is_decoder=True)
    loaded = wrap_model(transformers.BertLMHeadModel(reads.config), [1, 2, 3])
    assert loaded.card.views == ["flow", "attention", "sampling", "whatif", "patch"]
    assert len(next_token(loaded, m.AskNext(model="given", text="1 2 3")).candidates) == 50
    assert wrap_model(reads, [1, 2, 3]).card.views == ["attention"]


@pytest.mark.parametrize(
    ("model", "text", "more", "message"),
    [
        (7, "1", {}, "a model of type int"),
        ("gpt2", "1", {}, "a model of type str"),
        (torch.nn.Linear(2, 2), "1", {}, "Linear, whose attention"),
        (_decoder(), [1, 11], {}, "the token 11"),
        (_decoder(256), "a\ud800", {}, "half of a surrogate pair"),
        (_decoder().to("meta"), "1", {}, "device meta"),
        (_decoder(), "", {}, "a text of 0 characters"),
        (_decoder(), "1", {"source": [1]}, "a source for"),
        (design(TASKS["unique"]()), "A", {"source": [1]}, "a source for a Design"),
        (
            Classifier(_encoder(), TOKENIZER, ("no", "yes")),
            "a",
            {"tokenizer": TOKENIZER},
            "a tokenizer for a Class",
        ),
        (_decoder(), "1", {"tokenizer": 3}, "a tokenizer of type int"),
        (_decoder(max_seq_len=2), [1, 2, 3], {}, "3 numbers"),
    ],
)
def test_what_cannot_be_looked_into_is_refused(
    without_type_checks: None, model: Any, text: Any, more: dict[str, Any], message: str
) -> None:
    with refused(message):
        wrap_model(model, text, **more)


def test_a_model_in_training_stays_in_training() -> None:
    model = _decoder().train()
    _read(wrap_model(model, "1 2 3"))
    assert all(module.training for module in model.modules())


def test_the_last_logits_are_those_of_the_whole_text(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    with torch.no_grad():
        whole = loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    for text in ([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [2], [1, 2, 3, 4]):
        expected = loaded.model(torch.tensor([[2]])) if text == [2] else whole[:, : len(text)]
        torch.testing.assert_close(
            last_logits(loaded, text), expected[0, -1].detach(), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("output", [None, "hidden"])
def test_a_model_without_logits_has_none(
    by_name: dict[str, LoadedModel], output: str | None
) -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(5, 3)

        def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor] | None:
            return output and {output: self.table(row)}

    there = by_name["decoder"]
    assert final_logits(Bare(), torch.tensor([[1, 2]])) is None
    bare = LoadedDecoder(there.card, Bare(), there.encode, there.word, there.join)
    assert last_logits(bare, [1]) is None
