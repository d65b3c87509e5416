"""The course's tokenizer, data set, training, view of attention, and count of operations."""

from collections.abc import Iterable, Sequence
from operator import index

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import Dataset

from glassformer.data.tokenizer import CLS, PAD, PAD_ID, UNK, WordTokenizer, require_text
from glassformer.errors import InputError, require_heads, require_positive
from glassformer.figures.attention_maps import attention_grid
from glassformer.figures.coloured_words import shown
from glassformer.labs.loaders import History, Loader, train_epochs
from glassformer.labs.sentiment.course import MiniTransformer
from glassformer.text import one_line
from glassformer.training import Batch


class SimpleTokenizer:
    """The course's tokenizer, a :class:`~glassformer.data.tokenizer.WordTokenizer` with padding.

    Words and punctuation marks are separate tokens, so "movie!" contains the word "movie". Id 0 is
    padding, 1 an unknown word, and 2 starts every text. The most frequent words follow from 3 on,
    up to ``vocab_size`` ids in all.
    """

    pad_token = PAD
    unk_token = UNK
    cls_token = CLS

    def __init__(self, vocab_size: int = 5000) -> None:
        self.vocab_size = vocab_size
        self.vocab: dict[str, int] = {}
        self.inverse_vocab: dict[int, str] = {}
        self._words: WordTokenizer | None = None

    @property
    def words(self) -> WordTokenizer:
        """The library's tokenizer with this vocabulary, which does not pad."""
        if self._words is None:
            raise InputError(
                got="a tokenizer without vocabulary",
                expected="a tokenizer that has seen texts",
                fix="Call build_vocab(texts).",
            )
        return self._words

    def build_vocab(self, texts: Iterable[str]) -> None:
        """Take the most frequent words of ``texts`` as the vocabulary. Pass training texts only."""
        self._words = WordTokenizer.from_texts(texts, self.vocab_size)
        self.vocab = dict(self._words.ids)
        self.inverse_vocab = {index: token for token, index in self.vocab.items()}

    def clean_text(self, text: str) -> str:
        """Return ``text`` in lower case, with single spaces between words only."""
        require_text(text)
        return " ".join(text.lower().split())

    def tokenize(self, text: str, max_length: int = 128) -> list[int]:
        """Return ``max_length`` ids: 2, the first words of ``text``, then padding."""
        ids = self.words.encode(text, max_length)
        return ids + [PAD_ID] * (max_length - len(ids))

    def decode(self, indices: Sequence[int]) -> str:
        """Return the words of ``indices``, without padding, ``<CLS>`` and unknown ids."""
        return self.words.decode([index for index in indices if index in self.inverse_vocab])


class SentimentDataset(Dataset[dict[str, Tensor]]):
    """The course's data set: labelled texts, each a row of ``max_length`` ids."""

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        tokenizer: SimpleTokenizer,
        max_length: int = 32,
    ) -> None:
        if len(texts) != len(labels):
            raise InputError(
                got=f"{len(texts)} texts with {len(labels)} labels",
                expected="one label per text",
                fix="Pass the labels of the same texts.",
            )
        self.texts = texts
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.labels = [index(label) for label in labels]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, idx: int) -> dict[str, Tensor]:
        """Return ``{"input_ids": int64 [max_length], "labels": int64 []}``."""
        ids = self.tokenizer.tokenize(self.texts[idx], max_length=self.max_length)
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(self.labels[idx])}


def train_transformer(
    model: nn.Module,
    train_loader: Loader,
    val_loader: Loader,
    num_epochs: int = 5,
    learning_rate: float = 1e-3,
) -> History:
    """Minimise the cross-entropy of ``model``, in place, and print a line after each epoch.

    The optimizer is AdamW with a weight decay of 0.01 on matrices, at a constant rate. The course
    suggests Adam with ``weight_decay=0.01``, which adds the decay to the gradient instead.

    Args:
        model: A :class:`~glassformer.labs.sentiment.course.MiniTransformer`, or a module that maps
            ``input_ids`` to logits ``[batch, class]``, alone or first in a tuple.
        train_loader: Training batches of a :class:`SentimentDataset`.
        val_loader: Validation batches of a :class:`SentimentDataset`.
        num_epochs: Number of passes over the training batches.
        learning_rate: Constant learning rate.

    Returns:
        The history of :func:`~glassformer.labs.loaders.train_epochs`, with accuracies in percent.
    """
    # The encoder shares the model's weights, and does not compute the attention weights.
    trained = model.encoder if isinstance(model, MiniTransformer) else model
    history = train_epochs(
        trained,
        train_loader,
        val_loader,
        named=dict,
        measure=_cross_entropy,
        num_epochs=num_epochs,
        learning_rate=learning_rate,
        weight_decay=0.01,
    )
    model.eval()
    for name in ("train_acc", "val_acc"):
        history[name] = [100 * share for share in history[name]]
    return history


