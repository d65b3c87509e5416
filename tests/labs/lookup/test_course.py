"""The seed's data, parts and functions: what np.random draws, the library's network, training,
decoding, a heat map.
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.data import DataLoader

from glassformer.errors import InputError
from glassformer.labs.lookup.course import (
    FACT_PAIRS,
    ID_TO_TOKEN,
    VOCAB,
    LookupDataset,
    collate_fn,
    generate_synthetic_data,
    greedy_decode,
    plot_cross_attention,
    train_model,
)
from glassformer.labs.lookup.course_network import (
    CrossAttentionLookupModel,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionWiseFeedForward,
)
from refusals import refused


def make(layers: int = 1) -> CrossAttentionLookupModel:
    return CrossAttentionLookupModel(14, 16, 4, layers, 32, 10).eval()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, 14, (batch, length))


def test_numpys_seed_decides_the_examples_as_in_the_course() -> None:
    assert FACT_PAIRS == [(6, 7), (9, 8), (11, 6)]
    assert [ID_TO_TOKEN[token] for token in range(14)] == list(VOCAB)
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
    long = torch.tensor([4, 6, 7]), torch.tensor([1, 7]), torch.tensor([7, 2])
    short = torch.tensor([4]), torch.tensor([1]), torch.tensor([2])
    source, inputs, targets, source_padding, inputs_padding = collate_fn([long, short])
    assert source.tolist() == [[4, 6, 7], [4, 0, 0]]
    assert source_padding.tolist() == [[False, False, False], [False, True, True]]
    assert inputs.tolist() == [[1, 7], [1, 0]]
    assert targets.tolist() == [[7, 2], [2, 0]]
    assert inputs_padding.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_network_is_the_same_function_with_the_same_weights(layers: int) -> None:
    model = make(layers)
    source = tokens(3, 6)
    target = tokens(3, 4)
    source[0, 4:] = target[1, 3:] = 0
    network = model.network
    logits = model(source, target)
    torch.testing.assert_close(logits, network(source, target), atol=0, rtol=0)
    torch.testing.assert_close(
        logits, model(source, target, source == 0, target == 0), atol=0, rtol=0
    )
    assert {id(weight) for weight in network.parameters()} == {
        id(weight) for weight in model.parameters()
    }
    network(source, target).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not network.training
    assert make().train().network.training


def test_the_mask_decides_what_is_padding() -> None:
    model = make()
    source = tokens(2, 5)
    target = tokens(2, 3)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[:, 3:] = True
    other = source.clone()
    other[:, 3:] = tokens(2, 2)
    torch.testing.assert_close(
        model(source, target, hidden), model(other, target, hidden), atol=0, rtol=0
    )
    torch.testing.assert_close(
        model(source, target, hidden), model(source[:, :3], target), atol=1e-5, rtol=1e-5
    )
    # [PAD] that the mask calls real is read.
    source[0, 0] = 0
    real = torch.zeros(2, 5, dtype=torch.bool)
    assert not torch.allclose(model(source, target, real), model(source, target), atol=1e-4)


def test_parts_work_by_themselves() -> None:
    x = torch.randn(2, 5, 16)
    memory = torch.randn(2, 3, 16)
    assert (
        MultiHeadAttention(16, 4)(x).shape == MultiHeadAttention(16, 4)(x, memory).shape == x.shape
    )
    assert PositionWiseFeedForward(16, 32)(x).shape == x.shape
    assert EncoderLayer(16, 4, 32)(x).shape == DecoderLayer(16, 4, 32)(x, memory).shape == x.shape
    read = Encoder(14, 16, 4, 2, 32, 10)(tokens(2, 5))
    assert Decoder(14, 16, 4, 2, 32, 10)(tokens(2, 3), read).shape == (2, 3, 16)


def test_sizes_that_make_no_network_are_refused() -> None:
    for build in (MultiHeadAttention, EncoderLayer, DecoderLayer):
        with refused("d_model = 10 with num_heads = 4"):
            build(10, 4, *([] if build is MultiHeadAttention else [32]))
    for place in range(6):
        sizes = [14, 16, 4, 1, 32, 10]
        sizes[place] = 0
        with pytest.raises(InputError):
            CrossAttentionLookupModel(*sizes)


@pytest.mark.usefixtures("without_type_checks")
def test_calls_that_do_not_fit_are_refused() -> None:
    model = make()
    target = torch.ones(2, 1, dtype=torch.int64)
    for source, message in (
        (torch.empty(2, 0, dtype=torch.int64), r"enc_input of shape \[2, 0\]"),
        (torch.tensor([[3, 14], [3, 4]]), "enc_input from 3 to 14"),
        (tokens(2, 11), "11 positions of enc_input"),
    ):
        with refused(message):
            model(source, target)
    with refused("11 positions of dec_input"):
        model(tokens(2, 5), tokens(2, 11))
    source = tokens(2, 5)
    target = tokens(2, 3)
    hidden = torch.tensor([[True, False, False, False]] * 2)
    for masks in ((hidden, None), (None, hidden)):
        with pytest.raises(InputError):
            model(source, target, *masks)
    with pytest.raises(InputError):
        model.decoder(target, model.encoder(source), hidden)


def loader(count: int, shuffle: bool = False) -> DataLoader:
    data = LookupDataset(generate_synthetic_data(count))
    return DataLoader(data, batch_size=16, shuffle=shuffle, collate_fn=collate_fn)


def test_training_learns_and_keeps_the_best_weights(capsys: pytest.CaptureFixture[str]) -> None:
    model = make()
    held_out = loader(32)

    @torch.no_grad()
    def loss() -> float:
        losses = [
            torch.nn.functional.cross_entropy(
                model(source, inputs).flatten(0, 1), targets.flatten()
            )
            for source, inputs, targets, *_ in held_out
        ]
        return float(torch.stack(losses).mean())

    history = train_model(
        model, loader(200, shuffle=True), held_out, num_epochs=6, learning_rate=3e-3
    )
    assert len(history["val_loss"]) == len(history["val_acc"]) == 6
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert history["val_acc"][-1] == 1
    assert not model.training
    assert loss() == pytest.approx(min(history["val_loss"]), rel=1e-5)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert (len(lines), said.err) == (6, "")
    assert lines[-1].startswith("Epoch 6/6: training loss")
    worse = train_model(model, loader(32), held_out, num_epochs=3, learning_rate=3.0)
    assert min(worse["val_loss"]) < max(worse["val_loss"])
    assert loss() == pytest.approx(min(worse["val_loss"]), rel=1e-4)


def test_decoding_takes_the_most_likely_token_step_by_step() -> None:
    model = make().eval()
    source = torch.randint(3, 14, (6, 5))
    source[0, 3:] = 0
    written = greedy_decode(model, source, 4)
    for row in range(6):
        target = [1]
        while len(target) <= 4 and target[-1] != 2:
            logits = model(
                source[row : row + 1],
                torch.tensor([target]),
                None,
                torch.zeros(1, len(target)).bool(),
            )
            target.append(int(logits[0, -1].argmax()))
        expected = target[1:] + [0] * (written.shape[1] - len(target) + 1)
        assert written[row].tolist() == expected


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
