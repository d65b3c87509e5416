"""The course's parts: the same function as the library's network and as torch's own layers, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.labs.lookup.course_network import (
    CrossAttentionLookupModel,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PositionWiseFeedForward,
)
from refusals import refused


def make(layers: int = 1, dropout: float = 0.1) -> CrossAttentionLookupModel:
    return CrossAttentionLookupModel(14, 16, 4, layers, 32, 10, dropout).eval()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, 14, (batch, length))


def by_torch(model: CrossAttentionLookupModel, layers: int) -> nn.Transformer:
    """torch's transformer with the weights of ``model``."""
    peer = nn.Transformer(16, 4, layers, layers, 32, 0.1, batch_first=True)
    peer.encoder.norm = peer.decoder.norm = None

    def attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)

    def same(theirs: nn.Module, ours: nn.Module) -> None:
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)

    with torch.no_grad():
        for theirs, ours in zip(peer.encoder.layers, model.encoder.layers, strict=True):
            attention(theirs.self_attn, ours.attention)
            for one, two in ((theirs.linear1, ours.ffn.up), (theirs.linear2, ours.ffn.down)):
                same(one, two)
            same(theirs.norm1, ours.attention_norm)
            same(theirs.norm2, ours.ffn_norm)
        for theirs, ours in zip(peer.decoder.layers, model.decoder.layers, strict=True):
            attention(theirs.self_attn, ours.self_attention)
            attention(theirs.multihead_attn, ours.cross_attention)
            for one, two in ((theirs.linear1, ours.ffn.up), (theirs.linear2, ours.ffn.down)):
                same(one, two)
            same(theirs.norm1, ours.self_attention_norm)
            same(theirs.norm2, ours.cross_attention_norm)
            same(theirs.norm3, ours.ffn_norm)
    return peer.eval()


