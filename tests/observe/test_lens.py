"""Lenses and direct contributions against the model's own logits, and against a plain sum."""

import importlib
from typing import Any

import pytest
import torch
from sweep_cases import of_class
from torch import nn

from glassformer.layers.norms import RMSNorm
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.edits import change, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, ffn_logits, logit_lens
from glassformer.observe.norm_maps import norm_map
from glassformer.observe.sweep import ablation_sweep
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import FAMILIES, NARROW, THEIRS, logits_of, packed

pytestmark = pytest.mark.usefixtures("without_gradients")

EXPERTS = {
    "num_kv_heads": 2,
    "window": 3,
    "sinks": True,
    "key_weights": True,
    "attention_bias": True,
}
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
    return model.double(), 1e-6 if name in (
        "llama",
        "mistral",
        "qwen2",
    ) else 1e-10  # whose norms compute in float32


@pytest.mark.parametrize("name", MODELS)
def test_parts_sum_to_the_logit(name: str) -> None:
    model, near = made(name)
    tokens = torch.randint(2, 50, (3, 7))
    logits = logits_of(model, tokens)
    found = direct_logits(model, tokens, 5)
    torch.testing.assert_close(found.total, logits[:, -1, 5])
    torch.testing.assert_close(found.values.sum(0), found.total, rtol=near, atol=near)
    targets = torch.tensor([1, 4, 9])
    others = torch.tensor([0, 2, 2])
    found = direct_logits(model, tokens, targets, others, query=3)
    rows = torch.arange(3)
    torch.testing.assert_close(found.total, logits[rows, 3, targets] - logits[rows, 3, others])
    torch.testing.assert_close(found.values.sum(0), found.total, rtol=near, atol=near)
    assert len(set(found.names)) == len(found.names)
    assert found.names[0] == "embedding"
    assert "layer 1 head 3" in found.names
    assert ("layer 1 ffn" in found.names) == (
        name in ("decoder", "gpt2", "llama", "mistral", "qwen2")
    )
    best = found.top(2, row=1)
    assert (
        abs(best[0][1])
        >= abs(best[1][1])
        == pytest.approx(float(found.values[:, 1].abs().sort().values[-2]))
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name != "attention only"])
def test_what_a_network_adds_to_every_logit_is_its_part_of_each(name: str) -> None:
    model, near = made(name)
    tokens = torch.randint(2, 50, (2, 7))
    targets = torch.tensor([5, 8])
    found = ffn_logits(model, tokens, 1, targets, query=4)
    for target in (0, 7, 31):
        parts = direct_logits(model, tokens, target, query=4)
        own = sum(
            value
            for name, value in zip(parts.names, parts.values, strict=True)
            if name.startswith(("layer 1 ffn", "layer 1 expert"))
        )
        torch.testing.assert_close(
            found.logits[:, target], own, rtol=10 * near, atol=10 * near, check_dtype=False
        )
    if found.effects is None:
        assert any(each.role == "experts" for each in find_hook_points(model))
        return
    (point,) = (each for each in find_hook_points(model) if each.role == "ffn" and each.layer == 1)
    assert point.down_proj is not None
    rest = found.logits[torch.arange(2), targets] - found.effects.sum(1)
    if getattr(point.down_proj, "bias", None) is None:
        torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0, atol=10 * near)
    with intervene(model, change("neurons", lambda values: values * 0, modules=[point.name])):
        without = ffn_logits(model, tokens, 1, targets, query=4)
    assert without.effects is not None
    assert without.effects.abs().max() == 0


def test_a_network_that_is_not_there_is_refused() -> None:
    tokens = torch.tensor([[3, 1, 4]])
    for model, layer in ((decoder(ff_dim=0), 0), (decoder(), 9)):
        with refused(f"the feed-forward network of layer {layer}"):
            ffn_logits(model, tokens, layer, 1)
    with refused("norms after its parts"):
        ffn_logits(decoder(logit_cap=30.0), tokens, 0, 1)


