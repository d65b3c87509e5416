from collections import Counter

import torch

from glassformer.data.lookup import (
    EOS,
    FACTS,
    ID_TO_TOKEN,
    PAD,
    SOS,
    VOCAB,
    LookupExample,
    all_contexts,
    lookup_batch,
    lookup_examples,
    share_seen,
    split_lookup,
)
from refusals import refused


def words(tokens: tuple[int, ...]) -> list[str]:
    return [ID_TO_TOKEN[token] for token in tokens]


def test_the_vocabulary_is_the_courses() -> None:
    listed = "[PAD] [SOS] [EOS] COLOR NAME ITEM RED BLUE GREEN ALICE BOB CHAIR QUERY FIND"
    assert " ".join(VOCAB) == listed
    assert list(VOCAB.values()) == list(range(14))
    assert words((3, 9, 13)) == ["COLOR", "ALICE", "FIND"]
    assert dict(FACTS) == {"RED": "BLUE", "ALICE": "GREEN", "CHAIR": "RED"}


def test_an_example_reads_as_the_course_writes_it() -> None:
    example = LookupExample("CHAIR", ("value", "COLOR", "key", "ITEM"))
    assert words(example.context) == ["NAME", "RED", "COLOR", "CHAIR", "ITEM"]
    assert words(example.target) == ["RED", "[EOS]"]


def test_all_contexts_are_each_arrangement_of_each_facts_tokens() -> None:
    contexts = [example.context for example in all_contexts()]
    assert len(contexts) == len(set(contexts)) == 3 * 24
    # Red and its blue, Alice and her green, the chair and its red: three sets of tokens, 4! orders
    # of each.
    sets = Counter(frozenset(words(context)) for context in contexts)
    frame = {"NAME", "COLOR", "ITEM"}
    assert sets == {
        frozenset(frame | {"RED", "BLUE"}): 24,
        frozenset(frame | {"ALICE", "GREEN"}): 24,
    } | {frozenset(frame | {"CHAIR", "RED"}): 24}
    assert all(words(context)[0] == "NAME" for context in contexts)


def test_drawn_examples_are_uniform_and_a_function_of_the_seed() -> None:
    examples = lookup_examples(3600, seed=3)
    assert examples == lookup_examples(3600, seed=3)
    assert examples != lookup_examples(3600, seed=4)
    counts = Counter(examples)
    assert set(counts) == set(all_contexts())
    # 50 of each are expected; five standard deviations.
    assert max(abs(count - 50) for count in counts.values()) < 36


def test_the_courses_split_holds_out_nothing_new() -> None:
    train, validation, test = split_lookup(lookup_examples(5000))
    assert [len(part) for part in (train, validation, test)] == [4000, 500, 500]
    assert train + validation + test == lookup_examples(5000)
    assert share_seen(train, validation) == share_seen(train, test) == 1.0
    train, test = split_lookup(all_contexts(), (0.75, 0.25))
    assert (len(train), share_seen(train, test)) == (54, 0.0)


def test_a_batch_shifts_targets_behind_the_start() -> None:
    batch = lookup_batch(all_contexts()[:2])
    assert batch.source.shape == (2, 5)
    assert batch.source_real.all()
    assert batch.targets_real.all()
    assert batch.inputs.tolist() == [[SOS, VOCAB["BLUE"]]] * 2
    assert batch.targets.tolist() == [[VOCAB["BLUE"], EOS]] * 2
    assert not (batch.source == PAD).any()
    assert batch.source.dtype == batch.targets.dtype == torch.int64


def test_bad_input_is_refused() -> None:
    with refused("num_samples = 0"):
        lookup_examples(0)
    with refused("fractions"):
        split_lookup(all_contexts(), (0.5, 0.6))
    with refused("one of which is empty"):
        split_lookup(all_contexts()[:3], (0.9, 0.05, 0.05))
    with refused("no held-out examples"):
        share_seen(all_contexts(), ())
