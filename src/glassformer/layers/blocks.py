"""Transformer blocks: of a decoder, of an encoder, and of a decoder that reads an encoder's output."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from glassformer.errors import require, require_above_zero, require_positive, require_probability
from glassformer.kernels.rotation import Rotation
from glassformer.layers.attention import is_observed
from glassformer.layers.cache import KeysAndValues, LayerCache
from glassformer.layers.feedforward import NoFeedForward
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import make_norm


class Block(nn.Module):
    """A transformer block of a decoder. Pre-norm (``norm_place = "before"``)::

        h      = x + attention(attention_norm(x))
        output = h + ffn(ffn_norm(h))

    ``"after"`` normalises what each part adds instead (OLMo 2), ``"both"`` does both (Gemma 2)::

        h      = x + attention_post_norm(attention(x))          "after"
        h      = x + attention_post_norm(attention(attention_norm(x)))          "both"

    and so for ``ffn``. ``parallel``: both parts read the same ``x`` (GPT-NeoX)::

        output = x + attention(attention_norm(x)) + ffn(ffn_norm(x))

    Args:
        hidden_dim: Width of the residual stream.
        ffn: Its feed-forward network, dense or a mixture of experts; None for an attention-only block.
        norm_eps: Added to the mean square, or to the variance, before the root, in all norms.
        norm_place: ``"before"``, ``"after"`` or ``"both"``. Where a norm is not, the block has no weights for it.
        parallel: Add both parts to the same ``x``; with ``"before"``.
        rotated: Whether the decoder gives it a rotation, if it has any.

    Source: Xiong et al. 2020, arXiv 2002.04745 (pre-norm); Zhang and Sennrich 2019, arXiv 1910.07467 (RMSNorm); OLMo
    Team 2025, arXiv 2501.00656; Gemma Team 2024, arXiv 2408.00118; Black et al. 2022, arXiv 2204.06745 (parallel).
    """

    def __init__(
        self,
        hidden_dim: int,
        attention: GroupedQueryAttention,
        ffn: nn.Module | None,
        norm_eps: float,
        *,
        norm: Literal["rms", "layer"] = "rms",
        norm_place: Literal["before", "after", "both"] = "before",
        parallel: bool = False,
        rotated: bool = True,
    ) -> None:
        super().__init__()
        make = partial(make_norm, norm, hidden_dim, norm_eps)
        before, after = norm_place != "after", norm_place != "before"
        # Identities have no weights; with them all blocks have the same hook points.
        self.attention_norm = make() if before else nn.Identity()
        self.attention = attention
        self.attention_post_norm = make() if after else None
        self.ffn_norm = nn.Identity() if ffn is None or not before else make()
        self.ffn = NoFeedForward() if ffn is None else ffn
        self.ffn_post_norm = make() if after and ffn is not None else None
        self.parallel, self.rotated = parallel, rotated

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        *,
        rotation: Rotation | None = None,
        key_padding: Bool[Tensor, "batch key"] | None = None,
        cache: LayerCache | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch last hidden_dim"]:
        """Pass ``x`` through the block; arguments as for the attention."""
        normed, kept = self.attention_norm(x), x if last is None else x[:, -last:]
        added = self.attention(normed, rotation=rotation, key_padding=key_padding, cache=cache, last=last)
        x = kept + (added if self.attention_post_norm is None else self.attention_post_norm(added))
        added = self.ffn(self.ffn_norm(kept if self.parallel else x))
        return x + (added if self.ffn_post_norm is None else self.ffn_post_norm(added))


def is_watched(*modules: nn.Module) -> bool:
    """Whether a hook, a capture, an intervention or a collector reads what the modules compute at each position."""
    return (
        is_observed()
        or bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        or any(is_hooked(module) or is_collected(module) for part in modules for module in part.modules())
    )


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of the module is more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def is_collected(module: nn.Module) -> bool:
    """Whether it is a router whose choices are collected."""
    return bool(vars(module).get("collectors"))


class _LayerNormBlock(nn.Module):
    """What blocks with LayerNorm share: one norm for each part, before or after it, and dropout.

    LayerNorm is ``(x - mean) / sqrt(var + norm_eps) * weight + bias`` over a position, with the mean square deviation
    (divided by hidden_dim) as ``var``.
    """

    def __init__(self, hidden_dim: int, norm_eps: float, norm_first: bool, dropout: float) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim)
        require_above_zero(norm_eps=norm_eps)
        require_probability(dropout=dropout)
        self.norm_first, self.dropout = norm_first, dropout

    def _add(self, x: Tensor, norm: nn.LayerNorm, part: Callable[[Tensor], Tensor]) -> Tensor:
        """``x`` and what ``part`` adds to it, normalised before or after."""
        added = F.dropout(part(norm(x) if self.norm_first else x), self.dropout, self.training)
        return x + added if self.norm_first else norm(x + added)


class EncoderBlock(_LayerNormBlock):
    """A transformer block with LayerNorm. Post-norm (``norm_first = False``, as first published and in BERT)::

        h      = attention_norm(x + dropout(attention(x)))
        output = ffn_norm(h + dropout(ffn(h)))

    Pre-norm (``norm_first = True``), which never normalises the residual stream itself::

        h      = x + dropout(attention(attention_norm(x)))
        output = h + dropout(ffn(ffn_norm(h)))

    With the same weights this is :class:`torch.nn.TransformerEncoderLayer`.

    Args:
        attention: Its attention, in which every position may see every other: ``causal=False``.
        hidden_dim: Width of the residual stream.
        norm_eps: Added to the variance before the root, above 0.
        norm_first: Pre-norm instead of post-norm.
        dropout: Probability in training of dropping a number of what each part adds.

    Shape: ``[batch, position, hidden_dim]`` to the same.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Xiong et al. 2020, arXiv 2002.04745 (pre-norm); Ba et
    al. 2016, arXiv 1607.06450 (LayerNorm).
    """

    def __init__(
        self,
        attention: GroupedQueryAttention,
        ffn: nn.Module,
        hidden_dim: int,
        norm_eps: float = 1e-5,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_dim, norm_eps, norm_first, dropout)
        self.attention = attention
        self.attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        *,
        key_padding: Bool[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Pass ``x`` through the block; ``key_padding`` is True where a position is real and may be attended to."""
        x = self._add(x, self.attention_norm, partial(self.attention, key_padding=key_padding))
        return self._add(x, self.ffn_norm, self.ffn)


