from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glassformer.generation import generate, greedy_decode
from glassformer.handcraft.single_head import SingleHead
from glassformer.layers.cache import LayerCache
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.observe.capture import capture
from glassformer.observe.exact_attention import exact_rows
from glassformer.observe.hook_points import own_points
from glassformer.observe.module_hooks import Arguments
from glassformer.observe.padding import padding_of
from glassformer.observe.positions import key_order
from refusals import refused
from small_models import EXPERTS, MODELS, Model, decoder, encoder, encoder_decoder, run

EVERYTHING = ("weights", "scores", "q", "k", "v", "residual", "ffn")


def kinds_of(model: nn.Module) -> list[str]:
    points = list(own_points(model))
    experts = [
        kind
        for kind in ("router", "choices", "shares", "experts")
        if any(p.role == "experts" for p in points)
    ]
    return [*EVERYTHING, *experts, *(["sinks"] if any(point.sinks for point in points) else [])]


@torch.no_grad()
def test_sinks_choices_and_shares_fit_the_rest() -> None:
    """Which test_edits_exact.py compares with the formulas, in every model."""
    model = decoder(**EXPERTS)
    for layer in model.layers:
        layer.attention.sinks.normal_()
    with capture(model, what=kinds_of(model)) as seen:
        run(model, 2, 5)
    for where, weights in seen.weights.items():
        torch.testing.assert_close(seen.last("sinks")[where] + weights.sum(-1), torch.ones(2, 4, 5))
    for where, experts in seen.last("experts").items():
        mixed = (experts * seen.last("shares")[where][..., None]).sum(2)
        torch.testing.assert_close(mixed, seen.last("ffn")[where], rtol=1e-5, atol=1e-6)
        assert torch.equal(seen.last("router")[where].topk(2).indices, seen.last("choices")[where])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_chosen_places_are_those_of_the_whole(name: str) -> None:
    model = MODELS[name]()
    kinds = kinds_of(model)
    with (
        capture(model, what=kinds) as whole,
        capture(model, what=kinds, heads=1, queries=[-1, 1]) as some,
    ):
        run(model, 2, 6)
    assert len(some.records) == len(whole.records)
    for part, record in zip(some.records, whole.records, strict=True):
        expected = record.values
        for axis, labels, everything in (
            ("head", part.heads, record.heads),
            ("query", part.queries, record.queries),
            ("key", part.keys, record.keys),
        ):
            if axis in part.axes:
                assert labels is not None
                places = torch.tensor([list(everything).index(each) for each in labels])
                expected = expected.index_select(part.axes.index(axis), places)
        torch.testing.assert_close(part.values, expected, rtol=1e-5, atol=1e-6)
        total = len(record.queries or ())
        assert part.queries in (None, (total - 1, 1))  # in the order asked for
        assert "head" not in part.axes or len(part.heads or ()) == 1


def test_a_generation_gives_rows_by_their_positions() -> None:
    """Window 3 in every second layer, experts, and every kind: the steps together are one pass over
    the whole text.
    """
    model = decoder(**{**EXPERTS, "window": 3})
    kinds = kinds_of(model)
    prompt = torch.randint(50, (2, 4))
    with capture(model, what=kinds, queries=-1) as seen:
        texts = generate(model, prompt, 6)
    text = torch.cat([prompt, torch.tensor(texts)[:, :-1]], 1)
    with torch.no_grad(), capture(model, what=kinds) as whole:
        model(text)
    for kind in kinds:
        for name, steps in seen.of(kind).items():
            (all_rows,) = whole.of(kind)[name]
            assert [step.call for step in steps] == list(range(6))
            if kind in ("k", "v"):
                made = torch.cat([step.values for step in steps], 2)
                torch.testing.assert_close(made, all_rows.values, rtol=1e-5, atol=1e-5)
                assert [each for step in steps for each in step.keys or ()] == list(range(9))
                continue
            for place, step in enumerate(steps):
                assert step.queries == (3 + place,)
                rows = all_rows.values.narrow(step.axes.index("query"), 3 + place, 1)
                if step.keys is not None:
                    rows = rows[..., list(step.keys)]
                    assert step.keys[-1] == 3 + place
                torch.testing.assert_close(step.values, rows, rtol=1e-5, atol=1e-5)


def test_one_position_of_a_generation_is_seen_once() -> None:
    model = decoder()
    with capture(model, queries=[2, 6], layers=0, what=("weights", "residual")) as seen:
        generate(model, [[1, 2, 3, 4]], 6)
    seen_once = [(what, (query,)) for query in (2, 6) for what in ("weights", "residual")]
    assert [(record.what, record.queries) for record in seen.records] == seen_once
    with capture(model, queries=slice(-2, None), layers=0) as seen:
        generate(model, [[1, 2, 3, 4]], 3)
    assert [record.queries for record in seen.records] == [(2, 3), (4,), (5,)]


