import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.generation import generate
from glassformer.layers import attention
from glassformer.layers.opened import entries
from glassformer.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
)
from glassformer.observe.capture import capture
from glassformer.observe.captured import Captured, Record
from glassformer.observe.edits import zero
from glassformer.observe.sweep import ablation_sweep
from processes import printed
from refusals import refused
from small_models import learned

NAMES = (
    "encoder_layers.0.attention",
    "decoder_layers.0.self_attention",
    "decoder_layers.0.cross_attention",
)


def lookup_model(**changes: float) -> EncoderDecoder:
    return EncoderDecoder(EncoderDecoderConfig(12, 16, 24, 2, 1, 1, 8, 9, **changes)).eval()  # type: ignore[arg-type]


def decoder() -> Decoder:
    return learned(num_layers=2, num_kv_heads=2, window=3, key_weights=True, sinks=True)


def batch() -> tuple[Tensor, Tensor]:
    source = torch.randint(1, 12, (3, 6))
    target = torch.randint(1, 12, (3, 4))
    source[1, 4:], source[2] = 0, 0
    return source, target


# What watching changes: nothing


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", ["inference", "no_grad", "grad", "kept"])
def test_outputs_gradients_and_random_numbers_are_bit_identical(grad: str, training: bool) -> None:
    texts = torch.randint(1, 20, (2, 9))
    texts[1, 6:] = 0
    source, target = batch()
    kept: dict[str, Any] = {
        "what": ("weights", "scores", "q", "k", "v", "residual", "ffn"),
        "retain_grad": True,
    }
    dropout: dict[str, Any] = {"dropout" if grad == "kept" else "attention_dropout": 0.3}
    encoder = Encoder(EncoderConfig(20, 2, 16, 24, 2, num_classes=3, **dropout))
    context = {"inference": torch.inference_mode, "no_grad": torch.no_grad}.get(
        grad, torch.enable_grad
    )
    for model, run in (
        (lookup_model(dropout=0.3), lambda model: model(source, target)),
        (encoder, lambda model: model(texts)),
        (decoder(), lambda model: model(texts)),
    ):
        model.train(training)
        results = []
        for watching in (nullcontext(), capture(model, **(kept if grad == "kept" else {}))):
            torch.manual_seed(1)
            model.zero_grad()
            with context(), watching as seen:
                logits = run(model)
            gradients = []
            if grad in ("grad", "kept"):
                logits.square().sum().backward()
                gradients = [
                    weight.grad.clone() for weight in model.parameters() if weight.grad is not None
                ]
                assert gradients
            results.append([logits, torch.rand(3), *gradients])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
        assert not any(weights.requires_grad for weights in seen.weights.values())


def test_generation_is_the_same() -> None:
    model = decoder()
    with capture(model) as seen:
        watched = generate(model, [[3, 4, 5], [6]], 8)
    assert watched == generate(model, [[3, 4, 5], [6]], 8)
    assert [len(calls) for calls in seen.of("weights").values()] == [8, 8]


def attached(model: nn.Module) -> int:
    hooks = sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._forward_hooks_always_called)
        for m in model.modules()
    )
    return hooks + len(entries(attention.Watching))


def test_nothing_stays_attached_whatever_happens() -> None:
    model, (source, target) = lookup_model(), batch()
    with capture(model) as outer:
        # the attentions and the blocks around them, and one watcher
        assert attached(model) == 2 * (3 + 2) + 1
        with refused("source tokens"), capture(model):
            model(source + 12, target)
        failing = model.get_submodule(NAMES[2]).output.register_forward_pre_hook(fail)
        with failing, pytest.raises(RuntimeError, match="within"), capture(model, [NAMES[2]]):
            model(source, target)
        with capture(model, [NAMES[0]]) as inner:
            model(source, target)
    assert attached(model) == 0
    assert {name: len(calls) for name, calls in outer.of("weights").items()} == dict.fromkeys(
        NAMES, 2
    )
    assert list(inner.weights) == [NAMES[0]]
    assert torch.equal(inner.weights[NAMES[0]], outer.weights[NAMES[0]])
    model(source, target)
    assert len(outer.of("weights")[NAMES[0]]) == 2


