"""Tokens as a model is given them: checked, and looked up in a table."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require

_WHOLE = (torch.int64, torch.int32)


def require_tokens(
    tokens: Tensor, max_seq_len: int, start: int = 0, *, name: str = "tokens", limit: str = "max_seq_len"
) -> None:
    """Refuse what is not ``[batch, position]`` of whole numbers, or does not fit behind ``start`` earlier positions.

    Args:
        tokens: What was passed.
        max_seq_len: The most positions in all.
        start: Earlier positions.
        name: What the tokens are called, for the message.
        limit: What the field of the configuration is called that holds ``max_seq_len``, for the message.

    Raises:
        InputError: Another shape or dtype, no text, no position, or more than ``max_seq_len`` with the earlier ones.
    """
    require(
        tokens.dim() == 2 and tokens.shape[0] >= 1 and tokens.shape[1] >= 1,
        f"{name} of shape {list(tokens.shape)}",
        "[batch, position] with at least one of each",
        f"Add a batch axis with {name}[None], and start an empty text with a token.",
    )
    require(
        tokens.dtype in _WHOLE,
        f"{name} of dtype {tokens.dtype}",
        "int64 or int32",
        f"Convert them with {name}.long().",
    )
    require(
        start + tokens.shape[1] <= max_seq_len,
        f"{start + tokens.shape[1]} positions" + ("" if name == "tokens" else f" of {name}"),
        f"at most {limit} = {max_seq_len}",
        f"Shorten the text, or make the model with a larger {limit}.",
    )


def require_real(name: str, real: Tensor | None, tokens: Tensor) -> None:
    """Refuse a mask that does not say for each of ``tokens`` whether it is real; None is none.

    Raises:
        InputError: Another shape than that of the tokens, or another dtype than ``torch.bool``.
    """
    require(
        real is None or (real.shape == tokens.shape and real.dtype == torch.bool),
        "nothing" if real is None else f"{name} of shape {list(real.shape)} and dtype {real.dtype}",
        f"torch.bool and the shape of the tokens, {list(tokens.shape)}",
        "Give True for each real token and False for each padding token, as tokens != pad_id does.",
    )


def require_numbers(name: str, numbers: Tensor, tokens: Tensor, fix: str) -> None:
    """Refuse ``numbers`` that are not one whole number for each of ``tokens``.

    Raises:
        InputError: Another shape or dtype.
    """
    require(
        numbers.shape == tokens.shape and numbers.dtype in _WHOLE,
        f"{name} of shape {list(numbers.shape)} and dtype {numbers.dtype}",
        f"int64 or int32 and the shape of the tokens, {list(tokens.shape)}",
        fix,
    )


def look_up(table: nn.Embedding, name: str, numbers: Int[Tensor, "*places"]) -> Float[Tensor, "*places hidden_dim"]:
    """Rows of ``table``.

    Raises:
        InputError: Numbers that have no row; the least and the largest are named.
    """
    if numbers.device.type in ("cpu", "meta"):  # the one tells by itself, the other has no numbers
        try:
            return table(numbers)
        except IndexError:
            pass
    low, high = (int(number) for number in numbers.aminmax())
    require(
        low >= 0 and high < table.num_embeddings,
        f"{name} from {low} to {high}",
        f"{name} in [0, {table.num_embeddings})",
        "Use the tokenizer that belongs to the model.",
    )
    return table(numbers)
