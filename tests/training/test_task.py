from itertools import product

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_toys import ToyTask

from glassformer.training import EpochBatches, Task, mix_seed
from glassformer.training.task import num_examples, shares
from refusals import refused


def test_the_course_budget_has_79_batches_an_epoch_the_last_of_16() -> None:
    batches = EpochBatches({"x": torch.arange(10_000)})
    assert batches.steps_per_epoch(128) == 79
    assert [len(batches(step, 128)["x"]) for step in (0, 77, 78, 79, 157)] == [
        128,
        128,
        16,
        128,
        16,
    ]


@given(
    examples=st.integers(1, 40),
    size=st.integers(1, 50),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_each_epoch_visits_every_example_once(
    examples: int, size: int, seed: int, shuffle: bool
) -> None:
    batches = EpochBatches(
        {"x": torch.arange(examples), "y": torch.arange(examples) * 2}, seed=seed, shuffle=shuffle
    )
    steps = batches.steps_per_epoch(size)
    for epoch in range(2):
        drawn = [batches(epoch * steps + step, size) for step in range(steps)]
        visited = torch.cat([batch["x"] for batch in drawn])
        assert torch.equal(visited.sort().values, torch.arange(examples))
        assert all(torch.equal(batch["y"], batch["x"] * 2) for batch in drawn)
        assert shuffle or torch.equal(visited, torch.arange(examples))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    tensors = {"x": torch.arange(100)}
    forwards = EpochBatches(tensors, seed=3)
    backwards = EpochBatches(tensors, seed=3)
    ahead = [forwards(step, 7)["x"] for step in range(40)]
    torch.rand(5)
    behind = [backwards(step, 7)["x"] for step in reversed(range(40))]
    assert all(torch.equal(a, b) for a, b in zip(ahead, reversed(behind), strict=True))
    other = EpochBatches(tensors, seed=4)
    assert not torch.equal(
        torch.cat(ahead[:15]), torch.cat([other(step, 7)["x"] for step in range(15)])
    )
    assert not torch.equal(torch.cat(ahead[:15]), torch.cat(ahead[15:30])), (
        "epochs differ in their order"
    )


def test_unusable_data_is_refused() -> None:
    for tensors in (
        {},
        {"x": torch.zeros(0, 3)},
        {"x": torch.zeros(3), "y": torch.zeros(4)},
        {"x": torch.tensor(1)},
    ):
        with refused(expected="number of examples"):
            EpochBatches(tensors)
    batches = EpochBatches({"x": torch.zeros(3)})
    with refused("size = 0"):
        batches(0, 0)
    with refused("step = -1"):
        batches(-1, 1)
    with refused("seed = -1"):
        EpochBatches({"x": torch.zeros(3)}, seed=-1)


def test_mixed_seeds_fit_torch_and_differ() -> None:
    seeds = {mix_seed(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(seeds) == 512
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_differ_also_by_length_zeros_large_numbers_and_purpose() -> None:
    small = [0, 1, 65, 2**32, 2**32 + 1, 2**33, 2**63 - 1]
    numbers = [each for length in range(1, 5) for each in product(small, repeat=length)] + [
        (0,) * n for n in (5, 6)
    ]
    seeds = [mix_seed(*each) for each in numbers] + [
        mix_seed(*each, purpose="A") for each in numbers
    ]
    assert len(set(seeds)) == len(seeds) == 2 * (7 + 49 + 343 + 2401 + 2)


def test_unambiguous_numbers_give_the_seed_of_their_sequence() -> None:
    for numbers in [(0,), (7,), (1, 2), (0, 3, 1)]:
        expected = int(
            np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)
        )
        assert mix_seed(*numbers) == expected


@given(examples=st.integers(1, 30), parts=st.integers(1, 12))
def test_shares_are_even_and_lose_nothing(examples: int, parts: int) -> None:
    pieces = shares({"x": torch.arange(examples)}, parts)
    assert len(pieces) == parts
    there = [piece["x"] for piece in pieces if piece is not None]
    assert torch.equal(torch.cat(there), torch.arange(examples))
    lengths = [len(piece["x"]) if piece is not None else 0 for piece in pieces]
    assert max(lengths) - min(lengths) <= 1


def test_unusable_batches_are_refused() -> None:
    with refused(fix="one row per example"):
        num_examples({"x": torch.zeros(2), "y": torch.zeros(3)})
    with refused("parts = 0"):
        shares({"x": torch.zeros(2)}, 0)


def test_a_task_is_known_by_what_it_has() -> None:
    assert isinstance(ToyTask(), Task)
    assert not isinstance(object(), Task)
