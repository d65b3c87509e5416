"""What a model attends to in one text: a grid of heat maps, layer by layer and head by head."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.labs.sentiment.text import SimpleTokenizer
from glassformer.observe.figures.attention_maps import attention_grid
from glassformer.observe.figures.coloured_words import shown
from glassformer.text import one_line

_SHOWN_HEADS, _LONGEST_WORD = 4, 20
_SENTIMENTS = ("Negative", "Positive")


def visualize_attention(model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int = 16) -> None:
    """Show :func:`draw_attention_grid` with pyplot, and print the prediction with its probability.

    Class 1 is called positive, class 0 negative.

    Raises:
        InputError: As there.
    """
    figure, prediction = _look(model, tokenizer, text, max_length)
    plt.show()
    if not plt.isinteractive():
        plt.close(figure)
    chosen = int(prediction.argmax())
    name = _SENTIMENTS[chosen] if len(prediction) == 2 else f"class {chosen}"
    print(f"Text: {_line(text)}\nPrediction: {name} (probability {float(prediction[chosen]):.3f})")


def draw_attention_grid(model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int = 16) -> Figure:
    """The attention of one text as a pyplot figure: a row of panels for each layer, one for each of its first 4 heads.

    In a panel, a row is a query and sums to 1. All panels share one scale, from 0 to the largest weight shown. Padding
    is left out. Above them stands the beginning of the text; what the font lacks is an empty box.

    Args:
        model: Maps ``input_ids`` to logits and, for each layer, weights ``[batch, head, query, key]``, as a
            :class:`~glassformer.labs.sentiment.network.MiniTransformer` does. It ends in evaluation mode.
        tokenizer: Its vocabulary is the model's.
        text: What is read.
        max_length: Tokens that the text is cut to.

    Raises:
        InputError: A text longer than the model can read, a tokenizer without vocabulary or with a larger one, or a
            model that gives no weights.
    """
    return _look(model, tokenizer, text, max_length)[0]


def _look(
    model: nn.Module, tokenizer: SimpleTokenizer, text: str, max_length: int
) -> tuple[Figure, Float[Tensor, " num_classes"]]:
    """The figure, and the probability of each class."""
    token_ids = tokenizer.tokenize(text, max_length=max_length)
    tokens = [tokenizer.inverse_vocab[index] for index in token_ids]
    tokens = [token for token in tokens if token != tokenizer.pad_token]
    place = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        output = model(torch.tensor([token_ids], device=place))
    require(
        isinstance(output, tuple) and len(output) == 2 and len(output[1]) > 0,
        f"a {type(model).__name__} without attention weights",
        "a model that returns logits and the weights of at least one layer",
        "Pass a MiniTransformer.",
    )
    logits, weights = output
    seen = [layer[0, :_SHOWN_HEADS, : len(tokens), : len(tokens)].float().cpu().numpy() for layer in weights]
    names = [shown(one_line(token, _LONGEST_WORD)) for token in tokens]
    title = shown(_line(text)).replace("$", r"\$")  # or matplotlib reads mathematics between two of them
    figure = attention_grid(seen, names, title=title, figure=plt.figure())
    return figure, logits[0].float().softmax(-1).cpu()


def _line(text: str) -> str:
    return one_line(text, 100) or "(empty)"
