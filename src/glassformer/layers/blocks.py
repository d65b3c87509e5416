"""The transformer block, the pass through a stack of blocks, and the first weights of a model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from glassformer.errors import (
    InputError,
    require_above_zero,
    require_positive,
    require_probability,
)
from glassformer.kernels.rotation import Rotation
from glassformer.layers.attention import is_observed
from glassformer.layers.cache import KeysAndValues, LayerCache
from glassformer.layers.feedforward import NoFeedForward
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import make_norm
from glassformer.layers.options import NormKind, NormPlace


class Block(nn.Module):
    """A transformer block: attention and feed-forward network, each added to the residual stream.

    Pre-norm (``norm_place = "before"``)::

        h      = x + attention(attention_norm(x))
        output = h + ffn(ffn_norm(h))

    Post-norm (``"sum"``, the first transformer and BERT) normalises the residual stream itself::

        h      = attention_norm(x + attention(x))
        output = ffn_norm(h + ffn(h))

    ``"after"`` normalises what each part adds (OLMo 2), ``"both"`` its input, too (Gemma 2)::

        h      = x + attention_post_norm(attention(x))                          "after"
        h      = x + attention_post_norm(attention(attention_norm(x)))          "both"

    and so for ``ffn``. ``parallel``: both parts read the same ``x`` (GPT-NeoX)::

        output = x + attention(attention_norm(x)) + ffn(ffn_norm(x))

    With ``cross`` the block also attends to a memory, and its attention is named
    ``self_attention``. Pre-norm::

        h      = x + self_attention(self_attention_norm(x))
        g      = h + cross_attention(cross_attention_norm(h), memory)
        output = g + ffn(ffn_norm(g))

    With LayerNorm, ``"before"`` or ``"sum"``, and the same weights this is
    :class:`torch.nn.TransformerEncoderLayer`, and with ``cross``
    :class:`torch.nn.TransformerDecoderLayer`.

    Args:
        hidden_dim: Width of the residual stream.
        attention: Attention from each position to positions of the same text.
        ffn: Feed-forward network, dense or a mixture of experts; None for an attention-only block.
        norm_eps: Added to the mean square, or to the variance, in all norms; above 0.
        cross: Attention from each position to all of a memory, with ``causal=False``. The other
            attention must be causal.
        norm: RMSNorm or LayerNorm.
        norm_place: ``"before"``, ``"after"``, ``"both"`` or ``"sum"``.
        parallel: Add both parts to the same ``x``; with ``"before"``.
        rotated: Whether the decoder passes a rotation to the block, if it has any.
        dropout: Probability in training of dropping a number of what each part adds.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; Xiong et al. 2020, arXiv 2002.04745
    (pre-norm); Zhang and Sennrich 2019, arXiv 1910.07467 (RMSNorm); Ba et al. 2016, arXiv
    1607.06450 (LayerNorm); OLMo Team 2025, arXiv 2501.00656; Gemma Team 2024, arXiv 2408.00118;
    Black et al. 2022, arXiv 2204.06745 (parallel).
    """

    attention: GroupedQueryAttention
    attention_norm: nn.Module
    attention_post_norm: nn.Module | None
    self_attention: GroupedQueryAttention
    self_attention_norm: nn.Module
    cross_attention: GroupedQueryAttention | None
    cross_attention_norm: nn.Module
    ffn: nn.Module
    ffn_norm: nn.Module
    ffn_post_norm: nn.Module | None

    def __init__(
        self,
        hidden_dim: int,
        attention: GroupedQueryAttention,
        ffn: nn.Module | None,
        norm_eps: float,
        *,
        cross: GroupedQueryAttention | None = None,
        norm: NormKind = "rms",
        norm_place: NormPlace = "before",
        parallel: bool = False,
        rotated: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(hidden_dim=hidden_dim)
        require_above_zero(norm_eps=norm_eps)
        require_probability(dropout=dropout)
        self.norm_place = norm_place
        self.parallel = parallel
        self.rotated = rotated
        self.dropout = dropout
        if cross is None:
            self.attention_name = "attention"
        else:
            self.attention_name = "self_attention"
        new_norm = partial(make_norm, norm, hidden_dim, norm_eps)
        self._register(self.attention_name, attention, new_norm)
        if cross is None:
            self.cross_attention = None
        else:
            _require_self_and_cross(attention, cross)
            self._register("cross_attention", cross, new_norm)
        if ffn is None:
            self.ffn_norm = nn.Identity()
            self.ffn = NoFeedForward()
            self.ffn_post_norm = None
        else:
            self._register("ffn", ffn, new_norm)

    def _register(self, name: str, part: nn.Module, new_norm: Callable[[], nn.Module]) -> None:
        """Add a part and its norms, in the order in which they run."""
        if self.norm_place == "sum":
            self.add_module(name, part)
            self.add_module(f"{name}_norm", new_norm())
        else:
            # An identity has no weights; with it all blocks have the same hook points.
            before: nn.Module
            if self.norm_place == "after":
                before = nn.Identity()
            else:
                before = new_norm()
            self.add_module(f"{name}_norm", before)
            self.add_module(name, part)
        has_post_norm = self.norm_place in ("after", "both")
        setattr(self, f"{name}_post_norm", new_norm() if has_post_norm else None)

    def forward(
        self,
        x: Float[Tensor, "batch position hidden_dim"],
        memory: Float[Tensor, "batch source hidden_dim"] | KeysAndValues | None = None,
        *,
        rotation: Rotation | None = None,
        key_padding: Bool[Tensor, "batch seen"] | None = None,
        memory_padding: Bool[Tensor, "batch source"] | None = None,
        cache: LayerCache | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "batch last hidden_dim"]:
        """Pass ``x`` through the block.

        Args:
            x: The residual stream.
            memory: Input of the cross-attention, or its keys and values, which
                ``cross_attention.keys_and_values`` computes.
            rotation: Cosines and sines of the positions of ``x``.
            key_padding: True where a position is real and may be attended to; with a cache, for all
                positions so far.
            memory_padding: True where a position of the memory is real.
            cache: Keys and values of earlier positions; those of ``x`` are added to it.
            last: Positions at the end of ``x`` that are returned; all of them when None.
        """
        if (memory is None) != (self.cross_attention is None):
            self._refuse_memory(memory)
        residual = x if last is None else x[:, -last:]
        h = self._add(
            residual,
            x,
            self.attention_name,
            rotation=rotation,
            key_padding=key_padding,
            cache=cache,
            last=last,
        )
        if memory is not None:
            # A positional argument, which hooks of the cross-attention read.
            h = self._add(h, h, "cross_attention", memory, key_padding=memory_padding)
        return self._add(h, residual if self.parallel else h, "ffn")

    def _refuse_memory(self, memory: Tensor | KeysAndValues | None) -> NoReturn:
        if memory is None:
            raise InputError(
                got="no memory for a block with cross-attention",
                expected="a memory",
                fix="Pass what an encoder returned.",
            )
        raise InputError(
            got="a memory for a block without cross-attention",
            expected="none",
            fix="Build the block with cross=.",
        )

    def _add(
        self,
        x: Float[Tensor, "batch last hidden_dim"],
        source: Float[Tensor, "batch position hidden_dim"],
        name: str,
        *inputs: Any,
        **options: Any,
    ) -> Float[Tensor, "batch last hidden_dim"]:
        """Return ``x`` plus what the part of this name makes of ``source``, with its norms."""
        part = getattr(self, name)
        norm = getattr(self, f"{name}_norm")
        post_norm = getattr(self, f"{name}_post_norm")
        normalises_sum = self.norm_place == "sum"
        added = part(source if normalises_sum else norm(source), *inputs, **options)
        if post_norm is not None:
            added = post_norm(added)
        if self.training and self.dropout > 0:
            added = F.dropout(added, self.dropout)
        if normalises_sum:
            return norm(x + added)
        return x + added


def _require_self_and_cross(attention: GroupedQueryAttention, cross: GroupedQueryAttention) -> None:
    """Refuse a self-attention and a cross-attention in each other's place."""
    causal = attention.pattern.causal
    cross_causal = cross.pattern.causal
    if not causal or cross_causal:
        raise InputError(
            got=(
                f"self-attention with causal = {causal} and cross-attention with causal = "
                f"{cross_causal}"
            ),
            expected="True and False",
            fix="Build the first with causal=True, the second without.",
        )