def test_cross_attention_counts_target_positions_in_cached_decoding() -> None:
    model = encoder_decoder()
    source = torch.randint(1, 50, (2, 7))
    with capture(model, layers=2, what=("weights", "k")) as seen:
        greedy_decode(model, source, 4, 1)
    name = "decoder_layers.2.cross_attention"
    steps = seen.of("weights")[name]
    assert [record.queries for record in steps] == [(0,), (1,), (2,), (3,)]
    assert all(record.keys == range(7) and record.cross and not record.source for record in steps)
    assert [record.keys for record in seen.of("k")[name]] == [range(7)] * 4
    assert seen.weights[name] is steps[-1].values
    own = seen.of("weights")["decoder_layers.2.self_attention"]
    assert [record.keys for record in own] == [range(stop) for stop in (1, 2, 3, 4)]
    with capture(model, ["encoder_layers.0"]) as seen:
        model(source, source[:, :3])
    assert seen.records[0].source


def test_the_single_head_is_seen() -> None:
    head = SingleHead(3, 2, 4, 2)
    sequences = torch.randn(2, 5, 3)
    real = torch.arange(5) < torch.tensor([[5], [3]])
    with capture(head, what=("weights", "q", "k", "v")) as seen:
        out = head(sequences, real)
        head(sequences[0])
    weights, alone = (record.values for record in seen.of("weights")[""])
    mixed = weights[:, 0] @ seen.of("v")[""][0].values[:, 0]
    torch.testing.assert_close(mixed.masked_fill(~real[..., None], 0.0), out)
    torch.testing.assert_close(alone[0], weights[0], rtol=0, atol=1e-6)


# Gradients


