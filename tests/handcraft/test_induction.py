"""The induction circuit by hand: what it predicts, and that its certificate is a bound."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.handcraft.induction import (
    InductionCertificate,
    RotaryHead,
    _Bound,
    build_induction,
    distance_gap,
    induction_target,
    verify_induction,
)
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.layers.options import Linear
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.detectors import head_scores, repeated_tokens
from refusals import refused


def follower(text: tuple[int, ...], start: int) -> int:
    """What followed the latest earlier occurrence of the last letter, in one line."""
    return next(
        (text[at + 1] for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]), start
    )


def test_targets_are_followers_of_the_latest_occurrence() -> None:
    texts = np.array(list(product(range(3), repeat=5)))
    found = induction_target(texts, 9)
    for text, row in zip(texts.tolist(), found.tolist(), strict=True):
        assert row == [follower(tuple(text[: place + 1]), 9) for place in range(5)]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_text_is_continued(dtype: torch.dtype) -> None:
    model = build_induction("ABC", 5).to(dtype)
    for length in range(1, 6):
        texts = np.array(list(product(range(3), repeat=length)))
        tokens = torch.from_numpy(np.concatenate([np.full((len(texts), 1), 3), texts], 1))
        best = model(tokens)[:, 1:].argmax(-1)
        for text, row in zip(texts.tolist(), best.tolist(), strict=True):
            assert row == [follower(tuple(text[: place + 1]), 3) for place in range(length)]


@pytest.fixture(scope="module")
def certificate() -> InductionCertificate:
    return verify_induction(
        build_induction("ABCD", 8, margin=12.0, confidence=4.0), "ABCD", limit=2000
    )


def test_the_certificate_holds(certificate: InductionCertificate) -> None:
    assert certificate.holds
    assert certificate.num_texts == sum(4**length for length in range(1, 9))
    assert certificate.num_wrong == 0
    assert certificate.counterexample is None
    assert "HOLDS for all 87,380 texts" in str(certificate)
    assert all(11 < margin <= 12.001 for margin in certificate.margins)
    assert 3.9 < certificate.logit_margin <= 4
    assert certificate.probability == pytest.approx(
        1 / (1 + 4 * math.exp(-certificate.logit_margin))
    )
    assert certificate.probability <= certificate.least_probability


@torch.no_grad()
def test_what_is_measured_is_within_the_bound(certificate: InductionCertificate) -> None:
    """Leaks, margins of scores and of logits of texts with and without repetition."""
    model = build_induction("ABCD", 8, margin=12.0, confidence=4.0)
    texts = torch.randint(4, (400, 8))
    tokens = torch.cat([torch.full((400, 1), 4), texts], 1)
    with capture(model, what=("weights", "scores")) as seen:
        logits = model(tokens)
    # the key of layer 1: the follower's place, or the start
    wanted = torch.zeros(400, 9, dtype=torch.int64)
    for place in range(1, 9):
        for earlier in range(1, place):
            wanted[tokens[:, earlier] == tokens[:, place], place] = earlier + 1
    keys = torch.stack([torch.arange(-1, 8).clamp(min=0).expand(400, -1), wanted])
    for layer in range(2):
        weights, scores = (
            seen.last(what)[f"layers.{layer}.attention"][:, 0] for what in ("weights", "scores")
        )
        index = keys[layer][:, :, None]
        leaks = 1 - weights.double().gather(-1, index)
        assert float(leaks[:, 1:].max()) <= certificate.leaks[layer] + 1e-6
        best = scores.gather(-1, index)[..., 0]
        rivals = scores.scatter(-1, index, -math.inf).amax(-1)
        assert float((best - rivals)[:, 1:].min()) >= certificate.margins[layer]
    targets = tokens.gather(1, wanted)
    best = logits.gather(-1, targets[..., None])[..., 0]
    assert (
        float((best - logits.scatter(-1, targets[..., None], -math.inf).amax(-1)).min())
        >= certificate.logit_margin
    )


def test_the_detector_finds_the_heads() -> None:
    tokens = torch.cat([torch.full((4, 1), 8), repeated_tokens(8, 8, 4)], 1)
    found = head_scores(build_induction("ABCDEFGH", 16), tokens)
    assert found.top("previous", 1)[0][:2] == (0, 0)
    assert found.top("induction", 1)[0][:2] == (1, 0)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("layers.0.attention.query.weight", 0.01),
        ("layers.1.attention.query.weight", 0.01),
        ("layers.0.attention.value.weight", 0.0),
        ("layers.1.attention.output.weight", -1.0),
        ("output.weight", -1.0),
    ],
)
def test_a_damaged_circuit_is_not_proved(name: str, factor: float) -> None:
    model = build_induction("ABC", 5)
    with torch.no_grad():
        model.get_parameter(name).mul_(factor)
    found = verify_induction(model, "ABC", limit=500)
    assert not found.holds
    if factor <= 0:
        assert found.num_wrong > 0
        assert found.counterexample is not None
        assert "counterexample" in str(found)


@pytest.mark.parametrize(
    "parts",
    [
        {"num_heads": 2},
        {"ff_dim": 8},
        {"num_layers": 3},
        {"vocab_size": 9},
        {"sinks": True},
        {"key_weights": True},
        {"attention_bias": "qkv"},
        {"window": 3},
        {"rope_layout": "interleaved"},
        {"rope_scaling": Linear(2.0)},
        {"norm": "layer"},
        {"norm_place": "both"},
        {"qk_norm": "head"},
        {"logit_cap": 30.0},
        {"embedding_scale": 2.0},
        {"learned_positions": True},
    ],
)
def test_models_of_another_form_are_refused(parts: dict[str, Any]) -> None:
    sizes = {
        "vocab_size": 4,
        "num_layers": 2,
        "hidden_dim": 8,
        "ff_dim": 0,
        "num_heads": 1,
        "head_dim": 4,
    }
    with refused(next(iter(parts))):
        verify_induction(Decoder(DecoderConfig(**{**sizes, **parts})), "ABC")


def test_margins_that_are_none_are_refused() -> None:
    with refused("margin = 0"):
        build_induction("AB", 4, margin=0.0)


@torch.no_grad()
def test_relations_are_cosines_of_the_distance() -> None:
    config = DecoderConfig(
        vocab_size=4, num_layers=1, hidden_dim=8, ff_dim=0, num_heads=1, head_dim=16, norm_eps=1e-12
    )
    model = Decoder(config).double()
    stream = torch.ones(8, dtype=torch.double)
    model.embedding.weight.copy_(stream.expand(4, -1))
    head = RotaryHead(model, 0)
    head.at_distance(2, 3.0, range(3), 0)
    head.latest(5.0, 3, 0)
    head.match(range(2), range(4, 6), 1.5, [4, 5])
    head.attend_to(7, 0.5, 6, 0)
    with capture(model, what="scores") as seen:
        model(torch.zeros(1, 6, dtype=torch.int64))
    scores: Tensor = seen.last("scores")["layers.0.attention"][0, 0]
    theta = head.frequencies
    for query in range(6):
        for key in range(query + 1):
            turn = (query - key) * theta
            expected = (
                3 * (turn[:3] - 2 * theta[:3]).cos().sum() + 5 * (turn[3] + math.pi / 4).cos()
            )
            expected += 1.5 * turn[4:6].cos().sum() + 0.5 * turn[6].cos()
            assert float(scores[query, key]) == pytest.approx(float(expected), abs=1e-4)
    away = [sum(1 - math.cos((d - 2) * float(each)) for each in theta) for d in range(7) if d != 2]
    assert distance_gap(theta, 2, 6) == pytest.approx(min(away))
    with refused("pair 3"):
        head.attend_to(7, 1.0, 3, 0)


@torch.no_grad()
@pytest.mark.parametrize("parts", [("query", "key"), ("value",)], ids=["scores", "values"])
def test_errors_of_a_layers_input_move_what_it_reads_within_the_bound(
    parts: tuple[str, ...],
) -> None:
    model = build_induction("abc", 8).double()
    attention = model.layers[1].attention
    width = model.config.hidden_dim
    generator = torch.Generator().manual_seed(0)
    for part in parts:  # a matrix that moves a vector further than any of its columns is long
        getattr(attention, part).weight.zero_()[0].fill_(1.0)
    bound = _Bound(model, SequenceSpace(("a", "b", "c"), 8, has_cls=True))
    error = 0.01
    x = torch.randn(5, width, generator=generator, dtype=torch.float64)
    q, k, added, blur, drift = bound._read(1, x, error)
    moves = [torch.randn(5, width, generator=generator, dtype=torch.float64) for _ in range(200)]
    moves += [
        sign * (torch.ones_like(x) - x * (x.sum(1) / x.square().sum(1))[:, None])
        for sign in (1, -1)
    ]
    for move in moves:
        other = bound._read(1, x + error * move / move.norm(dim=1, keepdim=True), 0.0)
        assert float((other[2] - added).norm(dim=1).max()) <= drift
        assert float((other[0] @ other[1].T - q @ k.T).abs().max()) <= blur
    # rounding alone
    assert bound._score_rounding * float((other[0] @ other[1].T).abs().max()) < other[3] < blur
    assert 0 < other[4] < drift
    if parts == ("value",):
        assert float((other[2] - added).norm(dim=1).max()) / drift > 0.5
    else:
        assert float((other[0] @ other[1].T - q @ k.T).abs().max()) / blur > 0.5
