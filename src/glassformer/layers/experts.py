"""Mixture of experts: a router that chooses experts for each token, and the experts."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive, require_width
from glassformer.kernels.dispatch import require_one_device
from glassformer.kernels.experts import Experts, mix_experts
from glassformer.kernels.options import Clamp


class Routing(NamedTuple):
    """The decision of one router in one forward pass."""

    scores: Float[Tensor, "token expert"]
    """Scores of all experts, before softmax."""
    indices: Int[Tensor, "token top_k"]
    """The chosen experts, best first."""


_Collector = tuple[int, list[Routing]]
"""The thread of an open block of :func:`collect_routing`, and its list."""

_lock = threading.Lock()


@contextmanager
def collect_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Collect the :class:`Routing` of every mixture of ``model`` that runs in the ``with`` block.

    Only calls of the block's thread are collected, in their order. The scores are part of the
    graph, so that losses on them can be differentiated. Compiled models are collected too.
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    collector: _Collector = (threading.get_ident(), [])
    with _lock:
        for router in routers:
            router.collectors = (*router.collectors, collector)
    try:
        yield collector[1]
    finally:
        with _lock:
            for router in routers:
                router.collectors = tuple(
                    other for other in router.collectors if other is not collector
                )


def balance_loss(routings: Sequence[Routing]) -> Float[Tensor, ""]:
    """Return the mean load-balancing loss of some mixtures::

        num_experts * sum_e f_e P_e

    with f_e the share of token-expert pairs that chose expert e, and P_e the mean probability of e
    over tokens. It is 1 if all experts have equally many tokens.

    Source: Fedus et al. 2021, "Switch Transformers", arXiv 2101.03961, section 2.2.
    """
    if len(routings) == 0:
        raise InputError(
            got="no routings",
            expected="those of a model with experts",
            fix="Set num_experts in its configuration.",
        )
    losses = []
    for scores, indices in routings:
        num_experts = scores.shape[-1]
        share = F.one_hot(indices.flatten(), num_experts).float().mean(0)
        probability = scores.softmax(-1, dtype=torch.float32).mean(0)
        losses.append(num_experts * (share * probability).sum())
    return torch.stack(losses).mean()


class Score(nn.Linear):
    """A linear layer that computes in float32 at least, whatever the dtype of its weights.

    Two scores may be closer than bfloat16 resolves, and another expert gives another output.
    """

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch expert"]:
        """Return the scores of all experts."""
        require_one_device(x, self.weight)
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.weight.to(wide), bias)


class Router(nn.Module):
    """Chooses ``top_k`` of ``num_experts`` for each token.

    The routing weights are a softmax over the chosen scores. gpt-oss's scores have a bias.

    Attributes:
        collectors: Open blocks of :func:`collect_routing`. Not a context variable, which
            torch.compile cannot trace.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088, section 2.1.
    """

    def __init__(
        self, hidden_dim: int, num_experts: int, top_k: int = 2, *, bias: bool = False
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim, num_experts=num_experts, top_k=top_k)
        if top_k > num_experts:
            raise InputError(
                got=f"top_k = {top_k} with num_experts = {num_experts}",
                expected="top_k <= num_experts",
                fix="Lower top_k or add experts.",
            )
        self.num_experts = num_experts
        self.top_k = top_k
        self.score = Score(hidden_dim, num_experts, bias=bias)
        self.collectors: tuple[_Collector, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which no block of :func:`collect_routing` collects."""
        return vars(self) | {"collectors": ()}

    def forward(
        self, x: Float[Tensor, "*batch hidden_dim"]
    ) -> tuple[Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"]]:
        """Return routing weights, which sum to 1, and indices of the chosen experts, best first.

        :func:`collect_routing` collects the scores and the indices.
        """
        weights, indices, scores = self.choose(x)
        for thread, routings in self.collectors:
            if torch.compiler.is_compiling() or thread == threading.get_ident():
                routings.append(
                    Routing(scores.reshape(-1, self.num_experts), indices.reshape(-1, self.top_k))
                )
        return weights, indices

    def choose(
        self, x: Float[Tensor, "*batch hidden_dim"]
    ) -> tuple[
        Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"], Float[Tensor, "*batch expert"]
    ]:
        """Return weights and indices as :meth:`forward` does, and the scores of all experts.

        Scores are before softmax, in float32 at least; with autocast in its dtype.
        """
        require_width(x.shape[-1], self.score.in_features)
        scores = self.score(x)
        best, indices = scores.topk(self.top_k, dim=-1)
        wide = torch.promote_types(best.dtype, torch.float32)
        return best.softmax(dim=-1, dtype=wide).to(x.dtype), indices, scores


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of several SwiGLU networks; each token passes through ``top_k``::

        output = sum over chosen experts e of weight_e * down_e(silu(gate_e(x)) * up_e(x))

    Args:
        hidden_dim: Width of input and output.
        ff_dim: Width inside each expert.
        top_k: Experts per token.
        bias: Give router and experts biases (gpt-oss).
        clamp: gpt-oss's clamped activation instead of the plain one.

    Shape: ``[..., hidden_dim]`` to ``[..., hidden_dim]``. Weights are ``[expert, out, in]``.

    Source: Jiang et al. 2024, arXiv 2401.04088.
    """

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
    ) -> None:
        super().__init__()
        require_positive(ff_dim=ff_dim)
        self.router = Router(hidden_dim, num_experts, top_k, bias=bias)
        self.hidden_dim = hidden_dim
        self.ff_dim = ff_dim
        self.num_experts = num_experts
        self.top_k = top_k
        self.clamp = clamp
        self.gate = nn.Parameter(torch.empty(num_experts, ff_dim, hidden_dim))
        self.up = nn.Parameter(torch.empty(num_experts, ff_dim, hidden_dim))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_dim, ff_dim))
        for name, width in (("gate", ff_dim), ("up", ff_dim), ("down", hidden_dim)):
            initial = nn.Parameter(torch.zeros(num_experts, width)) if bias else None
            self.register_parameter(f"{name}_bias", initial)
        for weight in (self.gate, self.up, self.down):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch hidden_dim"]:
        """Route every position and mix the outputs of its experts."""
        tokens = x.reshape(-1, x.shape[-1])
        return self.mix(tokens, *self.router(tokens)).view(x.shape)

    def mix(
        self,
        tokens: Float[Tensor, "token hidden_dim"],
        weights: Float[Tensor, "token choice"],
        indices: Int[Tensor, "token choice"],
    ) -> Float[Tensor, "token hidden_dim"]:
        """Return the weighted sum of the given experts, independent of the router."""
        experts = Experts(
            self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias, self.clamp
        )
        return mix_experts(experts, tokens, weights, indices)
