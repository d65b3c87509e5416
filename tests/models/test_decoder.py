import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.layers.attention import watching
from glassformer.layers.blocks import Block
from glassformer.layers.experts import MixtureOfExperts, balance_loss, collect_routing
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from models.forms import DECODER as BASE
from models.forms import DECODERS as FORMS
from models.forms import GPT_OSS, make
from refusals import refused

PACKABLE = DecoderConfig(
    vocab_size=20,
    num_layers=2,
    hidden_dim=32,
    ff_dim=64,
    num_heads=2,
    head_dim=4,
    num_experts=4,
    ff_bias=True,
)
make = partial(make, BASE)


def left_padded(lengths: list[int], length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(BASE.vocab_size, (len(lengths), length))
    return tokens, torch.arange(length) >= length - torch.tensor(lengths)[:, None]


def in_chunks(
    model: Decoder, tokens: Tensor, chunks: list[int], key_padding: Tensor | None = None
) -> Tensor:
    cache = model.new_cache(len(tokens), sum(chunks))
    parts = []
    start = 0
    for new in chunks:
        piece = slice(start, start + new)
        real = None if key_padding is None else key_padding[:, piece]
        parts.append(model(tokens[:, piece], cache=cache, key_padding=real))
        start += new
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("form", FORMS)
@given(chunks=st.lists(st.integers(1, 20), min_size=1, max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
@torch.no_grad()
def test_cached_logits_are_the_uncached_ones(form: str, chunks: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = make(**FORMS[form])
    chunks = [*chunks[:3], 1, 1]  # a prompt in up to three pieces, then steps
    tokens = torch.randint(32, (3, sum(chunks)))
    assert (in_chunks(model, tokens, chunks) - model(tokens)).abs().max() <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_ragged_batches_are_their_rows_alone(form: str) -> None:
    """Padded on the left, at once and with a cache, beyond every window."""
    model = make(**FORMS[form])
    lengths = [30, 17, 3, 1]
    tokens, real = left_padded(lengths, 30)
    at_once = model(tokens, key_padding=real)
    cached = in_chunks(model, tokens, [20, 4, 1, 1, 4], real)
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, -length:])[0]
        assert (at_once[row, -length:] - alone).abs().max() <= 1e-5
        assert (cached[row, -length:] - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_a_later_token_changes_no_earlier_logit(form: str) -> None:
    model = make(**FORMS[form])
    tokens = torch.randint(32, (2, 20))
    for changed_at in (1, 8, 19):
        other = tokens.clone()
        other[:, changed_at] = (other[:, changed_at] + 1) % 32
        before = model(tokens)
        after = model(other)
        assert torch.allclose(before[:, :changed_at], after[:, :changed_at], rtol=0, atol=1e-6)
        assert (before[:, changed_at] - after[:, changed_at]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("windowed_layers", "reach"), [("all", 2 * 3), ("odd", None), ("even", None)]
)
def test_windows_limit_how_far_a_token_reaches(windowed_layers: str, reach: int | None) -> None:
    """Two layers of window 4 see 2 * 3 positions back; a single full layer sees everything."""
    model = make(num_layers=2, window=4, windowed_layers=windowed_layers)
    tokens = torch.randint(32, (1, 20))
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % 32
    changed = ((model(tokens) - model(other)).abs().amax(-1) > 1e-6)[0]
    last = 19 if reach is None else 5 + reach
    assert changed.tolist() == [5 <= position <= last for position in range(20)]


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_runs_and_is_near(form: str) -> None:
    model = make(**FORMS[form])
    tokens = torch.randint(32, (2, 20))
    exact = model(tokens)
    low = model.bfloat16()(tokens)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().mean() < 0.1 * exact.std()


def test_under_autocast_it_is_near() -> None:
    model = make(**GPT_OSS)
    tokens = torch.randint(32, (2, 20))
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for low in (
            model(tokens),
            in_chunks(model, tokens, [10, 1, 9]),
            in_chunks(model, tokens[:1], [17, 1, 1, 1]),
        ):
            assert (low.float() - exact[: len(low)]).abs().mean() < 0.1 * exact.std()


def test_int32_tokens_are_tokens() -> None:
    tokens = torch.randint(32, (2, 20))
    model = make()
    assert torch.equal(model(tokens.int()), model(tokens))


def test_the_hidden_state_is_what_the_output_reads() -> None:
    model = make()
    tokens = torch.randint(32, (2, 20))
    assert torch.equal(model.output(model.hidden(tokens)), model(tokens))


# Initialisation and parameters


@pytest.mark.parametrize("tied", [False, True])
def test_a_new_model_predicts_nearly_evenly(tied: bool) -> None:
    """The loss of a new model is near ln(vocab_size): its logits have a size of about one."""
    model = Decoder(
        dataclasses.replace(BASE, hidden_dim=256, vocab_size=512, num_experts=4, tied_output=tied)
    )
    logits = model(torch.randint(512, (4, 50)))
    assert 0.5 < logits.std() < 1.5


def test_tied_weights_are_one() -> None:
    model = make(tied_output=True)
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in dict(model.named_parameters())
    model.reset_parameters()
    assert model.output.weight is model.embedding.weight
    assert model.embedding.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)
    other = Decoder(model.config)
    other.load_state_dict(model.state_dict())
    assert other.output.weight is other.embedding.weight
    assert Decoder(BASE).output.weight is not Decoder(BASE).embedding.weight


# Calls that cannot be


@pytest.mark.usefixtures("without_type_checks")
def test_bad_tokens_and_masks_are_refused() -> None:
    model = make()
    good = torch.zeros(2, 3, dtype=torch.long)
    for call in (model, model.hidden):
        with refused(r"tokens of shape \[3\]"):
            call(good[0])
        with refused("tokens from 1 to 32"):
            call(torch.tensor([[1, 32]]))
        with refused("65 positions"):
            call(torch.zeros(1, 65, dtype=torch.long))
        for cache in (None, model.new_cache(2)):
            with refused(r"key_padding of .* dtype torch\.int64"):
                call(good, key_padding=good, cache=cache)


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_refused_call_leaves_the_cache_as_it_was(padded: bool) -> None:
    """Too many tokens, another batch, tokens outside the vocabulary: refused, and the text can go
    on.
    """
    model = make()
    tokens, real = left_padded([6, 3], 8)
    cache = model.new_cache(2, 8)

    def call(tokens: Tensor, real: Tensor) -> Tensor:
        return model(tokens, cache=cache, key_padding=real if padded else None)

    call(tokens[:, :5], real[:, :5])
    all_real = torch.ones(3, 5, dtype=torch.bool)
    with refused(r"4 new positions on top of 5|9 positions"):
        call(tokens[:, :4], all_real[:2, :4])
    with refused("3 texts", expected="2"):
        call(torch.zeros(3, 1, dtype=torch.long), all_real[:, :1])
    with refused("tokens from 99 to 99"):
        call(torch.full((2, 1), 99), all_real[:2, :1])
    rest = call(tokens[:, 5:], real[:, 5:])
    whole = model(tokens, key_padding=real if padded else None)[:, 5:]
    assert (rest - whole).abs().max() <= 1e-5


def test_a_cache_beyond_the_model_is_refused() -> None:
    with refused("max_seq_len = 65", expected="at most the model's 64"):
        make().new_cache(2, 65)
    with refused("batch = 0"):
        make().new_cache(0)


def test_the_balance_loss_is_the_mean_over_layers_and_trains_every_router() -> None:
    model = make(num_experts=4).train()
    with collect_routing(model) as routings:
        model(torch.randint(32, (4, 30)))
    assert len(routings) == len(model.layers)
    loss = balance_loss(routings)
    torch.testing.assert_close(
        loss, torch.stack([balance_loss([each]) for each in routings]).mean()
    )
    assert 0.9 < loss.item() < 2.5
    loss.backward()
    assert all((block.ffn.router.score.weight.grad != 0).any() for block in model.layers)


def test_without_sinks_a_run_of_one_token_looks_like_its_first_and_with_sinks_it_does_not() -> None:
    """Weights that sum to 1 over equal values give that value, however many there are; a sink lets
    them count.
    """
    tokens = torch.full((1, 6), 3)
    for sinks in (False, True):
        logits = make(sinks=sinks, num_kv_heads=2)(tokens)[0]
        same = torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-5)
        assert same is not sinks


def test_packed_experts_are_in_the_places_of_the_dense_ones() -> None:
    config = dataclasses.replace(PACKABLE, expert_format="mxfp4")
    assert {type(block.ffn) for block in Decoder(config).layers} == {PackedMixture}


def test_a_step_late_in_a_long_text() -> None:
    model = Decoder(dataclasses.replace(PACKABLE, num_layers=1, max_seq_len=5000)).eval()
    cache = model.new_cache(1)
    tokens = torch.randint(20, (1, 4097))
    with torch.no_grad():
        expected = model(tokens)[:, -1]
        model(tokens[:, :-1], cache=cache)
        last = model(tokens[:, -1:], cache=cache)[:, -1]
    assert (last - expected).abs().max() <= 1e-5


@pytest.mark.parametrize(
    "change", [{}, {"num_experts": 4}, {"num_experts": 4, "expert_format": "mxfp4"}]
)
def test_shapes_alone(change: dict[str, Any]) -> None:
    config = DecoderConfig(
        vocab_size=11, num_layers=2, hidden_dim=32, ff_dim=32, num_heads=2, head_dim=8, **change
    )
    logits = Decoder(config).to("meta")(torch.zeros(2, 5, dtype=torch.int64, device="meta"))
    assert logits.is_meta
    assert logits.shape == (2, 5, 11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("last", [1, 3])
def test_the_last_positions_alone(form: str, last: int) -> None:
    model = make(**FORMS[form])
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, :2] = False
    for padding in (None, real):
        caches = [model.new_cache(2, 12) for _ in range(2)]
        for tokens, padded in (
            (torch.randint(32, (2, 7)), padding),
            (torch.randint(32, (2, 5)), None),
        ):
            whole = model.hidden(tokens, cache=caches[0], key_padding=padded)
            found = model.hidden(tokens, cache=caches[1], key_padding=padded, last=last)
            torch.testing.assert_close(found, whole[:, -last:], rtol=1e-5, atol=1e-5)
        for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
            torch.testing.assert_close(one.keys, other.keys, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)


def test_the_last_layer_computes_other_positions_only_where_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make(num_experts=4)
    tokens = torch.randint(32, (2, 6))
    rows = []
    mix = MixtureOfExperts.mix
    monkeypatch.setattr(
        MixtureOfExperts,
        "mix",
        lambda self, x, *rest: (rows.append(len(x)), mix(self, x, *rest))[1],
    )
    model.hidden(tokens, last=1)
    assert rows == [12, 12, 12, 2]
    with collect_routing(model):
        model.hidden(tokens, last=1)
    with watching(lambda _: None):
        model.hidden(tokens, last=1)
    model.layers[-1].ffn_norm.register_forward_hook(lambda *_: None)
    assert model.hidden(tokens, last=1).shape == (2, 1, 32)
    assert rows[4:] == [12] * 12


def test_other_modules_and_the_norm_see_all_positions() -> None:
    class Own(Block):
        def forward(
            self, x: Tensor, *, rotation: Any = None, key_padding: Any = None, cache: Any = None
        ) -> Tensor:
            seen.append(x.shape[1])
            return super().forward(x, rotation=rotation, key_padding=key_padding, cache=cache)

    model = make()
    tokens = torch.randint(32, (2, 6))
    seen = []
    expected = model.hidden(tokens)[:, -1:]
    with model.final_norm.register_forward_hook(
        lambda _, inputs, __: seen.append(inputs[0].shape[1])
    ):
        torch.testing.assert_close(model.hidden(tokens, last=1), expected)
    for block in (model.layers[0], model.layers[-1]):
        block.__class__ = Own
    torch.testing.assert_close(model.hidden(tokens, last=1), expected)
    assert seen == [6, 6, 6]


def test_whole_passes_ask_for_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which torch.compile could not trace."""
    monkeypatch.setattr("glassformer.layers.blocks.is_watched", lambda *_: pytest.fail("asked"))
    make()(torch.randint(32, (2, 6)))


@pytest.mark.parametrize("last", [0, -1, 7])
def test_last_positions_that_are_not_there(last: int) -> None:
    with refused(got=f"last = {last}"):
        make().hidden(torch.zeros(1, 6, dtype=torch.int64), last=last)
