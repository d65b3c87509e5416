"""The course's functions: training over loaders, decoding, the heat map; and what they refuse."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from glassformer.labs.lookup.course_data import LookupDataset, collate_fn, generate_synthetic_data
from glassformer.labs.lookup.exercises import (
    draw_cross_attention,
    greedy_decode,
    plot_cross_attention,
    train_model,
)
from glassformer.labs.lookup.network import CrossAttentionLookupModel
from refusals import refused


def make() -> CrossAttentionLookupModel:
    return CrossAttentionLookupModel(14, 16, 4, 1, 32, 10)


def loader(count: int, shuffle: bool = False) -> DataLoader:
    data = LookupDataset(generate_synthetic_data(count))
    return DataLoader(data, batch_size=16, shuffle=shuffle, collate_fn=collate_fn)


def test_training_learns_and_keeps_the_best_weights(capsys: pytest.CaptureFixture[str]) -> None:
    model, held_out = make(), loader(32)
    history = train_model(model, loader(200, shuffle=True), held_out, num_epochs=6, learning_rate=3e-3)
    assert len(history["loss"]) == len(history["accuracy"]) == 6
    assert history["loss"][-1] < history["loss"][0]
    assert history["accuracy"][-1] == 1
    assert not model.training
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model(source, inputs).flatten(0, 1), targets.flatten())
            for source, inputs, targets, *_ in held_out
        ]
    assert float(torch.stack(losses).mean()) == pytest.approx(min(history["loss"]), rel=1e-5)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("Epoch 6: validation loss")


def test_weights_that_got_worse_are_not_kept() -> None:
    model, held_out = make(), loader(32)
    train_model(model, loader(100), held_out, num_epochs=2, learning_rate=3e-3)
    history = train_model(model, loader(32), held_out, num_epochs=3, learning_rate=3.0)
    assert min(history["loss"]) < max(history["loss"])
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(model(source, inputs).flatten(0, 1), targets.flatten())
            for source, inputs, targets, *_ in held_out
        ]
    assert float(torch.stack(losses).mean()) == pytest.approx(min(history["loss"]), rel=1e-4)


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


@pytest.mark.usefixtures("without_type_checks")
def test_loaders_that_give_nothing_are_refused() -> None:
    with refused("train_loader without a batch"):
        train_model(make(), [], loader(16))
    with refused("val_loader without length"):
        train_model(make(), loader(16), (batch for batch in loader(16)))
    with refused("num_epochs = 0"):
        train_model(make(), loader(16), loader(16), num_epochs=0)


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


def test_decoding_refuses_what_has_no_end_or_no_context() -> None:
    model = make()
    facts = torch.full((2, 5), 4)
    with refused(anywhere="max_new_tokens = 11"):
        greedy_decode(model, facts, 11)
    with refused("max_new_tokens = 0"):
        greedy_decode(model, facts, 0)
    with refused(r"source of shape \[2, 0\]"):
        greedy_decode(model, torch.empty(2, 0, dtype=torch.int64), 2)
    with refused(r"1 contexts that hold \[PAD\] alone"):
        greedy_decode(model, facts * torch.tensor([[1], [0]]), 2)
    with refused("from 14 to 14"):
        greedy_decode(model, torch.full((2, 5), 14), 2)
    with refused("11 positions"):
        greedy_decode(model, torch.full((2, 11), 4), 2)


def test_the_heat_map_names_its_axes() -> None:
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]])
    figure = draw_cross_attention(weights, torch.tensor([4, 6, 7]), ["[SOS]", "BLUE"])
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["NAME", "RED", "BLUE"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["[SOS]", "BLUE"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("encoder token", "decoder token")
    np.testing.assert_allclose(ax.images[0].get_array(), weights, atol=1e-6)
    plt.close(figure)
    heads = draw_cross_attention(weights.expand(4, 2, 3), [4, 6, 7], [1, 7])
    assert [ax.get_title() for ax in heads.axes[:4]] == [f"Head {head}" for head in range(1, 5)]
    plt.close(heads)


def test_plotting_shows_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    plot_cross_attention(np.array([[0.5, 0.5]]), ["RED", "BLUE"], ["[SOS]"])
    assert len(shown) == 1
    assert len(shown[0]) == 1
    assert plt.get_fignums() == []


def test_a_heat_map_that_cannot_be_drawn_is_refused() -> None:
    weights = torch.full((2, 3), 1 / 3)
    with refused(r"shape \[3\]"):
        draw_cross_attention(weights[0], [4, 6, 7], [1, 7])
    with refused("2 names for 3 keys"):
        draw_cross_attention(weights, [4, 6], [1, 7])
    with refused(r"tokens without a word: \[14\]"):
        draw_cross_attention(weights, [4, 6, 14], [1, 7])
    with refused("nan"):
        draw_cross_attention(weights * float("nan"), [4, 6, 7], [1, 7])
    plt.close("all")
