"""Attribution within edits that let no gradient through, and with metrics that have none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.observe.edits import Edit, add, put, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.sweep import SWEPT, ablation_sweep, attribution_sweep
from refusals import refused
from small_models import decoder
from transformers_models import gpt2, gpt_oss

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
OTHER = torch.tensor([[3, 1, 4, 2, 5, 9], [2, 6, 5, 7, 5, 8]])
MODELS: dict[str, Callable[[], Any]] = {
    "decoder": lambda: decoder(num_layers=3),
    "experts": lambda: decoder(num_layers=3, num_experts=4, top_k=2),
    "gpt2": gpt2,
    "gpt-oss": gpt_oss,
}
CUTS: dict[str, tuple[Edit, ...]] = {
    "a zeroed stream": (zero("residual", layers=1),),
    "a stream of a number": (put("residual", 0.5, layers=0),),
    "a zeroed last position": (zero("residual", layers=1, queries=-1),),
    "zeroed attention": (zero("attention"),),
    "zeroed networks": (zero("ffn"),),
    "zeroed heads": (zero("heads", layers=0),),
    "weights of a number": (put("weights", 0.25),),
    "logits of a number": (put("logits", 0.5),),
    "a scaled stream": (scale("residual", 0.0, layers=0), add("residual", 0.1, layers=1)),
}


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 7] - logits[:, -1, 2]


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    # whose experts have no kernel for float64
    return model if name == "gpt-oss" else model.double()


def sites(name: str) -> list[str]:
    """The sites of a model: a mixture has experts and no neurons, a network of one kind the other
    way round.
    """
    return [site for site in SWEPT if site != ("neurons" if name == "experts" else "experts")]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["decoder", "experts"])
def test_what_is_cut_off_has_no_effect(name: str, cut: str) -> None:
    model = model_of(name)
    # An estimate for experts needs a mixture that is added as it is.
    for site in [site for site in sites(name) if (site, cut) != ("experts", "zeroed networks")]:
        for clean in (None, OTHER):
            with intervene(model, *CUTS[cut]):
                estimate = attribution_sweep(model, clean, TOKENS, metric, site=site)
            assert estimate.effects.isfinite().all()
            if clean is None:
                with intervene(model, *CUTS[cut]):
                    removed = ablation_sweep(model, TOKENS, metric, site=site)
                nothing = (removed.effects == 0) & cut_off(cut, removed.effects)
                assert not estimate.effects[nothing].any(), (site, estimate.effects)


def cut_off(cut: str, effects: Tensor) -> Tensor:
    """The places before an edit that writes all of what follows."""
    last = {
        "a zeroed stream": 1,
        "a stream of a number": 0,
        "a scaled stream": 0,
        "logits of a number": 2,
    }.get(cut, -1)
    layers = torch.arange(len(effects)).view(-1, *[1] * (effects.dim() - 1))
    return (layers <= last).expand(effects.shape)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "flat",
    [
        lambda logits: logits[:, -1].argmax(-1).float(),
        lambda logits: (logits[:, -1, 7] > logits[:, -1, 2]).double(),
        lambda logits: metric(logits).detach(),
        lambda logits: torch.ones(len(logits), dtype=torch.double),
        lambda logits: logits[:, -1].round().sum(-1).detach().requires_grad_(),
    ],
    ids=["argmax", "a comparison", "detached", "a number", "another leaf"],
)
def test_a_metric_without_a_gradient_is_refused(
    name: str, flat: Callable[[Tensor], Tensor]
) -> None:
    model = model_of(name)
    for within in ((), (zero("heads", layers=0),)):
        for clean in (None, OTHER):
            with (
                refused("a metric without a gradient", fix="patch_sweep"),
                intervene(model, *within),
            ):
                attribution_sweep(model, clean, TOKENS, flat)
    assert ablation_sweep(model, TOKENS, flat).effects.shape[0] == len(
        ablation_sweep(model, TOKENS, metric).effects
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(mode: Callable[[], Any]) -> None:
    model = model_of("decoder")
    expected = attribution_sweep(model, None, TOKENS, metric).effects
    with mode():
        try:
            found = attribution_sweep(model, None, TOKENS, metric).effects
        except InputError:
            return
    torch.testing.assert_close(found, expected)


def test_a_frozen_model_has_the_same_estimate() -> None:
    model = model_of("decoder")
    expected = attribution_sweep(model, None, TOKENS, metric).effects
    model.requires_grad_(False)
    torch.testing.assert_close(attribution_sweep(model, None, TOKENS, metric).effects, expected)
    assert expected.abs().max() > 0
