"""Measuring: continuations whose nature is known, new sequences of held-out generators, the optimum beside it all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from glassformer.data.bayes import optimal_accuracy
from glassformer.data.recurrence import make_split, obeys_recurrence
from glassformer.labs.gpt_oss.measure import behaviour, new_sequences
from glassformer.labs.gpt_oss.plan import DATA, RULES, SHOWN, Plan
from glassformer.labs.gpt_oss.results import Results
from glassformer.labs.gpt_oss.training_runs import build_model
from glassformer.training import load_weights
from refusals import refused


def test_new_sequences_are_new_and_of_the_held_out_generators() -> None:
    split = make_split(DATA, num_train=10, num_test=7, seed=0)
    measured = new_sequences(DATA, split, 16, seed=0)
    assert measured.tokens.shape == (16, 65)
    expected = split.test.generators.numbers(DATA)
    assert torch.equal(measured.generators.numbers(DATA), torch.cat([expected, expected, expected[:2]]))
    kinds = obeys_recurrence(measured.tokens, measured.generators.coefficients, 7)
    assert bool((kinds.rule | kinds.increment).all())
    assert not torch.equal(measured.tokens[:7], split.test.tokens)
    assert torch.equal(measured.tokens, new_sequences(DATA, split, 16, seed=0).tokens)
    assert not torch.equal(measured.tokens, new_sequences(DATA, split, 16, seed=1).tokens)


def test_steps_are_told_apart() -> None:
    # x[t] = x[t-2] + x[t-1] mod 7 from (1, 1): 2, 3, 5, 1; then an increment, 2; then 0 where 3 would follow.
    sequences, coefficients = torch.tensor([[1, 1, 2, 3, 5, 1, 2, 0]]), torch.tensor([[1, 1]])
    found = behaviour(sequences, coefficients, prompt_length=4)
    # 5 and 1 by the rule, 2 = 1 + 1 (the rule says 6), 0 by neither (3 by the rule and by the increment).
    assert (found.rule, found.increment, found.neither) == (0.5, 0.25, 0.25)


def test_repetition_counts_runs_of_four_and_cycles() -> None:
    prompt = torch.zeros(2, 2, dtype=torch.int64)
    cycle = torch.tensor([1, 2, 3]).repeat(4)
    straight = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1])
    found = behaviour(
        torch.cat([prompt, torch.stack([cycle, straight])], dim=1), torch.ones(2, 2, dtype=torch.int64), 2
    )
    # Nine runs of four in twelve tokens: three different ones in the cycle, nine in the other.
    assert found.repeated == pytest.approx((6 / 9 + 0) / 2)
    assert found.cycling == 0.5


def test_a_cycle_needs_two_whole_rounds_in_the_second_half() -> None:
    def cycling(continuation: list[int]) -> float:
        return behaviour(torch.tensor([[0, 0, *continuation]]), torch.ones(1, 2, dtype=torch.int64), 2).cycling

    assert cycling([6, 5, 4, 3, 1, 2, 1, 2]) == 1
    assert cycling([1, 2, 3, 1, 2, 3, 1, 2]) == 0
    assert cycling([0, 0, 0, 0, 1, 1, 1, 2]) == 0


def test_shares_of_true_sequences_are_those_of_the_process() -> None:
    split = make_split(DATA, num_train=1, num_test=500, seed=0)
    found = behaviour(split.test.tokens, split.test.generators.coefficients, 16)
    assert found.neither == 0
    # A tenth are increments; some of them are what the rule says too.
    assert 0.89 < found.rule < 0.94


def test_the_lab_measures_models_and_optimum_on_the_same_sequences(tiny_run: Path, tiny_plan: Plan) -> None:
    results = Results.read(tiny_run / "results.json")
    split = make_split(DATA, num_train=tiny_plan.num_train, num_test=tiny_plan.num_test, seed=5)
    tokens = new_sequences(DATA, split, tiny_plan.num_measured, 5).tokens
    assert results.optimum_by_position == optimal_accuracy(tokens, DATA).measured.tolist()
    for experiment, found in zip(tiny_plan.experiments, results.models, strict=True):
        model = build_model(experiment, seed=0).eval()
        trained = tiny_run / "trainings" / experiment.name / "checkpoints"
        load_weights(model, max(trained.iterdir()))
        with torch.no_grad():
            hits = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
        assert found.accuracy_by_position == pytest.approx(hits.double().mean(0).tolist())
        assert found.steps == tiny_plan.config(experiment, 0).steps
        assert [step for step, _ in found.losses] == list(range(1, found.steps + 1))


def test_the_most_accurate_model_generates_under_every_rule(tiny_run: Path, tiny_plan: Plan) -> None:
    results = Results.read(tiny_run / "results.json")
    generation = results.generation
    assert generation.model == max(results.models, key=lambda model: model.accuracy).name
    assert list(generation.rules) == list(RULES)
    assert [len(row) for row in generation.grid] == [len(tiny_plan.top_ps)] * len(tiny_plan.temperatures)
    for cell in [generation.true, *generation.rules.values(), *(cell for row in generation.grid for cell in row)]:
        assert cell.rule + cell.increment + cell.neither == pytest.approx(1)
    assert generation.true.neither == 0


def test_the_next_token_shown_is_one_where_rule_and_increment_differ(tiny_run: Path) -> None:
    shown = Results.read(tiny_run / "results.json").generation.next_token
    assert shown.by_rule != shown.by_increment == (shown.context[-1] + 1) % 7
    assert list(shown.model) == list(SHOWN)
    for probabilities in [shown.optimal, *shown.model.values()]:
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    # The optimum knows the generator after forty tokens.
    assert max(range(7), key=shown.optimal.__getitem__) == shown.by_rule


def test_bad_arguments_are_refused() -> None:
    split = make_split(DATA, num_train=1, num_test=1, seed=0)
    with refused("count = 0"):
        new_sequences(DATA, split, 0, seed=0)
    with refused("seed = -1"):
        new_sequences(DATA, split, 1, seed=-1)
    with refused("prompt_length = 6"):
        behaviour(torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64), 6)


def test_results_are_plain_json(tiny_run: Path) -> None:
    text = (tiny_run / "results.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert json.loads(text)["seed"] == 5
