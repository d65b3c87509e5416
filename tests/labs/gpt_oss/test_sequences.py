"""The sequences of the lab, and what can be expected on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glassformer.data.recurrence import obeys_recurrence
from glassformer.labs.gpt_oss.experiments import LAB
from glassformer.labs.gpt_oss.experiments.sequences import DATA, batches, measure, measured_of, split_of
from glassformer.labs.run import Run


def small(seed: int = 0, **settings: int) -> Run:
    sizes = {"num_train": 10, "num_test": 7, "num_measured": 16, **settings}
    return Run(Path("nowhere"), SimpleNamespace(**sizes), seed, SimpleNamespace())


def test_the_data_are_the_courses() -> None:
    assert (DATA.vocab_size, DATA.order, DATA.next_prob, DATA.seq_len) == (7, 2, 0.1, 64)
    assert (LAB.settings.num_train, LAB.settings.num_test, LAB.settings.epochs) == (10_000, 1_000, 8)


def test_measured_sequences_are_new_and_of_the_held_out_generators() -> None:
    test, measured = split_of(small()).test, measured_of(small())
    assert measured.tokens.shape == (16, 65)
    expected = test.generators.numbers(DATA)
    assert torch.equal(measured.generators.numbers(DATA), torch.cat([expected, expected, expected[:2]]))
    kinds = obeys_recurrence(measured.tokens, measured.generators.coefficients, 7)
    assert bool((kinds.rule | kinds.increment).all())
    assert not torch.equal(measured.tokens[:7], test.tokens)
    assert torch.equal(measured.tokens, measured_of(small()).tokens)
    assert not torch.equal(measured.tokens, measured_of(small(seed=1)).tokens)


def test_batches_cut_tokens_and_next_tokens() -> None:
    tokens = torch.arange(600 * 5).view(600, 5)
    parts = batches(tokens)
    assert [len(x) for x, _ in parts] == [250, 250, 100]
    assert torch.equal(torch.cat([x for x, _ in parts]), tokens[:, :-1])
    assert torch.equal(torch.cat([y for _, y in parts]), tokens[:, 1:])


def test_a_reader_blind_to_runs_loses_at_the_first_positions_only() -> None:
    optimum = measure(small(num_test=300, num_measured=2_000))
    lost = [best - found for best, found in zip(optimum.by_position, optimum.without_runs, strict=True)]
    assert lost[0] > 0.03
    assert max(abs(each) for each in lost[3:]) < 0.01


def test_gaps_of_all_parts_add_up_to_the_whole() -> None:
    optimum = measure(small())
    reached = [0.5] * 64
    parts = [optimum.gap(reached, 0, 3), optimum.gap(reached, 3, 12), optimum.gap(reached, 12)]
    assert sum(parts) == pytest.approx(optimum.gap(reached)) == pytest.approx(optimum.mean - 0.5)
