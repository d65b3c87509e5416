"""The course's tokenizer and data set, its training, its view of attention, and its count of
operations.
"""

import copy
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.data.tokenizer import WordTokenizer
from glassformer.labs.sentiment.course import MiniTransformer, TransformerBlock
from glassformer.labs.sentiment.course_training import (
    SentimentDataset,
    SimpleTokenizer,
    analyze_complexity,
    draw_attention_grid,
    overtakes,
    train_transformer,
    visualize_attention,
)
from glassformer.observe.cost import count_operations
from refusals import refused

TEXTS = ["A good movie!  A good plot.", "Good acting", "a movie"]


def tokenizer(vocab_size: int = 100) -> SimpleTokenizer:
    made = SimpleTokenizer(vocab_size)
    made.build_vocab(TEXTS)
    return made


COURSE = tokenizer()
LIBRARY = WordTokenizer.from_texts(TEXTS, 100)


@given(st.text(max_size=60))
def test_any_text_has_a_row_of_the_same_length_and_the_librarys_tokens(text: str) -> None:
    row = COURSE.tokenize(text, max_length=16)
    assert len(row) == 16
    expected = LIBRARY.encode(text, 16)
    assert row == expected + [0] * (16 - len(expected))


def test_the_vocabulary_has_the_most_frequent_words_after_the_special_ones() -> None:
    words = tokenizer(6)
    assert words.vocab == {"<PAD>": 0, "<UNK>": 1, "<CLS>": 2, "a": 3, "good": 4, "movie": 5}
    assert (words.pad_token, words.unk_token, words.cls_token) == ("<PAD>", "<UNK>", "<CLS>")
    assert (
        words.decode(words.tokenize("A good movie, a GOOD plot."))
        == "a good movie <UNK> a good <UNK> <UNK>"
    )
    assert words.decode([4, 999]) == "good"
    assert words.clean_text("  A\tGood \n Movie! ") == "a good movie!"
    assert len(words.tokenize("good")) == 128
    words.build_vocab(["other"])
    assert set(words.vocab) == {"<PAD>", "<UNK>", "<CLS>", "other"}
    assert len(words.inverse_vocab) == 4


def test_the_data_set_feeds_a_data_loader_with_labels_from_any_library() -> None:
    for labels in ([1, 0, 1], np.array([1, 0, 1]), torch.tensor([1, 0, 1])):
        data = SentimentDataset(TEXTS, labels, tokenizer(), max_length=5)
        assert len(data) == 3
        batch = next(iter(DataLoader(data, batch_size=3)))
        assert batch["labels"].tolist() == [1, 0, 1]
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        assert batch["input_ids"].tolist() == [tokenizer().tokenize(text, 5) for text in TEXTS]
    assert SentimentDataset(TEXTS, [1, 0, 1], tokenizer())[0]["input_ids"].shape == (32,)


def test_bad_texts_and_labels_are_refused() -> None:
    new = SimpleTokenizer()
    for use in (lambda: new.tokenize("a"), lambda: new.decode([3])):
        with refused("without vocabulary"):
            use()
    with refused("of type NoneType"):
        tokenizer().clean_text(None)
    with refused("2 texts with 1 labels"):
        SentimentDataset(["a", "b"], [1], tokenizer())
    for label in (0.5, "1", None, torch.tensor(1.0)):
        with pytest.raises(TypeError):
            SentimentDataset(["a"], [label], tokenizer())


GOOD = ["a great film", "great acting", "i love it", "a lovely plot", "great fun", "love the cast"]
BAD = ["a dull film", "bad acting", "i hate it", "an awful plot", "dull and bad", "hate the cast"]


def small_model(vocab_size: int = 30, dropout: float = 0.1) -> MiniTransformer:
    return MiniTransformer(
        vocab_size,
        d_model=16,
        num_heads=2,
        num_layers=1,
        d_ff=16,
        max_length=8,
        num_classes=2,
        dropout=dropout,
    )


def batches(count: int, size: int = 4) -> list[dict[str, Tensor]]:
    """Texts whose class is whether token 5 is in them."""
    made = []
    for _ in range(count):
        tokens = torch.randint(6, 30, (size, 6))
        labels = torch.arange(size) % 2
        tokens[labels == 1, 2] = 5
        made.append({"input_ids": tokens, "labels": labels})
    return made


