"""A run holds what the model was given, and says what the model makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import DecoderExhibit, EncoderDecoderExhibit, EncoderExhibit, Exhibit
from glassformer.explorer.reading import KeptRun, read, run_name
from glassformer.explorer.unknown import UnknownName
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_config import EncoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.exact_attention import exact_rows


def _dense(run: KeptRun, part: Any, layer: int) -> torch.Tensor:
    """The whole matrix of every head of a layer."""
    given = run.layers(part)[layer]
    weights = torch.zeros(given.q.shape[1], given.q.shape[2], given.k.shape[2])
    for query in range(given.q.shape[2]):
        found = exact_rows(given, range(given.q.shape[1]), [query], ["weights"])
        assert found.weights is not None
        weights[:, query, found.first : found.first + found.weights.shape[3]] = found.weights[0, :, 0]
    return weights


def test_a_decoder_run_holds_every_weight(by_name: dict[str, Exhibit]) -> None:
    exhibit = by_name["decoder"]
    assert isinstance(exhibit, DecoderExhibit)
    run = read(exhibit, m.Ask(model="decoder", text="1 2 3 4 5 6 7 8 9"))
    with torch.no_grad(), capture(exhibit.model) as seen:
        logits = exhibit.model(torch.tensor([list(range(1, 10))]))[0, -1]
    for layer, weights in enumerate(seen.weights.values()):
        torch.testing.assert_close(_dense(run, "self", layer), weights[0])
    (attention,) = run.message.attentions
    assert (attention.layers, attention.heads, attention.queries, attention.keys) == (2, 2, 9, 9)
    assert attention.windows == [None, 4]
    assert attention.causal
    assert attention.sinks
    assert run.message.tokens == list("123456789")
    probabilities = logits.double().softmax(-1)
    best = int(probabilities.argmax())
    assert run.message.said.classes[0][0] == str(best)
    assert run.message.said.classes[0][1] == pytest.approx(float(probabilities[best]))
    assert run.message.said.headline.startswith(f"next: {best}, ")
    assert [each.layer for each in run.routed] == [0, 1]


def test_an_encoder_names_its_classes() -> None:
    torch.manual_seed(0)
    config = EncoderConfig(20, num_layers=2, hidden_dim=8, ff_dim=8, num_heads=2, max_seq_len=16, num_classes=3)
    model = Encoder(config).eval()
    card = m.ModelCard(
        name="e",
        title="e",
        kind="encoder",
        about="",
        views=["attention"],
        text="1",
        input_help="",
        origin="given",
    )
    exhibit = EncoderExhibit(
        card, model, lambda text: [int(word) for word in text.split()], lambda row: list(map(str, row)), ("x", "y", "z")
    )
    run = read(exhibit, m.Ask(model="e", text="3 4 5"))
    with torch.no_grad():
        probabilities = model(torch.tensor([[3, 4, 5]]))[0].double().softmax(-1)
    assert dict(run.message.said.classes) == pytest.approx(dict(zip("xyz", probabilities.tolist(), strict=True)))
    assert not run.message.attentions[0].causal
    bare = Encoder(EncoderConfig(20, num_layers=1, hidden_dim=8, ff_dim=8, num_heads=2, max_seq_len=16)).eval()
    said = read(EncoderExhibit(card, bare, exhibit.encode, exhibit.words), m.Ask(model="e", text="3 4")).message.said
    assert said == m.Said(headline="a vector for each token")


def test_an_encoder_decoder_writes_and_reads_in_the_given_order(by_name: dict[str, Exhibit]) -> None:
    exhibit = by_name["lookup"]
    assert isinstance(exhibit, EncoderDecoderExhibit)
    order = [2, 0, 1]
    run = read(exhibit, m.Ask(model="lookup", text="4 5", source=["7", "8", "9"], order=order))
    assert run.message.source == ["9", "7", "8"]
    assert {each.part: (each.queries, each.keys) for each in run.message.attentions} == {
        "encoder": (3, 3),
        "decoder": (2, 2),
        "cross": (2, 3),
    }
    source, target = torch.tensor([[10, 8, 9]]), torch.tensor([[5, 6]])
    with torch.no_grad(), capture(exhibit.model) as seen:
        logits = exhibit.model(source, target)[0, -1]
    parts = {"encoder_layers.0.attention": "encoder", "decoder_layers.0.self_attention": "decoder"}
    parts["decoder_layers.0.cross_attention"] = "cross"
    for name, weights in seen.weights.items():
        torch.testing.assert_close(_dense(run, parts[name], 0), weights[0])
    assert run.message.said.words == [str(int(logits.argmax()))]
    assert [each.causal for each in run.message.attentions] == [False, True, False]


def test_the_things_of_the_card_are_read_where_none_are_given(by_name: dict[str, Exhibit]) -> None:
    assert read(by_name["lookup"], m.Ask(model="lookup", text="4")).message.source == list("12345")


def test_a_head_says_what_its_outputs_read(by_name: dict[str, Exhibit]) -> None:
    run = read(by_name["unique"], m.Ask(model="unique", text="ABA")).message
    assert run.tokens == ["CLS", "A", "B", "A"]
    assert run.said.words == ["-1", "+1", "-1"]
    assert read(by_name["identity"], m.Ask(model="identity", text="CAB")).message.said.words == list("CAB")


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("decoder", {"text": ""}, "the text ''"),
        ("decoder", {"text": "1", "source": ["1"]}, "a source for"),
        ("decoder", {"text": "1", "order": [0]}, "a source for"),
        ("identity", {"text": "A", "source": ["1"]}, "a source for"),
        ("identity", {"text": "X"}, "the letter 'X'"),
        ("lookup", {"text": "4", "order": [0, 0, 1, 2, 3]}, "order = "),
        ("lookup", {"text": "4", "order": [0]}, "order = "),
        ("lookup", {"text": "4", "source": []}, "a source of nothing"),
    ],
)
def test_what_cannot_be_read_is_refused(
    by_name: dict[str, Exhibit], model: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(by_name[model], m.Ask(model=model, **more))


def test_a_text_that_is_too_long_is_refused(by_name: dict[str, Exhibit]) -> None:
    decoder = by_name["decoder"]
    assert isinstance(decoder, DecoderExhibit)
    endless = DecoderExhibit(decoder.card, decoder.model, lambda text: [1] * 4097, decoder.word, decoder.join)
    with pytest.raises(InputError, match="4,097 tokens"):
        read(endless, m.Ask(model="decoder", text="1"))


def test_a_part_that_there_is_not_is_refused(by_name: dict[str, Exhibit]) -> None:
    run = read(by_name["decoder"], m.Ask(model="decoder", text="1 2"))
    with pytest.raises(UnknownName, match="part = 'cross'"):
        run.layers("cross")


def test_the_name_follows_from_the_question() -> None:
    ask = m.Ask(model="decoder", text="1 2")
    assert run_name(ask) == run_name(m.Ask(model="decoder", text="1 2"))
    others = [
        m.Ask(model="decoder", text="1  2"),
        m.Ask(model="decoders", text="1 2"),
        m.Ask(model="decoder", text="1 2", source=[]),
        m.Ask(model="decoder", text="1 2", order=[0]),
        m.Ask(model="decoder", text="1 é"),
    ]
    names = {run_name(each) for each in (ask, *others)}
    assert len(names) == 1 + len(others)
    assert all(m.AskExperts(run=name).run == name for name in names)  # as the contract wants names


def test_a_run_grows_with_the_length_and_not_with_its_square(by_name: dict[str, Exhibit]) -> None:
    short, long = (read(by_name["decoder"], m.Ask(model="decoder", text="1 2 " * count)).size for count in (8, 32))
    assert 3.5 * short < long < 4.5 * short


def test_half_a_surrogate_pair_in_a_word_is_replaced(by_name: dict[str, Exhibit]) -> None:
    decoder = by_name["decoder"]
    assert isinstance(decoder, DecoderExhibit)
    odd = DecoderExhibit(decoder.card, decoder.model, decoder.encode, lambda token: "\ud800", decoder.join)
    run = read(odd, m.Ask(model="decoder", text="1 2")).message
    assert run.tokens == ["?", "?"]
    assert m.Run.model_validate_json(run.model_dump_json()) == run
