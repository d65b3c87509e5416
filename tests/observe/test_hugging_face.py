"""Captures and interventions in models of transformers, against what they return, plain hooks and
their own masks.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.observe import hugging_face, patches
from glassformer.observe.capture import capture
from glassformer.observe.edits import add, change, forbid, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.sweep import ablation_sweep
from refusals import refused
from transformers_models import (
    FAMILIES,
    NARROW,
    THEIRS,
    bert,
    gpt2,
    llama,
    metric,
    mixtral,
    qwen3_moe,
)

pytestmark = pytest.mark.usefixtures("without_gradients")

ATTENTIONS = {"gpt2": "transformer.h.{}.attn", "bert": "encoder.layer.{}.attention.self"}
"""Of others, ``model.layers.{}.self_attn``."""


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, 50, (2, 9))
    real = torch.ones_like(tokens)
    real[1, :3] = 0
    return tokens, real


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_that_eager_attention_returns(
    family: str, padded: bool, implementation: str
) -> None:
    model: Any = FAMILIES[family]()
    tokens, real = batch()
    real = real if padded else torch.ones_like(real)
    model.set_attn_implementation("eager")
    expected = model(tokens, attention_mask=real, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    plain = model(tokens, attention_mask=real)
    with capture(model, what=("weights", "scores")) as seen:
        watched = model(tokens, attention_mask=real)
    assert torch.equal(watched[0], plain[0])
    names = [ATTENTIONS.get(family, "model.layers.{}.self_attn").format(layer) for layer in (0, 1)]
    assert list(seen.weights) == names
    for name, weights in zip(names, expected, strict=True):
        rows = real.bool()  # what a query of padding sees is left to the implementation
        for mine in (seen.weights[name], seen.last("scores")[name].softmax(-1)):
            assert (mine - weights).transpose(1, 2)[rows].abs().max() <= 1e-6


def test_weights_of_a_model_in_bfloat16_are_computed_in_float32_from_its_queries_and_keys() -> None:
    model = llama().to(torch.bfloat16)
    model.set_attn_implementation("eager")
    with capture(model, what=("weights", "q", "k")) as seen:
        returned = model(torch.randint(1, 50, (2, 9)), output_attentions=True).attentions
    for layer, eager in enumerate(returned):
        weights, q, k = (seen[layer, kind] for kind in ("weights", "q", "k"))
        scores = q.float() @ k.float().repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5
        future = torch.ones(9, 9, dtype=torch.bool).triu(1)
        assert weights.dtype == torch.float32
        torch.testing.assert_close(
            weights, scores.masked_fill(future, -torch.inf).softmax(-1), rtol=0, atol=1e-6
        )
        torch.testing.assert_close(weights, eager.float(), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("family", "changes", "options", "queries"),
    [
        *[(family, {}, {}, -1) for family in ("gpt2", "llama", "mixtral")],
        ("llama", {}, {"cache_implementation": "static", "disable_compile": True}, -1),
        ("mixtral", {"sliding_window": 4}, {}, None),
    ],
)
def test_generation_gives_one_row_a_step(
    family: str, changes: Any, options: Any, queries: Any
) -> None:
    model: Any = FAMILIES[family](**changes)
    tokens, _ = batch()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, **options}
    plain = model.generate(tokens, **options)
    with capture(model, queries=queries, what=("weights", "k", "residual")) as seen:
        assert torch.equal(model.generate(tokens, **options), plain)
    with capture(model, what=("weights", "k", "residual")) as whole:
        model(plain)
    for name, steps in seen.of("weights").items():
        assert [record.queries[-1:] for record in steps] == [(8,), (9,), (10,), (11,)]
        for record in steps:
            assert changes or record.keys == range(record.queries[0] + 1)
            expected = whole.weights[name][:, :, list(record.queries)][..., list(record.keys)]
            torch.testing.assert_close(record.values, expected, rtol=0, atol=1e-6)
        made = torch.cat([record.values for record in seen.of("k")[name]], 2)
        torch.testing.assert_close(made, whole.last("k")[name][:, :, :12], rtol=1e-5, atol=1e-6)
    for name, steps in seen.of("residual").items():
        expected = whole.last("residual")[name][:, 8 if queries == -1 else 0 : 12]
        torch.testing.assert_close(
            torch.cat([step.values for step in steps], 1), expected, rtol=1e-5, atol=1e-6
        )


def test_cross_attention_of_gpt2_and_bert() -> None:
    memory = torch.randn(2, 5, 32)
    tokens = batch()[0]
    for model, name in (
        (gpt2(add_cross_attention=True), "transformer.h.1.crossattention"),
        (bert(is_decoder=True, add_cross_attention=True), "encoder.layer.1.crossattention.self"),
    ):
        eager: Any = model
        eager.set_attn_implementation("eager")
        expected = model(
            tokens, encoder_hidden_states=memory, output_attentions=True
        ).cross_attentions[1]
        eager.set_attn_implementation("sdpa")
        with capture(model, [name]) as seen:
            model(tokens, encoder_hidden_states=memory)
        (record,) = seen.records
        assert record.cross
        assert (record.values - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("make", [mixtral, partial(qwen3_moe, norm_topk_prob=True)])
def test_what_passes_between_the_attentions(make: Callable[[], Any]) -> None:
    """The residual stream as transformers tells it, and experts that sum to the feed-forward
    network's output.
    """
    model = make()
    tokens, _ = batch()
    with capture(model, what=("residual", "ffn", "router", "choices", "shares", "experts")) as seen:
        out = model(tokens, output_hidden_states=True, output_router_logits=True)
    residual = seen.last("residual")
    assert torch.equal(residual["model.layers.0"], out.hidden_states[1])
    for layer in (0, 1):
        name = f"model.layers.{layer}.mlp"
        probabilities = out.router_logits[layer].softmax(-1).view(2, 9, 4)
        torch.testing.assert_close(seen.last("router")[name], probabilities)
        chosen = probabilities.gather(-1, seen.last("choices")[name])
        torch.testing.assert_close(seen.last("shares")[name], chosen / chosen.sum(-1, keepdim=True))
        mixed = (seen.last("experts")[name] * seen.last("shares")[name][..., None]).sum(2)
        torch.testing.assert_close(mixed, seen.last("ffn")[name], rtol=1e-5, atol=1e-6)


def test_an_expert_of_qwen_is_removed_as_if_its_weights_were_zero() -> None:
    model: Any = qwen3_moe(norm_topk_prob=True, mlp_only_layers=[0], initializer_range=0.2)
    tokens, _ = batch()
    sweep = ablation_sweep(model, tokens, metric, site="experts")
    assert sweep.layers == (1,)
    last = model.model.layers[1].mlp.experts.down_proj
    for expert in range(4):
        with intervene(model, zero("experts", experts=expert)):
            edited = model(tokens).logits
        kept = last[expert].clone()
        last[expert] = 0
        expected = model(tokens).logits
        last[expert] = kept
        torch.testing.assert_close(edited, expected)
        torch.testing.assert_close(sweep.values[0, expert].float(), metric(expected).mean())
    with refused("experts"), intervene(qwen3_moe(norm_topk_prob=False), zero("experts", experts=0)):
        pass


@pytest.mark.parametrize("family", FAMILIES)
@torch.enable_grad()
def test_gradients_are_those_of_eager_weights(family: str) -> None:
    model: Any = FAMILIES[family]()
    tokens, _ = batch()
    model.set_attn_implementation("eager")
    out = model(tokens, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    out[0].pow(3).sum().backward()
    model.set_attn_implementation("sdpa")
    options = {"use_cache": False} if family != "bert" else {}
    with capture(model, retain_grad=True) as seen:
        model(tokens, **options)[0].pow(3).sum().backward()
    for record, weights in zip(seen.records, out.attentions, strict=True):
        torch.testing.assert_close(
            record.grad, weights.grad, rtol=1e-3, atol=1e-5 * float(weights.grad.abs().max())
        )


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral", "mistral", "gpt-oss"])
def test_generation_is_the_same_padded_without_a_cache_and_with_another_one(name: str) -> None:
    model: Any = THEIRS[name]()
    model = model if name in NARROW else model.double()
    for weight in model.parameters():
        weight.mul_(8)
    tokens = batch()[0][:1]
    vector = 5 * torch.ones(32)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def edited(shift: int, given: Tensor, **more: Any) -> list[int]:
        edits = (
            forbid(queries=slice(8 + shift, None), keys=slice(2 + shift, 9 + shift, 2)),
            change("v", torch.neg, keys=slice(4 + shift, None, 2), layers=1),
            add("residual", vector, layers=0, queries=slice(10 + shift, None)),
        )
        with intervene(model, *edits):
            found: list[int] = model.generate(given, **options, **more)[
                0, given.shape[1] :
            ].tolist()
            return found

    expected = edited(0, tokens)
    assert expected != model.generate(tokens, **options)[0, 9:].tolist()
    assert edited(0, tokens, use_cache=False) == expected
    assert edited(0, tokens, cache_implementation="static", disable_compile=True) == expected
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), tokens], 1)
    mask = (torch.arange(12) >= 3).long()[None]
    assert edited(3, padded, attention_mask=mask) == expected


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_what_a_mask_of_numbers_adds_is_kept(implementation: str) -> None:
    model: Any = gpt2().double()
    model.set_attn_implementation(implementation)
    tokens = batch()[0]
    lowest = torch.full((9, 9), torch.finfo(torch.double).min, dtype=torch.double)
    mask = torch.randn(2, 1, 9, 9).double() + lowest.triu(1)
    expected = model(tokens, attention_mask=mask)[0]
    with intervene(
        model,
        change("weights", lambda weights: weights, layers=0, heads=1),
        change("q", torch.clone),
    ):
        torch.testing.assert_close(
            model(tokens, attention_mask=mask)[0], expected, rtol=1e-12, atol=1e-12
        )
    assert (model(tokens)[0] - expected).abs().max() > 1e-3


def test_the_models_own_record_of_attentions_is_the_edited_one() -> None:
    model: Any = gpt2().double()
    model.set_attn_implementation("eager")
    tokens = batch()[0]
    with intervene(model, forbid(queries=4, keys=2, layers=1)), capture(model) as seen:
        found = model(tokens, output_attentions=True, output_hidden_states=True)
    for own, weights in zip(found.attentions, seen.weights.values(), strict=True):
        torch.testing.assert_close(own, weights, rtol=1e-12, atol=1e-12)
    assert not found.attentions[1][:, :, 4, 2].any()


@pytest.mark.slow
def test_a_compiled_model_is_seen() -> None:
    model, (tokens, _) = llama(), batch()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(tokens)
    with capture(model) as plain:
        model(tokens)
    for watched in (model, compiled):
        with capture(watched) as seen:
            compiled(tokens)
        assert list(seen.weights) == list(plain.weights)
        assert all(
            torch.equal(seen.weights[name], weights) for name, weights in plain.weights.items()
        )


def fail(*_: object) -> None:
    raise RuntimeError("within")


@pytest.mark.slow
def test_the_replaced_table_is_compiled_without_graph_breaks() -> None:
    model = llama()
    tokens = torch.randint(1, 50, (2, 9))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with hugging_face.watching(lambda *_: None):
        logits = compiled(tokens, use_cache=False).logits
    assert torch.equal(logits, model(tokens, use_cache=False).logits)


def test_nothing_stays_in_the_table_of_transformers() -> None:
    table = hugging_face._table()
    before = dict(table._local_mapping)
    model: Any = llama()
    tokens, _ = batch()
    with model.model.norm.register_forward_pre_hook(fail), capture(model):
        inside = dict(table._local_mapping)
        assert inside.keys() > before.keys()
        with pytest.raises(RuntimeError, match="within"), capture(model):
            model(tokens)
        assert table._local_mapping == inside
    assert table._local_mapping == before
    assert not patches._patches
    with capture(model) as seen:
        llama()(tokens)
    assert seen.records == []


def test_an_attention_that_bypasses_the_table_is_refused() -> None:
    model: Any = gpt2(reorder_and_upcast_attn=True)
    model.set_attn_implementation("eager")
    with refused("without passing the point"), capture(model):
        model(batch()[0])


@pytest.mark.parametrize("what", ["router", "experts"])
def test_older_routers_whose_scores_are_probabilities_are_no_places(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mixtral()  # which may load transformers anew
    monkeypatch.setattr("transformers.__version__", "5.5.4")
    with (
        refused(f"what = '{what}' and a model without any hook point for it"),
        capture(model, what=what),
    ):
        pass
    with torch.no_grad(), capture(model) as seen:
        model(batch()[0])
    assert len(seen.records) == 2


def test_transformers_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    with refused(expected="transformers 5 or later"), capture(model):
        pass
