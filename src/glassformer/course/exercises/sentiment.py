"""Exercises of the sentiment lesson."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from glassformer.course.checking import Case, Exercise, ValuesAlone, build
from glassformer.course.exercises.inputs import LARGE, LARGE_LOGITS, attention_far_from_zero
from glassformer.data.tokenizer import PAD_ID, WordTokenizer
from glassformer.labs.sentiment import course
from glassformer.layers.positions import SinusoidalPositions

DTYPES = (torch.float32, torch.float64)

TEXTS = (
    ["good good bad"],
    ["b a", "a b"],
    ["Good film, GOOD cast.", "A bad film!", "It isn't good; it isn't bad."],
    ["the plot is the plot", "the cast is fine", "no plot, no cast, no film"],
)


def _vocabulary(texts: list[str], size: int) -> dict[str, int]:
    return WordTokenizer.from_texts(texts, size).ids


def _vocabulary_cases(generator: torch.Generator) -> Iterator[Case]:
    for texts in TEXTS:
        for size in (4, 5, 8, 100):
            yield texts, size
    yield list(TEXTS[-1])[::-1], 6


def _encode(text: str, vocabulary: dict[str, int], max_length: int) -> list[int]:
    ids = WordTokenizer(tuple(vocabulary)[3:]).encode(text, max_length)
    return [*ids, *[PAD_ID] * (max_length - len(ids))]


def _encode_cases(generator: torch.Generator) -> Iterator[Case]:
    vocabulary = _vocabulary(list(TEXTS[2]), 9)
    for length in (4, 1, 2, 8, 30):
        for text in (
            "good",
            "",
            "A good film!",
            "An odd, odd film.",
            "It isn't GOOD; it is not bad: it is odd.",
        ):
            yield text, vocabulary, length


def _positions(max_length: int, d_model: int) -> Tensor:
    return SinusoidalPositions(d_model, max_length).table


def _positions_cases(generator: torch.Generator) -> Iterator[Case]:
    yield from ((2, 2), (3, 4), (5, 4), (1, 8), (12, 6), (50, 16), (64, 64))


class Square(nn.Dropout):
    """Replaces dropout by squares, which show where it is applied without random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Square each number."""
        return x.square()

    def extra_repr(self) -> str:
        """Return "": there is no probability to show."""
        return ""


def _embeddings_cases(generator: torch.Generator) -> Iterator[Case]:
    for sizes, shape in (
        ((5, 4, 2), (1, 2)),
        ((5, 4, 6), (1, 2)),
        ((9, 6, 16), (3, 7)),
        ((100, 64), (2, 30)),
    ):
        for batch, length in (shape, (shape[0] + 1, shape[1] - 1)):
            yield sizes, torch.randint(0, sizes[0], (batch, length), generator=generator)
    for dropout in (1.0, 0.0):
        dropping = {"vocab_size": 5, "d_model": 4, "max_length": 6, "dropout": dropout}
        yield dropping, torch.randint(0, 5, (1, 2), generator=generator)


def _mask(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw a mask in which every query sees at least the first key."""
    mask = torch.rand(*shape, generator=generator) < 0.6
    mask[..., 0] = True
    return mask


def _attention_cases(generator: torch.Generator) -> Iterator[Case]:
    for dtype in DTYPES:
        for batch, queries, keys, d_k, d_v in (
            ((), 2, 2, 2, 2),
            ((1,), 2, 3, 4, 4),
            ((2, 4), 5, 7, 16, 8),
            ((3, 2), 9, 9, 5, 5),
        ):
            q, k, v = (
                torch.randn(*batch, *shape, generator=generator, dtype=dtype)
                for shape in ((queries, d_k), (keys, d_k), (keys, d_v))
            )
            yield q, k, v
            yield (
                q,
                k,
                v,
                _mask(*batch[:1], *[1] * len(batch[1:]), queries, keys, generator=generator),
            )
            yield q, k, v, None, Square()
        yield from map(ValuesAlone, attention_far_from_zero(dtype))


