import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.in_context_lookup import PAD, Facts, LookupConfig, encode, reordered, sample
from refusals import refused


def contents(facts: Facts, row: int) -> Counter[tuple[int, int]]:
    """The facts of a row, whatever their order."""
    pairs = zip(facts.keys[row].tolist(), facts.values[row].tolist(), strict=True)
    return Counter(pair for pair, real in zip(pairs, facts.real[row].tolist(), strict=True) if real)


def require_sound(facts: Facts, config: LookupConfig, split: str, least: int, most: int) -> None:
    """Every promise of ``sample``, checked row by row with plain loops."""
    offsets = set(config.held_out_offsets().tolist())
    for row in range(len(facts)):
        real = facts.real[row].tolist()
        assert real == sorted(real, reverse=True)
        keys = facts.keys[row].tolist()
        values = facts.values[row].tolist()
        assert all(keys[i] == values[i] == PAD for i in range(len(real)) if not real[i])
        pairs = [(keys[i], values[i]) for i in range(len(real)) if real[i]]
        named = dict(pairs)
        assert least <= len(named) == len(pairs) <= most
        assert all(1 <= key <= config.num_keys for key in named)
        assert all(config.first_value <= value < config.none for _, value in pairs)
        if config.distinct_values:
            assert len({value for _, value in pairs}) == len(pairs)
        for key, value in named.items():
            held_out = (value - config.first_value - (key - 1)) % config.num_values in offsets
            assert held_out == {"train": False, "unseen": True, "all": held_out}[split]
        query = int(facts.query[row])
        answer = int(facts.answer[row])
        place = int(facts.place[row])
        assert answer == named.get(query, config.none)
        assert place == (keys.index(query) if query in named else -1)
        assert query in named or config.missing > 0