def _cross_entropy(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    output = model(batch["input_ids"])
    labels = batch["labels"]
    logits = output[0] if isinstance(output, tuple) else output
    return F.cross_entropy(logits, labels), logits.argmax(-1) == labels


def visualize_attention(
    model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int = 16
) -> None:
    """Show :func:`draw_attention_grid` with pyplot, and print the prediction (1 is positive)."""
    figure, probabilities = _attention_of(model, tokenizer, text, max_length)
    plt.show()
    if not plt.isinteractive():
        plt.close(figure)
    chosen = int(probabilities.argmax())
    if len(probabilities) == 2:
        name = ("Negative", "Positive")[chosen]
    else:
        name = f"class {chosen}"
    print(
        f"Text: {_line(text)}\nPrediction: {name} (probability {float(probabilities[chosen]):.3f})"
    )


def draw_attention_grid(
    model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int = 16
) -> Figure:
    """Draw the attention of one text: a row of panels per layer, with its first four heads.

    A row of a panel is a query and sums to 1. All panels share one scale, from 0 to the largest
    weight shown.

    Args:
        model: Returns logits, and weights ``[batch, head, query, key]`` by layer.
        tokenizer: Tokenizer of the model.
        text: Text to read.
        max_length: Maximum number of tokens to read.
    """
    return _attention_of(model, tokenizer, text, max_length)[0]


@torch.no_grad()
def _attention_of(
    model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int
) -> tuple[Figure, Float[Tensor, " num_classes"]]:
    ids = tokenizer.words.encode(text, max_length)
    logits, weights = model.eval()(torch.tensor([ids], device=next(model.parameters()).device))
    layers = [layer[0, :4].float().cpu().numpy() for layer in weights]
    names = tokenizer.words.pieces(ids)
    figure = attention_grid(layers, names, title=shown(_line(text)), figure=plt.figure())
    return figure, logits[0].float().softmax(-1).cpu()


def _line(text: str) -> str:
    return one_line(text, 100) or "(empty)"


def analyze_complexity(
    d_model: int, sequence_length: int, num_heads: int, d_ff: int
) -> dict[str, int]:
    """Count operations of a block on one text: by the course's formulas, and as executed::

        attention             sequence_length ** 2 * d_model
        feedforward           sequence_length * d_model * d_ff
        total                 their sum
        executed_projections  8 sequence_length d_model ** 2
        executed_attention    4 sequence_length ** 2 d_model
        executed_feedforward  4 sequence_length d_model d_ff
        executed_total        their sum

    The course counts one of the two products of each part, counts a multiplication and its addition
    as one operation, and leaves out the projections. By both counts, attention overtakes the
    feed-forward network at a length of d_ff.
    """
    require_positive(
        d_model=d_model, sequence_length=sequence_length, num_heads=num_heads, d_ff=d_ff
    )
    require_heads(num_heads, d_model=d_model)
    attention = sequence_length**2 * d_model
    feedforward = sequence_length * d_model * d_ff
    projections = 8 * sequence_length * d_model**2
    return {
        "attention": attention,
        "feedforward": feedforward,
        "total": attention + feedforward,
        "executed_projections": projections,
        "executed_attention": 4 * attention,
        "executed_feedforward": 4 * feedforward,
        "executed_total": projections + 4 * attention + 4 * feedforward,
    }


def overtakes(d_model: int, d_ff: int, *, with_projections: bool = False) -> int:
    """Return the smallest n of tokens at which attention exceeds the feed-forward network.

    Operations of the two, without and with the projections::

        4 n ** 2 d_model > 4 n d_model d_ff                      from n = d_ff + 1
        4 n ** 2 d_model + 8 n d_model ** 2 > 4 n d_model d_ff   from n = d_ff - 2 d_model + 1
    """
    length = d_ff + 1
    if with_projections:
        length -= 2 * d_model
    return max(1, length)
