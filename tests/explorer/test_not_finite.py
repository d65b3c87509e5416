"""A model whose weights are NaN can be looked at as far as it goes: every call answers or refuses,
and says why.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import NOT_FINITE
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel, Turn
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.model_page import ModelPage
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words
from glassformer.models.decoder import Decoder
from refusals import refused
from small_models import decoder, encoder
from transformers_models import gpt2

SIZES: dict[str, Any] = {"vocab_size": 11, "num_layers": 2, "num_heads": 2, "max_seq_len": 16}


def _spoilt(model: nn.Module, which: str = "") -> nn.Module:
    """A model whose parameters of some name are NaN."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if which in name:
                weight.fill_(torch.nan)
    return model


def _decoder(**more: Any) -> Decoder:
    return decoder(**SIZES, **more)


def _run(backend: Backend, **more: Any) -> m.Run:
    return backend.answer("run", m.Ask(**more))


@pytest.mark.parametrize("kind", ["decoder", "mixture", "gpt2", "encoder"])
def test_all_of_it(kind: str) -> None:
    model = {
        "decoder": lambda: _decoder(sinks=True),
        "mixture": lambda: _decoder(num_experts=3),
        "gpt2": gpt2,
        "encoder": lambda: encoder(**SIZES),
    }[kind]()
    backend = Backend([wrap_model(_spoilt(model), [1, 2, 3, 4, 5])])
    run = _run(backend, model="given", text="1 2 3 4 5")
    assert run.said == m.Said(headline=NOT_FINITE)
    tile = backend.answer("weights", m.AskTile(run=run.run, part="self", layer=1, head=1))
    weights = np.frombuffer(tile, "<f4").reshape(5, 5)
    seen = np.tri(5, dtype=bool) if run.attentions[0].causal else np.ones((5, 5), bool)
    assert np.isnan(weights[seen]).all()
    backend.answer("rows", m.AskRows(run=run.run, part="self", query=2))
    measures = backend.answer("measures", m.AskMeasures(run=run.run, part="self"))
    heads = run.attentions[0].heads
    assert measures.entropy == measures.distance == 2 * [heads * [None]]
    assert measures.sink in (None, 2 * [heads * [None]])
    assert measures.thumbnails == 2 * [heads * [[]]]
    assert m.Measures.model_validate_json(measures.model_dump_json()) == measures
    if kind == "mixture":
        with refused("layer 0's router that are not finite"):
            backend.answer("experts", m.AskExperts(run=run.run))
    if kind != "encoder":
        with refused("not finite"):
            backend.answer("next", m.AskNext(model="given", text="1 2"))
        with refused("not finite"):
            backend.answer("detect", m.AskDetect(model="given"))
    assert NOT_FINITE in page(backend, from_words({"model": "given"}))
    with refused("nan"):
        ModelPage(backend).figure()


def test_where_it_begins_can_be_seen() -> None:
    """Queries of the second layer are NaN: the first layer is as it always was."""
    model = _decoder()
    whole = wrap_model(deepcopy(model), [1, 2, 3])
    seen = {}
    for name, loaded in (
        ("whole", whole),
        ("spoilt", wrap_model(_spoilt(model, "layers.1.attention"), [1, 2, 3])),
    ):
        backend = Backend([loaded])
        run = _run(backend, model="given", text="1 2 3")
        seen[name] = backend.answer("measures", m.AskMeasures(run=run.run, part="self"))
    assert seen["spoilt"].entropy == [seen["whole"].entropy[0], [None, None]]
    assert seen["spoilt"].thumbnails[0] == seen["whole"].thumbnails[0]


def test_logits_alone() -> None:
    """Some tokens may be forbidden by -inf, and that is no fault."""
    for value, said in ((-torch.inf, "next: "), (torch.inf, NOT_FINITE), (torch.nan, NOT_FINITE)):
        model = _decoder()
        model.output.register_forward_hook(
            lambda _, __, out, value=value: out.index_fill(-1, torch.tensor([3]), value)
        )
        run = _run(Backend([wrap_model(model, [1, 2])]), model="given", text="1 2")
        assert run.said.headline.startswith(said)


def test_an_encoder_decoder(by_name: dict[str, LoadedModel]) -> None:
    sound = by_name["lookup"]
    spoilt = replace(sound, model=_spoilt(deepcopy(sound.model)), lock=Turn())
    backend = Backend([spoilt])
    run = _run(backend, model="lookup", text="4 5")
    assert run.said == m.Said(headline=NOT_FINITE)
    assert [each.queries for each in run.attentions] == [5, 2, 2]
    for order in (None, [1, 0]):
        with refused("finite"):
            backend.answer(
                "scramble", m.AskScramble(model="lookup", text="4", source=["1", "2"], order=order)
            )
    # Sound for its first token, and then no more.
    calls = []

    def later(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        calls.append(out.shape[1])
        return out if out.shape[1] < 3 else out * torch.nan

    model = deepcopy(sound.model)
    model.output.register_forward_hook(later)
    run = _run(
        Backend([replace(sound, model=model, max_new_tokens=3, lock=Turn())]),
        model="lookup",
        text="4 5",
    )
    assert len(run.said.words) == 1
    assert run.said.headline == f"{run.said.words[0]}, then {NOT_FINITE}"
    # What is said of the first is at the last given token, where Scramble looks.
    assert (len(run.tokens), run.place) == (3, 1)
