"""Rows of an embedding."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.rule import transformed


def look_up(table: nn.Embedding, name: str, numbers: Int[Tensor, "*places"]) -> Float[Tensor, "*places hidden_dim"]:
    """Rows of ``table``.

    Raises:
        InputError: Numbers outside the table; the smallest and the largest are named.
    """
    if numbers.device.type in ("cpu", "meta") or transformed():  # the lookup itself raises, or there are no values
        try:
            return table(numbers)
        except IndexError:
            pass
    low, high = (int(number) for number in numbers.aminmax())
    rows = table.num_embeddings
    fix = "Use the tokenizer that belongs to the model."
    require(low >= 0 and high < rows, f"{name} from {low} to {high}", f"{name} in [0, {rows})", fix)
    return table(numbers)
