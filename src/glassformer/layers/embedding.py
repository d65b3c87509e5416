"""Token ids: their checks, and their rows of an embedding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.kernels.dispatch import transformed

_WHOLE = (torch.int64, torch.int32)


def check_tokens(
    tokens: Tensor,
    max_seq_len: int,
    start: int = 0,
    *,
    name: str = "tokens",
    limit: str = "max_seq_len",
    real: Tensor | None = None,
    real_name: str = "key_padding",
) -> None:
    """Check the shape, dtype and length of token ids after ``start`` earlier positions, and of a
    mask of them.

    ``name``, ``limit`` and ``real_name`` are what a message calls the tokens, ``max_seq_len`` and
    the mask.
    """
    if not isinstance(tokens, Tensor):
        raise InputError(
            got=f"{name} of type {type(tokens).__name__}",
            expected="a tensor of token ids, [batch, position]",
            fix=(
                "Of what glassformer.load() gives, lm(text) and lm(batch) read texts; "
                "lm.model(**batch) takes a batch."
            ),
        )
    shape = f"{name} of shape {list(tokens.shape)}"
    some = tokens.dim() == 2 and tokens.shape[0] >= 1 and tokens.shape[1] >= 1
    fix = f"Add a batch axis with {name}[None], and start an empty text with a token."
    if not some:
        raise InputError(
            got=shape,
            expected="[batch, position] with at least one of each",
            fix=fix,
        )
    fix = f"Convert them with {name}.long()."
    if tokens.dtype not in _WHOLE:
        raise InputError(
            got=f"{name} of dtype {tokens.dtype}",
            expected="int64 or int32",
            fix=fix,
        )
    stop = start + tokens.shape[1]
    positions = f"{stop} positions" + ("" if name == "tokens" else f" of {name}")
    fix = f"Shorten the text, or make the model with a larger {limit}."
    if not stop <= max_seq_len:
        raise InputError(
            got=positions,
            expected=f"at most {limit} = {max_seq_len}",
            fix=fix,
        )
    if real is not None:
        check_real(real_name, real, tokens)


def check_real(name: str, real: Tensor, tokens: Tensor) -> None:
    """Raise :class:`InputError` if a mask is not boolean or has another shape than the tokens it
    belongs to.
    """
    if (
        real.shape != tokens.shape or real.dtype != torch.bool
    ):  # formatting takes longer than both checks
        raise InputError(
            f"{name} of shape {list(real.shape)} and dtype {real.dtype}",
            f"torch.bool and the shape of the tokens, {list(tokens.shape)}",
            "Give True for each real token and False for each padding token, as tokens != pad_id "
            "does.",
        )


def look_up(
    table: nn.Embedding, name: str, numbers: Int[Tensor, "*places"]
) -> Float[Tensor, "*places hidden_dim"]:
    """Rows of ``table``; for numbers outside it an error names the smallest and the largest."""
    if (
        numbers.device.type in ("cpu", "meta") or transformed()
    ):  # the lookup itself raises, or there are no values
        try:
            return table(numbers)
        except IndexError:
            pass
    low, high = (int(number) for number in numbers.aminmax())
    rows = table.num_embeddings
    if not (low >= 0 and high < rows):
        raise InputError(
            got=f"{name} from {low} to {high}",
            expected=f"{name} in [0, {rows})",
            fix="Use the tokenizer that belongs to the model.",
        )
    return table(numbers)