class Plain(nn.Module):
    """A bag of words, returned alone or in a tuple as the course's model does."""

    def __init__(self, in_tuple: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 2)
        self.in_tuple = in_tuple

    def forward(self, tokens: Tensor) -> Tensor | tuple[Tensor, None]:
        logits = self.table(tokens).mean(1)
        return (logits, None) if self.in_tuple else logits


def by_hand(
    model: nn.Module,
    training: list[dict[str, Tensor]],
    held_out: list[dict[str, Tensor]],
    epochs: int,
) -> dict:
    """The course's loop, with AdamW."""
    history: dict[str, list[float]] = {
        "train_loss": [],
        "train_acc": [],
        "val_loss": [],
        "val_acc": [],
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(epochs):
        for name, data in (("train", training), ("val", held_out)):
            losses = []
            hits = 0
            total = 0
            for batch in data:
                logits = model(batch["input_ids"])
                loss = F.cross_entropy(logits, batch["labels"])
                if name == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                losses.append(loss.item())
                hits += int((logits.argmax(-1) == batch["labels"]).sum())
                total += len(batch["labels"])
            history[f"{name}_loss"].append(sum(losses) / len(losses))
            history[f"{name}_acc"].append(100 * hits / total)
    return history


@pytest.mark.parametrize("in_tuple", [False, True])
def test_history_is_what_the_courses_loop_counts(
    in_tuple: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Plain(in_tuple)
    twin = Plain(False)
    twin.load_state_dict(model.state_dict())
    training = [*batches(3), *batches(1, size=2)]
    held_out = batches(2, size=6)
    history = train_transformer(model, training, held_out, num_epochs=3, learning_rate=0.05)
    expected = by_hand(twin, training, held_out, 3)
    assert set(history) == set(expected)
    for name, numbers in expected.items():
        assert history[name] == pytest.approx(numbers, abs=1e-5)
    torch.testing.assert_close(model.table.weight, twin.table.weight)
    assert not model.training
    said = capsys.readouterr()
    printed = said.out.splitlines()
    assert (len(printed), said.err) == (3, "")
    numbers = expected["train_loss"][2], expected["val_loss"][2], expected["val_acc"][2]
    assert all(f"{number:.4f}" in printed[2] for number in numbers[:2])
    assert printed[2].endswith(f"accuracy {numbers[2]:.2f}%")


def test_the_courses_model_learns_words_that_decide() -> None:
    words = SimpleTokenizer(100)
    words.build_vocab(GOOD + BAD)
    data = SentimentDataset(GOOD + BAD, [1] * 6 + [0] * 6, words, max_length=8)
    model = small_model(len(words.vocab))
    history = train_transformer(
        model,
        DataLoader(data, batch_size=4, shuffle=True),
        DataLoader(data, batch_size=5),
        20,
        1e-2,
    )
    assert len(history["val_acc"]) == 20
    assert history["val_acc"][-1] == 100
    logits, _ = model(torch.tensor([words.tokenize(text, 8) for text in GOOD + BAD]))
    assert logits.argmax(-1).tolist() == [1] * 6 + [0] * 6


def test_random_numbers_follow_torchs_seed() -> None:
    data = [{name: rows[i] for name, rows in batches(1, size=12)[0].items()} for i in range(12)]
    start = small_model()
    histories = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(data, batch_size=4, shuffle=True)  # type: ignore[arg-type, var-annotated]
        histories.append(train_transformer(copy.deepcopy(start), loader, batches(1), 2))
    assert histories[0] == histories[1]
    assert histories[0]["train_loss"] != histories[2]["train_loss"]


def test_dropout_is_on_in_training_and_off_in_validation() -> None:
    model = small_model(dropout=0.5)
    same = batches(1, size=8)
    frozen = copy.deepcopy(model).eval()
    history = train_transformer(model, same, same, 1, learning_rate=1e-9)
    expected = F.cross_entropy(frozen(same[0]["input_ids"])[0], same[0]["labels"]).item()
    assert history["val_loss"] == pytest.approx([expected], abs=1e-6)
    assert abs(history["train_loss"][0] - expected) > 1e-5


@pytest.mark.usefixtures("without_type_checks")
def test_bad_data_is_refused() -> None:
    for training, held_out, options, message in (
        ([], batches(1), {}, "train_loader without a batch"),
        (batches(1), [], {}, "val_loader without a batch"),
        (iter(batches(1)), batches(1), {}, "train_loader without length"),
        (batches(1), batches(1), {"num_epochs": 0}, "num_epochs = 0"),
        (batches(1), batches(1), {"learning_rate": -1.0}, "learning_rate"),
    ):
        with refused(message):
            train_transformer(small_model(), training, held_out, **options)


def test_the_count_is_the_courses_beside_what_torch_executes() -> None:
    found = analyze_complexity(d_model=32, sequence_length=10, num_heads=4, d_ff=48)
    assert found["attention"] == 10**2 * 32
    assert found["feedforward"] == 10 * 32 * 48
    assert found["total"] == found["attention"] + found["feedforward"]
    layer = TransformerBlock(32, 4, 48).eval().as_layer()
    with torch.no_grad():
        counted = count_operations(lambda: layer(torch.randn(1, 10, 32)))
    assert found["executed_total"] == counted
    assert found["executed_total"] == sum(
        found[f"executed_{part}"] for part in ("projections", "attention", "feedforward")
    )
    assert found["executed_attention"] == 4 * found["attention"]
    assert found["executed_feedforward"] == 4 * found["feedforward"]
    with refused("num_heads = 5"):
        analyze_complexity(32, 10, 5, 48)
    with refused("length = 0"):
        analyze_complexity(32, 0, 4, 48)
    with refused("d_ff = 0"):
        analyze_complexity(32, 10, 4, 0)


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def reader(
    num_layers: int, num_heads: int, num_classes: int = 2
) -> tuple[MiniTransformer, SimpleTokenizer]:
    tokenizer = SimpleTokenizer(20)
    tokenizer.build_vocab(["the film is great !"])
    model = MiniTransformer(
        len(tokenizer.vocab),
        5 * num_heads,
        num_heads,
        num_layers,
        16,
        max_length=16,
        num_classes=num_classes,
    )
    nn.init.normal_(model.classifier.weight)
    return model, tokenizer


@pytest.mark.parametrize(("num_layers", "num_heads"), [(1, 2), (3, 6)])
def test_a_panel_for_each_layer_and_each_of_the_first_four_heads(
    num_layers: int, num_heads: int
) -> None:
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
        assert [label.get_text() for label in ax.get_yticklabels()] == [
            "<CLS>",
            "the",
            "film",
            "<UNK>",
            "great",
            "!",
        ]
        assert ax.images[0].get_clim() == pytest.approx(
            (0, max(each.max().item() for each in expected))
        )
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
    model, tokenizer = reader(1, 2, num_classes=3)
    nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([0.0, 0.0, 9.0])
    visualize_attention(model, tokenizer, "great film")
    assert "Prediction: class 2 (probability 1.000)" in capsys.readouterr().out
    assert [len(figures) for figures in shown] == [1, 1, 1]
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("a great \ud83d film", r"a great \ud83d film"),
        ("\U0001f44d\U0001f3fd 電影 great", "□□ □□ great"),
        ("great " * 100_000, ("great " * 17)[:97] + "..."),
        ("cost $5 and $x_{\\foo}$ $^", r"cost $5 and $x_{\foo}$ $^"),
        ("  ", "(empty)"),
    ],
    ids=["surrogate", "emoji", "long", "dollars", "empty"],
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


@pytest.mark.parametrize(("d_model", "d_ff"), [(8, 40), (8, 5), (64, 256)])
@pytest.mark.parametrize("joined", [False, True])
def test_attention_overtakes_at_the_first_length_at_which_it_takes_more(
    d_model: int, d_ff: int, joined: bool
) -> None:
    def more(length: int) -> bool:
        parts = analyze_complexity(d_model, length, 4, d_ff)
        attention = parts["executed_attention"] + (parts["executed_projections"] if joined else 0)
        return attention > parts["executed_feedforward"]

    assert overtakes(d_model, d_ff, with_projections=joined) == next(
        n for n in range(1, 1000) if more(n)
    )
