"""Lenses and direct contributions against the model's own logits, and against a plain sum."""

from typing import Any

import pytest
import torch
from torch import nn

from glassformer.observe.capture import capture
from glassformer.observe.edits import zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import FAMILIES, NARROW, THEIRS, logits_of, packed

pytestmark = pytest.mark.usefixtures("without_gradients")

EXPERTS = {"num_kv_heads": 2, "window": 3, "sinks": True, "key_weights": True, "attention_bias": True}
MODELS: dict[str, Any] = {
    "decoder": decoder,
    "attention only": lambda: decoder(ff_dim=0),
    "packed": lambda: packed(**EXPERTS),
    "experts": lambda: decoder(**EXPERTS, num_experts=4, ff_bias=True, tied_output=True),
    **{name: make for name, make in THEIRS.items() if name not in ("bert", "roberta")},
}


def made(name: str) -> tuple[nn.Module, float]:
    model = MODELS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) / 10)
    if name in NARROW:
        return model, 1e-5
    return model.double(), 1e-6 if name in ("llama", "mistral", "qwen2") else 1e-10  # whose norms compute in float32


@pytest.mark.parametrize("name", MODELS)
def test_parts_sum_to_the_logit(name: str) -> None:
    model, near = made(name)
    tokens = torch.randint(2, 50, (3, 7))
    logits = logits_of(model, tokens)
    found = direct_logits(model, tokens, 5)
    torch.testing.assert_close(found.total, logits[:, -1, 5])
    torch.testing.assert_close(found.values.sum(0), found.total, rtol=near, atol=near)
    targets, others = torch.tensor([1, 4, 9]), torch.tensor([0, 2, 2])
    found = direct_logits(model, tokens, targets, others, query=3)
    rows = torch.arange(3)
    torch.testing.assert_close(found.total, logits[rows, 3, targets] - logits[rows, 3, others])
    torch.testing.assert_close(found.values.sum(0), found.total, rtol=near, atol=near)
    assert len(set(found.names)) == len(found.names)
    assert found.names[0] == "embedding"
    assert "layer 1 head 3" in found.names
    assert ("layer 1 ffn" in found.names) == (name in ("decoder", "gpt2", "llama", "mistral", "qwen2"))
    best = found.top(2, row=1)
    assert abs(best[0][1]) >= abs(best[1][1]) == pytest.approx(float(found.values[:, 1].abs().sort().values[-2]))


def test_the_last_layer_adds_what_its_removal_takes_away() -> None:
    model, near = made("decoder")
    tokens = torch.randint(2, 50, (2, 7))
    name = "layers.3.ffn"
    found = direct_logits(model, tokens, 5)
    with capture(model, what=("residual", "ffn"), layers=3) as seen:
        model(tokens)
    with intervene(model, zero("ffn", layers=3)), capture(model, what="residual", layers=3) as without:
        model(tokens)
    stream, less = (each.last("residual")["layers.3"][:, -1] for each in (seen, without))
    norm, output = model.final_norm, model.output
    scale = (stream.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
    expected = ((stream - less) * scale) @ output.weight[5]
    part = found.values[found.names.index("layer 3 ffn")]
    torch.testing.assert_close(part, expected, rtol=near, atol=near)
    torch.testing.assert_close(seen.last("ffn")[name][:, -1], stream - less, rtol=near, atol=near)


@pytest.mark.parametrize("name", MODELS)
def test_the_lens_ends_at_the_logits(name: str) -> None:
    model, near = made(name)
    tokens = torch.randint(2, 50, (3, 7))
    logits = logits_of(model, tokens)
    found = logit_lens(model, tokens)
    assert len(found) == (5 if name in ("decoder", "attention only", "packed", "experts") else 3)
    torch.testing.assert_close(found[-1], logits, rtol=near, atol=near)
    some = logit_lens(model, tokens, queries=(1, -1))
    torch.testing.assert_close(some, found[:, :, [1, 6]], rtol=near, atol=near)
    if name == "decoder":
        first = model.output(model.final_norm(model.embedding(tokens)))
        torch.testing.assert_close(found[0], first, rtol=near, atol=near)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_classifier_is_read_through_its_pooling(pooling: str) -> None:
    model = encoder(norm_first=True, final_norm=True, pooling=pooling).eval().double()
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) / 5)
    tokens = torch.randint(1, 50, (3, 7))
    tokens[1, 4:] = 0  # padding
    logits = model(tokens)
    torch.testing.assert_close(logit_lens(model, tokens)[-1, :, 0], logits)
    first = model.classifier(model.pool(model.final_norm(model._embed(tokens, None)), tokens != 0))
    torch.testing.assert_close(logit_lens(model, tokens)[0, :, 0], first)
    found = direct_logits(model, tokens, 1, 0)
    torch.testing.assert_close(found.total, logits[:, 1] - logits[:, 0])
    torch.testing.assert_close(found.values.sum(0), found.total)
    with refused("queries of a classifier"):
        logit_lens(model, tokens, queries=1)
    model.classifier.register_forward_hook(lambda _, given, found: found + 1)
    torch.testing.assert_close(logit_lens(model, tokens)[-1, :, 0], logits + 1)


def test_an_encoder_decoder_is_read_in_its_decoder() -> None:
    model = encoder_decoder(norm_first=True, final_norm=True).eval().double()
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) / 5)
    texts = {"source": torch.randint(1, 50, (2, 5)), "target": torch.randint(1, 50, (2, 4))}
    logits = model(**texts)
    torch.testing.assert_close(logit_lens(model, texts)[-1], logits)
    found = direct_logits(model, texts, 7, query=2)
    torch.testing.assert_close(found.total, logits[:, 2, 7])
    torch.testing.assert_close(found.values.sum(0), found.total)
    assert "layer 2 cross-attention head 1" in found.names
    assert "layer 2 head 1" in found.names
    post_norm = encoder_decoder(norm_first=False).eval()
    torch.testing.assert_close(logit_lens(post_norm, texts)[-1], post_norm(**texts))
    with refused("post-norm"):
        direct_logits(post_norm, texts, 7)


def test_other_models_are_refused() -> None:
    tokens = torch.randint(2, 20, (2, 6))
    for model in (encoder(num_classes=None), encoder(pooling="max"), FAMILIES["bert"]()):
        for look in (lambda each: logit_lens(each, tokens), lambda each: direct_logits(each, tokens, 1)):
            with refused(type(model).__name__):
                look(model)
    for arguments in ({"targets": 50}, {"targets": torch.tensor([1, 50])}, {"targets": 1, "others": -1}):
        with refused("targets|others"):
            direct_logits(decoder(), tokens, **arguments)
    with refused("query.*6"):
        direct_logits(decoder(), tokens, 1, query=6)


def test_a_text_without_an_axis_of_the_batch_is_refused() -> None:
    for look in (logit_lens, lambda model, tokens: direct_logits(model, tokens, 1)):
        with refused(r"tokens of \[2\]"):
            look(decoder(), torch.tensor([1, 2]))
