"""Interventions against independent computations: other weights, plain hooks, loops over queries and keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import MODELS, decoder, encoder, encoder_decoder
from torch import Tensor, nn

from glassformer.generation import generate
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.edits import (
    Edit,
    add,
    change,
    forbid,
    force_experts,
    mean,
    patch,
    put,
    remove_sinks,
    scale,
    zero,
)
from glassformer.observe.hook_points import ROLES
from glassformer.observe.intervene import intervene
from refusals import refused

STREAMS = ("embedding", "residual_before", "residual_between", "residual", "logits")
EXPERTS = {"num_kv_heads": 2, "window": 3, "num_experts": 4, "top_k": 2, "sinks": True, "key_weights": True}


def texts(rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(2, 20, (rows, length))


def run(model: nn.Module, tokens: Tensor) -> Tensor:
    """The output for some tokens, whatever the model's kind."""
    if type(model).__name__ == "EncoderDecoder":
        fields = model.config.fields_per_slot
        source = tokens if fields == 1 else tokens[:, : tokens.shape[1] // fields * fields].unflatten(1, (-1, fields))
        return model(source, tokens[:, :5])
    if type(model).__name__ == "Encoder" and model.classifier is None:
        return model.hidden(tokens)
    out = model(tokens)
    return out if isinstance(out, Tensor) else next(iter(out.values()))


def made(name: str) -> nn.Module:
    return MODELS[name]().double().eval()


def learned(**changes: Any) -> Decoder:
    """A decoder whose key weights and sinks are no longer at their start."""
    model = decoder(**changes).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "sinks" in name or "key_weights" in name:
                weight.uniform_(0.5, 1.5)
    return model


def kinds(model: nn.Module) -> list[str]:
    roles = {point.role for point in find_hook_points(model)}
    own = ("embedding", "residual_before", "residual_between", "residual", "attention", "heads", "q", "k", "v", "ffn")
    return [kind for kind in (*own, "router", "logits") if ROLES[kind] in roles]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_patched_stream_gives_the_other_run_to_the_last_bit(name: str) -> None:
    model, ours, theirs = made(name), texts(), texts()
    with capture(model, what=kinds(model)) as other:
        expected = run(model, theirs)
    plain = run(model, ours)
    assert not torch.equal(plain, expected)
    for site in kinds(model):
        with intervene(model, patch(site, other)), capture(model, what=site) as seen:
            patched = run(model, ours)
        if site in STREAMS:
            assert torch.equal(patched, expected)
        elif (name, site) != ("attention only", "ffn"):  # which adds nothing
            assert not torch.allclose(patched, plain)
        assert len(seen.records) == len(other.last(site)) > 0
        for at, values in seen.last(site).items():
            torch.testing.assert_close(values, other.last(site)[at], rtol=1e-12, atol=1e-12)
    assert torch.equal(run(model, ours), plain)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_its_own_values_change_nothing(name: str) -> None:
    model, tokens = made(name), texts()
    plain = run(model, tokens)
    with intervene(model):
        assert torch.equal(run(model, tokens), plain)
    asked = kinds(model)
    with capture(model, what=asked) as own:
        run(model, tokens)
    for site in asked:
        with intervene(model, patch(site, own)):
            assert torch.equal(run(model, tokens), plain)
    with intervene(model, change("weights", lambda weights: weights), change("scores", lambda scores: scores)):
        torch.testing.assert_close(run(model, tokens), plain, rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("heads", [0, (1, 3), slice(None)])
def test_removed_heads_are_columns_of_the_output_matrix(heads: Any) -> None:
    model, tokens = learned(**EXPERTS), texts()
    other = learned(**EXPERTS)
    other.load_state_dict(model.state_dict())
    matrix = other.layers[2].attention.output.weight
    matrix.unflatten(1, (4, 6))[:, [heads] if isinstance(heads, int) else heads] = 0
    with intervene(model, zero("heads", layers=2, heads=heads)):
        torch.testing.assert_close(model(tokens), other(tokens), rtol=1e-12, atol=1e-12)


def by_loops(model: Decoder, layer: int, x: Tensor, allowed: Callable[[int, int, int], bool]) -> Tensor:
    """The output of one attention, query by query; ``allowed`` of head, query, key."""
    part: Any = model.layers[layer].attention
    q, k, v = (
        each(x).unflatten(-1, (-1, part.head_dim)).transpose(1, 2) for each in (part.query, part.key, part.value)
    )
    rotation = model.rotary.rotation(x.shape[1])
    cos, sin = (each[..., : part.head_dim // 2] for each in rotation)

    def turned(tensor: Tensor) -> Tensor:
        left, right = tensor.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    q, k = turned(q), turned(k)
    out = torch.zeros_like(q)
    group, size = part.num_heads // part.num_kv_heads, part.head_dim**0.5
    for head in range(part.num_heads):
        for query in range(x.shape[1]):
            keys = [key for key in range(query + 1) if allowed(head, query, key)]
            if part.pattern.window is not None:
                keys = [key for key in keys if key > query - part.pattern.window]
            for row in range(len(x)):
                terms = [
                    (part.key_weights[head] * (q[row, head, query] @ k[row, head // group, key]) / size).exp()
                    for key in keys
                ]
                total = sum(terms) + part.sinks[head].exp()
                for key, term in zip(keys, terms, strict=True):
                    out[row, head, query] += term / total * v[row, head // group, key]
    return part.output(out.transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_a_forbidden_edge_is_a_mask(layer: int) -> None:
    model, tokens = learned(**EXPERTS), texts()
    with capture(model, what="residual_before", layers=layer) as seen:
        model(tokens)
    x = model.layers[layer].attention_norm(next(iter(seen.last("residual_before").values())))
    places: dict[str, Any] = {"queries": (4, -1), "keys": (0, 4, 5), "layers": layer, "heads": (0, 3)}
    edit = forbid(**places)

    def allowed(head: int, query: int, key: int) -> bool:
        return not (head in (0, 3) and query in (4, 6) and key in (0, 4, 5))

    with intervene(model, edit), capture(model, what=("attention", "weights"), layers=layer) as seen:
        model(tokens)
    expected = by_loops(model, layer, x, allowed)
    torch.testing.assert_close(next(iter(seen.last("attention").values())), expected, rtol=1e-12, atol=1e-12)
    weights = next(iter(seen.weights.values()))
    assert not weights[:, [0, 3]][:, :, [4, 6]][..., [0, 4, 5]].any()
    twin = change(
        "scores", lambda scores: scores - torch.inf, queries=(4, -1), keys=(0, 4, 5), layers=layer, heads=(0, 3)
    )
    with intervene(model, twin), capture(model, what="attention", layers=layer) as again:
        model(tokens)
    torch.testing.assert_close(next(iter(again.last("attention").values())), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_query_without_any_key_reads_nothing() -> None:
    model, tokens = encoder().double().eval(), texts()
    with intervene(model, forbid(queries=2)), capture(model, what="heads") as seen:
        run(model, tokens)
    for values in seen.last("heads").values():
        assert not values[:, :, 2].any()
        assert values[:, :, 1].all()


@torch.no_grad()
def test_removed_sinks_are_a_model_without_them() -> None:
    model, tokens = learned(**EXPERTS), texts()
    with capture(model, what="sinks") as before:
        model(tokens)
    assert all(values.min() > 0 for values in before.last("sinks").values())
    plain = learned(**{**EXPERTS, "sinks": False})
    plain.load_state_dict({name: each for name, each in model.state_dict().items() if "sinks" not in name})
    with intervene(model, remove_sinks()):
        torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-12, atol=1e-12)
    with intervene(model, remove_sinks(layers=1, heads=2)), capture(model, what="sinks") as seen:
        model(tokens)
    shares = seen.last("sinks")["layers.1.attention"]
    assert not shares[:, 2].any()
    assert shares[:, [0, 1, 3]].all()


@torch.no_grad()
def test_a_forced_pattern() -> None:
    model, tokens = learned(**EXPERTS), texts()
    uniform = torch.ones(7, 7, dtype=torch.double).tril() / torch.arange(1, 8)[:, None]
    with (
        intervene(model, put("weights", uniform, layers=0, heads=1)),
        capture(model, what=("weights", "heads", "v")) as seen,
    ):
        model(tokens)
    name = "layers.0.attention"
    torch.testing.assert_close(seen.weights[name][:, 1], uniform.expand(2, 7, 7))
    torch.testing.assert_close(seen.last("heads")[name][:, 1], uniform @ seen.last("v")[name][:, 0])


@torch.no_grad()
def test_some_heads_of_a_change_are_captured_as_changed() -> None:
    model, tokens = learned(**EXPERTS), texts()
    edit = change("weights", lambda weights: weights.flip(1), layers=0, heads=(1, 3))
    with intervene(model, edit), capture(model, layers=0) as whole, capture(model, layers=0, heads=[3]) as one:
        model(tokens)
    with capture(model, layers=0) as plain:
        model(tokens)
    name = "layers.0.attention"
    torch.testing.assert_close(one.weights[name][:, 0], plain.weights[name][:, 1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.weights[name][:, 0], whole.weights[name][:, 3], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_steering_is_a_plain_hook() -> None:
    model, tokens, vector = learned(**EXPERTS), texts(), torch.randn(8).double()

    def steer(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[1, 3:] += 2 * vector
        return output

    handle = model.layers[1].register_forward_hook(steer)
    expected = model(tokens)
    handle.remove()
    with intervene(model, add("residual", 2 * vector, layers=1, queries=slice(3, None), examples=-1)):
        assert torch.equal(model(tokens), expected)


@torch.no_grad()
def test_scale_and_mean() -> None:
    model, tokens, reference = learned(**EXPERTS), texts(), texts(5, 9)
    with capture(model, what=("heads", "ffn")) as seen:
        model(reference)
    edits = mean("heads", seen, layers=1, heads=(1, 2)), scale("ffn", 0.5, layers=0)
    with intervene(model, *edits), capture(model, what=("heads", "ffn")) as edited:
        model(tokens)
    values = seen.last("heads")["layers.1.attention"][:, 1:3].mean((0, 2), keepdim=True)
    torch.testing.assert_close(edited.last("heads")["layers.1.attention"][:, 1:3], values.expand(2, 2, 7, 6))
    with capture(model, what="ffn", layers=0) as plain:
        model(tokens)
    torch.testing.assert_close(edited.last("ffn")["layers.0.ffn"], plain.last("ffn")["layers.0.ffn"] / 2)


@torch.no_grad()
def test_experts() -> None:
    model, tokens = learned(**EXPERTS), texts()
    name = "layers.1.ffn"
    with capture(model, what=("experts", "choices", "shares", "ffn"), layers=1) as plain:
        model(tokens)
    choices, shares, outputs = (plain.last(kind)[name] for kind in ("choices", "shares", "experts"))
    expert = int(choices[0, 3, 0])
    left = shares * (choices != expert)
    expected = (left[..., None] * outputs).sum(2)
    with intervene(model, zero("experts", layers=1, experts=expert)), capture(model, what="ffn", layers=1) as seen:
        model(tokens)
    torch.testing.assert_close(seen.last("ffn")[name], expected, rtol=1e-12, atol=1e-12)
    without = zero("router", layers=1, experts=expert, queries=3)
    with intervene(model, without), capture(model, what=("choices", "router"), layers=1) as seen:
        model(tokens)
    assert not (seen.last("choices")[name][:, 3] == expert).any()
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(seen.last("choices")[name][:, others], choices[:, others])
    with intervene(model, force_experts((0, 2), layers=1)), capture(model, what=("choices", "shares", "ffn")) as seen:
        model(tokens)
    assert set(seen.last("choices")[name].unique().tolist()) == {0, 2}
    torch.testing.assert_close(seen.last("shares")[name].sum(-1), torch.ones(2, 7).double())
    assert set(seen.last("choices")["layers.0.ffn"].unique().tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("changes", [{}, EXPERTS])
@torch.no_grad()
def test_generation_with_a_cache_is_that_without(changes: dict[str, Any]) -> None:
    model, prompt, vector = learned(**changes), texts(1, 6), torch.randn(8).double()
    edits = (
        add("residual", vector, layers=1),
        zero("heads", layers=0, heads=1),
        change("v", lambda values: -values, layers=2, keys=slice(0, 8, 4)),
        forbid(queries=slice(5, None), keys=slice(3, 7, 3), layers=3),
    )
    with intervene(model, *edits):
        fast = generate(model, prompt, 8)[0]
        tokens = prompt
        for _ in range(8):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    assert fast == tokens[0, 6:].tolist()
    assert fast != generate(model, prompt, 8)[0]


def test_gradients_flow_through_edits() -> None:
    model, tokens = learned(**EXPERTS), texts()
    vector = torch.zeros(8, dtype=torch.double, requires_grad=True)
    factor = torch.ones((), dtype=torch.double, requires_grad=True)

    def loss(at: Tensor, by: Tensor) -> Tensor:
        edits = (
            add("residual", at, layers=1, queries=3),
            change("weights", lambda weights: weights * by, layers=2, heads=1),
        )
        with intervene(model, *edits):
            return model(tokens)[:, -1, :3].sum()

    assert torch.autograd.gradcheck(loss, (vector, factor))
    assert torch.autograd.grad(loss(vector, factor), (vector, factor))[1].abs() > 0


@torch.no_grad()
def test_edits_of_outer_blocks_come_first() -> None:
    model, tokens = learned(), texts()
    one = torch.ones(8).double()

    def seen_after(*edits: Edit) -> Tensor:
        with intervene(model, edits[0]), intervene(model, edits[1]), capture(model, what="residual", layers=1) as seen:
            model(tokens)
        return seen.last("residual")["layers.1"]

    assert (seen_after(zero("residual", layers=1), add("residual", one, layers=1)) == 1).all()
    assert (seen_after(add("residual", one, layers=1), zero("residual", layers=1)) == 0).all()
    with capture(model, what="residual", layers=1) as outside, intervene(model, zero("residual", layers=1)):
        model(tokens)
    assert not outside.last("residual")["layers.1"].any()


@torch.no_grad()
def test_nothing_is_left_behind() -> None:
    model, tokens = learned(**EXPERTS), texts()
    plain = model(tokens)

    def fail(values: Tensor) -> Tensor:
        raise ZeroDivisionError

    for site in (*kinds(model), "weights", "experts"):
        with pytest.raises(ZeroDivisionError), intervene(model, change(site, fail)):
            model(tokens)
        assert torch.equal(model(tokens), plain)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@torch.no_grad()
def test_other_threads_are_not_changed() -> None:
    model, tokens = learned(**EXPERTS), texts()
    plain, found = model(tokens), []
    with intervene(model, zero("residual", layers=1), change("weights", lambda weights: weights / 2), forbid(keys=1)):
        worker = threading.Thread(target=lambda: found.append(model(tokens)))
        worker.start()
        worker.join()
        assert not torch.allclose(model(tokens), plain)
    assert torch.equal(found[0], plain)


@torch.no_grad()
def test_what_cannot_be_edited_is_refused() -> None:
    model, tokens = learned(**EXPERTS), texts()

    def tried(*edits: Edit) -> None:
        with intervene(model, *edits):
            model(tokens)

    with refused("site = 'neurons'", expected="residual"):
        zero("neurons")
    with refused("heads of the site residual"):
        zero("residual", heads=1)
    for edit, got in (
        (zero("ffn", layers=9), "layers.*9"),
        (zero("heads", heads=4), "heads.*4"),
        (zero("ffn", modules=["layers.0.attention"]), "modules"),
        (zero("ffn", queries=7), "queries.*7"),
        (zero("ffn", examples=2), "examples.*2"),
        (zero("router", experts=4), "experts.*4"),
        (zero("router"), "router.*no expert"),
        (zero("logits", queries=7), "queries.*7"),
        (add("ffn", torch.ones(9), layers=0), r"\[9\] for ffn at layers\.0\.ffn"),
        (put("ffn", torch.ones(9), layers=0), r"ffn at layers\.0\.ffn.*\[9\]"),
        (scale("ffn", float("nan")), "NaN"),
        (zero("ffn", queries=slice(50, 60)), "no call reached"),
    ):
        with refused(got):
            tried(edit)
    with refused("sinks"), intervene(learned(), remove_sinks()):
        pass
    classifier = encoder().eval()
    with refused("queries.*1"), intervene(classifier, zero("logits", queries=1)):
        run(classifier, tokens)
    with refused("'experts'|router"), intervene(learned(), zero("router")):
        pass
    with refused("compiled"), intervene(torch.compile(model), zero("ffn")):  # type: ignore[arg-type]
        pass
    other = Decoder(DecoderConfig(50, 5, 8, 20, 4, 6)).double()
    with capture(other, what="residual", layers=4) as seen:
        other(tokens)
    with refused(r"patch of residual at layers\.0"):
        tried(patch("residual", seen))
    with capture(model, what="residual", queries=(0, 1)) as seen:
        model(tokens)
    with refused("query.*2"):
        tried(patch("residual", seen))


@torch.no_grad()
def test_a_cross_attention_by_position() -> None:
    model = encoder_decoder().double().eval()
    source, target = texts(), texts(2, 5)
    name = "decoder_layers.1.cross_attention"
    with intervene(model, forbid(queries=2, keys=-1, modules=[name])), capture(model, [name]) as seen:
        model(source, target)
    weights = seen.weights[name]
    assert not weights[:, :, 2, 6].any()
    assert weights[:, :, 2, :6].all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5).double())
