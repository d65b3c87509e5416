import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.checkpoints.bert import save_encoder
from glassformer.models import Encoder
from models.forms import BERT, ENCODER, make
from models.forms import ENCODERS as FORMS
from refusals import refused

make = partial(make, ENCODER)


def padded(texts: list[list[int]], length: int, pad_id: int) -> Tensor:
    return torch.tensor([text + [pad_id] * (length - len(text)) for text in texts])


def draw_texts(lengths: list[int], pad_id: int = 0) -> list[list[int]]:
    return [
        [token if token != pad_id else 39 for token in torch.randint(40, (n,)).tolist()]
        for n in lengths
    ]


# What it computes


@torch.no_grad()
def test_embedding_and_head_are_their_formulas() -> None:
    """The blocks between them are those of the encoder-decoder, which its tests compare with
    torch's.
    """
    model = make()
    entered = []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    texts = draw_texts([9, 5, 1])
    tokens = padded(texts, 9, 0)
    logits = model(tokens)
    hidden = model.hidden(tokens)
    position = torch.arange(9)[:, None]
    wave = torch.arange(24)[None]
    angle = position / 10000 ** ((wave - wave % 2) / 24)
    x = model.embedding.weight[tokens] * math.sqrt(24) + torch.where(
        wave % 2 == 0, angle.sin(), angle.cos()
    )
    torch.testing.assert_close(entered[0], x, rtol=0, atol=1e-6)
    for block in model.layers:
        x = block(x, key_padding=tokens != 0)
    torch.testing.assert_close(
        hidden, nn.functional.layer_norm(x, (24,), *model.final_norm.parameters())
    )
    pooled = torch.stack([hidden[row, : len(text)].mean(0) for row, text in enumerate(texts)])
    expected = pooled @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    others = make(activation="relu", norm_first=True, norm_eps=1e-4).layers
    options = {(block.ffn.activation, block.norm_place, block.ffn_norm.eps) for block in others}
    assert options == {("relu", "before", 1e-4)}


@torch.no_grad()
def test_the_embedding_of_bert_is_a_normed_sum_of_three() -> None:
    model = make(**BERT)
    tokens = torch.randint(1, 40, (2, 6))
    types = torch.randint(2, (2, 6))
    captured = []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    for chosen in (types, None):
        model.hidden(tokens, types=chosen)
        segments = model.token_types.weight[torch.zeros_like(types) if chosen is None else chosen]
        total = model.embedding.weight[tokens] + model.positions.weight[:6] + segments
        torch.testing.assert_close(
            captured.pop(), model.embedding_norm(total), rtol=1e-5, atol=1e-6
        )


def test_pooling_by_hand() -> None:
    hidden = torch.tensor(
        [[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[5.0, 6.0], [7.0, 8.0], [0.0, 1.0]]]
    )
    real = torch.tensor([[True, True, False], [True, True, True]])
    expected = {
        "mean": [[[2.0, -3.0], [4.0, 5.0]], [[103 / 3, 31.0], [4.0, 5.0]]],
        "max": [[[3.0, -2.0], [7.0, 8.0]], [[99.0, 99.0], [7.0, 8.0]]],
        "cls": [[[1.0, -4.0], [5.0, 6.0]]] * 2,
    }
    for pooling, (masked, unmasked) in expected.items():
        model = make(hidden_dim=24, pooling=pooling)
        torch.testing.assert_close(model.pool(hidden, real), torch.tensor(masked))
        torch.testing.assert_close(model.pool(hidden), torch.tensor(unmasked))


# Padding and order


