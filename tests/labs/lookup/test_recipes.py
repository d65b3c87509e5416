"""Recipes of models that answer from fresh facts: as data, their changes to the model, and their training."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from glassformer.data.in_context_lookup import LookupConfig, encode, sample
from glassformer.labs.lookup.experiments.recipes import BAG, CHANGES, COMBINED, PLAIN, POSITIONS, SLOTS, shortened
from glassformer.observe.capture import capture
from glassformer.training.in_context_lookup import (
    LONGEST,
    MEASURING_SEED,
    InContextRecipe,
    answers,
    batch,
    build_model,
    train_in_context,
)
from glassformer.training.target import target_loss
from refusals import refused

EVERY = (SLOTS, POSITIONS, BAG, PLAIN, *CHANGES, *COMBINED)
DATA = LookupConfig(num_keys=16, num_values=16, max_facts=4)
TINY = InContextRecipe("tiny", "slots", DATA, steps=4, batch_size=8, hidden_dim=16, ff_dim=16, num_heads=2)
CROSS = "decoder_layers.0.cross_attention"


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_recipes_are_of_models_that_can_be_built(recipe: InContextRecipe) -> None:
    config = recipe.model_config()
    assert config.vocab_size == recipe.data.vocab_size
    assert config.max_source_len == LONGEST * (1 if recipe.encoding == "slots" else 2)
    assert build_model(recipe, 0).config == config
    assert len({each.directory for each in EVERY}) == len(EVERY)


def test_what_is_compared_is_trained_alike() -> None:
    for recipe in (SLOTS, POSITIONS, BAG, PLAIN):
        assert (recipe.data.min_facts, recipe.data.max_facts, recipe.steps, recipe.hidden_dim) == (1, 8, 4000, 64)
        assert shortened(recipe).data.max_facts == 8
    # The ceiling is derived for contexts in which any pairing may occur.
    assert (BAG.data.held_out, BAG.split) == (0.0, "all")
    assert replace(POSITIONS, name=BAG.name, encoding="bag") == BAG
    for recipe in (PLAIN, *CHANGES, *COMBINED):
        assert recipe.data.most_facts == LONGEST
    assert [recipe.asks_unseen for recipe in (SLOTS, BAG, POSITIONS, replace(SLOTS, split="all"))] == [True] + 3 * [
        False
    ]


def test_each_change_is_one_and_combinations_are_several() -> None:
    names = [field.name for field in dataclasses.fields(InContextRecipe) if field.name != "name"]
    for recipe in (*CHANGES, *COMBINED):
        changed = {name for name in names if getattr(recipe, name) != getattr(PLAIN, name)}
        # The feed-forward network grows with the width.
        assert (len(changed) == 1 or changed == {"hidden_dim", "ff_dim"}) is (recipe in CHANGES)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_recipes_are_refused() -> None:
    for options, got in (
        ({"steps": 0}, "steps = 0"),
        ({"encoding": "set"}, "encoding = 'set'"),
        ({"split": "test"}, "split = 'test'"),
        ({"encoding": "bag", "shared_tables": True}, "shared_tables with encoding = 'bag'"),
    ):
        with refused(got):
            replace(SLOTS, **options)


@pytest.mark.parametrize("encoding", ["bag", "positions", "slots"])
def test_every_encoding_fits_its_model(encoding: str) -> None:
    recipe = replace(TINY, encoding=encoding, data=replace(DATA, missing=0.2))  # type: ignore[arg-type]
    model, facts = build_model(recipe, 0), sample(recipe.data, 5, 0)
    asked = batch(facts, recipe)
    with torch.no_grad():
        logits = model(asked["source"], asked["inputs"], asked["source_real"])
    assert torch.equal(answers(model, facts, recipe), logits[:, 0].argmax(-1))
    # A new model predicts all tokens with about the same probability.
    assert float(target_loss(logits, asked["targets"])) == pytest.approx(math.log(recipe.data.vocab_size), abs=0.2)


def test_weights_are_drawn_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, second = build_model(TINY, 1).state_dict(), build_model(TINY, 1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["output.weight"], build_model(TINY, 2).state_dict()["output.weight"])


def test_without_mixing_a_place_does_not_depend_on_the_others() -> None:
    facts = sample(DATA, 6, 0, num_facts=4)
    source = encode(facts, "slots").tokens
    for mixing in (False, True):
        model = build_model(replace(TINY, mixing=mixing), 0)
        asked = batch(sample(DATA, 8, 0), TINY)
        target_loss(model(asked["source"], asked["inputs"], asked["source_real"]), asked["targets"]).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        alone = torch.cat([model.encode(source[:, place : place + 1]) for place in range(4)], dim=1)
        assert torch.allclose(model.encode(source), alone, atol=1e-5) is not mixing


def test_shared_tables_are_one_for_each_kind_of_token() -> None:
    model = build_model(replace(TINY, shared_tables=True), 0)
    plain = build_model(TINY, 0)
    saved = 2 * plain.output.weight.numel()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters()) - saved
    assert model.target_embedding.weight is model.source_embeddings[0].weight
    assert model.output.weight is model.source_embeddings[1].weight


def test_length_scaling_multiplies_scores() -> None:
    plain, scaled = build_model(TINY, 0).eval(), build_model(replace(TINY, length_scaling="log"), 0).eval()
    for num_facts in (1, 2, 9):
        facts = sample(LookupConfig(16, 16, held_out=0.0), 5, 0, split="all", num_facts=num_facts)
        source, real = encode(facts, "slots")
        seen = []
        for model in (plain, scaled):
            with capture(model, [CROSS]) as captured, torch.no_grad():
                model(source, facts.query[:, None], real)
            seen.append(captured.weights[CROSS])
        factor = math.log(num_facts + 1) / math.log(5)
        torch.testing.assert_close(seen[1], (seen[0].log() * factor).softmax(-1))


def test_length_scaling_counts_the_real_places_of_each_row() -> None:
    model = build_model(replace(TINY, length_scaling="log"), 0).eval()
    facts = sample(replace(DATA, max_facts=8), 12, 0)
    source, real = encode(facts, "slots")
    assert len(set(real.sum(1).tolist())) > 3
    with torch.no_grad():
        together = model(source, facts.query[:, None], real)
        for row in range(12):
            alone = model(source[row : row + 1, real[row]], facts.query[row : row + 1, None])
            torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def test_length_scaling_is_the_same_with_a_cache() -> None:
    model = build_model(replace(TINY, length_scaling="log"), 0).eval()
    facts = sample(DATA, 5, 0, num_facts=3)
    source = encode(facts, "slots").tokens
    memory = model.encode(source)
    with torch.no_grad():
        cached = model.decode(facts.query[:, None], memory, cache=model.new_cache(memory, 1))
        torch.testing.assert_close(cached, model.decode(facts.query[:, None], memory))


def test_length_scaling_counts_real_places_only() -> None:
    model = build_model(replace(TINY, length_scaling="log"), 0).eval()
    facts = sample(DATA, 5, 0, num_facts=2)
    source, real = encode(facts, "slots")
    filled, filled_real = F.pad(source, (0, 0, 0, 3)), F.pad(real, (0, 3))
    torch.testing.assert_close(
        model(filled, facts.query[:, None], filled_real), model(source, facts.query[:, None], real)
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_is_continued_where_it_stands(tmp_path: Path, shared: bool) -> None:
    recipe = replace(TINY, shared_tables=shared)
    models = [train_in_context(recipe, 0, directory)[0] for directory in (tmp_path / "run", tmp_path / "run", None)]
    for name, weight in models[0].state_dict().items():
        assert torch.equal(weight, models[1].state_dict()[name])
        assert torch.equal(weight, models[2].state_dict()[name])
    with refused("seed"):
        train_in_context(recipe, 1, tmp_path / "run")
    with refused(f"seed = {MEASURING_SEED}"):
        train_in_context(TINY, MEASURING_SEED)


@pytest.mark.slow
def test_slots_find_what_a_bag_cannot() -> None:
    data = LookupConfig(num_keys=32, num_values=32, min_facts=4, max_facts=4, held_out=0.0)
    accuracies = {}
    for encoding in ("slots", "bag"):
        recipe = InContextRecipe("small", encoding, data, split="all", steps=600, hidden_dim=32, ff_dim=32)
        _, result = train_in_context(recipe, 0)
        accuracies[encoding] = result.evaluations[-1][1]["accuracy"]
    assert accuracies["slots"] > 0.95
    # A quarter is the bag's ceiling; five standard errors of 1,000 questions above it.
    assert 0.15 < accuracies["bag"] < 0.25 + 5 * 0.0137