@given(
    split=st.sampled_from(["train", "unseen", "all"]),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
    distinct=st.booleans(),
    held_out=st.sampled_from([0.1, 0.5]),
    num_facts=st.sampled_from([None, 1, 2, 6]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_contexts_keep_every_promise(
    split: str, missing: float, distinct: bool, held_out: float, num_facts: int | None, seed: int
) -> None:
    config = LookupConfig(20, 16, 1, 5, missing, distinct, held_out)
    facts = sample(config, 12, seed, split=split, num_facts=num_facts)  # type: ignore[arg-type]
    require_sound(facts, config, split, num_facts or 1, num_facts or 5)


def test_tokens_are_numbered_without_gaps() -> None:
    config = LookupConfig(num_keys=10, num_values=20, max_facts=5)
    assert (config.first_value, config.none, config.vocab_size) == (11, 31, 33)
    assert config.num_held_out == len(config.held_out_offsets()) == 2


def test_contexts_are_a_function_of_seed_and_step() -> None:
    config = LookupConfig(missing=0.2)
    for name in ("keys", "values", "real", "query", "answer", "place"):
        once, again = (getattr(sample(config, 50, 3, step=4), name) for _ in range(2))
        assert torch.equal(once, again)
        assert not torch.equal(once, getattr(sample(config, 50, 3, step=5), name))
        assert not torch.equal(once, getattr(sample(config, 50, 4, step=4), name))


def test_everything_that_may_occur_is_equally_likely() -> None:
    config = LookupConfig(num_keys=3, num_values=3, max_facts=2, held_out=0.0)
    facts = sample(config, 36_000, 0, split="all", num_facts=2)
    rows = torch.cat([facts.keys, facts.values, facts.query[:, None]], dim=1)
    # 3 * 2 ordered pairs of keys, as many of values, and two questions.
    _, counts = rows.unique(dim=0, return_counts=True)
    assert len(counts) == 6 * 6 * 2
    assert (counts - 500).abs().max() < 5 * 500**0.5


def test_the_number_of_facts_is_uniform_and_keys_go_missing_as_often_as_asked() -> None:
    config = LookupConfig(min_facts=2, max_facts=5, missing=0.25)
    facts = sample(config, 8000, 0)
    sizes = facts.real.sum(1).bincount()[2:]
    assert (sizes - 2000).abs().max() < 5 * 2000**0.5
    assert float((facts.answer == config.none).double().mean()) == pytest.approx(0.25, abs=0.025)


def test_as_many_facts_as_there_are_keys_or_values() -> None:
    config = LookupConfig(num_keys=64, num_values=64, max_facts=8, held_out=0.0)
    facts = sample(config, 3, 0, split="all", num_facts=64)
    assert all(sorted(row) == list(range(1, 65)) for row in facts.keys.tolist())
    assert all(sorted(row) == list(range(65, 129)) for row in facts.values.tolist())


def test_keys_that_share_their_only_value_do_not_hang() -> None:
    # One value per key is held out, and keys 0 and 2 hold out the same one.
    config = LookupConfig(num_keys=8, num_values=4, max_facts=2, held_out=0.25)
    facts = sample(config, 200, 0, split="unseen", num_facts=2)
    require_sound(facts, config, "unseen", 2, 2)


def test_a_bag_holds_the_tokens_and_hides_the_pairing() -> None:
    config = LookupConfig(max_facts=4, min_facts=2)
    facts = sample(config, 300, 0)
    bag = encode(facts, "bag", seed=2)
    pairs = encode(facts, "positions")
    assert torch.equal(bag.real, pairs.real)
    assert torch.equal(bag.tokens.sort(1).values, pairs.tokens.sort(1).values)
    assert not (bag.tokens[~bag.real] != PAD).any()
    other = encode(facts, "bag", seed=3)
    assert not torch.equal(bag.tokens, other.tokens)
    # Behind a key comes its own value as often as by chance: among 2n - 1 tokens, n from 2 to 4
    # (0.22 on average).
    hits = tokens = 0
    for row in range(len(facts)):
        own = dict(contents(facts, row).keys())
        line = bag.tokens[row][bag.real[row]].tolist()
        for first, second in itertools.pairwise(line):
            if first in own:
                hits = hits + (own[first] == second)
                tokens = tokens + 1
    assert 0.1 < hits / tokens < 0.35


def test_positions_and_slots_keep_pairs_together() -> None:
    facts = sample(LookupConfig(), 20, 0)
    line = encode(facts, "positions")
    slots = encode(facts, "slots")
    assert slots.tokens.shape == (20, 8, 2)
    assert torch.equal(slots.real, facts.real)
    assert torch.equal(line.tokens.view(20, 8, 2), slots.tokens)
    assert torch.equal(slots.tokens[..., 0], facts.keys)
    assert torch.equal(slots.tokens[..., 1], facts.values)


def test_reordering_moves_facts_and_nothing_else() -> None:
    config = LookupConfig(missing=0.3)
    facts = sample(config, 100, 0)
    moved = reordered(facts, seed=1)
    assert not torch.equal(moved.keys, facts.keys)
    assert all(contents(moved, row) == contents(facts, row) for row in range(100))
    require_sound(moved, config, "train", 1, 8)
    assert torch.equal(moved.query, facts.query)
    assert torch.equal(moved.answer, facts.answer)


def test_held_out_pairings_are_spread_evenly() -> None:
    config = LookupConfig(num_keys=32, num_values=16, held_out=0.25, max_facts=4)
    keys, values = np.meshgrid(np.arange(32), np.arange(16), indexing="ij")
    held_out = np.isin((values - keys) % 16, config.held_out_offsets())
    assert set(held_out.sum(1)) == {4}
    assert set(held_out.sum(0)) == {8}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_keys": 0}, "num_keys = 0"),
        ({"min_facts": 9}, "min_facts = 9 with max_facts = 8"),
        ({"missing": 1.5}, r"missing = 1.5"),
        ({"held_out": 1.0}, r"held_out = 1.0"),
        ({"held_out": float("nan")}, "held_out = nan"),
        ({"held_out": 0.999}, "at least one value per key left"),
        ({"num_keys": 8, "missing": 0.1}, "8 facts with num_keys = 8"),
        ({"num_values": 15}, "8 distinct values of num_values = 15"),
        ({"num_values": 7, "held_out": 0.0}, "8 distinct values of num_values = 7"),
    ],
)
def test_impossible_configurations_are_refused(arguments: dict[str, float], message: str) -> None:
    with refused(anywhere=message):
        LookupConfig(**arguments)  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    config = LookupConfig(num_keys=16, num_values=16, held_out=0.0)
    facts = sample(config, 1, 0)
    # One value for each key, and 128 keys of 1,024 that would all have to have different ones.
    few = LookupConfig(num_keys=1024, num_values=256, max_facts=128, held_out=1 / 256)
    for call, got in [
        (lambda: sample(config, 0, 0), "count = 0"),
        (lambda: sample(config, 1, 0, split="unseen"), r"'unseen' with held_out = 0\.0"),
        (lambda: sample(config, 1, 0, split="test"), "split = 'test'"),  # type: ignore[arg-type]
        (lambda: sample(config, 1, 0, num_facts=17), "17 facts with num_keys = 16"),
        (
            lambda: sample(few, 2, 0, split="unseen", num_facts=128),
            "128 facts .* for split = 'unseen', drawn 20 times",
        ),
        (lambda: encode(facts, "set"), "encoding = 'set'"),  # type: ignore[arg-type]
    ]:
        with refused(got):
            call()


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"missing": 0.0, "distinct_values": False}, 20),
        ({"missing": 0.2, "distinct_values": False}, 19),
        ({"missing": 0.2, "distinct_values": True, "held_out": 0.0}, 16),
        ({"missing": 0.2, "distinct_values": True, "held_out": 0.25}, 8),
        ({"num_values": 3, "max_facts": 1, "distinct_values": True, "held_out": 0.25}, 1),
    ],
)
def test_the_most_facts_of_a_context(changes: dict[str, Any], most: int) -> None:
    assert (
        LookupConfig(**{"num_keys": 20, "num_values": 16, "max_facts": 2, **changes}).most_facts
        == most
    )
