"""Interventions in models of transformers, against plain hooks, changed weights and masks that they take themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.observe.capture import capture
from glassformer.observe.edits import add, change, forbid
from glassformer.observe.intervene import intervene
from transformers_models import FAMILIES, RELATIVES, gpt_oss

pytestmark = pytest.mark.usefixtures("without_gradients")

MODELS = {**FAMILIES, **RELATIVES, "gpt-oss": gpt_oss}


def made(name: str) -> Any:
    """The model, in float64 unless its experts have no such kernel."""
    model: Any = MODELS[name]()
    return model if name in ("mixtral", "gpt-oss") else model.double()


def texts() -> Tensor:
    return torch.randint(2, 50, (2, 9))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral", "mistral", "gpt-oss"])
def test_generation_is_the_same_padded_without_a_cache_and_with_another_one(name: str) -> None:
    model = made(name)
    for weight in model.parameters():
        weight.mul_(8)
    tokens = texts()[:1]
    vector = 5 * torch.ones(32)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def edited(shift: int, given: Tensor, **more: Any) -> list[int]:
        edits = (
            forbid(queries=slice(8 + shift, None), keys=slice(2 + shift, 9 + shift, 2)),
            change("v", torch.neg, keys=slice(4 + shift, None, 2), layers=1),
            add("residual", vector, layers=0, queries=slice(10 + shift, None)),
        )
        with intervene(model, *edits):
            found: list[int] = model.generate(given, **options, **more)[0, given.shape[1] :].tolist()
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
    model = made("gpt2")
    model.set_attn_implementation(implementation)
    tokens = texts()
    mask = torch.randn(2, 1, 9, 9).double() + torch.full(
        (9, 9), torch.finfo(torch.double).min, dtype=torch.double
    ).triu(1)
    expected = model(tokens, attention_mask=mask)[0]
    with intervene(model, change("weights", lambda weights: weights, layers=0, heads=1), change("q", torch.clone)):
        torch.testing.assert_close(model(tokens, attention_mask=mask)[0], expected, rtol=1e-12, atol=1e-12)
    assert (model(tokens)[0] - expected).abs().max() > 1e-3


def test_the_models_own_record_of_attentions_is_the_edited_one() -> None:
    model = made("gpt2")
    model.set_attn_implementation("eager")
    tokens = texts()
    with intervene(model, forbid(queries=4, keys=2, layers=1)), capture(model) as seen:
        found = model(tokens, output_attentions=True, output_hidden_states=True)
    for own, weights in zip(found.attentions, seen.weights.values(), strict=True):
        torch.testing.assert_close(own, weights, rtol=1e-12, atol=1e-12)
    assert not found.attentions[1][:, :, 4, 2].any()
