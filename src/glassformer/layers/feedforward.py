"""Feed-forward networks: two layers, gated ones such as SwiGLU, and none."""

from typing import get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive, require_probability, require_width
from glassformer.kernels.linear import linear
from glassformer.kernels.options import Clamp
from glassformer.kernels.swiglu import swiglu
from glassformer.layers.options import Activation


class Linear(nn.Linear):
    """:class:`torch.nn.Linear` by the fastest form: :func:`glassformer.kernels.linear.linear`."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Return ``x @ weight.T + bias``."""
        return linear(x, self.weight, self.bias)


def activate(x: Float[Tensor, "*shape"], activation: Activation) -> Float[Tensor, "*shape"]:
    """Apply an :data:`~glassformer.layers.options.Activation` to every number."""
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()


class MLP(nn.Module):
    """A feed-forward network of two layers::

        output = down(dropout(activation(up(x))))

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside.
        activation: See :data:`~glassformer.layers.options.Activation`.
        dropout: Probability of dropping a number between the layers in training.
        bias: Give both layers a bias.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.3; Hendrycks and Gimpel 2016, arXiv
    1606.08415 (GELU).
    """

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        activation: Activation = "relu",
        dropout: float = 0.0,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        require_probability(dropout=dropout)
        known = get_args(Activation)
        if activation not in known:
            raise InputError(
                got=f"activation = {activation!r}",
                expected=f"one of {', '.join(known)}",
                fix="Choose one. The first transformer has 'relu', BERT 'gelu'.",
            )
        self.up = Linear(hidden_dim, ff_dim, bias=bias)
        self.down = Linear(ff_dim, hidden_dim, bias=bias)
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Apply the network to every position on its own."""
        require_width(x.shape[-1], self.up.in_features)
        inside = activate(self.up(x), self.activation)
        if self.training and self.dropout > 0:
            inside = F.dropout(inside, self.dropout)
        return self.down(inside)


class SwiGLU(nn.Module):
    """A feed-forward network whose first layer is gated by a second one::

        output = down(silu(gate(x)) * up(x))

    With another activation in place of ``silu`` it is GEGLU (``"gelu"``, and ``"gelu_tanh"`` in
    Gemma) or ReGLU.

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside.
        bias: Give the three maps a bias.
        clamp: gpt-oss's clamped activation instead of the plain one.
        activation: See :data:`~glassformer.layers.options.Activation`; a clamp needs ``"silu"``.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    """

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        *,
        bias: bool = False,
        clamp: Clamp | None = None,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, ff_dim=ff_dim)
        choice = f"activation = {activation!r}"
        known = get_args(Activation)
        if clamp is not None:
            choice = f"{choice} with a clamp"
            known = ("silu",)
        if activation not in known:
            raise InputError(
                got=choice,
                expected=f"one of {', '.join(known)}",
                fix="Choose one, or leave out the clamp.",
            )
        self.gate = Linear(hidden_dim, ff_dim, bias=bias)
        self.up = Linear(hidden_dim, ff_dim, bias=bias)
        self.down = Linear(ff_dim, hidden_dim, bias=bias)
        self.clamp = clamp
        self.activation = activation

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Apply the network to every position on its own."""
        require_width(x.shape[-1], self.gate.in_features)
        gate = self.gate(x)
        up = self.up(x)
        if self.activation != "silu":
            return self.down(activate(gate, self.activation) * up)
        return self.down(swiglu(gate, up, self.clamp))


class NoFeedForward(nn.Module):
    """The feed-forward part of an attention-only block: it adds nothing to the residual stream."""

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Return zeros."""
        return torch.zeros_like(x)
