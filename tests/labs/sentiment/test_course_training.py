"""The course's training and count of operations, beside the same done by hand."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glassformer.labs.sentiment.course import MiniTransformer, TransformerBlock
from glassformer.labs.sentiment.course_training import (
    SentimentDataset,
    SimpleTokenizer,
    analyze_complexity,
    train_transformer,
)
from glassformer.observe.cost import count_operations
from refusals import refused

GOOD = ["a great film", "great acting", "i love it", "a lovely plot", "great fun", "love the cast"]
BAD = ["a dull film", "bad acting", "i hate it", "an awful plot", "dull and bad", "hate the cast"]


def small_model(vocab_size: int = 30, dropout: float = 0.1) -> MiniTransformer:
    return MiniTransformer(
        vocab_size, d_model=16, num_heads=2, num_layers=1, d_ff=16, max_length=8, num_classes=2, dropout=dropout
    )


def batches(count: int = 3, size: int = 4) -> list[dict[str, Tensor]]:
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
    model: nn.Module, training: list[dict[str, Tensor]], held_out: list[dict[str, Tensor]], epochs: int
) -> dict:
    """The course's loop, with AdamW."""
    history: dict[str, list[float]] = {"train_loss": [], "train_acc": [], "val_loss": [], "val_acc": []}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(epochs):
        for name, data in (("train", training), ("val", held_out)):
            losses, hits, total = [], 0, 0
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
def test_history_is_what_the_courses_loop_counts(in_tuple: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, twin = Plain(in_tuple), Plain(False)
    twin.load_state_dict(model.state_dict())
    training, held_out = [*batches(3), *batches(1, size=2)], batches(2, size=6)
    history = train_transformer(model, training, held_out, num_epochs=3, learning_rate=0.05)
    expected = by_hand(twin, training, held_out, 3)
    assert set(history) == set(expected)
    for name, numbers in expected.items():
        assert history[name] == pytest.approx(numbers, abs=1e-5)
    torch.testing.assert_close(model.table.weight, twin.table.weight)
    assert not model.training
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    numbers = expected["train_loss"][2], expected["val_loss"][2], expected["val_acc"][2]
    assert all(f"{number:.4f}" in printed[2] for number in numbers[:2])
    assert printed[2].endswith(f"accuracy {numbers[2]:.2f}%")


def test_the_courses_model_learns_words_that_decide() -> None:
    tokenizer = SimpleTokenizer(100)
    tokenizer.build_vocab(GOOD + BAD)
    data = SentimentDataset(GOOD + BAD, [1] * 6 + [0] * 6, tokenizer, max_length=8)
    model = small_model(len(tokenizer.vocab))
    history = train_transformer(
        model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=5), 20, 1e-2
    )
    assert len(history["val_acc"]) == 20
    assert history["val_acc"][-1] == 100
    logits, _ = model(torch.tensor([tokenizer.tokenize(text, 8) for text in GOOD + BAD]))
    assert logits.argmax(-1).tolist() == [1] * 6 + [0] * 6


def test_random_numbers_follow_torchs_seed() -> None:
    data = [{name: rows[i] for name, rows in batches(1, size=12)[0].items()} for i in range(12)]
    start, histories = small_model(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(data, batch_size=4, shuffle=True)  # type: ignore[arg-type, var-annotated]
        histories.append(train_transformer(copy.deepcopy(start), loader, batches(1), 2))
    assert histories[0] == histories[1]
    assert histories[0]["train_loss"] != histories[2]["train_loss"]


def test_dropout_is_on_in_training_and_off_in_validation() -> None:
    model, same = small_model(dropout=0.5), batches(1, size=8)
    frozen = copy.deepcopy(model).eval()
    history = train_transformer(model, same, same, 1, learning_rate=1e-9)
    expected = F.cross_entropy(frozen(same[0]["input_ids"])[0], same[0]["labels"]).item()
    assert history["val_loss"] == pytest.approx([expected], abs=1e-6)
    assert abs(history["train_loss"][0] - expected) > 1e-5


@pytest.mark.usefixtures("without_type_checks")
def test_bad_data_is_refused() -> None:
    model = small_model()
    with refused("train_loader without a batch"):
        train_transformer(model, [], batches(1))
    with refused("val_loader without a batch"):
        train_transformer(model, batches(1), [])
    with refused("train_loader without length"):
        train_transformer(model, iter(batches(1)), batches(1))  # type: ignore[arg-type]
    with refused("num_epochs = 0"):
        train_transformer(model, batches(1), batches(1), num_epochs=0)
    with refused("learning_rate"):
        train_transformer(model, batches(1), batches(1), learning_rate=-1.0)


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