def test_the_last_layer_adds_what_its_removal_takes_away() -> None:
    model, near = made("decoder")
    tokens = torch.randint(2, 50, (2, 7))
    name = "layers.3.ffn"
    found = direct_logits(model, tokens, 5)
    with capture(model, what=("residual", "ffn"), layers=3) as seen:
        model(tokens)
    with (
        intervene(model, zero("ffn", layers=3)),
        capture(model, what="residual", layers=3) as without,
    ):
        model(tokens)
    stream, less = (each.last("residual")["layers.3"][:, -1] for each in (seen, without))
    norm = model.final_norm
    output = model.output
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
        for look in (
            lambda each: logit_lens(each, tokens),
            lambda each: direct_logits(each, tokens, 1),
        ):
            with refused(type(model).__name__):
                look(model)
    for arguments in (
        {"targets": 50},
        {"targets": torch.tensor([1, 50])},
        {"targets": 1, "others": -1},
    ):
        with refused("targets|others"):
            direct_logits(decoder(), tokens, **arguments)
    with refused("query.*6"):
        direct_logits(decoder(), tokens, 1, query=6)


def test_a_text_without_an_axis_of_the_batch_is_refused() -> None:
    for look in (logit_lens, lambda model, tokens: direct_logits(model, tokens, 1)):
        with refused(r"tokens of \[2\]"):
            look(decoder(), torch.tensor([1, 2]))


def by_definition(model: Any, tokens: Any, target: int) -> dict[str, float]:
    """The direct logits of the first text's last position, by loops in float64."""
    with capture(model, what=("embedding", "heads", "attention", "ffn", "residual")) as seen:
        model(tokens)
    parts = {"embedding": next(iter(seen.last("embedding").values()))[0, -1]}
    for layer, block in enumerate(model.layers):
        projection = block.attention.output
        for head in range(4):
            part = projection.weight[:, 6 * head : 6 * head + 6] @ seen[layer, "heads"][0, head, -1]
            parts[f"layer {layer} head {head}"] = part
        if projection.bias is not None and projection.bias.any():
            parts[f"layer {layer} attention bias"] = projection.bias
        parts[f"layer {layer} ffn"] = seen[layer, "ffn"][0, -1]
    stream = [float(number) for number in seen[-1, "residual"][0, -1]]
    width = len(stream)
    norm = model.final_norm
    centred = isinstance(norm, nn.LayerNorm)
    mean = sum(stream) / width if centred else 0.0
    scale = (sum((number - mean) ** 2 for number in stream) / width + norm.eps) ** -0.5
    row = [float(number) for number in model.output.weight[target]]
    found = {}
    for name, part in parts.items():
        numbers = [float(number) for number in part]
        shift = sum(numbers) / width if centred else 0.0
        terms = zip(numbers, norm.weight, row, strict=True)
        found[name] = sum(
            (number - shift) * scale * float(weight) * read for number, weight, read in terms
        )
    if centred:
        found["norm bias"] = sum(
            float(shift) * read for shift, read in zip(norm.bias, row, strict=True)
        )
    if model.output.bias is not None:
        found["output bias"] = float(model.output.bias[target])
    return found


def cancelling(model: Any) -> None:
    """The last network takes away what is in two coordinates of the stream."""
    token = torch.tensor([[3, 1, 4]])
    with capture(model, what="residual_between", layers=3) as seen:
        model(token)
    removed = -seen[3, "residual_between"][0, -1]
    block = model.layers[3]
    block.ffn.register_forward_hook(
        lambda module, args, output: output.index_fill(2, torch.arange(2), 0.0)
    )
    block.ffn.register_forward_hook(
        lambda module, args, output: (
            output + removed * (torch.arange(8) < 2) * torch.tensor([0.0, 0, 1])[:, None]
        )
    )


def nearly_constant(model: Any) -> None:
    """A stream that is 3000 everywhere but for 1e-5."""
    for block in model.layers:
        block.attention.output.weight.zero_()
        block.ffn.down.weight.mul_(1e-6)
    model.embedding.weight.copy_(3000 + 1e-5 * torch.randn_like(model.embedding.weight))


