"""Token ids: checks, and look-ups in an embedding."""

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
    """Check the shape, dtype and length of token ids, and of a mask of them.

    Args:
        tokens: The token ids.
        max_seq_len: Most positions, together with the ``start`` earlier ones.
        start: Number of earlier positions.
        name: Name of the tokens in messages.
        limit: Name of ``max_seq_len`` in messages.
        real: A mask, True where a token is real.
        real_name: Name of the mask in messages.
    """
    if not isinstance(tokens, Tensor):
        raise InputError(
            got=f"{name} of type {type(tokens).__name__}",
            expected="a tensor of token ids, [batch, position]",
            fix=(
                "With lm = glassformer.load(...), lm(text) and lm(batch) read texts; "
                "lm.model(**batch) takes a batch."
            ),
        )
    if tokens.dim() != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 1:
        raise InputError(
            got=f"{name} of shape {list(tokens.shape)}",
            expected="[batch, position] with at least one of each",
            fix=f"Add a batch axis with {name}[None], and start an empty text with a token.",
        )
    if tokens.dtype not in _WHOLE:
        raise InputError(
            got=f"{name} of dtype {tokens.dtype}",
            expected="int64 or int32",
            fix=f"Convert them with {name}.long().",
        )
    stop = start + tokens.shape[1]
    if stop > max_seq_len:
        positions = "positions" if name == "tokens" else f"positions of {name}"
        raise InputError(
            got=f"{stop} {positions}",
            expected=f"at most {limit} = {max_seq_len}",
            fix=f"Shorten the text, or make the model with a larger {limit}.",
        )
    if real is not None:
        check_real(real_name, real, tokens)


def check_real(name: str, real: Tensor, tokens: Tensor) -> None:
    """Raise :class:`InputError` if a mask is not boolean or has another shape than its tokens."""
    if real.shape != tokens.shape or real.dtype != torch.bool:
        raise InputError(
            got=f"{name} of shape {list(real.shape)} and dtype {real.dtype}",
            expected=f"torch.bool and the shape of the tokens, {list(tokens.shape)}",
            fix=(
                "Give True for each real token and False for each padding token, as "
                "tokens != pad_id does."
            ),
        )


def look_up(
    table: nn.Embedding, name: str, numbers: Int[Tensor, "*places"]
) -> Float[Tensor, "*places hidden_dim"]:
    """Return rows of ``table``; for numbers outside it an error names the smallest and largest."""
    # On these devices the look-up itself raises, or there are no values.
    if numbers.device.type in ("cpu", "meta") or transformed():
        try:
            return table(numbers)
        except IndexError:
            pass
    low, high = (int(number) for number in numbers.aminmax())
    rows = table.num_embeddings
    if low < 0 or high >= rows:
        raise InputError(
            got=f"{name} from {low} to {high}",
            expected=f"{name} in [0, {rows})",
            fix="Use the tokenizer that belongs to the model.",
        )
    return table(numbers)
