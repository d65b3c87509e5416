"""Build blocks from the parts of a configuration."""

from torch import nn

from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.models.block_config import Attention, Experts, FeedForward, Norms


def build_block(
    hidden_dim: int,
    attention: Attention,
    network: FeedForward | Experts | None,
    norms: Norms,
    *,
    causal: bool = True,
    window: int | None = None,
    cross: bool = False,
    rotated: bool = True,
    dropout: float = 0.0,
) -> Block:
    """Return a block with random weights.

    Args:
        hidden_dim: Width of the residual stream.
        attention: The block's attention, and its cross-attention if it has one.
        network: The feed-forward network; None for an attention-only block.
        norms: The norms.
        causal: Each position sees itself and earlier ones only.
        window: Keys that a query sees at most, itself included.
        cross: Whether the block also attends to a memory.
        rotated: Whether the decoder passes a rotation to the block.
        dropout: Probability in training of dropping a number of what each part adds.
    """
    sizes = vars(attention)
    self_attention = GroupedQueryAttention(hidden_dim, **sizes, causal=causal, window=window)
    cross_attention = None
    if cross:
        cross_attention = GroupedQueryAttention(hidden_dim, **sizes, causal=False)
    return Block(
        hidden_dim,
        self_attention,
        _build_network(hidden_dim, network),
        cross=cross_attention,
        rotated=rotated,
        dropout=dropout,
        **vars(norms),
    )


def _build_network(hidden_dim: int, network: FeedForward | Experts | None) -> nn.Module | None:
    if network is None:
        return None
    if isinstance(network, Experts):
        return _build_mixture(network)
    if network.gated:
        return SwiGLU(
            hidden_dim,
            network.ff_dim,
            bias=network.bias,
            clamp=network.clamp,
            activation=network.activation,
        )
    return MLP(
        hidden_dim,
        network.ff_dim,
        network.activation,
        network.dropout,
        bias=network.bias,
    )


def _build_mixture(experts: Experts) -> nn.Module:
    sizes = (experts.hidden_dim, experts.network.ff_dim, experts.num_experts, experts.top_k)
    bias = experts.network.bias
    clamp = experts.network.clamp
    # Imported here, so that a dense decoder does not load them.
    if experts.format == "mxfp4":
        from glassformer.layers.quantized.packed_experts import PackedMixture

        return PackedMixture(*sizes, bias=bias, clamp=clamp)
    from glassformer.layers.experts import MixtureOfExperts

    return MixtureOfExperts(*sizes, bias=bias, clamp=clamp)
