"""Feed-forward networks: two layers with ReLU or GELU; and with a gate, SwiGLU, plain and as gpt-oss clamps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.layers.linear import Linear

Activation = Literal["relu", "gelu"]


def require_activation(activation: Activation) -> None:
    """Raise :class:`InputError` for an activation that does not exist."""
    require(
        activation in ("relu", "gelu"),
        f"activation = {activation!r}",
        "'relu' or 'gelu'",
        "The first transformer has ReLU, BERT has GELU.",
    )


class MLP(nn.Module):
    """A feed-forward network of two layers::

        output = down(dropout(activation(up(x))))

    ``relu(x) = max(x, 0)``; ``gelu(x) = x P(Z <= x)`` for a standard normal Z, exact (no tanh in its place).

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside.
        activation: ``"relu"`` or ``"gelu"``.
        dropout: Probability of dropping a number between the layers in training.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Raises:
        InputError: A size below 1, an unknown activation, dropout outside [0, 1), or an input of another width.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.3; Hendrycks and Gimpel 2016, arXiv 1606.08415 (GELU).
    """

    def __init__(self, hidden_dim: int, ff_dim: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        require_activation(activation)
        require(0 <= dropout < 1, f"dropout = {dropout}", "a probability in [0, 1)", "Use 0 to switch it off.")
        self.up = Linear(hidden_dim, ff_dim)
        self.down = Linear(ff_dim, hidden_dim)
        self.activation, self.dropout = activation, dropout

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Apply the network to every position on its own."""
        require(
            x.shape[-1] == self.up.in_features,
            f"input of width {x.shape[-1]}",
            f"hidden_dim = {self.up.in_features}",
            "Build the layer with the width of its input.",
        )
        inside = self.up(x)
        inside = F.relu(inside) if self.activation == "relu" else F.gelu(inside)
        return self.down(F.dropout(inside, self.dropout, self.training))


@dataclass(frozen=True)
class Clamp:
    """How gpt-oss tames SwiGLU: ``gate * sigmoid(alpha * gate) * (up + 1)`` with gate <= limit and |up| <= limit.

    Source: OpenAI 2025, gpt-oss reference implementation, ``swiglu``.
    """

    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        require(self.limit > 0, f"limit = {self.limit}", "a number above 0", "gpt-oss uses 7.")


def swiglu(
    gate: Float[Tensor, "*shape"], up: Float[Tensor, "*shape"], clamp: Clamp | None = None
) -> Float[Tensor, "*shape"]:
    """``silu(gate) * up``, or gpt-oss's clamped form of it; ``silu(x) = x * sigmoid(x)``."""
    if clamp is None:
        return _SwiGLU.apply(gate, up) if torch.is_grad_enabled() else F.silu(gate).mul_(up)
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    if torch.is_grad_enabled():
        return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)
    return (clamp.alpha * gate).sigmoid_().mul_(gate).mul_(up.add_(1))


class _SwiGLU(torch.autograd.Function):
    """``silu(gate) * up`` that keeps its two inputs only: ``silu(gate)`` is recomputed on the way back."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        gate, up = ctx.saved_tensors
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, F.silu(gate).mul_(grad)


class SwiGLU(nn.Module):
    """A feed-forward network whose first layer is gated by a second one::

        output = down(silu(gate(x)) * up(x))

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside.
        bias: Give the three maps a bias.
        clamp: gpt-oss's clamped activation instead of the plain one.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Raises:
        InputError: A size below 1, or an input of another width.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    """

    def __init__(self, hidden_dim: int, ff_dim: int, *, bias: bool = False, clamp: Clamp | None = None) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        self.gate = nn.Linear(hidden_dim, ff_dim, bias=bias)
        self.up = nn.Linear(hidden_dim, ff_dim, bias=bias)
        self.down = nn.Linear(ff_dim, hidden_dim, bias=bias)
        self.clamp = clamp

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Apply the network to every position on its own."""
        require(
            x.shape[-1] == self.gate.in_features,
            f"input of width {x.shape[-1]}",
            f"hidden_dim = {self.gate.in_features}",
            "Build the layer with the width of its input.",
        )
        return self.down(swiglu(self.gate(x), self.up(x), self.clamp))
