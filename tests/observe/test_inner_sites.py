"""Sites inside feed-forward networks and after norms, and captures that are addressed by layer and
kind.
"""

from typing import Any

import pytest
import torch
from plain import replaced
from sweep_cases import of_class
from torch import Tensor

from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.edits import put, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.sweep import ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import FAMILIES, exact, llama, logits_of, metric

TOKENS = torch.randint(2, 20, (2, 6), generator=torch.Generator().manual_seed(0))
OTHER = torch.cat([TOKENS[:, :3], torch.ones(2, 1, dtype=torch.int64), TOKENS[:, 4:]], 1)
MODULES: dict[str, tuple[Any, dict[str, str]]] = {
    "decoder": (decoder, dict.fromkeys(("attention_input", "ffn_input", "neurons"), "")),
    "encoder": (encoder, {}),
    "gpt2": (
        FAMILIES["gpt2"],
        {"attention_input": "attn", "ffn_input": "mlp", "neurons": "mlp.c_proj"},
    ),
    "llama": (
        llama,
        {"attention_input": "self_attn", "ffn_input": "mlp", "neurons": "mlp.down_proj"},
    ),
    "bert": (
        FAMILIES["bert"],
        {"attention_input": "attention.self", "ffn_input": "intermediate", "neurons": "output"},
    ),
    "gpt-neox": (
        of_class("GPTNeoX", num_key_value_heads=4),
        {"attention_input": "attention", "ffn_input": "mlp", "neurons": "mlp.dense_4h_to_h"},
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("site", ["attention_input", "ffn_input", "neurons"])
def test_inner_sites_are_inputs_of_modules(kind: str, site: str) -> None:
    torch.manual_seed(0)
    make, names = MODULES[kind]
    model = make().double().eval()
    own = {"attention_input": "attention", "ffn_input": "ffn", "neurons": "ffn.down"}
    block = next(
        each for each in find_hook_points(model) if each.role == "block" and each.layer == 1
    ).module
    module = block.get_submodule(names.get(site) or own[site])
    module = module.dense if kind == "bert" and site == "neurons" else module
    seen_plainly: list[Tensor] = []

    def changed(values: Tensor) -> Tensor:
        seen_plainly.append(values.clone())
        new = values.clone()
        new[:, 2] *= 1.5
        return new

    with replaced(module, True, changed):
        expected = logits_of(model, TOKENS)
    with capture(model, what=site) as plain:
        logits_of(model, TOKENS)
    assert torch.equal(plain[1, site], seen_plainly[0])
    with intervene(model, scale(site, 1.5, layers=1, queries=2)), capture(model, what=site) as seen:
        found = logits_of(model, TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(seen[1, site][:, 2], plain[1, site][:, 2] * 1.5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "llama"])
def test_neurons_are_swept(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = MODULES[kind][0]().double().eval()
    if kind == "llama":
        exact(model)
    with capture(model, what="neurons") as clean:
        logits_of(model, TOKENS)
    # whose network computes the positions that the metric reads alone
    last = {"decoder": 3, "llama": 1}[kind]
    found = patch_sweep(model, TOKENS, OTHER, metric, site="neurons", layers=(0, last))
    removed = ablation_sweep(model, OTHER, metric, site="neurons", layers=(0, last))
    with capture(model, what="neurons") as base:
        logits_of(model, OTHER)
    assert found.axes == ("layer", "neuron")
    for row, layer, neuron in ((0, 0, 0), (0, 0, 5), (1, last, 0), (1, last, 5)):
        nothing = torch.zeros_like(clean[layer, "neurons"])
        for sweep, theirs in ((found, clean[layer, "neurons"]), (removed, nothing)):
            new = base[layer, "neurons"].clone()
            new[..., neuron] = theirs[..., neuron]
            with intervene(model, put("neurons", new, layers=layer)):
                expected = metric(logits_of(model, OTHER))
            torch.testing.assert_close(sweep.by_text[row, neuron], expected, rtol=1e-10, atol=1e-10)


def test_neurons_are_estimated() -> None:
    torch.manual_seed(0)
    model = decoder().double().eval()
    found = attribution_sweep(model, None, TOKENS, metric, site="neurons")
    step = 1e-6
    with torch.no_grad(), capture(model, what="neurons") as seen:
        model(TOKENS)
    values = []
    for sign in (1, -1):
        new = seen[2, "neurons"].clone()
        new[..., 7] *= 1 + sign * step
        with torch.no_grad(), intervene(model, put("neurons", new, layers=2)):
            values.append(float(metric(model(TOKENS)).mean()))
    assert float(found.effects[2, 7]) == pytest.approx(
        -(values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-9
    )


@pytest.mark.usefixtures("without_type_checks")
@torch.no_grad()
def test_a_capture_is_addressed_by_layer_and_kind() -> None:
    model = decoder().eval()
    with capture(model, what=("heads", "residual", "weights")) as seen:
        model(TOKENS)
    assert torch.equal(seen[3, "heads"], seen.last("heads")["layers.3.attention"])
    assert torch.equal(seen[-1, "weights"], seen.weights["layers.3.attention"])
    assert torch.equal(seen.stack("residual")[2], seen[2, "residual"])
    assert seen.stack("heads").shape == (4, 2, 4, 6, 6)
    for wrong, name in (
        ((4, "heads"), "heads of layer 4"),
        ((0, "ffn"), "ffn of layer 0"),
        (3, "seen.3."),
    ):
        with refused(name):
            seen[wrong]  # type: ignore[index]
    with capture(model, what="residual", layers=1) as seen:
        model(TOKENS), model(OTHER)
    with refused("of which there are 2", fix="cat"):
        seen[1, "residual"]
    assert torch.equal(
        seen.cat("residual")["layers.1"], torch.cat([each.values for each in seen.records])
    )
    two = encoder_decoder().eval()
    with capture(two, what="residual") as seen:
        two(TOKENS, TOKENS[:, :4])
    with refused("residual of layer 0, of which there are 2"):
        seen[0, "residual"]
    with (
        refused("neurons.*last projection"),
        capture(decoder(num_experts=4, top_k=2), what="neurons"),
    ):
        pass
    with refused("no call reached"), intervene(model, zero("neurons", layers=0)):
        pass