def fail(*_: object) -> None:
    raise RuntimeError("within")


@torch.no_grad()
def test_an_attention_that_has_raised_records_no_other() -> None:
    model = decoder()
    tokens = torch.randint(50, (1, 5))
    with capture(model, layers=1) as expected:
        model(tokens)
    with capture(model, layers=1) as seen:
        with (
            model.layers[1].attention.output.register_forward_pre_hook(fail),
            pytest.raises(RuntimeError),
        ):
            model(tokens)
        model(tokens)
    assert len(seen.records) == 2
    assert torch.equal(seen.records[1].values, expected.records[0].values)


def test_other_models_and_other_threads_are_not_seen() -> None:
    model, (source, target) = lookup_model(), batch()
    with capture(model) as seen:
        lookup_model()(source, target)
        thread = threading.Thread(target=lambda: model(source, target))
        thread.start()
        thread.join()
    assert seen.records == []


def test_a_hook_that_fails_before_leaves_no_trace() -> None:
    model, (source, target) = lookup_model(), batch()
    handle = model.get_submodule("decoder_layers.0").register_forward_pre_hook(fail)
    with capture(model, what=("weights", "residual")) as seen:
        with pytest.raises(RuntimeError, match="within"):
            model(source, target)
        handle.remove()
        model(source, target)
    assert {name: len(calls) for name, calls in seen.of("weights").items()} == dict(
        zip(NAMES, (2, 1, 1), strict=True)
    )
    assert attached(model) == 0


def test_threads_that_watch_the_same_model_see_their_own_calls() -> None:
    model = decoder()
    texts = [torch.randint(20, (1, length)) for length in (3, 5, 8, 9)]

    def look(text: Tensor) -> list[Tensor]:
        with torch.no_grad(), capture(model, layers=1) as seen:
            for _ in range(20):
                model(text)
        return [record.values for record in seen.records]

    expected = [look(text)[0] for text in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(look, texts))
    for calls, weights in zip(found, expected, strict=True):
        assert len(calls) == 20
        assert all(torch.equal(call, weights) for call in calls)
    assert attached(model) == 0


COMPILED = """
import pytest, torch
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.captured import Captured, Record
model = Decoder(DecoderConfig(20, 2, 24, 16, 4, 8, 2, window=3, sinks=True, num_experts=4, max_seq_len=32)).eval()
tokens = torch.randint(20, (2, 9))
with torch.no_grad(), capture(model, what=("weights", "router", "residual")) as plain:
    expected = model(tokens)
whole_model = torch.compile(model, backend="aot_eager")

def run(seen):
    assert len(seen.records) == len(plain.records)
    for ours, theirs in zip(seen.records, plain.records):
        assert ours.name == theirs.name and torch.equal(ours.values, theirs.values)

with torch.no_grad():
    before = whole_model(tokens)
    for watched in (model, whole_model):
        with capture(watched, what=("weights", "router", "residual")) as seen:
            assert torch.equal(whole_model(tokens), expected)
        run(seen)
    with capture(model, what=("weights", "router", "residual")) as seen:
        torch.compile(model, backend="aot_eager")(tokens)
    run(seen)
    assert torch.equal(whole_model(tokens), before)
    assert len(seen.records) == len(plain.records)

# Captures may overlap in any order; then all is compiled again.
first, second = capture(model), capture(model)
first.__enter__(), second.__enter__()
first.__exit__(None, None, None)
assert torch._dynamo.eval_frame._stance.stance == "force_eager"
second.__exit__(None, None, None)
assert torch._dynamo.eval_frame._stance.stance == "default"
"""


@pytest.mark.slow
def test_what_is_compiled_runs_uncompiled_and_is_seen() -> None:
    printed(COMPILED)


# What it gives


