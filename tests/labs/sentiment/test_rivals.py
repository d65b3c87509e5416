"""The rivals: against plain loops, blind to padding, and able to learn what the encoder learns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.data.examples import Example, SentimentData
from glassformer.labs.sentiment.experiments.recipes import FROM_SCRATCH, RivalRecipe, TrainingRecipe, train_rival
from glassformer.labs.sentiment.rivals import ConvolutionalClassifier, RecurrentClassifier
from glassformer.models.encoder import Encoder
from refusals import refused

KINDS = ("recurrent", "convolutional")
NETWORKS = (RecurrentClassifier, ConvolutionalClassifier)
THINGS = ("film", "book", "soup", "phone", "song", "play", "cake", "lamp")
TRAIN = tuple(
    Example(f"a {word} {thing} .", label)
    for thing in THINGS
    for word, label in (("good", 1), ("bad", 0), ("lovely", 1), ("awful", 0))
)
DATA = SentimentData(TRAIN, TRAIN[::5], (Example("a lovely dog", 1), Example("an awful cat", 0)))
QUICK = TrainingRecipe(8, 8, 0.01, 0.0, word_dropout=0.1)


def test_the_recurrent_one_is_a_loop_over_real_tokens() -> None:
    model = RecurrentClassifier(9, 3, embedding_dim=4, hidden_dim=5).eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    real = torch.tensor([[True, True, True, True], [True, False, True, False]])
    logits = model(tokens, real)
    cells = []
    for suffix in ("", "_reverse"):
        cell = torch.nn.GRUCell(4, 5)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(cell, name, torch.nn.Parameter(getattr(model.gru, f"{name}_l0{suffix}").detach()))
        cells.append(cell)
    for row, seen, found in zip(tokens, real, logits, strict=True):
        vectors = model.embedding(row[seen])
        means = []
        for cell, order in zip(cells, (1, -1), strict=True):
            state, states = torch.zeros(5), []
            for vector in list(vectors)[::order]:
                state = cell(vector[None], state[None])[0]
                states.append(state)
            means.append(torch.stack(states).mean(0))
        torch.testing.assert_close(found, model.head(torch.cat(means)), atol=1e-6, rtol=1e-5)


def test_the_convolutional_one_is_a_loop_over_windows() -> None:
    model = ConvolutionalClassifier(9, 2, embedding_dim=4, filters=3, widths=(2, 3)).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    real = torch.tensor([[True, False, True, True, False]])
    vectors = model.embedding(torch.tensor([1, 3, 4]))
    responses = []
    for width, convolution in zip((2, 3), model.convolutions, strict=True):
        before, behind = (width - 1) // 2, width // 2
        filled = torch.cat([torch.zeros(before, 4), vectors, torch.zeros(behind, 4)])
        windows = [
            torch.einsum("few,we->f", convolution.weight, filled[start : start + width]) + convolution.bias
            for start in range(3)
        ]
        responses.append(torch.stack(windows).relu().amax(0))
    torch.testing.assert_close(model(tokens, real)[0], model.head(torch.cat(responses)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_padding_and_gaps_change_nothing(network: type[nn.Module], data: st.DataObject) -> None:
    model = network(11, 2).eval()
    row = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=9))
    alone = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))
    filled, real = [], []
    for token in row:
        gap = data.draw(st.integers(0, 2))
        filled += [*data.draw(st.lists(st.integers(0, 10), min_size=gap, max_size=gap)), token]
        real += [False] * gap + [True]
    behind = data.draw(st.integers(0, 5))
    tokens = torch.tensor([filled + [0] * behind, [3] * (len(filled) + behind)])
    mask = torch.tensor([real + [False] * behind, [True] * (len(real) + behind)])
    torch.testing.assert_close(model(tokens, mask)[:1], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_text_without_real_tokens_is_answered(network: type[nn.Module]) -> None:
    model = network(11, 2).eval()
    logits = model(torch.ones(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.bool))
    torch.testing.assert_close(logits[0], model.head.bias)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_has_about_as_many_parameters_as_the_encoder(network: type[nn.Module]) -> None:
    rival = sum(weight.numel() for weight in network(8000, 2).parameters())
    encoder = sum(weight.numel() for weight in Encoder(FROM_SCRATCH.encoder_config(8000, 2, 0)).parameters())
    assert rival == pytest.approx(encoder, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind: str) -> None:
    model, tokenizer, epochs = trained = train_rival(RivalRecipe("a name", kind, QUICK), DATA, None, 1)
    assert len(epochs) == QUICK.epochs
    assert epochs[-1].validation_accuracy == 1.0
    assert not model.training
    assert tokenizer.pieces(tokenizer.encode("a good dog"))[1:] == ["a", "good", "<UNK>"]
    likely = trained.probabilities([example.text for example in DATA.test]).argmax(1)
    assert likely.tolist() == [example.label for example in DATA.test]


def test_the_seed_decides() -> None:
    recipe = RivalRecipe("a name", "convolutional", dataclasses.replace(QUICK, epochs=1))
    one, same, other = (train_rival(recipe, DATA, None, seed).epochs[-1].validation_loss for seed in (1, 1, 2))
    assert one == same != other


def test_a_finished_run_is_continued_and_another_refused(tmp_path: Path) -> None:
    recipe = RivalRecipe("a name", "convolutional", dataclasses.replace(QUICK, epochs=1))
    first = train_rival(recipe, DATA, tmp_path, 1)
    assert train_rival(recipe, DATA, tmp_path, 1).epochs == first.epochs
    with refused("description"):
        train_rival(dataclasses.replace(recipe, kind="recurrent"), DATA, tmp_path, 1)
    other = dataclasses.replace(DATA, test=(*DATA.test[:-1], Example("another one", 1)))
    with refused("fingerprint"):
        train_rival(recipe, other, tmp_path, 1)
