import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.models import EncoderDecoder
from models.forms import BOTH, draw, make
from models.forms import BOTHS as FORMS
from refusals import refused

make = partial(make, BOTH)


# What it computes


def torchs(model: EncoderDecoder) -> nn.Transformer:
    """torch.nn.Transformer with the same weights."""
    config = model.config
    peer = nn.Transformer(
        config.hidden_dim,
        config.num_heads,
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.ff_dim,
        dropout=0.0,
        activation=config.activation,
        batch_first=True,
        norm_first=config.norm_first,
        layer_norm_eps=config.norm_eps,
    )

    def attention(theirs: nn.MultiheadAttention, ours: GroupedQueryAttention) -> None:
        thirds = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([third.weight for third in thirds]))
        theirs.in_proj_bias.copy_(torch.cat([third.bias for third in thirds]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())

    with torch.no_grad():
        pairs = []
        for layer, ours in zip(peer.encoder.layers, model.encoder_layers, strict=True):
            attention(layer.self_attn, ours.attention)
            pairs += [(layer.norm1, ours.attention_norm), (layer.norm2, ours.ffn_norm)]
            pairs += [(layer.linear1, ours.ffn.up), (layer.linear2, ours.ffn.down)]
        for layer, ours in zip(peer.decoder.layers, model.decoder_layers, strict=True):
            attention(layer.self_attn, ours.self_attention)
            attention(layer.multihead_attn, ours.cross_attention)
            pairs += [
                (layer.norm1, ours.self_attention_norm),
                (layer.norm2, ours.cross_attention_norm),
            ]
            pairs += [
                (layer.norm3, ours.ffn_norm),
                (layer.linear1, ours.ffn.up),
                (layer.linear2, ours.ffn.down),
            ]
        for theirs, mine in pairs:
            theirs.load_state_dict(mine.state_dict())
        for stack, norm in ((peer.encoder, model.encoder_norm), (peer.decoder, model.decoder_norm)):
            if norm is None:
                stack.norm = None
            else:
                stack.norm.load_state_dict(norm.state_dict())
    return peer


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_between_embeddings_and_output_it_is_torchs(
    activation: str, norm_first: bool, final_norm: bool
) -> None:
    model = make(
        activation=activation, norm_first=norm_first, final_norm=final_norm, norm_eps=1e-4
    ).train()
    peer = torchs(model)
    with torch.no_grad():
        model.output.weight.div_(10)  # logits of about 1, as their bound is an absolute one
    source, target = draw(model, 3, 7, 5)
    source[1, 4:], target[2, 3:] = 0, 0
    position = torch.arange(5)[:, None]
    wave = torch.arange(24)[None]
    angle = position / 10000 ** ((wave - wave % 2) / 24)
    x = model.source_embeddings[0].weight[source] * math.sqrt(24)
    y = model.target_embedding.weight[target] * math.sqrt(24) + torch.where(
        wave % 2 == 0, angle.sin(), angle.cos()
    )
    hidden = peer(
        x,
        y,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
        tgt_key_padding_mask=target == 0,
    )
    expected = hidden @ model.output.weight.T + model.output.bias
    found = model(source, target)
    assert (found - expected)[target != 0].abs().max() <= 1e-6
    # The same gradients, too: that of the source table passes everything.
    weight = model.source_embeddings[0].weight
    upstream = torch.randn_like(found) * (target != 0)[..., None]
    grads = (torch.autograd.grad(logits, weight, upstream)[0] for logits in (found, expected))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_slot_is_the_sum_of_its_fields_each_by_its_own_table() -> None:
    model = make(**FORMS["slots"])
    source, target = draw(model, 2, 6, 4)
    entered: list[Tensor] = []
    model.encoder_layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    logits = model(source, target)
    tables = [table.weight for table in model.source_embeddings]
    expected = (tables[0][source[..., 0]] + tables[1][source[..., 1]]) * math.sqrt(24)
    torch.testing.assert_close(entered[0], expected, rtol=1e-5, atol=1e-6)
    assert (
        model(source.flip(-1), target) - logits
    ).abs().max() > 1e-3  # [a, b] is another slot than [b, a]
    assert logits.shape == (2, 4, 30)


# Order


@pytest.mark.parametrize("form", FORMS)
@given(length=st.integers(1, 12), padded=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_the_order_of_the_source_counts_only_with_positions(
    form: str, length: int, padded: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = make(**FORMS[form])
    source, target = draw(model, 2, length, 4)
    source[:, max(1, length - padded) :] = model.config.pad_id
    order = torch.randperm(length)
    change = (model(source[:, order], target) - model(source, target)).abs().max()
    if model.config.source_positions == "none":
        assert change <= 1e-5
    elif not torch.equal(source[:, order], source):
        assert change > 1e-5


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
@torch.no_grad()
def test_the_future_of_the_target_is_hidden_and_its_order_counts(positions: Any) -> None:
    """One layer without positions sees its past as a set."""
    model = make(target_positions=positions, num_decoder_layers=1)
    source, target = draw(model, 2, 6, 5)
    target[:, :2] = torch.tensor([[8, 9], [10, 11]])
    logits = model(source, target)
    later = target.clone()
    later[:, 3:] = later[:, 3:] % 5 + 8
    assert (model(source, later) - logits)[:, :3].abs().max() <= 2e-6
    swapped = model(source, target[:, [1, 0, 2, 3, 4]])
    assert bool((swapped - logits)[:, 2].abs().max() <= 2e-6) == (positions == "none")
    assert (swapped - logits)[:, :2].abs().amax((0, 2)).min() > 1e-3


# Padding


@pytest.mark.parametrize("form", FORMS)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=4),
    st.integers(0, 1000),
)
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(
    form: str, sizes: list[tuple[int, int]], seed: int
) -> None:
    torch.manual_seed(seed)
    model = make(**FORMS[form])
    source, target = draw(model, len(sizes), 12, 10)
    lengths = torch.tensor(sizes)
    real = torch.arange(12) < lengths[:, :1]
    target_real = torch.arange(10) < lengths[:, 1:]
    # what stands at the places of padding has no meaning
    garbage = model(source, target, real, target_real)
    source[~real], target[~target_real] = model.config.pad_id, model.config.pad_id
    logits = model(source, target)
    assert torch.equal(logits[target_real], garbage[target_real])
    for row, (source_len, target_len) in enumerate(sizes):
        alone = model(source[row : row + 1, :source_len], target[row : row + 1, :target_len])
        assert (logits[row, :target_len] - alone[0]).abs().max() <= 2e-6


@torch.no_grad()
def test_a_slot_is_padding_where_all_its_fields_are() -> None:
    model = make(**FORMS["slots"])
    source = torch.tensor([[[3, 4], [0, 5], [5, 0], [0, 0]]])
    assert model.real_source(source).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("form", FORMS)
def test_a_source_of_padding_alone_gives_numbers_and_gradients(form: str) -> None:
    model = make(**FORMS[form])
    source, target = draw(model, 2, 5, 3)
    source[0] = model.config.pad_id
    logits = model(source, target)
    assert logits.isfinite().all()
    longer = torch.cat([source, torch.full_like(source, model.config.pad_id)], 1)
    assert (model(longer, target) - logits).abs().max() <= 2e-6
    logits.square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


# Step by step


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunks", [[8], [1] * 8, [3, 1, 2, 2]])
@torch.no_grad()
def test_with_a_cache_it_gives_the_same(form: str, chunks: list[int]) -> None:
    model = make(**FORMS[form])
    source, target = draw(model, 3, 9, 8)
    source[1, 4:] = model.config.pad_id
    source[2] = model.config.pad_id
    target[0, 6:] = model.config.pad_id
    whole = model(source, target)
    memory = model.encode(source)
    real = model.real_source(source)
    cache = model.new_cache(memory, 8)
    parts = [model.decode(part, memory, real, cache=cache) for part in target.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-6)
    assert cache.length == 8


def test_a_pass_that_breaks_off_leaves_a_cache_that_is_refused() -> None:
    model = make().eval()
    source, target = draw(model, 2, 6, 4)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    handle = model.decoder_layers[-1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.decode(target, memory, cache=cache)
    handle.remove()
    with refused("broke off"):
        model.decode(target, memory, cache=cache)


def test_a_step_with_a_cache_does_not_read_the_memory_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make()
    source, target = draw(model, 2, 6, 4)
    memory = model.encode(source)
    cache = model.new_cache(memory)
    for block in model.decoder_layers:
        monkeypatch.setattr(block.cross_attention, "keys_and_values", None)
    model.decode(target, memory, cache=cache)
    with pytest.raises(TypeError):
        model.decode(target, memory)


def test_dropout_is_for_training() -> None:
    model = make(dropout=0.3)
    source, target = draw(model, 2, 9, 5)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))
    assert {block.ffn.dropout for block in (*model.encoder_layers, *model.decoder_layers)} == {0.3}