def record(**changes: object) -> Record:
    usual = Record(
        "weights",
        "layers.0.attention",
        0,
        0,
        torch.rand(2, 2, 3, 4),
        (0, 3),
        (1, 2, 4),
        range(1, 5),
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_the_last_of_each_module_and_all_of_them() -> None:
    one = record()
    other = record(name="layers.1.attention")
    again = record(call=1)
    seen = Captured([one, other, again, record(what="q", values=torch.rand(2, 2, 3, 8), keys=None)])
    assert seen.of("weights") == {"layers.0.attention": [one, again], "layers.1.attention": [other]}
    assert seen.weights["layers.0.attention"] is again.values
    assert one.axes == ("batch", "head", "query", "key")
    assert np.array_equal(seen.numpy("weights")["layers.1.attention"], other.values.numpy())
    assert list(seen.last("q")) == ["layers.0.attention"]
    assert seen.last("scores") == {}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64]
)
def test_values_become_arrays_of_the_same_numbers(dtype: torch.dtype) -> None:
    values = torch.arange(24).view(2, 3, 4).to(dtype)
    array = record(what="residual", values=values, heads=None, keys=None).numpy()
    assert array.tolist() == values.tolist()


def test_what_a_record_or_capture_lacks_is_refused() -> None:
    seen = Captured([record()])
    with refused("keeps no gradient"):
        _ = seen.records[0].grad
    with refused("nothing", expected="one of weights"):
        seen.of("nothing")


def test_what_was_captured_is_named_where_something_else_is_read() -> None:
    seen = Captured(
        [
            record(what="heads", layer=3),
            record(what="residual", layer=2),
            record(what="residual", layer=3),
        ]
    )
    with refused("weights of layer 3", expected="heads of layer 3; residual of layers 2, 3"):
        _ = seen[3, "weights"]
    with refused("residual of layer 1", expected="what was captured: residual of layers 2, 3"):
        _ = seen[1, "residual"]
    with refused("residual of layer 1", expected="nothing yet"):
        _ = Captured()[1, "residual"]


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("hook_resid_pre", "residual_before"),
        ("resid_post", "residual"),
        ("blocks.3.hook_resid_mid", "residual_between' with layers=3"),
        ("pattern", "weights"),
        ("blocks.0.attn.hook_pattern", "weights' with layers=0"),
        ("blocks.11.attn.hook_z", "heads' with layers=11"),
        ("blocks.1.attn.hook_q", "q' with layers=1"),
        ("mlp_out", "ffn"),
        ("blocks.2.mlp.hook_post", "neurons' with layers=2"),
        ("blocks.2.ln2.hook_normalized", "ffn_input' with layers=2"),
        ("hook_embed", "embedding"),
        ("wieghts", "weights"),
        ("Residual", "residual"),
    ],
)
def test_names_of_other_libraries_and_slips_are_understood(name: str, site: str) -> None:
    with refused(f"what = '{name}'", fix=f"Did you mean '{site}"), capture(decoder(), what=name):
        pass
    with refused(f"what = '{name}'", fix=f"Did you mean '{site}"):
        Captured().of(name)


@pytest.mark.parametrize("name", ["", "xyz", "blocks.3.hook_scale", 7])
def test_a_name_that_means_nothing_has_no_suggestion(name: Any) -> None:
    with refused(f"what = {name!r}", fix="Choose one of these"), capture(decoder(), what=(name,)):
        pass


def test_an_edit_and_a_sweep_understand_them_too() -> None:
    with refused("site = 'hook_z'", fix="Did you mean 'heads'"):
        zero("hook_z")
    with refused("site = 'resid_post'", fix="Did you mean 'residual'"):
        ablation_sweep(
            decoder(), torch.tensor([[1, 2]]), lambda logits: logits[:, -1, 0], site="resid_post"
        )  # type: ignore[arg-type]


def test_a_record_shows_its_shape_and_not_its_numbers() -> None:
    model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8))
    with capture(model, what="residual", layers=1) as seen:
        model(torch.tensor([[3, 1, 4]]))
    assert repr(seen.records) == "[Record(residual [1, 3, 32] of layers.1, call 0)]"


def test_logits_beside_a_later_layer_are_refused_with_what_to_do() -> None:
    model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8))
    with (
        refused("logits", fix="without layers"),
        capture(model, what=("residual", "logits"), layers=1),
    ):
        pass