def run_stack(
    blocks: nn.ModuleList,
    final_norm: nn.Module | None,
    x: Float[Tensor, "batch position hidden_dim"],
    *,
    key_padding: Bool[Tensor, "batch seen"] | None = None,
    rotations: Sequence[Rotation | None] | None = None,
    caches: Sequence[LayerCache] | None = None,
    memories: Sequence[Tensor | KeysAndValues] | None = None,
    memory_padding: Bool[Tensor, "batch source"] | None = None,
    last: int | None = None,
) -> Float[Tensor, "batch last hidden_dim"]:
    """Pass embedded tokens through the blocks of a stack, one after another, and its last norm.

    Blocks of other classes may stand in the stack. A block is called with the arguments that the
    stack has, and no others.

    Args:
        blocks: Each maps the residual stream to the residual stream.
        final_norm: The norm after the last block, if there is one.
        x: Embedded tokens.
        key_padding: As for :meth:`Block.forward`, for all blocks, as is ``memory_padding``.
        rotations: Rotation of each block, None for a block that rotates nothing; None for all.
        caches: Keys and values of earlier positions, for each block.
        memories: Input of each block's cross-attention.
        memory_padding: True where a position of the memory is real.
        last: Positions at the end that are returned; all of them when None. The last block computes
            only keys and values of the others, unless something besides this pass reads them.
    """
    skips_unread = last is not None and _is_unseen(blocks[-1], final_norm)
    for layer, block in enumerate(blocks):
        options: dict[str, Any] = {"key_padding": key_padding}
        if rotations is not None:
            options["rotation"] = rotations[layer]
        if caches is not None:
            options["cache"] = caches[layer]
        if skips_unread and layer == len(blocks) - 1:
            options["last"] = last
        if memories is None:
            x = block(x, **options)
        else:
            x = block(x, memories[layer], memory_padding=memory_padding, **options)
    if final_norm is not None:
        x = final_norm(x)
    if last is None:
        return x
    return x[:, -last:]