def shifted(model: Any) -> None:
    """A norm with a bias of 5."""
    model.final_norm.bias.add_(5.0)


@pytest.mark.parametrize(
    ("change", "options", "dtype", "near"),
    [
        (cancelling, {}, torch.float64, 1e-9),
        (cancelling, {"norm": "layer"}, torch.float64, 1e-9),
        (nearly_constant, {}, torch.float64, 1e-9),
        (nearly_constant, {}, torch.float32, 1e-4),
        (shifted, {"norm": "layer"}, torch.float64, 1e-9),
        (shifted, {"norm": "layer", "attention_bias": True}, torch.bfloat16, 0.03),
    ],
)
def test_a_part_adds_what_the_definition_says(
    change: Any, options: Any, dtype: torch.dtype, near: float
) -> None:
    torch.manual_seed(0)
    model = decoder(**options).eval()
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.add_(torch.randn_like(weight) / 10)
    model = model.to(dtype)
    change(model)
    tokens = torch.tensor([[3, 1, 4]])
    found = direct_logits(model, tokens, 5)
    expected = by_definition(model, tokens, 5)
    values = dict(zip(found.names, found.values[:, 0].tolist(), strict=True))
    rounding = near * max(abs(number) for number in expected.values())
    for name, number in expected.items():
        assert values.pop(name) == pytest.approx(number, abs=rounding), name
    assert all(abs(number) <= rounding for number in values.values())
    total = float(found.total[0])
    assert float(found.values.double().sum()) == pytest.approx(total, abs=2 * rounding)


def test_the_formula_of_a_norm_is_that_of_its_class() -> None:
    stream = torch.randn(2, 5, 16)
    classes = importlib.import_module("transformers.models")
    for norm in (
        *(RMSNorm(16), nn.RMSNorm(16), nn.LayerNorm(16), nn.LayerNorm(16, bias=False)),
        *(
            classes.llama.modeling_llama.LlamaRMSNorm(16),
            classes.gemma.modeling_gemma.GemmaRMSNorm(16),
        ),
        *(
            classes.cohere.modeling_cohere.CohereLayerNorm(16),
            classes.olmo.modeling_olmo.OlmoLayerNorm(16),
        ),
        classes.nemotron.modeling_nemotron.NemotronLayerNorm1P(16),
    ):
        for weight in norm.parameters():
            weight.add_(torch.randn_like(weight))
        for dtype, near in ((torch.float64, 1e-6), (torch.float32, 1e-6), (torch.bfloat16, 0.03)):
            given = stream.to(dtype)
            found = norm_map(norm.to(dtype), given)
            wide = given.to(found.weight.dtype)
            torch.testing.assert_close(found(wide), norm(given).to(wide), rtol=near, atol=near)
    norm = nn.LayerNorm(16)
    norm.register_forward_hook(lambda module, args, output: output.tanh())
    with refused("LayerNorm, that is neither"):
        norm_map(norm, stream)


@pytest.mark.parametrize("name", ["Gemma2", "Gemma3", "Olmo2"])
def test_a_refusal_names_what_takes_the_model(name: str) -> None:
    tokens = torch.randint(2, 20, (2, 5))
    model = of_class(name)()
    if name == "Gemma2":  # which caps its logits
        with refused("not output.norm.stream", fix="patch_sweep"):
            direct_logits(model, tokens, 5)
        with refused("not output.norm.stream"):
            logit_lens(model, tokens)
        ablation_sweep(model, tokens, lambda logits: logits[:, -1, 5])
        return
    with refused("norms after its parts", fix="logit_lens"):
        direct_logits(model, tokens, 5)
    assert logit_lens(model, tokens).isfinite().all()


def test_a_capped_decoder_is_read_by_the_lens() -> None:
    model = decoder(norm_place="both", logit_cap=5.0).eval()
    tokens = torch.randint(2, 20, (2, 5))
    with refused("capped logits", fix="logit_lens"):
        direct_logits(model, tokens, 5)
    torch.testing.assert_close(logit_lens(model, tokens)[-1], model(tokens))
