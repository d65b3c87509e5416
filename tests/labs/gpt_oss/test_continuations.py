"""Continuations whose properties are known."""

from __future__ import annotations

import pytest
import torch

from glassformer.data.recurrence import RecurrenceConfig, make_split
from glassformer.labs.gpt_oss.experiments.generation import Behaviour, behaviour


def test_steps_are_told_apart() -> None:
    # x[t] = x[t-2] + x[t-1] mod 7 from (1, 1): 2, 3, 5, 1; then an increment, 2; then 0 where 3 would follow.
    sequences, coefficients = torch.tensor([[1, 1, 2, 3, 5, 1, 2, 0]]), torch.tensor([[1, 1]])
    found = behaviour(sequences, coefficients, prompt_length=4, vocab_size=7)
    # 5 and 1 by the rule, 2 = 1 + 1 (the rule says 6), 0 by neither (3 by the rule and by the increment).
    assert (found.rule, found.increment, found.neither) == (0.5, 0.25, 0.25)


def test_repetition_counts_runs_of_four_and_cycles() -> None:
    prompt = torch.zeros(2, 2, dtype=torch.int64)
    cycle = torch.tensor([1, 2, 3]).repeat(4)
    straight = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1])
    found = behaviour(
        torch.cat([prompt, torch.stack([cycle, straight])], dim=1), torch.ones(2, 2, dtype=torch.int64), 2, 7
    )
    # Nine runs of four in twelve tokens: three different ones in the cycle, nine in the other.
    assert found.repeated == pytest.approx((6 / 9 + 0) / 2)
    assert found.cycling == 0.5


def test_a_cycle_needs_two_whole_rounds_in_the_second_half() -> None:
    def cycling(continuation: list[int]) -> float:
        return behaviour(torch.tensor([[0, 0, *continuation]]), torch.ones(1, 2, dtype=torch.int64), 2, 7).cycling

    assert cycling([6, 5, 4, 3, 1, 2, 1, 2]) == 1
    assert cycling([1, 2, 3, 1, 2, 3, 1, 2]) == 0
    assert cycling([0, 0, 0, 0, 1, 1, 1, 2]) == 0


def test_shares_of_true_sequences_are_those_of_the_process() -> None:
    split = make_split(
        RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64), num_train=1, num_test=500, seed=0
    )
    found = behaviour(split.test.tokens, split.test.generators.coefficients, 16, 7)
    assert found.neither == 0
    # A tenth are increments; some of them are what the rule says too.
    assert 0.89 < found.rule < 0.94


def test_a_nucleus_of_errors_is_above_chance_only_beyond_two_standard_errors() -> None:
    def made(share: float, error: float) -> Behaviour:
        return Behaviour(share, 0.1, 0.0, 0.5, 0.5, {"rule": error})

    assert made(0.9, 0.03).above(made(0.8, 0.03), "rule")
    assert not made(0.9, 0.04).above(made(0.8, 0.04), "rule")
    assert made(0.9, 0.0).distance(Behaviour(0.6, 0.2, 0.2, 0.0, 0.0, {})) == pytest.approx(0.3)


def test_standard_errors_are_those_over_continuations() -> None:
    sequences = torch.tensor([[0, 0, 0, 0, 0, 0], [1, 1, 3, 3, 3, 3]])
    found = behaviour(sequences, torch.tensor([[0, 0], [0, 0]]), 2, 7)
    assert (found.rule, found.errors["rule"]) == (0.5, pytest.approx(0.5 / 2**0.5))