@pytest.mark.parametrize("form", FORMS)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    extra=st.integers(0, 30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
@torch.no_grad()
def test_padding_and_order_change_no_prediction(
    form: str, lengths: list[int], extra: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = make(**FORMS[form])
    texts = draw_texts(lengths, model.config.pad_id)
    longest = max(lengths)
    alone = torch.cat([model(torch.tensor([text])) for text in texts])
    tokens = padded(texts, longest, model.config.pad_id)
    more = padded(texts, longest + extra, model.config.pad_id)
    order = torch.randperm(len(texts))
    for logits in (model(tokens), model(more), model(more[order])[order.argsort()]):
        assert (logits - alone).abs().max() <= 1e-6
        assert (logits.softmax(-1) - alone.softmax(-1)).abs().max() <= 1e-6


@torch.no_grad()
def test_what_fills_up_has_no_meaning() -> None:
    """Any token behind the text, as long as ``real`` tells."""
    model = make()
    tokens = torch.randint(1, 40, (2, 12))
    real = torch.arange(12) < torch.tensor([[5], [8]])
    other = torch.where(real, tokens, torch.randint(0, 40, (2, 12)))
    assert torch.equal(model(tokens, real), model(other, real))
    assert torch.equal(model.hidden(tokens, real)[real], model.hidden(other, real)[real])
    assert (model(tokens) - model(tokens, real)).abs().max() > 1e-3


@torch.no_grad()
def test_without_positions_the_order_of_words_is_lost_and_with_them_it_is_not() -> None:
    tokens = torch.randint(1, 40, (1, 10))
    shuffled = tokens[:, torch.randperm(10)]
    for positions in ("none", "sinusoidal", "learned"):
        model = make(positions=positions)
        same = (model(tokens) - model(shuffled)).abs().max() <= 1e-6
        assert same == (positions == "none")


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_text_of_padding_alone_gives_numbers(form: str) -> None:
    model = make(**FORMS[form])
    tokens = torch.full((2, 4), model.config.pad_id)
    tokens[1, :3] = 9
    logits = model(tokens)
    assert logits.isfinite().all()
    if model.config.pooling != "cls":
        assert torch.equal(logits[0], model.classifier.bias)
    assert (logits[1] - model(tokens[1:, :3])[0]).abs().max() <= 1e-6


# Training


def test_dropout_is_for_training() -> None:
    model = make(dropout=0.3, attention_dropout=0.2)
    tokens = torch.randint(1, 40, (2, 9))
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    rates = {block.ffn.dropout for block in make(dropout=0.3).layers}
    assert rates == {0.3}
    assert {block.ffn.dropout for block in make(dropout=0.3, ff_dropout=0.0).layers} == {0.0}


# Calls that cannot be


@pytest.mark.usefixtures("without_type_checks")
def test_bad_calls_are_refused() -> None:
    tokens = torch.ones(2, 3, dtype=torch.long)
    ones = torch.ones(2, 3, dtype=torch.bool)
    bert = make(**BERT)
    plain = make()
    for call, message in [
        (lambda: plain(tokens[0]), r"tokens of shape \[3\]"),
        (lambda: plain(tokens[None]), r"tokens of shape \[1, 2, 3\]"),
        (lambda: plain(tokens[:0]), r"tokens of shape \[0, 3\]"),
        (lambda: plain(tokens[:, :0]), r"tokens of shape \[2, 0\]"),
        (lambda: plain.hidden(torch.ones(2, 3)), r"tokens of dtype torch\.float32"),
        (lambda: plain.hidden(ones), r"tokens of dtype torch\.bool"),
        (lambda: plain.hidden(tokens.to(torch.uint8)), r"tokens of dtype torch\.uint8"),
        (lambda: plain(torch.tensor([[1, 40]])), "tokens from 1 to 40"),
        (lambda: plain.hidden(torch.ones(1, 65, dtype=torch.long)), "65 positions"),
        (lambda: plain(tokens, ones[:, :2]), r"real of shape \[2, 2\]"),
        (lambda: plain(tokens, ones.long()), r"real of .* dtype torch\.int64"),
        (lambda: plain(tokens, types=tokens), "types for an encoder with token_types = 0"),
        (lambda: bert(tokens, types=tokens[:, :2]), r"types of shape \[2, 2\]"),
        (lambda: bert(tokens, types=ones), r"types of .* dtype torch\.bool"),
        (lambda: bert(tokens, types=tokens + 1), r"types from 2 to 2"),
        (lambda: make(num_classes=None)(tokens), "an encoder without a classification head"),
    ]:
        with refused(message):
            call()


def test_int32_tokens_and_narrow_numbers() -> None:
    model = make()
    tokens = torch.randint(1, 40, (2, 9))
    exact = model(tokens)
    assert torch.equal(model(tokens.int()), exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(tokens).float() - exact).abs().max() < 0.1
    low = model.bfloat16()(tokens)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().max() < 0.1


def test_from_pretrained_is_the_loader_of_checkpoints(tmp_path: Path) -> None:
    encoder = make()
    save_encoder(encoder, tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved", dropout=0.0).eval()
    tokens = torch.tensor([[2, 5, 7]])
    assert torch.equal(again(tokens), encoder(tokens))
    assert again.config.dropout == 0.0
    with refused("nowhere"):
        Encoder.from_pretrained(tmp_path / "nowhere")
