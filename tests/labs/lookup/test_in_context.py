from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from glassformer.data.in_context_lookup import LookupConfig, encode, sample
from glassformer.generation.greedy import greedy_decode
from glassformer.labs.lookup import in_context
from glassformer.labs.lookup.in_context import (
    MEASURING_SEED,
    InContextTask,
    answers,
    build_model,
    train_in_context,
)
from glassformer.labs.lookup.recipes import InContextRecipe
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.training import TrainingResult, train
from glassformer.training.checkpoint import load_weights
from refusals import refused

DATA = LookupConfig(num_keys=16, num_values=16, max_facts=4)
TINY = InContextRecipe("tiny", "slots", DATA, steps=4, batch_size=8, hidden_dim=16, ff_dim=16, num_heads=2)
CROSS = "decoder_layers.0.cross_attention"


def test_a_batch_is_what_was_sampled_and_its_loss_the_mean_surprise() -> None:
    task, model = InContextTask(TINY, seed=5), build_model(TINY, 0)
    batch = task.batch(3, 6)
    facts = sample(DATA, 6, 5, step=3)
    assert torch.equal(batch["source"], encode(facts, "slots").tokens)
    assert torch.equal(batch["answer"], facts.answer)
    assert task.count(batch) == 6
    surprise = 0.0
    for row in range(6):
        # One context at a time, without its padding.
        source = batch["source"][row : row + 1, batch["real"][row]]
        logits = model(source, facts.query[row : row + 1, None]).detach()
        surprise -= float(F.log_softmax(logits[0, 0], -1)[facts.answer[row]])
    assert float(task.loss(model, batch).detach()) == pytest.approx(surprise / 6, rel=1e-5)


def test_evaluation_counts_right_answers_on_contexts_of_its_own() -> None:
    task, model = InContextTask(TINY, num_evaluated=50), build_model(TINY, 0)
    facts = sample(DATA, 50, MEASURING_SEED)
    with torch.no_grad():
        logits = model(encode(facts, "slots").tokens, facts.query[:, None], facts.real)
    right = sum(int(row.argmax()) == int(answer) for row, answer in zip(logits[:, 0], facts.answer, strict=True))
    assert task.evaluate(model) == {"accuracy": right / 50}


@pytest.mark.parametrize("encoding", ["bag", "positions", "slots"])
def test_every_encoding_fits_its_model(encoding: str) -> None:
    data = replace(DATA, missing=0.2, distractors=1)
    recipe = replace(TINY, encoding=encoding, data=data)  # type: ignore[arg-type]
    model = build_model(recipe, 0)
    facts = sample(recipe.data, 5, 0)
    assert answers(model, facts, recipe).shape == (5,)
    loss = InContextTask(recipe).loss(model, InContextTask(recipe).batch(0, 5))
    # A new model holds all tokens for about equally likely.
    assert float(loss.detach()) == pytest.approx(math.log(recipe.data.vocab_size), abs=0.2)


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
        InContextTask(TINY).loss(model, InContextTask(TINY).batch(0, 8)).backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.step()
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
    written = greedy_decode(model, source, 1, 1)
    assert torch.equal(written, greedy_decode(model, source, 1, 1, use_cache=False))
    memory = model.encode(source)
    with torch.no_grad():
        cached = model.decode(facts.query[:, None], memory, cache=model.new_cache(memory, 1))
        torch.testing.assert_close(cached, model.decode(facts.query[:, None], memory))


def test_a_model_comes_back_from_where_it_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(model: EncoderDecoder, *arguments: object, **options: object) -> TrainingResult:
        result = train(model, *arguments, **options)  # type: ignore[arg-type]
        model.to("meta")  # stands for any device that is not the CPU
        return result

    monkeypatch.setattr(in_context, "train", elsewhere)
    monkeypatch.setattr(EncoderDecoder, "cpu", lambda model: model.to_empty(device="cpu"))
    model, _ = train_in_context(TINY, 0)
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


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
    model, result = train_in_context(recipe, 0, tmp_path / "run")
    assert result.step == 4
    assert not model.training
    again, _ = train_in_context(recipe, 0, tmp_path / "run")
    fresh, _ = train_in_context(recipe, 0)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert torch.equal(weight, fresh.state_dict()[name])
    best = build_model(recipe, 3)
    load_weights(best, tmp_path / "run" / "best")
    assert torch.equal(best.output.weight, model.output.weight)
    with refused("seed"):
        train_in_context(recipe, 1, tmp_path / "run")


def test_bad_input_is_refused() -> None:
    with refused("num_evaluated = 0"):
        InContextTask(TINY, num_evaluated=0)
    with refused(f"seed = {MEASURING_SEED}"):
        InContextTask(TINY, MEASURING_SEED)


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
