"""The course's data under its own names: what np.random draws, what a loader gives."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader

from glassformer.data import lookup
from glassformer.labs.lookup.course_data import (
    FACT_PAIRS,
    FACTS_DICT,
    ID_TO_TOKEN,
    VOCAB,
    VOCAB_SIZE,
    LookupDataset,
    collate_fn,
    generate_synthetic_data,
)
from refusals import refused


def test_vocabulary_and_facts_are_the_courses() -> None:
    assert VOCAB_SIZE == 14
    assert [ID_TO_TOKEN[token] for token in range(14)] == list(VOCAB)
    assert (VOCAB["[PAD]"], VOCAB["[SOS]"], VOCAB["[EOS]"], VOCAB["NAME"], VOCAB["RED"]) == (0, 1, 2, 4, 6)
    words = {ID_TO_TOKEN[key]: ID_TO_TOKEN[value] for key, value in FACTS_DICT.items()}
    assert words == {"RED": "BLUE", "ALICE": "GREEN", "CHAIR": "RED"}
    assert FACT_PAIRS == [(6, 7), (9, 8), (11, 6)]


def test_numpys_seed_decides_the_examples_as_in_the_course() -> None:
    np.random.seed(3)  # noqa: NPY002
    drawn = generate_synthetic_data(20)
    np.random.seed(3)  # noqa: NPY002
    for sample in drawn:
        key, value = FACT_PAIRS[np.random.randint(3)]  # noqa: NPY002
        told = [3, key, 5, value]
        np.random.shuffle(told)  # noqa: NPY002
        assert sample["enc_input"].tolist() == [4, *told]
        assert sample["dec_target"].tolist() == [value, 2]
        assert sample["query_val_id"] == value


def test_every_example_is_one_of_the_listed_contexts() -> None:
    listed = {example.context: example.target for example in lookup.all_contexts()}
    drawn = {
        tuple(sample["enc_input"].tolist()): tuple(sample["dec_target"].tolist())
        for sample in generate_synthetic_data(2000)
    }
    assert drawn == listed


def test_a_loader_gives_shifted_targets_and_masks() -> None:
    data = generate_synthetic_data(6)
    loader = DataLoader(LookupDataset(data), batch_size=4, collate_fn=collate_fn)
    first, second = loader
    assert [part.shape for part in first] == [(4, 5), (4, 2), (4, 2), (4, 5), (4, 2)]
    assert len(second[0]) == 2
    for row in range(4):
        assert first[1][row].tolist() == [1, data[row]["query_val_id"]]
        assert first[2][row].tolist() == [data[row]["query_val_id"], 2]
    assert not first[3].any()
    assert not first[4].any()


def test_shorter_examples_are_filled_up_and_marked() -> None:
    long, short = (
        (torch.tensor([4, 6, 7]), torch.tensor([1, 7]), torch.tensor([7, 2])),
        (
            torch.tensor([4]),
            torch.tensor([1]),
            torch.tensor([2]),
        ),
    )
    source, inputs, targets, source_padding, inputs_padding = collate_fn([long, short])
    assert source.tolist() == [[4, 6, 7], [4, 0, 0]]
    assert source_padding.tolist() == [[False, False, False], [False, True, True]]
    assert inputs.tolist() == [[1, 7], [1, 0]]
    assert targets.tolist() == [[7, 2], [2, 0]]
    assert inputs_padding.tolist() == [[False, False], [False, True]]


def test_nothing_is_refused() -> None:
    with refused("num_samples = 0"):
        generate_synthetic_data(0)
    with refused("no examples"):
        collate_fn([])
    empty = torch.empty(0, dtype=torch.int64)
    with refused("an empty context in example 0"):
        collate_fn([(empty, torch.tensor([1]), torch.tensor([2]))])
