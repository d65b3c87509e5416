"""Records of some layers are those of the whole run, and what comes after them does not run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.captured import Captured
from glassformer.observe.collect import collect
from glassformer.observe.edits import scale, zero
from glassformer.observe.intervene import intervene
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import bert_classifier, gpt2, llama, mixtral

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
PADDED = {
    "tokens": TOKENS,
    "key_padding": torch.tensor([[False, True, True, True, True], [True] * 5]),
}
BOTH = {"source": TOKENS, "target": TOKENS[:, :3]}
Case = tuple[Callable[[], nn.Module], Any, dict[str, Any], int]
"""A model, its texts, what is collected, and the number of blocks that run."""
CASES: dict[str, Case] = {
    "residual": (decoder, TOKENS, {"layers": 1}, 2),
    "first layer": (decoder, TOKENS, {"layers": 0, "queries": -1}, 1),
    "input of a layer": (decoder, TOKENS, {"what": "residual_before", "layers": [2, 0]}, 3),
    "weights of heads": (
        decoder,
        TOKENS,
        {"what": ("weights", "q", "heads"), "layers": 1, "heads": [0, 3]},
        2,
    ),
    "parts": (
        decoder,
        PADDED,
        {"what": ("attention", "ffn", "neurons", "residual_between"), "layers": 1},
        2,
    ),
    "embedding": (decoder, TOKENS, {"what": "embedding"}, 1),
    "inputs": (decoder, TOKENS, {"what": "inputs", "layers": 1}, 2),
    "modules": (decoder, TOKENS, {"what": "ffn", "modules": ["layers.1"]}, 2),
    "experts": (
        lambda: decoder(num_experts=4, top_k=2),
        TOKENS,
        {"what": ("router", "experts"), "layers": 1},
        2,
    ),
    "all layers": (decoder, TOKENS, {}, 4),
    "logits": (decoder, TOKENS, {"what": "logits"}, 4),
    "encoder": (encoder, TOKENS, {"layers": 0}, 1),
    "source": (encoder_decoder, BOTH, {"modules": ["encoder_layers.0"]}, 1),
    "gpt2": (gpt2, TOKENS, {"layers": 0, "what": ("residual", "weights")}, 1),
    "llama": (llama, {"input_ids": TOKENS}, {"layers": 0, "what": ("ffn", "attention")}, 1),
    "mixtral": (mixtral, TOKENS, {"layers": 0, "what": "router"}, 1),
    "bert": (bert_classifier, TOKENS, {"layers": 0}, 1),
}


def whole(model: nn.Module, texts: Any, options: dict[str, Any]) -> Captured:
    with torch.no_grad(), capture(model, **{"what": "residual"} | options) as seen:
        model(**texts) if isinstance(texts, dict) else model(texts)
    return seen


def same(found: Captured, expected: Captured) -> bool:
    labels = [(record.what, record.name, record.queries) for record in found.records]
    assert labels == [(record.what, record.name, record.queries) for record in expected.records]
    pairs = zip(found.records, expected.records, strict=True)
    inputs = zip(found.inputs, expected.inputs, strict=True)
    return all(torch.equal(one.values, other.values) for one, other in pairs) and all(
        torch.equal(one.inputs.q, other.inputs.q) for one, other in inputs
    )


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_whole_run_and_later_blocks_do_not_run(name: str) -> None:
    make, texts, options, expected = CASES[name]
    model = make().eval()
    ran: list[int] = []

    def counting(block: nn.Module) -> Callable[..., Any]:
        forward = block.forward

        def counted(*args: Any, **named: Any) -> Any:
            ran.append(1)
            return forward(*args, **named)

        return counted

    records = whole(model, texts, options)
    for point in find_hook_points(model):
        if point.role == "block":
            point.module.forward = counting(point.module)  # type: ignore[method-assign]
    found = collect(model, texts, **options)
    assert found.records or found.inputs
    assert same(found, records)
    assert len(ran) == expected


def test_the_model_keeps_its_mode_and_no_hooks() -> None:
    model = decoder()
    model.train()
    found = collect(model, TOKENS, layers=1)
    assert model.training
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert not found[1, "residual"].requires_grad
    assert model(TOKENS).shape == (2, 5, 50)


def test_edits_count_and_those_of_later_layers_are_reached() -> None:
    model = decoder().eval()
    plain = collect(model, TOKENS, layers=1)
    with intervene(model, scale("attention", 0.5, layers=0)):
        changed = collect(model, TOKENS, layers=1)
        assert same(changed, whole(model, TOKENS, {"layers": 1}))
    assert not same(changed, plain)
    with intervene(model, zero("heads", layers=3)):
        assert same(collect(model, TOKENS, layers=1), plain)


def test_users_hooks_run_to_the_end() -> None:
    model = decoder().eval()
    seen = []
    model.layers[3].register_forward_hook(lambda *_: seen.append(1))
    collect(model, TOKENS, layers=1)
    assert seen == [1]


def test_a_model_that_runs_its_blocks_otherwise_runs_whole() -> None:
    class Twice(type(decoder())):  # type: ignore[misc]
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(super().forward(tokens).argmax(-1))

    model = decoder().eval()
    model.__class__ = Twice
    assert len(collect(model, TOKENS, layers=1).records) == 2
    shared = decoder().eval()
    shared.layers[2] = shared.layers[0]
    assert len(collect(shared, TOKENS, layers=0).records) == 2


def test_an_error_of_the_model_is_raised() -> None:
    with refused("tokens from"):
        collect(decoder(), torch.tensor([[99]]), layers=1)
    with refused("texts of type str", fix="glassformer.load"):
        collect(decoder(), "a text")
    with refused("layers"):
        collect(decoder(), TOKENS, layers=9)
    with refused("nothing"):
        collect(decoder(), TOKENS, what="nothing")
