"""Edits of attention weights and scores where the model masks keys: later ones, padding, those
outside the window.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sweep_cases import of_class
from torch import Tensor

from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, add, change, forbid, put, scale
from glassformer.observe.intervene import intervene
from refusals import refused
from small_models import decoder, encoder, learned
from transformers_models import gpt2, gpt_oss, llama, logits_of, mistral

pytestmark = pytest.mark.usefixtures("without_gradients")

MODELS: dict[str, Callable[[], Any]] = {
    "decoder": decoder,
    "window": lambda: decoder(window=3, windowed_layers="all", num_kv_heads=2),
    "sinks": lambda: learned(sinks=True, window=3, key_weights=True),
    "capped": lambda: decoder(attention_cap=2.0, norm_place="both"),
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "gpt-oss": gpt_oss,
    "gemma3": of_class("Gemma3", sliding_window=3),
}
POSITIVE: dict[str, tuple[Edit, ...]] = {
    "add": (add("weights", 0.1),),
    "put": (put("weights", 1 / 3),),
    "add to one head": (add("weights", 0.2, layers=1, heads=(2, 0)),),
    "scores": (
        add("scores", 3.0),
        put("scores", 0.5, layers=0, heads=1),
        scale("scores", -1.0, layers=1, heads=2),
    ),
    "both": (put("scores", 1.0, layers=0), put("weights", 0.25, layers=1)),
    "beside forbid": (
        forbid(queries=5, keys=4),
        change("weights", lambda weights: weights + 0.1 * (weights > 0)),
    ),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


@pytest.mark.parametrize("edits", POSITIVE.values(), ids=POSITIVE)
@pytest.mark.parametrize("name", MODELS)
def test_later_tokens_change_nothing(name: str, edits: tuple[Edit, ...]) -> None:
    model = made(name)
    tokens = torch.randint(2, 20, (2, 8))
    later = torch.cat([tokens[:, :6], torch.randint(20, 40, (2, 2))], 1)
    with intervene(model, *edits):
        first, second = (logits_of(model, text)[:, :6] for text in (tokens, later))
        with capture(model) as seen:
            logits_of(model, tokens)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)
    for record in seen.of("weights").values():
        weights = record[0].values
        assert bool((weights.triu(1) == 0).all())


@pytest.mark.parametrize("edits", POSITIVE.values(), ids=POSITIVE)
@pytest.mark.parametrize("name", ["decoder", "window", "sinks", "capped"])
def test_a_cache_gives_what_the_whole_text_gives(name: str, edits: tuple[Edit, ...]) -> None:
    model = made(name)
    tokens = torch.randint(2, 20, (2, 9))
    if any(edit.queries is not None for edit in edits):
        edits = (forbid(queries=slice(5, 7), keys=4), *edits[1:])
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = False
    for padding in (None, real):
        with intervene(model, *edits):
            whole = model(tokens, key_padding=padding)
            cache = model.new_cache(2, 9)
            some = None if padding is None else padding[:, :4]
            steps = [model(tokens[:, :4], key_padding=some, cache=cache)[:, -1]]
            steps += [model(tokens[:, [at]], cache=cache)[:, -1] for at in range(4, 9)]
        torch.testing.assert_close(torch.stack(steps, 1), whole[:, 3:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gpt-oss", "gemma3"])
def test_generation_of_transformers_gives_what_the_whole_text_gives(name: str) -> None:
    model = made(name)
    tokens = torch.randint(2, 20, (2, 5))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with intervene(model, add("weights", 0.1), put("weights", 0.3, layers=1, heads=2)):
        made_tokens = model.generate(
            tokens, output_logits=True, return_dict_in_generate=True, **options
        )
        whole = logits_of(model, made_tokens.sequences)[:, 4:-1]
    torch.testing.assert_close(torch.stack(made_tokens.logits, 1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["decoder", "window", "llama", "encoder"])
def test_padding_stays_without_weight(name: str) -> None:
    torch.manual_seed(0)
    model = encoder().eval() if name == "encoder" else made(name)
    tokens = torch.randint(2, 20, (2, 7))
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :3] = False
    field = {"encoder": "real", "llama": "attention_mask"}.get(name, "key_padding")
    mask = {field: real.long() if name == "llama" else real}
    other = torch.where(real, tokens, 45)

    def run(text: Tensor) -> Tensor:
        found = model(text, **mask)
        found = found if isinstance(found, Tensor) else found.logits
        return found if found.dim() == 2 else found[real]

    for edit in (add("weights", 0.1), put("weights", 1 / 3), put("scores", 2.0)):
        with intervene(model, edit):
            torch.testing.assert_close(run(tokens), run(other), rtol=0, atol=1e-5)


def test_the_weights_are_those_of_a_loop() -> None:
    model = made("window").double()
    tokens = torch.randint(2, 20, (1, 6))
    with capture(model, what=("weights", "v", "heads"), layers=0) as plain:
        model(tokens)
    with (
        intervene(model, add("weights", 0.1, layers=0)),
        capture(model, what="heads", layers=0) as edited,
    ):
        model(tokens)
    for head in range(4):
        for query in range(6):
            expected = torch.zeros(6, dtype=torch.double)
            for key in range(max(0, query - 2), query + 1):
                expected += (plain[0, "weights"][0, head, query, key] + 0.1) * plain[0, "v"][
                    0, head // 2, key
                ]
            torch.testing.assert_close(edited[0, "heads"][0, head, query], expected)


@pytest.mark.parametrize(
    "function",
    [
        torch.cos,
        lambda weights: (weights + 0.1) / (weights + 0.1).sum(-1, keepdim=True),
        lambda weights: 0.2,
    ],
    ids=["cosine", "rows that sum to 1", "a number"],
)
@pytest.mark.parametrize("name", ["decoder", "window", "llama"])
def test_a_function_that_gives_masked_keys_weight_is_refused(
    name: str, function: Callable[[Tensor], Any]
) -> None:
    """What it gives to others may depend on how many keys are masked, which differs with a cache."""
    model = made(name)
    tokens = torch.randint(2, 20, (1, 6))
    with (
        refused("gives some to keys that the model masks"),
        intervene(model, change("weights", function)),
    ):
        logits_of(model, tokens)


def test_an_edit_of_masked_weights_alone_reaches_none() -> None:
    model = made("decoder")
    tokens = torch.randint(2, 20, (1, 6))
    for where in ({"queries": 2, "keys": 4}, {"queries": 0, "keys": slice(1, None)}):
        with refused("no call reached: weights"), intervene(model, put("weights", 0.5, **where)):
            model(tokens)
    with intervene(model, put("weights", 0.5, queries=2, keys=(1, 2))):
        model(tokens)
