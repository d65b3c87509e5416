"""The grid of heads: what its panels hold, what is printed, and that nothing stays open."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.labs.sentiment.course_training import SimpleTokenizer, draw_attention_grid, visualize_attention
from refusals import refused


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def reader(num_layers: int, num_heads: int, num_classes: int = 2) -> tuple[MiniTransformer, SimpleTokenizer]:
    tokenizer = SimpleTokenizer(20)
    tokenizer.build_vocab(["the film is great !"])
    model = MiniTransformer(
        len(tokenizer.vocab), 5 * num_heads, num_heads, num_layers, 16, max_length=16, num_classes=num_classes
    )
    nn.init.normal_(model.classifier.weight)
    return model, tokenizer


@pytest.mark.parametrize(("num_layers", "num_heads"), [(1, 1), (1, 2), (2, 4), (3, 6)])
def test_a_panel_for_each_layer_and_each_of_the_first_four_heads(num_layers: int, num_heads: int) -> None:
    model, tokenizer = reader(num_layers, num_heads)
    figure = draw_attention_grid(model, tokenizer, "The film: great!", max_length=8)
    panels = [ax for ax in figure.axes if ax.get_title()]
    _, weights = model(torch.tensor([tokenizer.tokenize("The film: great!", 8)]))
    expected = [layer[0, head, :6, :6] for layer in weights for head in range(min(4, num_heads))]
    assert len(panels) == len(expected) == num_layers * min(4, num_heads)
    for ax, values in zip(panels, expected, strict=True):
        shown = np.asarray(ax.images[0].get_array())
        np.testing.assert_allclose(shown, values.detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(shown.sum(1), 1, atol=1e-5)
        assert [label.get_text() for label in ax.get_yticklabels()] == ["<CLS>", "the", "film", "<UNK>", "great", "!"]
        assert ax.images[0].get_clim() == pytest.approx((0, max(each.max().item() for each in expected)))
    assert panels[-1].get_title() == f"Layer {num_layers}, head {min(4, num_heads)}"


def test_the_prediction_is_printed_and_the_figure_shown_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[int]] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    model, tokenizer = reader(1, 2)
    for label, name in enumerate(("Negative", "Positive")):
        nn.init.zeros_(model.classifier.weight)
        model.classifier.bias.data = torch.tensor([3.0 * (label == 0), 3.0 * (label == 1)])
        visualize_attention(model, tokenizer, "great film")
        expected = f"Text: great film\nPrediction: {name} (probability 0.953)\n"
        assert capsys.readouterr().out == expected
    assert [len(figures) for figures in shown] == [1, 1]
    assert plt.get_fignums() == []


def test_other_classes_have_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = reader(1, 2, num_classes=3)
    nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([0.0, 0.0, 9.0])
    visualize_attention(model, tokenizer, "great film")
    assert "Prediction: class 2 (probability 1.000)" in capsys.readouterr().out


def test_the_empty_text_has_one_token() -> None:
    model, tokenizer = reader(1, 1)
    (ax,) = (ax for ax in draw_attention_grid(model, tokenizer, "").axes if ax.get_title())
    assert np.asarray(ax.images[0].get_array()).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("a great \ud83d film", r"a great \ud83d film"),
        ("great\x07 \x1b[31m\n\nfilm\u200b", r"great\x07 \x1b[31m film\u200b"),
        ("\U0001f44d\U0001f3fd 電影 great", "□□ □□ great"),
        ("great " * 100_000, ("great " * 17)[:97] + "..."),
        ("x" * 100_000, "x" * 97 + "..."),
        ("cost $5 and $x_{\\foo}$ $^", r"cost \$5 and \$x_{\foo}\$ \$^"),
        ("  ", "(empty)"),
    ],
    ids=["surrogate", "control", "emoji", "long", "long word", "dollars", "empty"],
)
@pytest.mark.filterwarnings("error")  # of letters that the font lacks, and of a layout without room
def test_odd_texts_have_a_short_title_that_can_be_drawn(
    text: str, title: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = SimpleTokenizer(30)
    tokenizer.build_vocab([f"{text[:2000]} film"])
    model = MiniTransformer(len(tokenizer.vocab), 4, 1, 1, 8, max_length=16, num_classes=2)
    figure = draw_attention_grid(model, tokenizer, text)
    figure.draw_without_rendering()
    assert "".join(figure.get_suptitle().split()) == "".join(title.split())
    (ax,) = (ax for ax in figure.axes if ax.get_title())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) <= 16
    assert max(map(len, names)) <= 20
    monkeypatch.setattr(plt, "show", lambda: None)
    visualize_attention(model, tokenizer, text)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2
    assert printed.replace("\n", "").isprintable()
    assert max(map(len, printed.splitlines())) <= 110


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    model, tokenizer = reader(1, 1)
    with refused("17 positions"):
        draw_attention_grid(model, tokenizer, "great " * 20, max_length=17)
    with refused("of type NoneType"):
        draw_attention_grid(model, tokenizer, None)  # type: ignore[arg-type]
    with refused("without vocabulary"):
        draw_attention_grid(model, SimpleTokenizer(), "great")
