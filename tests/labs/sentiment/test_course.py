"""The course's layers and model: against their formulas, torch's layers and the library's encoder."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.labs.sentiment.course import (
    FeedForward,
    LayerNorm,
    MiniTransformer,
    MultiHeadAttention,
    TokenEmbedding,
    TransformerBlock,
    TransformerEmbeddings,
    scaled_dot_product_attention,
)
from glassformer.models.encoder import Encoder
from refusals import refused

SIZES = {
    "vocab_size": 30,
    "d_model": 24,
    "num_heads": 4,
    "num_layers": 2,
    "d_ff": 40,
    "max_length": 12,
}


def test_embeddings_are_scaled_rows_and_positions_and_dropped_in_training() -> None:
    layer = TransformerEmbeddings(10, 16, max_length=8, dropout=0.5)
    tokens = torch.randint(10, (2, 8))
    assert (layer.token_embedding.d_model, layer.pos_encoding.pe.shape) == (16, (8, 16))
    assert layer.pos_encoding.pe[3, 2:4].tolist() == pytest.approx(
        [f(3 / 10000 ** (1 / 8)) for f in (math.sin, math.cos)]
    )
    expected = 4 * layer.token_embedding.embedding.weight[tokens] + layer.pos_encoding.pe
    in_training = layer(tokens)
    kept = in_training != 0
    assert 0.3 < float(kept.float().mean()) < 0.7
    torch.testing.assert_close(in_training[kept], 2 * expected[kept])
    torch.testing.assert_close(layer.eval()(tokens), expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=12))
def test_layer_norm_divides_by_the_unbiased_deviation(values: list[float]) -> None:
    layer = LayerNorm(len(values), eps=1e-3)
    nn.init.constant_(layer.gamma, 3.0)
    nn.init.constant_(layer.beta, -1.0)
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values)
    expected = [3 * (value - mean) / (deviation + 1e-3) - 1 for value in values]
    found = layer(torch.tensor(values, dtype=torch.float64))
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=3e-6, rtol=1e-6
    )


@settings(max_examples=50, deadline=None)
@given(
    heads=st.sampled_from([None, 1, 3]),
    queries=st.integers(1, 5),
    keys=st.integers(1, 6),
    mask_axes=st.sets(st.integers(0, 3)),
    leading=st.integers(0, 4),
    as_numbers=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_is_the_courses_formula_with_any_mask(
    heads: int | None,
    queries: int,
    keys: int,
    mask_axes: set[int],
    leading: int,
    as_numbers: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    lead = (2,) if heads is None else (2, heads)
    Q = torch.randn(*lead, queries, 4)
    K = torch.randn(*lead, keys, 4)
    V = torch.randn(*lead, keys, 5)
    shape = (*lead, queries, keys)
    # 1 along some axes, and without some of the leading ones.
    mask_shape = [size if axis in mask_axes else 1 for axis, size in enumerate(shape)][
        min(leading, len(shape) - 1) :
    ]
    mask = torch.rand(mask_shape) < 0.6
    mask[..., 0] = True  # so that every query sees a key
    output, weights = scaled_dot_product_attention(Q, K, V, mask.int() if as_numbers else mask)
    expected = (
        (Q @ K.transpose(-2, -1) / Q.shape[-1] ** 0.5).masked_fill(mask == 0, -1e9).softmax(-1)
    )
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(output, expected @ V, atol=1e-6, rtol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    x = torch.randn(1, 3, 4)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    output, weights = scaled_dot_product_attention(x, x, x, mask)
    assert output[0, 1].abs().max() == weights[0, 1].abs().max() == 0
    torch.testing.assert_close(output[0, 2], x[0, 0])


def test_dropout_drops_weights_in_training_only() -> None:
    x = torch.randn(1, 6, 4)
    dropout = nn.Dropout(0.5)
    plain, weights = scaled_dot_product_attention(x, x, x)
    many = x.expand(2000, -1, -1)
    dropped = scaled_dot_product_attention(many, many, many, dropout=dropout)[0]
    assert (dropped[0] - plain).abs().max() > 0.01
    torch.testing.assert_close(dropped.mean(0, keepdim=True), plain, atol=0.1, rtol=0)
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x, dropout=dropout)[1], weights)
    torch.testing.assert_close(
        scaled_dot_product_attention(x, x, x, dropout=dropout.eval())[0], plain
    )


@pytest.mark.parametrize("masked", ["nothing", "padding", "future"])
def test_the_block_and_its_weights_are_torchs_with_the_same_parameters(masked: str) -> None:
    block = TransformerBlock(24, 4, 40).eval()
    x = torch.randn(3, 7, 24)
    for weight in block.parameters():
        nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    theirs = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval()
    attention = block.attention
    maps = (attention.W_q, attention.W_k, attention.W_v)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in maps]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in maps]))
    for other, ours in (
        (theirs.self_attn.out_proj, attention.W_o),
        (theirs.norm1, block.norm1),
        (theirs.norm2, block.norm2),
        (theirs.linear1, block.feed_forward.linear1),
        (theirs.linear2, block.feed_forward.linear2),
    ):
        other.load_state_dict(ours.state_dict())
    real = torch.arange(7) < torch.tensor([[7], [4], [1]])
    future = torch.ones(7, 7, dtype=torch.bool).tril()
    mask = {"nothing": None, "padding": real[:, None, None, :], "future": future}[masked]
    hidden = ~future if masked == "future" else None
    unreal = ~real if masked == "padding" else None
    output, weights = block(x, mask)
    # Torch's fused path gives zeros at padded positions, which mean nothing in either.
    meant = real if masked == "padding" else torch.ones_like(real)
    expected = theirs(x, src_mask=hidden, src_key_padding_mask=unreal)
    torch.testing.assert_close(output[meant], expected[meant], atol=2e-6, rtol=1e-6)
    options = {"key_padding_mask": unreal, "attn_mask": hidden, "average_attn_weights": False}
    torch.testing.assert_close(weights, theirs.self_attn(x, x, x, **options)[1], atol=1e-6, rtol=0)
    if masked != "future":
        padding = real if masked == "padding" else None
        torch.testing.assert_close(
            block.as_layer()(x, key_padding=padding), output, atol=1e-6, rtol=1e-6
        )


def model(**changes: float) -> MiniTransformer:
    """A small model whose logits are not nearly equal."""
    made = MiniTransformer(**{**SIZES, "num_classes": 3, **changes}).eval()
    nn.init.normal_(made.classifier.weight)
    return made


def texts() -> Tensor:
    tokens = torch.randint(1, 30, (4, 9))
    return tokens.masked_fill(torch.arange(9) >= torch.tensor([[9], [5], [2], [1]]), 0)


def test_the_model_is_the_encoder_with_the_same_weights() -> None:
    mini = model()
    tokens = texts()
    state = torch.get_rng_state()
    encoder = mini.encoder
    assert torch.equal(torch.get_rng_state(), state)
    logits, weights = mini(tokens)
    torch.testing.assert_close(encoder(tokens), logits, atol=1e-6, rtol=1e-6)
    assert {id(weight) for weight in encoder.parameters()} == {
        id(weight) for weight in mini.parameters()
    }
    assert not any(weight.is_meta for weight in encoder.state_dict().values())
    block = 4 * (24 * 24 + 24) + 24 * 40 + 40 + 40 * 24 + 24 + 4 * 24
    assert (
        sum(weight.numel() for weight in mini.parameters())
        == 30 * 24 + 2 * block + 2 * 24 + 24 * 3 + 3
    )
    assert [tuple(each.shape) for each in weights] == [(4, 4, 9, 9)] * 2
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones(4, 4, 9))
        assert each[2, :, :, 2:].abs().max() == 0


@torch.no_grad()
def test_both_drop_as_much_in_training() -> None:
    mini = model(dropout=0.3).train()
    same = texts()[1:2].repeat(6000, 1)
    theirs = mini.encoder(same)
    ours = mini(same)[0]
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=0, rtol=0.05)
    assert theirs.std(0).min() > 0.5


def test_an_encoder_of_its_configuration_can_take_its_weights() -> None:
    mini = model(dropout=0.3)
    tokens = texts()
    encoder = Encoder(mini.config).eval()
    encoder.load_state_dict(mini.encoder.state_dict())
    torch.testing.assert_close(encoder(tokens), mini(tokens)[0], atol=1e-6, rtol=1e-6)
    for ours, theirs in zip(mini.encoder.layers, encoder.layers, strict=True):
        for block in (ours, theirs):
            assert (block.dropout, block.ffn.dropout, block.attention.dropout) == (0.3, 0.3, 0.3)


def test_a_mask_of_ones_gives_what_the_course_computes() -> None:
    mini = model()
    tokens = texts()
    x = mini.embeddings(tokens)
    for block in mini.transformer_blocks:
        x, _ = block(x)
    found = mini(tokens, torch.ones_like(tokens))[0]
    torch.testing.assert_close(found, mini.classifier(mini.ln_f(x).mean(1)), atol=1e-5, rtol=1e-5)
    # Over padding too: so the shortest text's prediction moves most, and that of the full one
    # stays.
    moved = (found - mini(tokens)[0]).abs().amax(1)
    assert moved[0] < 1e-6
    assert moved[1:].min() > 1e-3


def test_a_given_mask_decides_what_is_real() -> None:
    mini = model()
    tokens = texts()
    tokens[:, 4] = 0
    mask = torch.arange(9) < 5
    found = mini(tokens, mask.expand(4, 9).int())[0]
    torch.testing.assert_close(found, mini(tokens[:, :5], torch.ones(4, 5))[0], atol=1e-6, rtol=0)
    logits, weights = mini(torch.zeros(1, 4, dtype=torch.long))
    torch.testing.assert_close(logits, mini.classifier.bias[None])
    assert weights[0].abs().max() == 0


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenEmbedding(10, 8)(torch.tensor([[2, 10]])), "tokens from 2 to 10"),
        (lambda: LayerNorm(1), "features = 1"),
        (lambda: LayerNorm(4, eps=0), "eps = 0"),
        (lambda: FeedForward(4, 0), "d_ff = 0"),
        (lambda: MultiHeadAttention(10, 4), "d_model = 10 with num_heads = 4"),
        (lambda: MultiHeadAttention(8, 0), "num_heads = 0"),
        (
            lambda: scaled_dot_product_attention(
                *torch.randn(3, 2, 3, 4), torch.zeros(3, 3).fill_diagonal_(-torch.inf)
            ),
            "numbers other than 0 and 1",
        ),
        (
            lambda: model()(torch.ones(1, 3).long(), torch.ones(1, 4)),
            r"attention_mask of shape \[1, 4\]",
        ),
        (lambda: model()(torch.ones(1, 3).long(), torch.full((1, 3), 0.5)), "mask with numbers"),
    ],
)
def test_bad_arguments_are_refused(call, message: str) -> None:
    with refused(message):
        call()