def _sequences(
    generator: torch.Generator, sizes: tuple[tuple[int, ...], ...], heads: bool, names: str = ""
) -> Iterator[tuple[Any, ...]]:
    """Yield cases of a class whose first size is its width.

    With ``heads`` some cases have masks. With ``names``, the names of its sizes, some have dropout.
    """
    for dtype in DTYPES:
        for size, (batch, length) in zip(sizes, ((1, 2), (1, 3), (3, 5), (2, 9)), strict=True):
            x = torch.randn(batch, length, size[0], generator=generator, dtype=dtype)
            yield size, x
            if heads:
                yield size, x, _mask(batch, 1, 1, length, generator=generator)
                yield size, x, _mask(batch, 1, length, length, generator=generator)
                yield ValuesAlone([size, LARGE * x])
            yield (
                size,
                torch.randn(batch + 1, length + 1, size[0], generator=generator, dtype=dtype),
            )
    if names:
        for dropout in (1.0, 0.0):
            dropping = dict(zip(names.split(), sizes[1], strict=True)) | {"dropout": dropout}
            yield dropping, torch.randn(2, 3, sizes[1][0], generator=generator)
            if heads:
                mask = _mask(2, 1, 1, 3, generator=generator)
                yield dropping, torch.randn(2, 3, sizes[1][0], generator=generator), mask


def _heads_cases(generator: torch.Generator) -> Iterator[Case]:
    return _sequences(
        generator, ((2, 1), (4, 2), (12, 3), (64, 8)), heads=True, names="d_model num_heads"
    )


def _norm_cases(generator: torch.Generator) -> Iterator[Case]:
    # With two numbers, or three nearly equal ones, the gradient would cancel up to rounding.
    for size, x in _sequences(generator, ((4,), (5,), (6,), (64,)), heads=False):
        yield size, x
        yield size, 5 * x + 10
        yield size, 1e-5 * x
    yield (4, 0.5), torch.randn(2, 3, 4, generator=generator)
    # Exact in float32, unlike the mean of squares minus the squared mean.
    yield ValuesAlone([(4,), torch.tensor([[[4096.0, 4097.0, 4098.0, 4099.0]]])])


def _feed_forward_cases(generator: torch.Generator) -> Iterator[Case]:
    return _sequences(
        generator, ((1, 2), (2, 3), (6, 24), (64, 16)), heads=False, names="d_model d_ff"
    )


def _block_cases(generator: torch.Generator) -> Iterator[Case]:
    # Not a width of 2: normalisation turns any two numbers into -1 and 1.
    sizes = ((3, 1, 2), (4, 2, 8), (12, 3, 7), (32, 8, 64))
    return _sequences(generator, sizes, heads=True, names="d_model num_heads d_ff")


def _pooling(x: Tensor, real: Tensor) -> Tensor:
    """Average each text's real rows, text by text; zeros for a text without any."""
    means = [
        rows[is_real].mean(0) if is_real.any() else 0.0 * rows.sum(0)
        for rows, is_real in zip(x, real, strict=True)
    ]
    return torch.stack(means)


def _real(lengths: list[int], longest: int) -> Tensor:
    """Return a mask that is True for tokens and False for padding."""
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def _pooling_cases(generator: torch.Generator) -> Iterator[Case]:
    """Yield cases in float32 only: an answer may compute shares in float32."""
    for lengths, longest, width in (
        ([1], 2, 1),
        ([2], 2, 2),
        ([3, 1], 4, 2),
        ([2, 0], 3, 2),
        ([9, 4, 6], 9, 16),
    ):
        yield (
            torch.randn(len(lengths), longest, width, generator=generator),
            _real(lengths, longest),
        )
    yield torch.randn(4, 7, 3, generator=generator), torch.rand(4, 7, generator=generator) < 0.5


def _classifier_cases(generator: torch.Generator) -> Iterator[Case]:
    """Yield sizes and ids, in one case with a mask."""
    names = "vocab_size", "d_model", "num_heads", "num_layers", "d_ff", "max_length", "num_classes"
    for sizes, lengths, longest in (
        ((5, 4, 1, 1, 3, 4, 2), [2], 2),
        ((5, 4, 2, 1, 3, 4, 2), [2], 3),
        ((9, 8, 2, 2, 16, 8, 2), [3, 8], 8),
        ((50, 16, 4, 3, 32, 20, 5), [20, 1, 11], 20),
    ):
        ids = torch.randint(1, sizes[0], (len(lengths), longest), generator=generator)
        ids = ids.where(_real(lengths, longest), PAD_ID)
        yield sizes, ids
        yield sizes, ids, torch.ones_like(ids)
        yield sizes, ids[:, :2]
    for dropout in (1.0, 0.0):
        dropping = dict(zip(names, (9, 8, 2, 2, 16, 8, 2), strict=True)) | {"dropout": dropout}
        yield dropping, torch.randint(1, 9, (2, 3), generator=generator)