def _is_unseen(block: nn.Module, final_norm: nn.Module | None) -> bool:
    """Return whether nothing depends on which positions the last block computes."""
    attention = getattr(block, "attention", None)
    if type(block) is not Block or type(attention) is not GroupedQueryAttention:
        return False
    return not is_watched(block) and (final_norm is None or not is_watched(final_norm))


def is_watched(*modules: nn.Module) -> bool:
    """Return whether a hook, a capture, an intervention or a collector reads the modules."""
    return (
        is_observed()
        or bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        or any(
            is_hooked(module) or is_collected(module)
            for part in modules
            for module in part.modules()
        )
    )


def is_hooked(module: nn.Module) -> bool:
    """Return whether a call of the module is more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def is_collected(module: nn.Module) -> bool:
    """Return whether the module is a router whose choices are collected."""
    return bool(vars(module).get("collectors"))


@torch.no_grad()
def initialise(model: nn.Module, additions: Mapping[str, int]) -> None:
    """Draw all weights of ``model`` from torch's generator.

    Each matrix is normal with standard deviation ``fan_in ** -0.5``, which keeps the size of what
    passes. The matrices that write to the residual stream (the outputs of attention and
    feed-forward) are smaller by ``n ** -0.5`` for n residual additions, so that the stream does not
    grow with depth. Biases and sinks are 0; norms and key weights 1.

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
            if residual:
                scale = additions[name.split(".")[0]] ** -0.5
            else:
                scale = 1.0
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)