# Calls that cannot be


@pytest.mark.usefixtures("without_type_checks")
def test_bad_calls_are_refused() -> None:
    model = make()
    slots = make(**FORMS["slots"])
    source, target = draw(model, 2, 6, 4)
    memory = model.encode(source)
    real = torch.ones(2, 6, dtype=torch.bool)
    cache = model.new_cache(memory, 4)
    for call, message in [
        (lambda: model(source[0], target), r"source of shape \[6\]"),
        (lambda: model(source.repeat(1, 3), target), "18 positions of source"),
        (lambda: model(source + 20, target), r"source tokens from \d+ to \d+"),
        (lambda: model(source, target, real[:, :2]), r"source_real of shape \[2, 2\]"),
        (lambda: slots(source, target), r"source of shape \[2, 6\]"),
        (lambda: slots(source[..., None], target), r"source of shape \[2, 6, 1\]"),
        (lambda: model(source[..., None], target), r"source of shape \[2, 6, 1\]"),
        (lambda: model(source, target.repeat(1, 3)), "12 positions of target"),
        (lambda: model(source, -target), r"target tokens from -\d+ to "),
        (lambda: model(source, target, real, real), r"target_real of shape \[2, 6\]"),
        (
            lambda: model.decode(target[:1], memory),
            r"memory of shape \[2, 6, 24\] for a target of shape \[1, 4\]",
        ),
        (lambda: model.decode(target, memory[..., :8]), r"memory of shape \[2, 6, 8\]"),
        (lambda: model.decode(target, memory, real[:, :3]), r"source_real of shape \[2, 3\]"),
        (
            lambda: model.decode(target, memory.clone(), cache=cache),
            "a cache that was made for another memory",
        ),
        (
            lambda: model.decode(target.repeat(1, 2), memory, cache=cache),
            "8 new positions on top of 0",
        ),
        (lambda: model.new_cache(memory, 11), "a cache of max_target_len = 11"),
    ]:
        with refused(message):
            call()
    assert cache.length == 0


def test_int32_tokens_and_narrow_numbers() -> None:
    model = make()
    source, target = draw(model, 2, 9, 5)
    exact = model(source, target)
    assert torch.equal(model(source.int(), target.int()), exact)
    with torch.autocast("cpu", torch.bfloat16):
        memory = model.encode(source)
        assert (
            model.decode(target, memory, cache=model.new_cache(memory)).float() - exact
        ).abs().max() < 0.3
    low = model.bfloat16()(source, target)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().max() < 0.3