class CrossBlock(_LayerNormBlock):
    """An :class:`EncoderBlock` whose attention is causal and which also attends to a memory. Post-norm::

        h      = self_attention_norm(x + dropout(self_attention(x)))
        g      = cross_attention_norm(h + dropout(cross_attention(h, memory)))
        output = ffn_norm(g + dropout(ffn(g)))

    Pre-norm normalises the input of each part instead. With the same weights this is
    :class:`torch.nn.TransformerDecoderLayer`. Arguments as for :class:`EncoderBlock`, and:

    Args:
        self_attention: From each position to itself and earlier ones: ``causal=True``.
        cross_attention: From each position to all of the memory: ``causal=False``.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Xiong et al. 2020, arXiv 2002.04745 (pre-norm).
    """

    def __init__(
        self,
        self_attention: GroupedQueryAttention,
        cross_attention: GroupedQueryAttention,
        ffn: nn.Module,
        hidden_dim: int,
        norm_eps: float = 1e-5,
        norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_dim, norm_eps, norm_first, dropout)
        own, cross = self_attention.pattern.causal, cross_attention.pattern.causal
        got = f"self-attention with causal = {own} and cross-attention with causal = {cross}"
        require(own and not cross, got, "True and False", "Build the first with causal=True, the second without.")
        self.self_attention = self_attention
        self.self_attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.cross_attention = cross_attention
        self.cross_attention_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)
        self.ffn = ffn
        self.ffn_norm = nn.LayerNorm(hidden_dim, eps=norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        memory: Float[Tensor, "batch source hidden_dim"] | KeysAndValues,
        *,
        key_padding: Bool[Tensor, "batch seen"] | None = None,
        memory_padding: Bool[Tensor, "batch source"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch position hidden_dim"]:
        """Pass ``x`` through the block.

        Args:
            memory: What the cross-attention reads, or what ``cross_attention.keys_and_values`` made of it.
            key_padding: True where a position of the target is real; with a cache, for all positions so far.
            memory_padding: True where a position of the memory is real.
            cache: Keys and values of earlier positions of the target; those of ``x`` are added to it.
        """
        x = self._add(x, self.self_attention_norm, partial(self.self_attention, key_padding=key_padding, cache=cache))
        # The memory is a positional argument, which hooks of the cross-attention read.
        x = self._add(
            x, self.cross_attention_norm, lambda x: self.cross_attention(x, memory, key_padding=memory_padding)
        )
        return self._add(x, self.ffn_norm, self.ffn)


@torch.no_grad()
def initialise(model: nn.Module, additions: Mapping[str, int]) -> None:
    """Draw all weights of ``model`` from torch's generator.

    Each matrix is normal with standard deviation ``fan_in ** -0.5``, which keeps the size of what passes. The matrices
    that write to the residual stream (the outputs of attention and feed-forward) are smaller by ``n ** -0.5`` for n
    residual additions, so that the stream does not grow with depth. Biases and sinks are 0; norms and key weights 1.

    Args:
        model: Its parameters are named as in :mod:`glassformer.models`.
        additions: Residual additions in each stack of blocks, by the stack's name.
    """
    for name, weight in model.named_parameters():
        if name.endswith(("norm.weight", "key_weights")):
            nn.init.ones_(weight)
        elif weight.dim() < 2 or name.endswith("bias"):
            nn.init.zeros_(weight)
        else:
            residual = name.endswith(("attention.output.weight", "ffn.down.weight", "ffn.down"))
            scale = additions[name.split(".")[0]] ** -0.5 if residual else 1.0
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)
