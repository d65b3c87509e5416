"""What is measured of models on fresh facts: compared with plain loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glassformer.data.in_context_lookup import LookupConfig, encode, reordered, sample
from glassformer.labs.lookup.experiments import Settings
from glassformer.labs.lookup.experiments.fresh_facts import measure, measure_length, measure_order
from glassformer.labs.run import Run
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.training.in_context_lookup import MEASURING_SEED, InContextRecipe, build_model
from refusals import refused

DATA = LookupConfig(num_keys=16, num_values=16, max_facts=4, held_out=0.25)
TINY = InContextRecipe("tiny", "slots", DATA, steps=4, batch_size=8, hidden_dim=16, ff_dim=16, num_heads=2)
CROSS = "decoder_layers.0.cross_attention"


def model_of(recipe: InContextRecipe) -> EncoderDecoder:
    return build_model(recipe, 0).eval()


def test_numbers_are_those_of_a_plain_loop_over_questions() -> None:
    model = model_of(TINY)
    with torch.no_grad():  # so that some are right
        model.output.bias[DATA.first_value : DATA.first_value + DATA.num_values] += 3.0
    measured = measure_length(model, TINY, 3, num_questions=25, seed=2)
    facts = sample(DATA, 25, MEASURING_SEED + 3, split="unseen", num_facts=3)
    hits = found = read = 0
    gaps, variances, margins = [], [], []
    for row in range(25):
        pairs = torch.stack([facts.keys[row], facts.values[row]], dim=-1)[None]
        query, answer = facts.query[row].view(1, 1), int(facts.answer[row])
        place = facts.keys[row].tolist().index(int(query))
        with capture(model, [CROSS]) as seen, torch.no_grad():
            hits += int(model(pairs, query)[0, 0].argmax()) == answer
            # Seeing the right slot alone: the memory of that slot, as the encoder made it among the others.
            memory = model.encode(pairs)[:, place : place + 1]
            weights = seen.weights[CROSS][0, :, 0]
        with torch.no_grad():
            read += int(model.decode(query, memory)[0, 0].argmax()) == answer
        found += int(weights.mean(0).argmax()) == place
        scores = weights.log()
        others = torch.cat([scores[:, :place], scores[:, place + 1 :]], dim=1)
        gaps.append(scores[:, place] - others.mean(1))
        variances.append(others.var(1))
        margins.append(scores[:, place] - others.amax(1))
    assert measured.num_questions == 25
    assert (measured.accuracy, measured.found, measured.read) == (hits / 25, found / 25, read / 25)
    assert measured.gap == pytest.approx(float(torch.stack(gaps).mean()), abs=1e-5)
    assert measured.noise == pytest.approx(float(torch.stack(variances).mean(0).sqrt().mean()), abs=1e-4)
    assert measured.margin == pytest.approx(float(torch.stack(margins).mean()), abs=1e-5)


@pytest.mark.parametrize(("encoding", "share"), [("slots", 1 / 4), ("bag", 2 / 8), ("positions", 2 / 8)])
def test_attention_that_looks_everywhere_alike_has_the_sharpness_of_chance(encoding: str, share: float) -> None:
    recipe = replace(TINY, encoding=encoding)  # type: ignore[arg-type]
    model = model_of(recipe)
    for weight in model.decoder_layers[0].cross_attention.query.parameters():  # type: ignore[union-attr]
        torch.nn.init.zeros_(weight)
    measured = measure_length(model, recipe, 4, num_questions=30)
    assert measured.sharpness == pytest.approx([share, share], abs=1e-6)
    if encoding == "slots":
        assert measured.gap == pytest.approx(0, abs=1e-5)
        assert measured.noise == pytest.approx(0, abs=1e-5)
        assert measured.margin == pytest.approx(0, abs=1e-5)
    else:
        assert (measured.found, measured.read) == (None, None)
        assert (measured.gap, measured.noise, measured.margin) == (None, None, None)


def test_of_two_facts_there_is_a_gap_and_no_noise() -> None:
    measured = measure_length(model_of(TINY), TINY, 2, num_questions=5)
    assert measured.noise is None
    assert measured.gap == pytest.approx(measured.margin)


def test_fewer_questions_of_long_contexts() -> None:
    recipe = replace(TINY, data=replace(DATA, num_keys=256, num_values=256, held_out=0.0), split="all")
    assert measure_length(model_of(recipe), recipe, 256, num_questions=1100).num_questions == 275


def test_a_lone_fact_has_no_gap() -> None:
    measured = measure_length(model_of(TINY), TINY, 1, num_questions=5)
    assert measured.gap is measured.margin is None
    assert measured.found == 1.0
    assert measured.sharpness == pytest.approx([1, 1])


@pytest.mark.parametrize("encoding", ["slots", "bag", "positions"])
def test_order_matters_only_where_it_is_seen(encoding: str) -> None:
    recipe = replace(TINY, encoding=encoding)  # type: ignore[arg-type]
    model = model_of(recipe)
    measured = measure_order(model, recipe, 4, num_questions=40)
    assert (measured.largest_change < 1e-5) is (encoding != "positions")
    if encoding != "positions":
        assert measured.answers_changed == 0
    facts = sample(DATA, 40, MEASURING_SEED + 1, split="unseen", num_facts=4)
    first, second = (
        model(encode(each, encoding, seed=seed).tokens, facts.query[:, None])  # type: ignore[arg-type]
        for each, seed in ((facts, MEASURING_SEED + 1), (reordered(facts, seed=1), 1))
    )
    assert measured.largest_change == pytest.approx(float((first - second).detach().abs().max()), abs=1e-6)


def test_a_recipe_is_trained_and_measured_where_its_data_suffices(tmp_path: Path) -> None:
    settings = Settings(lengths=(1, 4, 8, 16), num_questions=20)
    measured = measure(Run(tmp_path, settings, 0, SimpleNamespace()), TINY, 0)
    assert [each.num_facts for each in measured.lengths] == [1, 4, 8]
    assert measured.order.num_questions == 20
    assert len(measured.sharpness_before) == 2
    assert measured.num_parameters == sum(weight.numel() for weight in model_of(TINY).parameters())
    assert (measured.recipe, measured.at(16)) == (TINY, None)
    assert measured.at(4) == measured.lengths[1]


@pytest.mark.usefixtures("without_type_checks")
def test_more_facts_than_the_data_has_are_refused() -> None:
    with refused("9 distinct values"):
        measure_length(model_of(TINY), TINY, 9, num_questions=5)
