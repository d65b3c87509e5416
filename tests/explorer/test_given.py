"""Models that are handed over from Python become exhibits that can be read with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glassformer.data.tokenizer import WordTokenizer
from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import DecoderExhibit, EncoderExhibit, Exhibit, HeadExhibit
from glassformer.explorer.given import given
from glassformer.explorer.measures import measures
from glassformer.explorer.reading import read
from glassformer.explorer.runs import Runs
from glassformer.explorer.tiles import tile_of
from glassformer.handcraft.build import design
from glassformer.handcraft.tasks import TASKS
from glassformer.labs.sentiment.training_runs import Classifier
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig

TOKENIZER = WordTokenizer(("a", "good", "film", "bad"))


def _read(exhibit: Exhibit) -> m.Run:
    return read(exhibit, m.Ask(model=exhibit.card.name, text=exhibit.card.text)).message


def _decoder(vocab_size: int = 11, **options: Any) -> Decoder:
    config = DecoderConfig(vocab_size, num_layers=2, hidden_dim=8, ff_dim=8, num_heads=2, head_dim=4, **options)
    return Decoder(config)


def _encoder(num_classes: int | None = 2) -> Encoder:
    config = EncoderConfig(
        TOKENIZER.vocab_size, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, max_seq_len=6, num_classes=num_classes
    )
    return Encoder(config)


@pytest.mark.parametrize("text", ["3 1 4", [3, 1, 4], torch.tensor([3, 1, 4]), torch.tensor([[3, 1, 4]])])
def test_a_decoder_of_ours(text: Any) -> None:
    exhibit = given(_decoder(num_experts=3, max_seq_len=8), text)
    assert isinstance(exhibit, DecoderExhibit)
    assert exhibit.card.views == ["attention", "sampling", "experts"]
    assert exhibit.card.text == "3 1 4"
    assert not exhibit.model.training
    assert exhibit.longest == 8
    run = _read(exhibit)
    assert run.tokens == ["3", "1", "4"]
    assert run.attentions[0].causal


def test_bytes_where_the_vocabulary_is_bytes() -> None:
    run = _read(given(_decoder(256), "hi é"))
    assert run.tokens == ["h", "i", "␣", "\\xc3", "\\xa9"]


def test_a_classifier_and_an_encoder_with_its_tokenizer() -> None:
    run = _read(given(Classifier(_encoder(), TOKENIZER, ("no", "yes")), "a good film"))
    assert run.tokens == ["<CLS>", "a", "good", "film"]
    assert {name for name, _ in run.said.classes} == {"no", "yes"}
    exhibit = given(_encoder(None), "a bad film and too many words", TOKENIZER)
    assert isinstance(exhibit, EncoderExhibit)
    assert len(_read(exhibit).tokens) == 6  # as many as it reads
    assert _read(given(_encoder(), "a good film", TOKENIZER)).said.classes[0][0].startswith("class ")


def test_an_encoder_decoder_of_tokens_and_of_slots() -> None:
    sizes: dict[str, Any] = {"hidden_dim": 8, "ff_dim": 8, "num_heads": 2, "max_source_len": 9, "max_target_len": 4}
    layers: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    plain = EncoderDecoder(EncoderDecoderConfig(12, **sizes, **layers))
    run = _read(given(plain, [1], source=torch.tensor([[3, 4, 5]])))
    assert run.source == ["3", "4", "5"]
    slots = EncoderDecoder(EncoderDecoderConfig(12, **sizes, **layers, fields_per_slot=2))
    run = _read(given(slots, [1], source=[[3, 4], [5, 6]]))
    assert run.source == ["3=4", "5=6"]
    for source in ([[3, 4, 5]], [[3]], [], "3", None):
        with pytest.raises(InputError):
            given(slots, [1], source=source)
    with pytest.raises(InputError, match="without a text"):
        given(plain, None, source=[3])
    with pytest.raises(InputError, match="a tokenizer"):
        given(plain, [1], TOKENIZER, source=[3])


def test_the_weights_of_a_head_and_a_design() -> None:
    made = design(TASKS["unique"]())
    for model in (made, made.weights):
        exhibit = given(model, "ABA")
        assert isinstance(exhibit, HeadExhibit)
        assert _read(exhibit).said.words == ["-1", "+1", "-1"]
    long = TASKS["identity"]("ABCDE", 3)
    assert _read(given(design(long), task=long)).said.words == list("ABC")
    with pytest.raises(InputError, match="the letter"):
        given(made, "AXE")
    with pytest.raises(InputError, match="a task for"):
        given(_decoder(), "1", task=long)


def test_an_exhibit_is_taken_as_it_is(by_name: dict[str, Exhibit]) -> None:
    for exhibit in by_name.values():
        assert given(exhibit) is exhibit


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "bert", "classifier"])
def test_models_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    small = {**sizes, "intermediate_size": 16, "max_position_embeddings": 40}
    model = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=4, n_positions=40)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, num_key_value_heads=2)),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**small, num_key_value_heads=2, num_local_experts=3)
        ),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**small)),
        "classifier": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**small)),
    }[family]()
    tokens = [(7 * number) % 30 for number in range(20)]
    exhibit = given(model, tokens)
    assert exhibit.card.kind == ("encoder" if family in ("bert", "classifier") else "decoder")
    assert ("experts" in exhibit.card.views) == (family == "mixtral")
    runs = Runs(lambda _: exhibit)
    run = runs.run(m.Ask(model="given", text=exhibit.card.text)).message
    with torch.no_grad():
        eager = model.eval()
        eager.set_attn_implementation("eager")
        wanted = eager(torch.tensor([tokens]), output_attentions=True).attentions
    assert run.attentions[0].layers == len(wanted)
    for layer, weights in enumerate(wanted):
        for head in range(4):
            found = tile_of(runs, m.AskTile(run=run.run, part="self", layer=layer, head=head))
            np.testing.assert_allclose(found, weights[0, head], atol=1e-6)
    assert run.attentions[0].causal == (exhibit.card.kind == "decoder")
    assert np.shape(measures(runs, m.AskMeasures(run=run.run, part="self")).entropy) == (2, 4)
    if family == "classifier":
        assert {name for name, _ in run.said.classes} == {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize(
    ("model", "text", "more", "message"),
    [
        (7, "1", {}, "a model of type int"),
        ("gpt2", "1", {}, "a model of type str"),
        (torch.nn.Linear(2, 2), "1", {}, "Linear, which has no attention"),
        (_decoder(), None, {}, "text of type NoneType"),
        (_decoder(), "", {}, "a text of 0 characters"),
        (_decoder(), "one", {}, "'one' at place 1"),
        (_decoder(), "1", {"source": [1]}, "a source for"),
        (_decoder(), "1", {"tokenizer": 3}, "a tokenizer of type int"),
        (_decoder(max_seq_len=2), [1, 2, 3], {}, "3 numbers"),
    ],
)
def test_what_cannot_be_looked_into_is_refused(
    without_type_checks: None, model: Any, text: Any, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        given(model, text, **more)
