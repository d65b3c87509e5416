from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, replace

import pytest

from glassformer.data.in_context_lookup import LookupConfig
from glassformer.labs.lookup.in_context import build_model
from glassformer.labs.lookup.recipes import (
    BAG,
    CHANGES,
    COMBINATIONS,
    FAR,
    LONGEST,
    POSITIONS,
    SLOTS,
    InContextRecipe,
)
from refusals import refused

EVERY = (SLOTS, POSITIONS, BAG, FAR, *CHANGES, *COMBINATIONS)


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_recipes_are_data_of_models_that_can_be_built(recipe: InContextRecipe) -> None:
    assert json.loads(json.dumps(asdict(recipe)))["data"]["num_keys"] == recipe.data.num_keys
    config = recipe.model_config()
    assert config.vocab_size == recipe.data.vocab_size
    assert config.num_encoder_layers == config.num_decoder_layers == 1
    assert config.max_source_len == LONGEST * (1 if recipe.encoding == "slots" else 2)
    assert build_model(recipe, 0).config == config
    assert recipe.training_config(3).seed == 3


def test_names_tell_recipes_apart() -> None:
    assert len({recipe.name for recipe in EVERY}) == len(EVERY)
    assert len({recipe.directory for recipe in EVERY}) == len(EVERY)
    assert replace(FAR, name="1 to 8 facts, Wide!").directory == "1-to-8-facts-wide"


def test_what_is_compared_is_trained_on_1_to_8_facts_and_asked_about_as_many_as_it_should_be() -> None:
    for recipe in (SLOTS, POSITIONS, BAG, FAR):
        assert (recipe.data.min_facts, recipe.data.max_facts) == (1, 8)
        assert recipe.steps == 4000
        assert recipe.hidden_dim == 64
    assert SLOTS.data.most_facts >= 64
    assert SLOTS.data.num_held_out > 0
    # The ceiling is derived for contexts in which any pairing may stand.
    assert (BAG.data.held_out, BAG.split) == (0.0, "all")
    assert replace(POSITIONS, name=BAG.name, encoding="bag") == BAG
    for recipe in (FAR, *CHANGES, *COMBINATIONS):
        assert recipe.data.most_facts == LONGEST


def test_each_change_is_one() -> None:
    for recipe in CHANGES:
        changed = {
            field.name
            for field in dataclasses.fields(recipe)
            if field.name != "name" and getattr(recipe, field.name) != getattr(FAR, field.name)
        }
        # The feed-forward network grows with the width.
        assert len(changed) == 1 or changed == {"hidden_dim", "ff_dim"}


def test_combinations_change_several_things() -> None:
    for recipe in COMBINATIONS:
        fields = [field.name for field in dataclasses.fields(recipe) if field.name != "name"]
        assert sum(getattr(recipe, name) != getattr(FAR, name) for name in fields) > 1
        assert f"1 to {recipe.data.max_facts} facts" in recipe.name
        assert f"batches of {recipe.batch_size}" in recipe.name or recipe.batch_size == FAR.batch_size


def test_unseen_pairings_are_asked_about_where_some_are_left_out() -> None:
    assert SLOTS.asks_unseen
    assert not BAG.asks_unseen
    assert not POSITIONS.asks_unseen
    assert not replace(SLOTS, split="all").asks_unseen


@pytest.mark.usefixtures("without_type_checks")
def test_bad_recipes_are_refused() -> None:
    with refused("steps = 0"):
        replace(SLOTS, steps=0)
    with refused("encoding = 'set'"):
        replace(SLOTS, encoding="set")  # type: ignore[arg-type]
    with refused("split = 'test'"):
        replace(SLOTS, split="test")  # type: ignore[arg-type]
    with refused("length_scaling = 'linear'"):
        replace(SLOTS, length_scaling="linear")  # type: ignore[arg-type]
    with refused("shared_tables with encoding = 'bag'"):
        replace(BAG, shared_tables=True)
    with refused("distinct values"):
        replace(SLOTS, data=LookupConfig(num_values=8))
