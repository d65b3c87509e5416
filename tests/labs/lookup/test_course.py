"""The seed's data and functions: what np.random draws, loaders, training, decoding, the heat map."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.utils.data import DataLoader

from glassformer.data import lookup
from glassformer.labs.lookup.course import (
    FACT_PAIRS,
    FACTS_DICT,
    ID_TO_TOKEN,
    VOCAB,
    VOCAB_SIZE,
    LookupDataset,
    collate_fn,
    generate_synthetic_data,
    greedy_decode,
    plot_cross_attention,
    train_model,
)
from glassformer.labs.lookup.course_network import CrossAttentionLookupModel
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


def make() -> CrossAttentionLookupModel:
    return CrossAttentionLookupModel(14, 16, 4, 1, 32, 10)


def loader(count: int, shuffle: bool = False) -> DataLoader:
    data = LookupDataset(generate_synthetic_data(count))
    return DataLoader(data, batch_size=16, shuffle=shuffle, collate_fn=collate_fn)


def test_training_learns_and_keeps_the_best_weights(capsys: pytest.CaptureFixture[str]) -> None:
    model, held_out = make(), loader(32)
    history = train_model(model, loader(200, shuffle=True), held_out, num_epochs=6, learning_rate=3e-3)
    assert len(history["val_loss"]) == len(history["val_acc"]) == 6
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert history["val_acc"][-1] == 1
    assert not model.training
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model(source, inputs).flatten(0, 1), targets.flatten())
            for source, inputs, targets, *_ in held_out
        ]
    assert float(torch.stack(losses).mean()) == pytest.approx(min(history["val_loss"]), rel=1e-5)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("Epoch 6/6: training loss")


def test_weights_that_got_worse_are_not_kept() -> None:
    model, held_out = make(), loader(32)
    train_model(model, loader(100), held_out, num_epochs=2, learning_rate=3e-3)
    history = train_model(model, loader(32), held_out, num_epochs=3, learning_rate=3.0)
    assert min(history["val_loss"]) < max(history["val_loss"])
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model(source, inputs).flatten(0, 1), targets.flatten())
            for source, inputs, targets, *_ in held_out
        ]
    assert float(torch.stack(losses).mean()) == pytest.approx(min(history["val_loss"]), rel=1e-4)


def test_torchs_seed_decides_the_training() -> None:
    data, held_out = generate_synthetic_data(48), loader(16)
    histories = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(seed)
        loaded = DataLoader(LookupDataset(data), batch_size=16, shuffle=True, collate_fn=collate_fn)
        histories.append(train_model(model, loaded, held_out, num_epochs=1))
    assert histories[0] == histories[1] != histories[2]


def test_decoding_takes_the_most_likely_token_step_by_step() -> None:
    model = make().eval()
    source = torch.randint(3, 14, (6, 5))
    source[0, 3:] = 0
    written = greedy_decode(model, source, 4)
    for row in range(6):
        target = [1]
        while len(target) <= 4 and target[-1] != 2:
            logits = model(source[row : row + 1], torch.tensor([target]), None, torch.zeros(1, len(target)).bool())
            target.append(int(logits[0, -1].argmax()))
        expected = target[1:] + [0] * (written.shape[1] - len(target) + 1)
        assert written[row].tolist() == expected


def test_decoding_ends_where_all_texts_have_ended() -> None:
    model = make()
    with torch.no_grad():
        model.projection.weight.zero_()
        model.projection.bias.copy_(torch.nn.functional.one_hot(torch.tensor(2), 14))
    assert greedy_decode(model, torch.full((3, 5), 4), 9).tolist() == [[2], [2], [2]]
    assert model.training


def test_decoding_without_end_is_refused() -> None:
    with refused(anywhere="max_new_tokens = 11"):
        greedy_decode(make(), torch.full((2, 5), 4), 11)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were shown."""
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "show", lambda: figures.append(plt.gcf()))
    return figures


def test_the_heat_map_names_its_axes_and_is_closed(shown: list[Figure]) -> None:
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]])
    plot_cross_attention(weights, torch.tensor([4, 6, 7]), ["[SOS]", "BLUE"])
    ax = shown[0].axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["NAME", "RED", "BLUE"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["[SOS]", "BLUE"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("encoder token", "decoder token")
    np.testing.assert_allclose(ax.images[0].get_array(), weights, atol=1e-6)
    assert plt.get_fignums() == []
    plot_cross_attention(weights.expand(4, 2, 3), [4, 6, 7], [1, 7])
    assert [ax.get_title() for ax in shown[1].axes[:4]] == [f"Head {head}" for head in range(1, 5)]


def test_weights_that_cannot_be_drawn_are_refused() -> None:
    with refused("2 names for 3 keys"):
        plot_cross_attention(torch.full((2, 3), 1 / 3), [4, 6], [1, 7])
    plt.close("all")
