"""A run holds what the model was given, and says what the model makes of it."""

import json
import tracemalloc
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import KeptRun, _percent, read, run_name
from glassformer.explorer.answers.hand_designed import check
from glassformer.explorer.api import UnknownName
from glassformer.explorer.loading.loaded_model import LoadedModel, Turn
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.observe.capture import capture
from glassformer.observe.exact_attention import exact_rows
from refusals import refused
from small_models import encoder


def _dense(run: KeptRun, part: Any, layer: int) -> torch.Tensor:
    """The whole matrix of every head of a layer."""
    given = run.layers(part)[layer]
    weights = torch.zeros(given.q.shape[1], given.q.shape[2], given.k.shape[2])
    for query in range(given.q.shape[2]):
        found = exact_rows(given, range(given.q.shape[1]), [query], ["weights"])
        weights[:, query, found.first : found.first + found.weights.shape[3]] = found.weights[
            0, :, 0
        ]
    return weights


def test_a_decoder_run_holds_every_weight(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    run = read(loaded, m.Ask(model="decoder", text="1 2 3 4 5 6 7 8 9"))
    with torch.no_grad(), capture(loaded.model) as seen:
        logits = loaded.model(torch.tensor([list(range(1, 10))]))[0, -1]
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
    model = encoder(num_classes=3).eval()
    loaded = replace(wrap_model(model, [1]), classes=("x", "y", "z"))
    run = read(loaded, m.Ask(model="given", text="3 4 5"))
    with torch.no_grad():
        probabilities = model(torch.tensor([[3, 4, 5]]))[0].double().softmax(-1)
    assert dict(run.message.said.classes) == pytest.approx(
        dict(zip("xyz", probabilities.tolist(), strict=True))
    )
    assert not run.message.attentions[0].causal
    said = read(
        wrap_model(encoder(num_classes=None).eval(), [1]), m.Ask(model="given", text="3 4")
    ).message.said
    assert said == m.Said(headline="a vector for each token")


def test_an_encoder_decoder_writes_and_reads_in_the_given_order(
    by_name: dict[str, LoadedModel],
) -> None:
    loaded = by_name["lookup"]
    order = [2, 0, 1]
    run = read(loaded, m.Ask(model="lookup", text="4 5", source=["7", "8", "9"], order=order))
    assert run.message.source == ["9", "7", "8"]
    sizes = {each.part: (each.queries, each.keys) for each in run.message.attentions}
    assert sizes == {"encoder": (3, 3), "decoder": (2, 2), "cross": (2, 3)}
    source = torch.tensor([[10, 8, 9]])
    target = torch.tensor([[5, 6]])
    with torch.no_grad(), capture(loaded.model) as seen:
        logits = loaded.model(source, target)[0, -1]
    parts = {"encoder_layers.0.attention": "encoder", "decoder_layers.0.self_attention": "decoder"}
    parts["decoder_layers.0.cross_attention"] = "cross"
    for name, weights in seen.weights.items():
        torch.testing.assert_close(_dense(run, parts[name], 0), weights[0])
    assert run.message.said.words == [str(int(logits.argmax()))]
    assert [each.causal for each in run.message.attentions] == [False, True, False]


def test_a_source_comes_from_the_card_and_a_head_says_what_its_outputs_read(
    by_name: dict[str, LoadedModel],
) -> None:
    assert read(by_name["lookup"], m.Ask(model="lookup", text="4")).message.source == list("12345")
    run = read(by_name["unique"], m.Ask(model="unique", text="ABA")).message
    assert run.tokens == ["CLS", "A", "B", "A"]
    assert run.said.words == ["-1", "+1", "-1"]
    assert read(
        by_name["identity"], m.Ask(model="identity", text="CAB")
    ).message.said.words == list("CAB")


def test_a_head_is_run_with_the_weights_of_the_request(by_name: dict[str, LoadedModel]) -> None:
    rng = np.random.default_rng(3)
    Km, Qm, Vm = (rng.normal(size=(3, width)).tolist() for width in (2, 2, 3))
    weights = m.HeadWeightsMessage(Km=Km, Qm=Qm, Vm=Vm)
    run = read(by_name["identity"], m.Ask(model="identity", text="CAB", weights=weights))
    x = np.eye(3)[[2, 0, 1]]
    scores = (x @ Qm) @ (x @ Km).T / np.sqrt(2)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    shown = _dense(run, "self", 0)[0]
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
    assert run.message.said.words == ["ABC"[best] for best in (expected @ (x @ Vm)).argmax(-1)]
    assert (
        run.message.run
        != read(by_name["identity"], m.Ask(model="identity", text="CAB")).message.run
    )


def test_shares_are_told_without_needless_digits() -> None:
    shares = {
        1.0: "100 %",
        0.99951: "100 %",
        0.9994: "99.9 %",
        0.95: "95.0 %",
        0.0321: "3.2 %",
        0.0: "0 %",
    }
    assert {share: _percent(share) for share in shares} == shares


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("decoder", {"text": ""}, "0 numbers"),
        ("decoder", {"text": "1", "source": ["1"]}, "a source for"),
        ("decoder", {"text": "1", "order": [0]}, "a source for"),
        ("identity", {"text": "A", "source": ["1"]}, "a source for"),
        ("identity", {"text": "X"}, "the letter 'X'"),
        ("lookup", {"text": "4", "order": [0, 0, 1, 2, 3]}, "order = "),
        ("lookup", {"text": "4", "source": []}, "an empty source"),
        (
            "decoder",
            {"text": "1", "weights": {"Km": [[1.0]], "Qm": [[1.0]], "Vm": [[1.0]]}},
            "weights for 'decoder'",
        ),
        (
            "lookup",
            {"text": "4", "weights": {"Km": [[1.0]], "Qm": [[1.0]], "Vm": [[1.0]]}},
            "weights for 'lookup'",
        ),
        (
            "identity",
            {"text": "A", "weights": {"Km": [[1.0]], "Qm": [[1.0]], "Vm": [[1.0]]}},
            "Km of shape",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    by_name: dict[str, LoadedModel], model: str, more: Any, message: str
) -> None:
    with refused(message):
        read(by_name[model], m.Ask(model=model, **more))


def test_a_text_that_is_too_long_and_a_part_that_there_is_not_are_refused(
    by_name: dict[str, LoadedModel],
) -> None:
    endless = replace(by_name["decoder"], encode=lambda text: [1] * 4097)
    with refused("4,097 tokens"):
        read(endless, m.Ask(model="decoder", text="1"))
    run = read(by_name["decoder"], m.Ask(model="decoder", text="1 2"))
    with refused("part = 'cross'", error=UnknownName):
        run.layers("cross")


def test_the_name_follows_from_the_question() -> None:
    ask = m.Ask(model="decoder", text="1 2")
    assert run_name(ask) == run_name(m.Ask(model="decoder", text="1 2"))
    changes = (
        {"text": "1  2"},
        {"model": "decoders"},
        {"source": []},
        {"order": [0]},
        {"text": "1 é"},
    )
    others = [ask.model_copy(update=each) for each in changes]
    names = {run_name(each) for each in (ask, *others)}
    assert len(names) == 1 + len(others)
    assert all(m.AskExperts(run=name).run == name for name in names)  # as the contract wants names


def test_a_run_grows_with_the_length_and_not_with_its_square(
    by_name: dict[str, LoadedModel],
) -> None:
    short, long = (
        read(by_name["decoder"], m.Ask(model="decoder", text="1 2 " * count)).size
        for count in (8, 32)
    )
    assert 3.5 * short < long < 4.5 * short


def test_half_a_surrogate_pair_in_a_word_is_replaced(by_name: dict[str, LoadedModel]) -> None:
    odd = replace(by_name["decoder"], word=lambda token: "\ud800")
    run = read(odd, m.Ask(model="decoder", text="1 2")).message
    assert run.tokens == ["?", "?"]
    assert m.Run.model_validate_json(run.model_dump_json()) == run


def test_ties_are_told_as_the_design_tells_them(by_name: dict[str, LoadedModel]) -> None:
    zeros = {name: [[0.0] * 3] * 3 for name in ("Km", "Qm", "Vm")}
    weights = m.HeadWeightsMessage(**zeros)
    run = read(by_name["identity"], m.Ask(model="identity", text="AB", weights=weights)).message
    told = check(by_name["identity"], m.AskCheck(model="identity", weights=weights, text="AB"))
    assert run.said.words == told.reads == ["A or B or C"] * 2


@given(st.lists(st.floats(-2, 2, width=16), min_size=8, max_size=8))
def test_signs_are_told_as_the_design_tells_them(
    by_name: dict[str, LoadedModel], numbers: list[float]
) -> None:
    design = by_name["unique"]
    matrices = {name: matrix.copy() for name, matrix in design.weights.matrices.items()}
    matrices["Vm"].flat[: len(numbers)] = numbers[: matrices["Vm"].size]
    weights = m.HeadWeightsMessage(**{name: matrix.tolist() for name, matrix in matrices.items()})
    run = read(design, m.Ask(model="unique", text="ABA", weights=weights)).message
    assert (
        run.said.words
        == check(design, m.AskCheck(model="unique", weights=weights, text="ABA")).reads
    )


@pytest.mark.parametrize("name", ["decoder", "lookup"])
def test_a_model_stays_in_its_mode(by_name: dict[str, LoadedModel], name: str) -> None:
    there = by_name[name]
    loaded = replace(there, model=deepcopy(there.model), lock=Turn())
    modes = {}
    for number, module in enumerate(loaded.model.modules()):
        module.training = modes[module] = number % 3 > 0
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    ask = m.Ask(model=name, text="1 2 3")
    # What is read is what evaluation mode reads, drop-out or not.
    assert read(loaded, ask).message.said == read(there, ask).message.said
    assert {module: module.training for module in loaded.model.modules()} == modes


def test_the_size_is_what_a_run_takes(by_name: dict[str, LoadedModel]) -> None:
    """Measured by Python's own account, of questions that are far larger than what is read of them."""
    there = by_name["decoder"]
    deaf = replace(there, encode=lambda text: [1, 2])
    rng = np.random.default_rng(0)

    def of_text(number: int) -> KeptRun:
        text = chr(0x1F600 + number) * 60_000
        run = read(deaf, m.Ask.model_validate_json(json.dumps({"model": "decoder", "text": text})))
        run.message.ask.model_dump_json()  # as an answer is sent, for which a text makes its UTF-8
        return run

    def of_weights(number: int) -> KeptRun:
        cells = {name: rng.normal(size=(3, 900)).tolist() for name in ("Km", "Qm")} | {
            "Vm": [[1.0] * 3] * 3
        }
        return read(
            by_name["identity"],
            m.Ask(model="identity", text="A", weights=m.HeadWeightsMessage(**cells)),
        )

    for made in (of_text, of_weights):
        made(99)
        tracemalloc.start()
        runs = [made(number) for number in range(8)]
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted = sum(run.size for run in runs)
        assert 0.9 * taken < counted < 3 * taken + 100_000
