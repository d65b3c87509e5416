"""The course's block beside torch's nn.TransformerEncoderLayer, its model beside the encoder and its own formulas."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.labs.sentiment.course import MiniTransformer, TransformerBlock
from glassformer.models.encoder import Encoder
from refusals import refused

SIZES = {"vocab_size": 30, "d_model": 24, "num_heads": 4, "num_layers": 2, "d_ff": 40, "max_length": 12}


def model(**changes: float) -> MiniTransformer:
    """A small model whose logits are not nearly equal."""
    made = MiniTransformer(**{**SIZES, "num_classes": 3, **changes}).eval()  # type: ignore[arg-type]
    nn.init.normal_(made.classifier.weight)
    return made


def texts() -> Tensor:
    tokens = torch.randint(1, 30, (4, 9))
    return tokens.masked_fill(torch.arange(9) >= torch.tensor([[9], [5], [2], [1]]), 0)


@pytest.mark.parametrize("masked", ["nothing", "padding", "future"])
def test_the_block_is_torchs_with_the_same_weights(masked: str) -> None:
    block, x = TransformerBlock(24, 4, 40).eval(), torch.randn(3, 7, 24)
    for weight in block.parameters():
        nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    theirs = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval()
    attention = block.attention
    maps = (attention.W_q, attention.W_k, attention.W_v)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in maps]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in maps]))
    theirs.self_attn.out_proj.load_state_dict(attention.W_o.state_dict())
    for ours, other in (("norm1", "norm1"), ("norm2", "norm2")):
        getattr(theirs, other).load_state_dict(getattr(block, ours).state_dict())
    theirs.linear1.load_state_dict(block.feed_forward.linear1.state_dict())
    theirs.linear2.load_state_dict(block.feed_forward.linear2.state_dict())
    real = torch.arange(7) < torch.tensor([[7], [4], [1]])
    future = torch.ones(7, 7, dtype=torch.bool).tril()
    mask = {"nothing": None, "padding": real[:, None, None, :], "future": future}[masked]
    expected = theirs(
        x,
        src_mask=~future if masked == "future" else None,
        src_key_padding_mask=~real if masked == "padding" else None,
    )
    # Torch's fused path gives zeros at padded positions, which mean nothing in either.
    meant = real if masked == "padding" else torch.ones_like(real)
    torch.testing.assert_close(block(x, mask)[0][meant], expected[meant], atol=2e-6, rtol=1e-6)
    if masked != "future":
        padding = real if masked == "padding" else None
        torch.testing.assert_close(block.as_layer()(x, key_padding=padding), block(x, mask)[0], atol=1e-6, rtol=1e-6)


def test_the_model_is_the_encoder_with_the_same_weights() -> None:
    mini, tokens = model(), texts()
    encoder = mini.encoder
    logits, weights = mini(tokens)
    torch.testing.assert_close(encoder(tokens), logits, atol=1e-6, rtol=1e-6)
    assert {id(weight) for weight in encoder.parameters()} == {id(weight) for weight in mini.parameters()}
    assert not any(weight.is_meta for weight in encoder.state_dict().values())
    assert [tuple(each.shape) for each in weights] == [(4, 4, 9, 9)] * 2
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones(4, 4, 9))
        assert each[2, :, :, 2:].abs().max() == 0


@torch.no_grad()
def test_both_drop_as_much_in_training() -> None:
    mini = model(dropout=0.3).train()
    same = texts()[1:2].repeat(6000, 1)
    theirs, ours = mini.encoder(same), mini(same)[0]
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0, rtol=0.05)
    assert theirs.std(0).min() > 0.5


def test_an_encoder_of_its_configuration_can_take_its_weights() -> None:
    mini, tokens = model(dropout=0.3), texts()
    encoder = Encoder(mini.config).eval()
    encoder.load_state_dict(mini.encoder.state_dict())
    torch.testing.assert_close(encoder(tokens), mini(tokens)[0], atol=1e-6, rtol=1e-6)
    for ours, theirs in zip(mini.encoder.layers, encoder.layers, strict=True):
        for block in (ours, theirs):
            assert (block.dropout, block.ffn.dropout, block.attention.dropout) == (0.3, 0.3, 0.3)


def test_training_the_encoder_trains_the_model() -> None:
    mini, tokens = model(), texts()
    before = mini(tokens)[0]
    optimizer = torch.optim.SGD(mini.encoder.parameters(), lr=0.1)
    mini.encoder(tokens).square().sum().backward()
    optimizer.step()
    assert (mini(tokens)[0] - before).abs().max() > 1e-3


@settings(max_examples=20, deadline=None)
@given(extra=st.integers(0, 3), seed=st.integers(0, 50))
def test_padding_and_order_change_no_prediction(extra: int, seed: int) -> None:
    torch.manual_seed(seed)
    mini, tokens = model(), texts()
    expected = mini(tokens)[0].softmax(-1)
    padded = torch.cat([tokens, torch.zeros(4, extra, dtype=torch.long)], dim=1)
    order = torch.randperm(4)
    torch.testing.assert_close(mini(padded[order])[0].softmax(-1), expected[order], atol=1e-6, rtol=0)
    torch.testing.assert_close(mini(tokens[2:3, :2])[0].softmax(-1), expected[2:3], atol=1e-6, rtol=0)


def test_a_mask_of_ones_gives_what_the_course_computes() -> None:
    mini, tokens = model(), texts()
    x = mini.embeddings(tokens)
    for block in mini.transformer_blocks:
        attended, _ = nn.functional.multi_head_attention_forward(
            *[x.transpose(0, 1)] * 3,
            embed_dim_to_check=24,
            num_heads=4,
            in_proj_weight=torch.cat([getattr(block.attention, name).weight for name in ("W_q", "W_k", "W_v")]),
            in_proj_bias=torch.cat([getattr(block.attention, name).bias for name in ("W_q", "W_k", "W_v")]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=block.attention.W_o.weight,
            out_proj_bias=block.attention.W_o.bias,
            training=False,
        )
        x = block.norm1(x + attended.transpose(0, 1))
        x = block.norm2(x + block.feed_forward(x))
    expected = mini.classifier(mini.ln_f(x).mean(1))
    found = mini(tokens, torch.ones_like(tokens))[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    # Over padding too: so the shortest text's prediction moves most, and that of the full one stays.
    moved = (found - mini(tokens)[0]).abs().amax(1)
    assert moved[0] < 1e-6
    assert moved[1:].min() > 1e-3


def test_a_given_mask_decides_what_is_real() -> None:
    mini, tokens = model(), texts()
    tokens[:, 4] = 0
    mask = torch.arange(9) < 5
    found = mini(tokens, mask.expand(4, 9).int())[0]
    torch.testing.assert_close(found, mini(tokens[:, :5], torch.ones(4, 5))[0], atol=1e-6, rtol=0)


def test_a_text_of_padding_alone_has_finite_logits() -> None:
    mini = model()
    logits, weights = mini(torch.zeros(1, 4, dtype=torch.long))
    torch.testing.assert_close(logits, mini.classifier.bias[None])
    assert weights[0].abs().max() == 0


def test_it_counts_the_courses_parameters_and_copies() -> None:
    mini = model()
    block = 4 * (24 * 24 + 24) + 24 * 40 + 40 + 40 * 24 + 24 + 4 * 24
    assert sum(weight.numel() for weight in mini.parameters()) == 30 * 24 + 2 * block + 2 * 24 + 24 * 3 + 3
    twin = copy.deepcopy(mini)
    tokens = texts()
    nn.init.zeros_(mini.classifier.weight)
    assert (twin(tokens)[0] - mini(tokens)[0]).abs().max() > 0.01


def test_making_the_encoder_leaves_the_random_numbers_alone() -> None:
    mini = model()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    mini.encoder
    torch.testing.assert_close(torch.rand(3), expected)


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_refused() -> None:
    with refused("d_model = 24 with num_heads = 5"):
        model(num_heads=5)
    with refused("num_layers = 0"):
        model(num_layers=0)
    with refused("num_classes = 1"):
        model(num_classes=1)
    mini = model()
    with refused(r"tokens of shape \[3\]"):
        mini(torch.ones(3, dtype=torch.long))
    with refused("13 positions"):
        mini(torch.ones(1, 13, dtype=torch.long))
    with refused("tokens from 30 to 30"):
        mini(torch.full((1, 3), 30))
    with refused(r"attention_mask of shape \[1, 4\]"):
        mini(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 4))
    with refused("mask with numbers"):
        mini(torch.ones(1, 3, dtype=torch.long), torch.full((1, 3), 0.5))