def _classifier(*sizes: int, dropout: float = 0.1, **named: int) -> nn.Module:
    model = course.MiniTransformer(*sizes, **named)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return model


class _SmallClassifier(nn.Module):
    """A small classifier with dropout, which the training step trains."""

    def __init__(self, num_classes: int, dropout: float, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.table = nn.Embedding(7, 6)
        self.head = nn.Linear(6, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        vectors = self.table(input_ids)
        return self.factor * self.head(self.dropout(vectors.tanh()).mean(1)), [vectors]


def _training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, input_ids: Tensor, labels: Tensor
) -> float:
    model.train()
    loss = cross_entropy(model(input_ids)[0], labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _some_steps(step: Callable[..., float], case: Any) -> dict[str, Any]:
    """Return the losses of some steps from evaluation mode, and the weights after them."""
    torch.manual_seed(0)
    model = _SmallClassifier(case["classes"], case["dropout"], case["factor of the logits"])
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    batches = zip(case["ids of each step"], case["labels of each step"], strict=True)
    losses = [step(model, optimizer, input_ids, labels) for input_ids, labels in batches]
    return {"loss of each step": losses, "weights": dict(model.state_dict())}


def _step_cases(generator: torch.Generator) -> Iterator[Case]:
    for classes, dropout, factor, steps, texts in (
        (2, 0.0, 1.0, 1, 1),
        (2, 0.0, 1.0, 2, 3),
        (3, 0.5, 1.0, 3, 4),
        (3, 0.0, LARGE_LOGITS, 1, 4),  # logits whose exponentials overflow
    ):
        ids = torch.randint(0, 7, (steps, texts, 5), generator=generator)
        labels = torch.randint(0, classes, (steps, texts), generator=generator)
        model = {"classes": classes, "dropout": dropout, "factor of the logits": factor}
        yield {**model, "ids of each step": ids, "labels of each step": labels}


def _received(weights: Tensor, real: Tensor) -> Tensor:
    """Average the weights over heads and real queries, text by text."""
    return torch.stack(
        [rows[:, is_real].mean((0, 1)) for rows, is_real in zip(weights, real, strict=True)]
    )


def _received_cases(generator: torch.Generator) -> Iterator[Case]:
    for lengths, longest, heads in (
        ([2], 2, 1),
        ([2], 2, 2),
        ([2], 3, 2),
        ([3, 5], 5, 4),
        ([4, 2, 6], 7, 8),
    ):
        real = _real(lengths, longest)
        scores = torch.randn(len(lengths), heads, longest, longest, generator=generator)
        yield scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1), real


EXERCISES = (
    Exercise("vocabulary", _vocabulary, _vocabulary_cases),
    Exercise("encode", _encode, _encode_cases),
    # Angles may be computed in float32.
    Exercise("positions", _positions, _positions_cases, tolerance=1e-4, same_dtype=True),
    Exercise("embeddings", course.TransformerEmbeddings, _embeddings_cases, build, tolerance=1e-4),
    Exercise("attention", course.scaled_dot_product_attention, _attention_cases),
    # The gradient of the key's bias is 0 up to rounding.
    Exercise("multi-head", course.MultiHeadAttention, _heads_cases, build, tolerance=1e-4),
    Exercise("layer-norm", course.LayerNorm, _norm_cases, build),
    Exercise("feed-forward", course.FeedForward, _feed_forward_cases, build),
    Exercise("block", course.TransformerBlock, _block_cases, build, tolerance=1e-4),
    Exercise("pooling", _pooling, _pooling_cases),
    Exercise("classifier", _classifier, _classifier_cases, build, tolerance=1e-4),
    Exercise(
        "training-step", _training_step, _step_cases, _some_steps, gradients=False, same_dtype=True
    ),
    Exercise("attention-received", _received, _received_cases),
)