@pytest.mark.parametrize("layers", [1, 2])
def test_with_padding_the_logits_are_those_of_torchs_transformer(layers: int) -> None:
    model = make(layers)
    with torch.no_grad():  # biases and norms start at 0 and 1, where mistakes would not show
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    source, target = tokens(3, 6), tokens(3, 4)
    source[0, 4:] = 0
    target[1, 3:] = 0
    peer = by_torch(model, layers)
    positions = model.decoder.pos_encoding.table[:4]
    expected = peer(
        model.encoder.embedding(source) * 4,
        model.decoder.embedding(target) * 4 + positions,
        tgt_mask=torch.triu(torch.ones(4, 4, dtype=torch.bool), 1),
        src_key_padding_mask=source == 0,
        memory_key_padding_mask=source == 0,
        tgt_key_padding_mask=target == 0,
    )
    logits = model(source, target, source == 0, target == 0)
    real = target != 0
    torch.testing.assert_close(logits[real], model.projection(expected)[real], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(logits, model(source, target), atol=0, rtol=0)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_network_is_the_same_function_with_the_same_weights(layers: int) -> None:
    model = make(layers)
    source, target = tokens(3, 6), tokens(3, 4)
    source[0, 4:] = 0
    network = model.network
    torch.testing.assert_close(model(source, target), network(source, target), atol=0, rtol=0)
    assert {id(weight) for weight in network.parameters()} == {id(weight) for weight in model.parameters()}
    network(source, target).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not network.training
    assert make().train().network.training


def test_training_mode_drops_in_every_part() -> None:
    model = make(dropout=0.5)
    source, target = tokens(2, 5), tokens(2, 2)
    assert not torch.equal(model.train()(source, target), model(source, target))
    assert torch.equal(model.eval()(source, target), model(source, target))


def test_the_mask_decides_what_is_padding() -> None:
    model = make()
    source, target = tokens(2, 5), tokens(2, 3)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[:, 3:] = True
    other = source.clone()
    other[:, 3:] = tokens(2, 2)
    torch.testing.assert_close(model(source, target, hidden), model(other, target, hidden), atol=0, rtol=0)
    torch.testing.assert_close(model(source, target, hidden), model(source[:, :3], target), atol=1e-5, rtol=1e-5)
    # [PAD] that the mask calls real is read.
    source[0, 0] = 0
    real = torch.zeros(2, 5, dtype=torch.bool)
    assert not torch.allclose(model(source, target, real), model(source, target), atol=1e-4)


def test_the_source_is_a_set_and_the_target_is_not() -> None:
    model = make()
    source, target = tokens(4, 6), tokens(4, 3)
    torch.testing.assert_close(model(source, target), model(source.flip(1), target), atol=1e-5, rtol=0)
    target[:, 0], target[:, 1] = 3, 5
    swapped = target[:, [1, 0, 2]]
    assert not torch.allclose(model(source, target)[:, -1], model(source, swapped)[:, -1], atol=1e-4)


def test_a_later_target_token_changes_no_earlier_logits() -> None:
    model = make()
    source, target = tokens(2, 5), tokens(2, 4)
    other = target.clone()
    other[:, 3] = (other[:, 3] - 3 + 1) % 11 + 3
    torch.testing.assert_close(model(source, target)[:, :3], model(source, other)[:, :3], atol=0, rtol=0)


def test_parts_work_by_themselves() -> None:
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    assert MultiHeadAttention(16, 4)(x).shape == MultiHeadAttention(16, 4)(x, memory).shape == x.shape
    assert PositionWiseFeedForward(16, 32)(x).shape == x.shape
    assert EncoderLayer(16, 4, 32)(x).shape == DecoderLayer(16, 4, 32)(x, memory).shape == x.shape
    read = Encoder(14, 16, 4, 2, 32, 10)(tokens(2, 5))
    assert Decoder(14, 16, 4, 2, 32, 10)(tokens(2, 3), read).shape == (2, 3, 16)


@pytest.mark.parametrize(
    "build",
    [
        lambda: MultiHeadAttention(10, 4),
        lambda: EncoderLayer(10, 4, 32),
        lambda: DecoderLayer(10, 4, 32),
    ],
)
def test_a_width_that_heads_do_not_divide_is_refused(build) -> None:
    with pytest.raises(InputError, match=r"d_model = 10 with num_heads = 4.*multiple"):
        build()


@pytest.mark.parametrize("place", range(6))
def test_a_size_below_one_is_refused(place: int) -> None:
    sizes = [14, 16, 4, 1, 32, 10]
    sizes[place] = 0
    with pytest.raises(InputError):
        CrossAttentionLookupModel(*sizes)


def test_contexts_that_cannot_be_read_are_refused() -> None:
    model, target = make(), torch.ones(2, 1, dtype=torch.int64)
    with refused(r"enc_input of shape \[2, 0\]"):
        model(torch.empty(2, 0, dtype=torch.int64), target)
    with refused("enc_input from 3 to 14"):
        model(torch.tensor([[3, 14], [3, 4]]), target)
    with refused(r"enc_input from -1 to"):
        model(torch.tensor([[3, -1], [3, 4]]), target)
    with pytest.raises(InputError, match=r"11 positions of enc_input.*max_seq_len = 10"):
        model(tokens(2, 11), target)
    with pytest.raises(InputError, match=r"11 positions of dec_input.*max_seq_len = 10"):
        model(tokens(2, 5), tokens(2, 11))


@pytest.mark.usefixtures("without_type_checks")
def test_masks_that_do_not_fit_are_refused() -> None:
    model, source, target = make(), tokens(2, 5), tokens(2, 3)
    hidden = torch.tensor([[True, False, False, False]] * 2)
    with pytest.raises(InputError):
        model(source, target, hidden)
    with pytest.raises(InputError):
        model(source, target, None, hidden)
    with pytest.raises(InputError):
        model.decoder(target, model.encoder(source), hidden)


def test_a_context_of_padding_alone_gives_finite_logits() -> None:
    logits = make()(torch.zeros(2, 5, dtype=torch.int64), tokens(2, 3))
    assert logits.isfinite().all()
