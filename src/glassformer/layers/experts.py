"""Mixture of experts: a router that chooses, and experts that run once each on the tokens that chose them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import require, require_positive
from glassformer.layers.dispatch import Experts, mix_experts
from glassformer.layers.feedforward import Clamp
from glassformer.layers.linear import autocast_dtype


class Assigned(NamedTuple):
    """Where the tokens of a batch go among experts."""

    tokens: Tensor
    """``[token, hidden_dim]``, in the dtype that experts compute in."""
    weights: Tensor
    """``[token, top_k]``: what each chosen expert counts; they sum to 1."""
    indices: Tensor
    """``[token, top_k]``: which experts, the best first."""
    scores: Tensor
    """``[token, expert]``: of all, before any choice."""
    load: Tensor
    """``[expert]``: how many tokens chose each."""


class _Score(nn.Linear):
    """A linear layer that computes in float32 at least, whatever its weights are kept in."""

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch expert"]:
        # Two scores may lie nearer to one another than bfloat16 tells apart, and another expert is another output.
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.weight.to(wide), bias)


class Router(nn.Module):
    """Chooses ``top_k`` of ``num_experts`` for each token and weighs them by a softmax over the chosen scores.

    Args:
        hidden_dim: Width of a token.
        num_experts: Experts to choose from.
        top_k: Experts a token gets.
        bias: Give the scores a bias (gpt-oss).

    Raises:
        InputError: A size below 1, or ``top_k > num_experts``.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088, section 2.1.
    """

    def __init__(self, hidden_dim: int, num_experts: int, top_k: int = 2, *, bias: bool = False) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, num_experts=num_experts, top_k=top_k)
        require(
            top_k <= num_experts,
            f"top_k = {top_k} with num_experts = {num_experts}",
            "top_k <= num_experts",
            "A token cannot get more experts than there are.",
        )
        self.num_experts, self.top_k = num_experts, top_k
        self.score = _Score(hidden_dim, num_experts, bias=bias)

    def forward(
        self, x: Float[Tensor, "*batch hidden_dim"]
    ) -> tuple[Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"]]:
        """The weights of the chosen experts, which sum to 1, and their indices, the best first."""
        weights, indices, _ = self.choose(x)
        return weights, indices

    def choose(
        self, x: Float[Tensor, "*batch hidden_dim"]
    ) -> tuple[Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"], Float[Tensor, "*batch expert"]]:
        """As calling the router, and with the scores of all experts before any choice, in float32 at least.

        Under autocast the scores are of its dtype.
        """
        scores = self.score(x)
        best, indices = scores.topk(self.top_k, dim=-1)
        wide = torch.promote_types(best.dtype, torch.float32)
        return best.softmax(dim=-1, dtype=wide).to(x.dtype), indices, scores

    def assign(self, x: Float[Tensor, "*batch hidden_dim"]) -> Assigned:
        """Route every position of a mixture's input, in one row each.

        Raises:
            InputError: An input of another width.
        """
        hidden_dim = self.score.in_features
        require(
            x.shape[-1] == hidden_dim,
            f"input of width {x.shape[-1]}",
            f"hidden_dim = {hidden_dim}",
            "Build the layer with the width of its input.",
        )
        tokens = x.reshape(-1, hidden_dim)
        weights, indices, scores = self.choose(tokens)
        flat = indices.flatten()
        load = flat.new_zeros(self.num_experts).scatter_add_(0, flat, torch.ones_like(flat))
        return Assigned(tokens.to(autocast_dtype(x)), weights, indices, scores, load)


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of several SwiGLU networks of which each token passes through ``top_k``::

        output = sum over chosen experts e of weight_e * down_e(silu(gate_e(x)) * up_e(x))

    The token-expert pairs are sorted by expert, and one grouped product runs every expert on just its own tokens.

    After a call, ``load`` holds how many tokens each expert got, and ``balance_loss`` the load-balancing loss if
    ``balance`` was asked for.

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside each expert.
        num_experts: Number of experts.
        top_k: Experts a token passes through.
        bias: Give router and experts biases (gpt-oss).
        clamp: gpt-oss's clamped activation instead of the plain one.
        balance: Compute ``balance_loss`` in training: ``num_experts * sum_e f_e P_e`` with f_e the share of
            token-expert pairs that chose e and P_e its mean probability. It is 1 when the load is even.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``. Weights are ``[expert, out, in]``.

    Raises:
        InputError: A size below 1, ``top_k > num_experts``, or an input of another width.

    Source: Jiang et al. 2024, arXiv 2401.04088; Fedus et al. 2021, "Switch Transformers", section 2.2 (balance).
    """

    load: Int[Tensor, " expert"]
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(
        self,
        hidden_dim: int,
        ff_dim: int,
        num_experts: int = 8,
        top_k: int = 2,
        *,
        bias: bool = False,
        clamp: Clamp | None = None,
        balance: bool = False,
    ) -> None:
        super().__init__()
        require_positive(ff_dim=ff_dim)
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim, self.ff_dim, self.num_experts, self.top_k = hidden_dim, ff_dim, num_experts, top_k
        self.gate = nn.Parameter(torch.empty(num_experts, ff_dim, hidden_dim))
        self.up = nn.Parameter(torch.empty(num_experts, ff_dim, hidden_dim))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_dim, ff_dim))
        for name, width in (("gate", ff_dim), ("up", ff_dim), ("down", hidden_dim)):
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(num_experts, width)) if bias else None)
        self.clamp, self.balance = clamp, balance
        self.balance_loss: Tensor | None = None
        self.register_buffer("load", torch.zeros(num_experts, dtype=torch.int64), persistent=False)
        for weight in (self.gate, self.up, self.down):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Route every position and mix the outputs of its experts."""
        tokens, weights, indices, scores, self.load = self.router.assign(x)
        self.balance_loss = _balance_loss(scores, self.load) if self.balance and self.training else None
        return self.mix(tokens, weights, indices, self.load).view(x.shape)

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
        load: Int[Tensor, " expert"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """The weighted sum of given experts, whatever the router says; ``load`` is how many tokens each one gets."""
        experts = Experts(self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias, self.clamp)
        return mix_experts(experts, tokens, weights, indices, load)


def _balance_loss(scores: Float[Tensor, "token expert"], load: Int[Tensor, " expert"]) -> Float[Tensor, ""]:
    share = load / load.sum()
    return scores.shape[-1] * (share * scores.softmax(-1, dtype=torch.float32).mean(0)).sum()
