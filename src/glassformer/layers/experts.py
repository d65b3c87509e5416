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
    """Of all experts, before softmax."""
    indices: Int[Tensor, "token top_k"]
    """The chosen experts, best first."""


_Collector = tuple[int, list[Routing]]
"""The thread of an open block of :func:`collect_routing`, and its list."""

_lock = threading.Lock()


@contextmanager
def collect_routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Collect the :class:`Routing` of every mixture of ``model`` that runs within the ``with``
    block and its thread.

    In the order of the calls. The scores are part of the graph, so that losses on them can be
    differentiated. A model that is compiled is collected, too.
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
    """The mean load-balancing loss of some mixtures; 1 when each of their experts got equally many
    tokens::

        num_experts * sum_e f_e P_e

    with f_e the share of token-expert pairs that chose expert e, and P_e the mean probability of e
    over tokens.

    Source: Fedus et al. 2021, "Switch Transformers", arXiv 2101.03961, section 2.2.
    """
    if len(routings) <= 0:
        raise InputError(
            got="no routings",
            expected="those of a model with experts",
            fix="Set num_experts in its configuration.",
        )
    losses = []
    for scores, indices in routings:
        num_experts = scores.shape[-1]
        share = F.one_hot(indices.flatten(), num_experts).float().mean(0)
        losses.append(num_experts * (share * scores.softmax(-1, dtype=torch.float32).mean(0)).sum())
    return torch.stack(losses).mean()


class Score(nn.Linear):
    """A linear layer that computes in float32 at least, whatever the dtype of its weights.

    Two scores may be closer to each other than bfloat16 resolves, and another expert is another
    output.
    """

    def forward(self, x: Float[Tensor, "*batch hidden_dim"]) -> Float[Tensor, "*batch expert"]:
        """Scores of all experts."""
        require_one_device(x, self.weight)
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.weight.to(wide), bias)


class Router(nn.Module):
    """Chooses ``top_k`` of ``num_experts`` for each token and weighs them by a softmax over the
    chosen scores.

    gpt-oss's scores have a bias.

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
        if not top_k <= num_experts:
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
        """Return what a copy of the router has: it is not collected."""
        return vars(self) | {"collectors": ()}

    def forward(
        self, x: Float[Tensor, "*batch hidden_dim"]
    ) -> tuple[Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"]]:
        """The routing weights of the chosen experts, which sum to 1, and their indices, best first.

        They and the scores are given to :func:`collect_routing`, too.
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
        """The same, and the scores of all experts before softmax, in float32 at least (autocast: in
        its dtype).
        """
        require_width(x.shape[-1], self.score.in_features)
        scores = self.score(x)
        best, indices = scores.topk(self.top_k, dim=-1)
        wide = torch.promote_types(best.dtype, torch.float32)
        return best.softmax(dim=-1, dtype=wide).to(x.dtype), indices, scores


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of several SwiGLU networks, of which each token passes through
    ``top_k``::

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
            self.register_parameter(
                f"{name}_bias", nn.Parameter(torch.zeros(num_experts, width)) if bias else None
            )
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
        """The weighted sum of the given experts, independent of the router."""
        experts = Experts(
            self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias, self.clamp
        )
        return mix_experts(experts, tokens, weights, indices)