def eager(x: Tensor, module: Any, allowed: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The attention with all that it makes held by the graph."""
    q = module._heads(module.query(x), module.num_heads)
    k, v = module.keys_and_values(x)
    group = module.num_heads // module.num_kv_heads
    scores = (
        q
        @ k.repeat_interleave(group, 1).mT
        * module.head_dim**-0.5
        * module.key_weights[:, None, None]
    )
    sink = module.sinks[:, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat([scores.masked_fill(~allowed, -torch.inf), sink], -1).softmax(-1)[..., :-1]
    held = {"q": q, "k": k, "v": v, "scores": scores, "weights": weights}
    for each in held.values():
        each.retain_grad()
    out = (weights @ v.repeat_interleave(group, 1)).transpose(1, 2).flatten(2)
    return module.output(out), held


@pytest.mark.parametrize("window", [None, 3])
def test_gradients_are_those_of_held_weights(window: int | None) -> None:
    module = GroupedQueryAttention(
        12, 4, 6, 2, window=window, key_weights=True, sinks=True
    ).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    position = torch.arange(7)
    allowed = (position <= position[:, None]) & (position > position[:, None] - (window or 7))
    out, held = eager(x, module, allowed)
    (out.square().sum() + out.sum()).backward()
    kinds = ("q", "k", "v", "scores", "weights")
    with capture(
        nn.ModuleDict({"only": module}), what=kinds, retain_grad=True, heads=[1, 2], queries=[2, 5]
    ) as seen:
        again = module(x)
    assert all(record.grad is None for record in seen.records)
    (again.square().sum() + again.sum()).backward()
    for record in seen.records:
        expected = held[record.what].grad
        assert record.keys is not None or record.what == "q"
        expected = expected[:, list(record.heads)]
        if record.queries is not None:
            expected = expected[:, :, list(record.queries)]
        if record.what in ("weights", "scores"):
            expected = expected[..., list(record.keys or ())]
        torch.testing.assert_close(record.grad, expected)


def test_gradients_of_what_blocks_return() -> None:
    model = encoder()
    tokens = torch.randint(1, 50, (2, 6))
    held: dict[str, Tensor] = {}
    for name in ("layers.0", "layers.1.ffn"):
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: held.update({name: out})
        )
    with capture(
        model, what=("residual", "ffn"), layers=[0, 1], retain_grad=True, queries=[1, 3]
    ) as seen:
        logits = model(tokens)
        for each in held.values():
            each.retain_grad()
        logits.square().sum().backward()
    for name, kind in (("layers.0", "residual"), ("layers.1.ffn", "ffn")):
        (record,) = seen.of(kind)[name]
        expected = held[name].grad
        assert torch.equal(record.grad, expected[:, [1, 3]])
    with torch.no_grad(), capture(model, retain_grad=True) as seen:
        model(tokens)
    with refused(expected="while gradients are on"):
        _ = seen.records[0].grad


def test_every_kind_can_be_saved_as_it_is(tmp_path: Path) -> None:
    model = decoder(**EXPERTS)
    kinds = [*kinds_of(model), "heads", "attention", "logits"]
    with capture(model, what=kinds) as seen:
        model(torch.randint(50, (2, 4)))
    for kind in kinds:
        save_file(seen.last(kind), tmp_path / "seen.safetensors")
        loaded = load_file(tmp_path / "seen.safetensors")
        assert loaded.keys() == seen.last(kind).keys()
        assert all(torch.equal(loaded[name], values) for name, values in seen.last(kind).items())


def test_a_stored_capture_has_the_gradients_of_its_records(tmp_path: Path) -> None:
    model = decoder()
    with capture(model, what=EVERYTHING, retain_grad=True) as seen:
        logits = model(torch.randint(50, (2, 4)))
    logits.square().sum().backward()
    torch.save(seen, tmp_path / "seen.pt")
    loaded = torch.load(tmp_path / "seen.pt", weights_only=False)
    for record, stored in zip(seen.records, loaded.records, strict=True):
        assert torch.equal(stored.values, record.values)
        assert torch.equal(stored.grad, record.grad)


def test_gradients_that_there_cannot_be_are_refused() -> None:
    model = decoder(**EXPERTS)
    tokens = torch.randint(50, (1, 4))
    with capture(model, what=kinds_of(model), retain_grad=True) as seen:
        model(tokens).sum().backward()
    for record in seen.records:
        if record.what in ("router", "choices", "shares", "experts", "sinks"):
            with refused("keeps no gradient"):
                _ = record.grad
        else:
            assert record.grad is not None
    dropping = decoder(dropout=0.2).train()
    with refused("which drops some"), capture(dropping, retain_grad=True):
        dropping(tokens)
    with capture(dropping, what="q", retain_grad=True) as seen:
        dropping(tokens).sum().backward()
    assert seen.records[0].grad is not None


# Positions


@pytest.mark.parametrize("length", [1, 3])
def test_keys_of_a_windowed_cache_come_in_order(length: int) -> None:
    for steps in range(9):
        cache = LayerCache(1, 1, 2, 20, 4)
        numbers = (
            torch.arange(steps + length, dtype=torch.float32).view(1, 1, -1, 1).expand(1, 1, -1, 2)
        )
        for step in range(steps):
            cache.append(numbers[:, :, step : step + 1], numbers[:, :, step : step + 1])
        start = cache.length
        keys, _ = cache.append(numbers[:, :, steps:], numbers[:, :, steps:])
        order, first = key_order(cache, start, length, keys.shape[2])
        found = keys[0, 0, :, 0] if order is None else keys[0, 0, order, 0]
        assert found.tolist() == list(range(first, steps + length))


def test_positions_out_of_range_are_refused() -> None:
    model: Model = encoder()
    tokens = torch.randint(1, 50, (2, 6))
    for queries, message in (
        ([6], r"queries \[6\] of a text of 6 positions"),
        ([-7], r"queries \[-7\]"),
    ):
        with refused(message), capture(model, queries=queries):
            model(tokens)
    with refused("which no call had"), capture(model, queries=slice(6, 9)):
        model(tokens)
    writer = decoder()
    with refused("which no call had"), capture(writer, queries=20):
        generate(writer, [[1, 2]], 3)
    with capture(model, queries=3) as seen:
        pass
    assert seen.records == []


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_captured_inputs_give_every_weight(name: str) -> None:
    model = MODELS[name]()
    with capture(model, what=("inputs", "weights")) as seen:
        run(model, 2, 5)
    records = seen.of("weights")
    assert [kept.name for kept in seen.inputs] == list(records)
    for kept, (record,) in zip(seen.inputs, records.values(), strict=True):
        assert (kept.layer, kept.source, kept.cross) == (record.layer, record.source, record.cross)
        heads = range(kept.inputs.q.shape[1])
        queries = range(kept.inputs.q.shape[2])
        found = exact_rows(kept.inputs, heads, queries, ["weights"]).weights
        assert torch.equal(found, record.values)
        assert kept.inputs.v.shape[3] == 0


@torch.no_grad()
def test_captured_inputs_are_copies_and_come_alone() -> None:
    model = decoder()
    with capture(model, what="inputs", layers=0) as seen:
        run(model, 1, 5)
    assert seen.records == []
    (kept,) = seen.inputs
    before = kept.inputs.q.clone()
    model.layers[0].get_submodule("attention.query").weight.zero_()  # type: ignore[operator]
    run(model, 1, 5)
    assert torch.equal(kept.inputs.q, before)


def test_inputs_of_a_cached_step_are_refused() -> None:
    model = decoder()
    with refused("'inputs'"), capture(model, what="inputs"):
        generate(model, [[1, 2, 3]], 3)


def has_padding(masks: list[Any]) -> bool:
    arguments = Arguments(masks)
    arguments.named = {}
    return padding_of(nn.Identity(), arguments, 0, 4).exists


def test_only_masks_tell_of_padding() -> None:
    causal = torch.ones(2, 1, 4, 4).tril()
    padded = causal.clone()
    padded[1, :, :, 0] = 0
    real = torch.ones(2, 4, dtype=torch.bool)
    assert not has_padding([causal, real, torch.randn(2, 3, 4, 4), torch.randn(2, 4, 8), None])
    assert has_padding([padded])
    real[0, 0] = False
    assert has_padding([real])
