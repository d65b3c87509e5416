"""Sweeps against one full forward pass for each place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import decoder, encoder
from torch import Tensor, nn
from transformers_models import FAMILIES

from glassformer.observe.capture import capture
from glassformer.observe.edits import patch
from glassformer.observe.intervene import intervene
from glassformer.observe.sweep import SWEPT, Sweep, attribution_sweep, patch_sweep
from refusals import refused

EXPERTS = {"num_kv_heads": 2, "window": 3, "num_experts": 4, "top_k": 2, "sinks": True, "key_weights": True}


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 1] - logits[:, -1, 0]


def pair(rows: int = 2, length: int = 6) -> tuple[Tensor, Tensor]:
    clean = torch.randint(2, 20, (rows, length))
    corrupted = clean.clone()
    corrupted[:, 2] = 1
    return clean, corrupted


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    out: Any = model(tokens)
    out = out if isinstance(out, Tensor) else out.logits
    return out if out.dim() == 3 else out[:, None]


@torch.no_grad()
def naive(model: nn.Module, clean: Tensor, corrupted: Tensor, site: str, layer: int, **where: int) -> float:
    with capture(model, what=site, layers=layer) as seen:
        model(clean)
    with intervene(model, patch(site, seen, layers=layer, **where)):
        return float(metric(logits_of(model, corrupted)).mean())


@pytest.mark.parametrize("site", SWEPT)
@pytest.mark.parametrize("kind", ["decoder", "gpt2", *slow("experts", "encoder", "pre-norm", "llama")])
def test_a_sweep_is_a_forward_pass_for_each_place(kind: str, site: Any) -> None:
    makers: dict[str, Any] = {
        "decoder": decoder,
        "experts": lambda: decoder(**EXPERTS),
        "encoder": encoder,
        "pre-norm": lambda: encoder(norm_first=True),
    }
    model = (makers.get(kind) or FAMILIES[kind])().double().eval()
    clean, corrupted = pair()
    found = patch_sweep(model, clean, corrupted, metric, site=site, batch_size=6)
    assert found.clean == pytest.approx(float(metric(logits_of(model, clean)).mean()), abs=1e-10)
    assert found.corrupted == pytest.approx(float(metric(logits_of(model, corrupted)).mean()), abs=1e-10)
    axis = {"head": "heads", "position": "keys" if site in ("k", "v") else "queries"}[found.axes[1]]
    for layer, row in enumerate(found.values):
        for place, value in enumerate(row):
            expected = naive(model, clean, corrupted, site, layer, **{axis: place})
            assert float(value) == pytest.approx(expected, abs=1e-6 * max(1, abs(expected)))
    assert found.restored.abs().max() > 1e-6


def test_places_of_three_axes_and_chosen_layers() -> None:
    model = decoder().double().eval()
    clean, corrupted = pair()
    found = patch_sweep(model, clean, corrupted, metric, by=("layer", "head", "position"), layers=(1, -1))
    assert (found.values.shape, found.layers) == ((2, 4, 6), (1, 3))
    expected = naive(model, clean, corrupted, "heads", 3, heads=2, queries=4)
    assert float(found.values[1, 2, 4]) == pytest.approx(expected, abs=1e-6)
    whole = patch_sweep(model, clean, corrupted, metric, site="residual", by=("layer",))
    torch.testing.assert_close(whole.restored, torch.ones(4).double(), rtol=1e-10, atol=1e-10)


def test_padding_is_repeated_with_the_texts() -> None:
    model = FAMILIES["gpt2"]().double().eval()
    clean, corrupted = pair()
    mask = torch.ones_like(clean)
    mask[1, :2] = 0
    found = patch_sweep(
        model,
        {"input_ids": clean, "attention_mask": mask},
        {"input_ids": corrupted, "attention_mask": mask},
        metric,
        layers=1,
    )
    with torch.no_grad(), capture(model, what="heads", layers=1) as seen:
        model(clean, attention_mask=mask)
    with torch.no_grad(), intervene(model, patch("heads", seen, layers=1, heads=3)):
        expected = metric(model(corrupted, attention_mask=mask).logits).mean()
    assert float(found.values[0, 3]) == pytest.approx(float(expected), abs=1e-6)


def test_an_interrupted_sweep_keeps_what_it_has() -> None:
    model, calls = decoder().double().eval(), 0

    def interrupted(logits: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise KeyboardInterrupt
        return metric(logits)

    found = patch_sweep(model, *pair(), interrupted, batch_size=8)
    assert isinstance(found, Sweep)
    assert found.values.isfinite().sum() == 8
    assert not any(each._forward_hooks or "forward" in vars(each) for each in model.modules())


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_swept_is_refused() -> None:
    model, (clean, corrupted) = decoder().double().eval(), pair()
    with refused("site = 'neurons'"):
        patch_sweep(model, clean, corrupted, metric, site="neurons")  # type: ignore[arg-type]
    with refused("by = "):
        patch_sweep(model, clean, corrupted, metric, site="ffn", by=("layer", "head"))
    with refused(r"\(2, 6\).*\(2, 5\)"):
        patch_sweep(model, clean, corrupted[:, 1:], metric)
    with refused("NaN"):
        patch_sweep(model, clean, corrupted, lambda logits: logits.sum() * float("nan"))
    with refused("layers.*7"):
        patch_sweep(model, clean, corrupted, metric, layers=7)


@pytest.mark.parametrize("site", SWEPT)
@pytest.mark.parametrize("kind", ["decoder", "gpt2", *slow("experts", "encoder", "llama")])
def test_attribution_is_the_first_order_of_the_exact_sweep(kind: str, site: Any) -> None:
    makers: dict[str, Any] = {"decoder": decoder, "experts": lambda: decoder(**EXPERTS), "encoder": encoder}
    model = (makers.get(kind) or FAMILIES[kind])().double().eval()
    clean, corrupted = pair()
    with torch.no_grad():
        rows = model.get_input_embeddings().weight if kind in FAMILIES else model.embedding.weight
        rows[1] = rows[clean[0, 2]] + 1e-6 * torch.randn_like(rows[1])  # two texts that nearly agree
        clean[:, 2] = clean[0, 2]
    exact = patch_sweep(model, clean, corrupted, metric, site=site)
    estimate = attribution_sweep(model, clean, corrupted, metric, site=site)
    assert (estimate.axes, estimate.values.shape) == (exact.axes, exact.values.shape)
    assert all(weight.grad is None for weight in model.parameters())
    effects = estimate.values - estimate.corrupted
    assert effects.abs().max() > 1e-10
    if kind != "llama":  # whose norms compute in float32
        direct = torch.tensor(
            [
                [
                    naive(model, clean, corrupted, site, layer, **{_NAMES[exact.axes[1]][site in ("k", "v")]: place})
                    for place in range(exact.values.shape[1])
                ]
                for layer in exact.layers
            ],
            dtype=torch.double,
        )
        torch.testing.assert_close(effects, direct - exact.corrupted, rtol=1e-3, atol=1e-11)


_NAMES = {"head": ("heads", "heads"), "position": ("queries", "keys")}


def test_integrated_gradients_agree_better_where_the_metric_saturates() -> None:
    torch.manual_seed(1)
    model = decoder().double().eval()
    clean, corrupted = pair(rows=4)

    def saturated(logits: Tensor) -> Tensor:
        return torch.tanh(5 * metric(logits))

    exact = patch_sweep(model, clean, corrupted, saturated, site="residual_before")
    one, many = (
        attribution_sweep(model, clean, corrupted, saturated, site="residual_before", steps=n) for n in (1, 32)
    )
    assert exact.agreement(exact) == pytest.approx(1)
    assert exact.agreement(many) > exact.agreement(one)
    total = many.values[0].sum() - many.corrupted * many.values.shape[1]  # completeness of integrated gradients
    assert float(total) == pytest.approx(exact.clean - exact.corrupted, abs=0.02)
    with refused("sweeps over"):
        exact.agreement(patch_sweep(model, clean, corrupted, saturated))
