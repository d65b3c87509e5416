"""The parts of a configuration, and the blocks that are built of them."""

from typing import Any

import pytest
import torch
from torch import nn

from glassformer.kernels.options import Clamp
from glassformer.layers.blocks import Block, run_stack
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.feedforward import MLP, NoFeedForward, SwiGLU
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.norms import RMSNorm
from glassformer.layers.options import LongRope
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.block_config import Attention, Experts, FeedForward, Norms, Rotations
from glassformer.models.building import build_block
from models.forms import Base, every_form, new
from refusals import refused

SWIGLU = FeedForward(64, "silu", gated=True, bias=False)
RMS = Norms(1e-5, "rms", "before")


@every_form
def test_blocks_have_the_parts_of_the_configuration(base: Base, form: dict[str, Any]) -> None:
    model = new(base, **form)
    config = model.config
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert len(blocks) > 0
    for block in blocks:
        assert block.norm_place == config.norms.norm_place
        assert block.parallel == config.norms.parallel
        attentions = [part for part in block.children() if isinstance(part, GroupedQueryAttention)]
        assert len(attentions) == 1 + (block.cross_attention is not None)
        for attention in attentions:
            part = config.attention
            sizes = (attention.num_heads, attention.num_kv_heads, attention.head_dim)
            assert sizes == (part.num_heads, part.num_kv_heads, part.head_dim)
            assert (attention.sinks is not None) == part.sinks
            assert (attention.query.bias is not None) == bool(part.bias)


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        (None, NoFeedForward),
        (FeedForward(64, "relu"), MLP),
        (SWIGLU, SwiGLU),
        (Experts(32, SWIGLU, 4, 2), MixtureOfExperts),
        (Experts(32, SWIGLU, 4, 2, "mxfp4"), PackedMixture),
    ],
)
def test_a_network_is_of_the_class_that_its_part_names(network: Any, kind: type[nn.Module]) -> None:
    block = build_block(32, Attention(4, 8, 2), network, RMS)
    assert type(block.ffn) is kind
    assert isinstance(block.ffn_norm, nn.Identity if network is None else RMSNorm)


def test_a_cross_attention_sees_all_of_a_memory() -> None:
    attention = Attention.sharing(32, 4, dropout=0.25)
    block = build_block(32, attention, None, RMS, window=3, cross=True)
    own = block.self_attention
    cross = block.cross_attention
    assert cross is not None
    assert (own.pattern.causal, own.pattern.window) == (True, 3)
    assert (cross.pattern.causal, cross.pattern.window) == (False, None)
    assert own.dropout == cross.dropout == 0.25
    assert own.head_dim == cross.head_dim == 8


@pytest.mark.parametrize(
    ("part", "got"),
    [
        (lambda: Attention(4, 8, 3), "num_kv_heads = 3 with num_heads = 4"),
        (lambda: Attention.sharing(30, 4), "hidden_dim = 30 with num_heads = 4"),
        (lambda: FeedForward(8, "gelu", gated=True, clamp=Clamp()), "activation = 'gelu'.*clamp"),
        (lambda: FeedForward(8, "silu", clamp=Clamp()), "gated = False"),
        (
            lambda: Experts(32, FeedForward(8, "gelu", gated=True), 4, 2),
            "activation = 'gelu'.*num_experts",
        ),
        (lambda: Experts(32, SWIGLU, 4, 5), "top_k = 5 with num_experts = 4"),
        (lambda: Experts(48, SWIGLU, 4, 2, "mxfp4"), "hidden_dim = 48"),
        (lambda: Norms(1e-5, "rms", "sum", parallel=True), "parallel with norm_place = 'sum'"),
        (lambda: Rotations(7, 6, 1e4, "half-split", None, None), "head_dim = 7"),
        (lambda: Rotations(8, 3, 1e4, "half-split", None, None), "rotary_dim = 3"),
        (
            lambda: Rotations(8, 10, 1e4, "half-split", None, None),
            "rotary_dim = 10 with head_dim = 8",
        ),
        (
            lambda: Rotations(8, 8, 1e4, "half-split", LongRope((1.0,), (2.0,), 16), None),
            "1 factors",
        ),
    ],
)
def test_parts_check_how_their_fields_fit(part: Any, got: str) -> None:
    with refused(got):
        part()


def test_a_stack_calls_blocks_of_other_classes_with_what_it_has() -> None:
    calls: list[dict[str, Any]] = []

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor, *memory: torch.Tensor, **options: Any) -> torch.Tensor:
            calls.append(options | {"memory": memory})
            return 2 * x

    blocks = nn.ModuleList([Doubled(), Doubled()])
    norm = nn.LayerNorm(4)
    x = torch.randn(2, 3, 4)
    assert torch.equal(run_stack(blocks, None, x), 4 * x)
    assert torch.equal(run_stack(blocks, norm, x, last=2), norm(4 * x)[:, -2:])
    memories = [torch.ones(2, 5, 4), torch.zeros(2, 5, 4)]
    rotation = (torch.ones(3, 2), torch.zeros(3, 2))
    run_stack(blocks, None, x, rotations=[None, rotation], memories=memories)
    assert [sorted(options) for options in calls[:4]] == [["key_padding", "memory"]] * 4
    assert [options["rotation"] for options in calls[4:]] == [None, rotation]
    for options, memory in zip(calls[4:], memories, strict=True):
        assert options["memory"][0] is memory
