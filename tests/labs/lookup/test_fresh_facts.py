"""Fresh facts: recipes as data, the models that they make and their training; what is measured, by
plain loops.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glassformer.data.in_context_lookup import LookupConfig, encode, reordered, sample
from glassformer.labs.lookup.experiments import Settings
from glassformer.labs.lookup.experiments.fresh_facts import measure, measure_length, measure_order
from glassformer.labs.lookup.experiments.recipes import BAG, POSITIONS, SLOTS, shortened
from glassformer.labs.run import Run
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
from glassformer.training.sequence_tasks import target_loss
from refusals import refused

EVERY = (SLOTS, POSITIONS, BAG)
DATA = LookupConfig(num_keys=16, num_values=16, max_facts=4, held_out=0.25)
TINY = InContextRecipe(
    "tiny", "slots", DATA, steps=4, batch_size=8, hidden_dim=16, ff_dim=16, num_heads=2
)
CROSS = "decoder_layers.0.cross_attention"


@pytest.mark.parametrize("recipe", EVERY, ids=lambda recipe: recipe.name)
def test_recipes_are_of_models_that_can_be_built(recipe: InContextRecipe) -> None:
    config = recipe.model_config()
    assert config.vocab_size == recipe.data.vocab_size
    assert config.max_source_len == LONGEST * (1 if recipe.encoding == "slots" else 2)
    assert build_model(recipe, 0).config == config
    assert len({each.directory for each in EVERY}) == len(EVERY)


def test_what_is_compared_is_trained_alike() -> None:
    for recipe in EVERY:
        assert (recipe.data.min_facts, recipe.data.max_facts, recipe.steps, recipe.hidden_dim) == (
            1,
            8,
            4000,
            64,
        )
        assert shortened(recipe).data.max_facts == 8
    # The ceiling is derived for contexts in which any pairing may occur.
    assert (BAG.data.held_out, BAG.split) == (0.0, "all")
    assert replace(POSITIONS, name=BAG.name, encoding="bag") == BAG
    assert [
        recipe.asks_unseen for recipe in (SLOTS, BAG, POSITIONS, replace(SLOTS, split="all"))
    ] == [True] + 3 * [False]


def test_bad_recipes_are_refused() -> None:
    for options, got in (
        ({"steps": 0}, "steps = 0"),
        ({"encoding": "set"}, "encoding = 'set'"),
        ({"split": "test"}, "split = 'test'"),
    ):
        with refused(got):
            replace(SLOTS, **options)


@pytest.mark.parametrize("encoding", ["bag", "positions", "slots"])
def test_every_encoding_fits_its_model(encoding: str) -> None:
    recipe = replace(TINY, encoding=encoding, data=replace(DATA, missing=0.2))
    model = build_model(recipe, 0)
    facts = sample(recipe.data, 5, 0)
    asked = batch(facts, recipe)
    with torch.no_grad():
        logits = model(asked["source"], asked["inputs"], asked["source_real"])
    assert torch.equal(answers(model, facts, recipe), logits[:, 0].argmax(-1))
    # A new model predicts all tokens with about the same probability.
    assert float(target_loss(logits, asked["targets"])) == pytest.approx(
        math.log(recipe.data.vocab_size), abs=0.2
    )


def test_weights_are_drawn_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first = build_model(TINY, 1).state_dict()
    second = build_model(TINY, 1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(
        first["output.weight"], build_model(TINY, 2).state_dict()["output.weight"]
    )


def test_a_run_is_of_one_seed_which_is_not_that_of_the_measurements(tmp_path: Path) -> None:
    train_in_context(TINY, 0, tmp_path / "run")
    with refused("seed"):
        train_in_context(TINY, 1, tmp_path / "run")
    with refused(f"seed = {MEASURING_SEED}"):
        train_in_context(TINY, MEASURING_SEED)


def test_numbers_are_those_of_a_plain_loop_over_questions() -> None:
    model = build_model(TINY, 0).eval()
    with torch.no_grad():  # so that some are right
        model.output.bias[DATA.first_value : DATA.first_value + DATA.num_values] += 3.0
    measured = measure_length(model, TINY, 3, num_questions=25, seed=2)
    facts = sample(DATA, 25, MEASURING_SEED + 3, split="unseen", num_facts=3)
    hits = 0
    on_right = torch.zeros(2)
    for row in range(25):
        pairs = torch.stack([facts.keys[row], facts.values[row]], dim=-1)[None]
        query = facts.query[row].view(1, 1)
        answer = int(facts.answer[row])
        place = facts.keys[row].tolist().index(int(query))
        with capture(model, [CROSS]) as seen, torch.no_grad():
            hits += int(model(pairs, query)[0, 0].argmax()) == answer
            on_right += seen.weights[CROSS][0, :, 0, place] / 25
    assert (measured.num_questions, measured.accuracy) == (25, hits / 25)
    assert measured.sharpness == pytest.approx(on_right.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("encoding", "share"), [("slots", 1 / 4), ("bag", 2 / 8), ("positions", 2 / 8)]
)
def test_attention_that_looks_everywhere_alike_has_the_sharpness_of_chance(
    encoding: str, share: float
) -> None:
    recipe = replace(TINY, encoding=encoding)
    model = build_model(recipe, 0).eval()
    for weight in model.decoder_layers[0].cross_attention.query.parameters():
        torch.nn.init.zeros_(weight)
    measured = measure_length(model, recipe, 4, num_questions=30)
    assert measured.sharpness == pytest.approx([share, share], abs=1e-6)


def test_few_and_many_facts() -> None:
    one = measure_length(build_model(TINY, 0).eval(), TINY, 1, num_questions=5)
    assert one.sharpness == pytest.approx([1, 1])
    many = replace(
        TINY, data=replace(DATA, num_keys=256, num_values=256, held_out=0.0), split="all"
    )
    assert (
        measure_length(build_model(many, 0).eval(), many, 256, num_questions=1100).num_questions
        == 275
    )


@pytest.mark.parametrize("encoding", ["slots", "bag", "positions"])
def test_order_matters_only_where_it_is_seen(encoding: str) -> None:
    recipe = replace(TINY, encoding=encoding)
    model = build_model(recipe, 0).eval()
    measured = measure_order(model, recipe, 4, num_questions=40)
    assert (measured.largest_change < 1e-5) is (encoding != "positions")
    if encoding != "positions":
        assert measured.answers_changed == 0
    facts = sample(DATA, 40, MEASURING_SEED + 1, split="unseen", num_facts=4)
    first, second = (
        model(encode(each, encoding, seed=seed).tokens, facts.query[:, None])
        for each, seed in ((facts, MEASURING_SEED + 1), (reordered(facts, seed=1), 1))
    )
    assert measured.largest_change == pytest.approx(
        float((first - second).detach().abs().max()), abs=1e-6
    )


def test_a_recipe_is_trained_and_measured_where_its_data_suffices(tmp_path: Path) -> None:
    settings = Settings(lengths=(1, 4, 8, 16), num_questions=20)
    measured = measure(Run(tmp_path, settings, 0, SimpleNamespace()), TINY, 0)
    assert [each.num_facts for each in measured.lengths] == [1, 4, 8]
    assert measured.order.num_questions == 20
    assert len(measured.sharpness_before) == 2
    assert (measured.recipe, measured.at(16)) == (TINY, None)
    assert measured.at(4) == measured.lengths[1]


@pytest.mark.slow
def test_slots_find_what_a_bag_cannot() -> None:
    data = LookupConfig(num_keys=32, num_values=32, min_facts=4, max_facts=4, held_out=0.0)
    accuracies = {}
    for encoding in ("slots", "bag"):
        recipe = InContextRecipe(
            "small", encoding, data, split="all", steps=600, hidden_dim=32, ff_dim=32
        )
        _, result = train_in_context(recipe, 0)
        accuracies[encoding] = result.evaluations[-1][1]["accuracy"]
    assert accuracies["slots"] > 0.95
    # A quarter is the bag's ceiling; five standard errors of 1,000 questions above it.
    assert 0.15 < accuracies["bag"] < 0.25 + 5 * 0.0137
