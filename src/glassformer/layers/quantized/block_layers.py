"""Layers that hold GGUF's blocks of packed weights, as they are in the file."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.kernels.blocks import KINDS, block_linear, values


class BlockLinear(nn.Linear):
    """A linear layer whose weights are blocks of the file, for inference and for gradients of activations.

    Products are those of the model in the file: activations are not rounded to 8 bits. ``weight`` is the expanded
    matrix in float32, made anew at each use; it has no gradient. ``kind`` is one of
    :data:`~glassformer.kernels.blocks.KINDS`, whose block divides ``in_features``.

    Shape: ``[..., in_features]`` to ``[..., out_features]``.
    """

    blocks: Tensor

    def __init__(self, in_features: int, out_features: int, kind: str, bias: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.kind = in_features, out_features, kind
        self.register_buffer("blocks", _room(kind, out_features, in_features))
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features), requires_grad=False) if bias else None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The expanded weights."""
        return values(self.kind, self.blocks)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``x @ weight.T + bias``."""
        return block_linear(x, self.blocks, self.kind, self.bias)

    def extra_repr(self) -> str:
        """As of a linear layer, with the format."""
        return f"{super().extra_repr()}, kind={self.kind}"


class BlockEmbedding(nn.Embedding):
    """An embedding whose rows are blocks of the file, expanded when they are looked up; see :class:`BlockLinear`."""

    blocks: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int, kind: str) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim, self.kind = num_embeddings, embedding_dim, kind
        self.max_norm = self.padding_idx = None
        self.register_buffer("blocks", _room(kind, num_embeddings, embedding_dim))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The expanded rows in float32, without a gradient."""
        return values(self.kind, self.blocks)

    def forward(self, numbers: Int[Tensor, "*places"]) -> Float[Tensor, "*places embedding_dim"]:
        """The rows of these numbers."""
        return values(self.kind, nn.functional.embedding(numbers, self.blocks))

    def extra_repr(self) -> str:
        """Sizes and format."""
        return f"{self.num_embeddings}, {self.embedding_dim}, kind={self.kind}"


def _room(kind: str, rows: int, width: int) -> Tensor:
    require(kind in KINDS, f"kind = {kind!r}", f"one of {', '.join(KINDS)}", "Expand other weights.")
    block = KINDS[kind].block
    require(width % block == 0, f"a width of {width}", f"a multiple of {block} for {kind}", "Expand these weights.")
    return torch.zeros(rows, KINDS[kind].row_bytes(width), dtype=torch.uint8)
