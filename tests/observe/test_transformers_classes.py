"""Capture and interventions in many classes of transformers, found by structure."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from plain import replaced
from torch import Tensor, nn
from transformers_classes import CASES, REFUSED, SITES, Case, build

from glassformer.errors import InputError
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.edits import add, forbid, scale, zero
from glassformer.observe.hook_points import ROLES, HookPoint
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import logit_lens
from glassformer.observe.sweep import ablation_sweep, attribution_sweep
from refusals import refused
from transformers_models import exact

FAST = (
    *(
        "Gemma2",
        "Gemma3Text",
        "Olmo2",
        "GPTNeoX",
        "Cohere",
        "Bert",
        "Bart",
        "T5",
        "ViT",
        "Olmoe",
        "OPT",
        "Esm",
        "XGLM",
    ),
)
EDITED = (
    *(
        "Llama",
        "Qwen2",
        "Qwen3",
        "Phi3",
        "Gemma",
        "Gemma2",
        "Gemma3Text",
        "Olmo2",
        "Starcoder2",
        "StableLm",
        "Cohere",
    ),
    *(
        "GPTNeoX",
        "Phi",
        "GPT2",
        "GPTBigCode",
        "BioGpt",
        "Bert",
        "Electra",
        "DistilBert",
        "NomicBert",
        "ModernBert",
    ),
    *("Bart", "MBart", "Marian", "T5", "ViT", "Dinov2", "SiglipVision", "CLIPVision"),
)


def named(names: tuple[str, ...], cases: list[Case]) -> list[Any]:
    """The cases; those that are not named are slow."""
    chosen = {f"{name}Model" for name in names}
    marks = [() if case.model in chosen else (pytest.mark.slow,) for case in cases]
    return [
        pytest.param(case, marks=mark, id=case.model)
        for case, mark in zip(cases, marks, strict=True)
    ]


@pytest.mark.parametrize("name", ["Albert", "DistilBert", "Electra", "ModernBert"])
@torch.no_grad()
def test_logits_are_found_by_any_name(name: str) -> None:
    case = next(case for case in CASES if case.model == f"{name}Model")
    model, inputs = build(case._replace(model=f"{name}ForMaskedLM"))
    with capture(model, what="logits") as seen:
        logits = model(**inputs).logits
    assert torch.equal(seen.records[0].values, logits)

    def metric(logits: Tensor) -> Tensor:
        return logits[:, -1, 5].mean()

    if name == "Albert":  # whose layers are one block
        with refused("several times"):
            ablation_sweep(model, inputs, metric, site="residual")
        with refused("several times"):
            attribution_sweep(model, None, inputs, metric, site="residual")
        return
    sweep = ablation_sweep(model, inputs, metric, site="residual")
    with intervene(model, zero("residual", layers=0, queries=1)):
        changed = metric(model(**inputs).logits)
    assert sweep.values[0, 1] == pytest.approx(float(changed), abs=1e-6)


def test_a_sweep_of_attention_that_is_not_captured_is_refused() -> None:
    case = next(case for case in CASES if case.model == "ConvBertModel")
    model, inputs = build(case._replace(model="ConvBertForMaskedLM"))
    with refused("attention is not captured"):
        ablation_sweep(model, inputs, lambda logits: logits.mean())


@pytest.mark.parametrize("case", named(FAST, CASES))
@torch.no_grad()
def test_sites_are_captured_or_refused(case: Case) -> None:
    model: Any
    model, inputs = build(case)
    plain = model(**inputs)[0]
    without = REFUSED.get(case.model, ((), ""))[0]
    for site in SITES:
        if site in without:
            with refused(), capture(model, what=site):
                model(**inputs)
            continue
        with capture(model, what=site) as seen:
            assert torch.equal(model(**inputs)[0], plain)
        assert len(seen.records) > 0
    if (
        "weights" in without or case.model == "PegasusXModel"
    ):  # whose encoder has an attention of its own
        return
    with capture(model) as seen:
        model(**inputs)
    model.set_attn_implementation("eager")
    whole = model(**inputs, output_attentions=True)
    decoder = whole.get("decoder_attentions") or whole.get("attentions") or ()
    own = [*(whole.get("encoder_attentions") or ()), *decoder]
    for cross, expected in ((False, own), (True, whole.get("cross_attentions") or ())):
        mine = [record.values for record in seen.records if record.cross == cross]
        assert len(mine) == len(expected)
        for weights, eager in zip(mine, expected, strict=True):
            assert (weights - eager).abs().max() <= 5e-7


STREAM = (
    *(
        "embedding",
        "residual_before",
        "residual_between",
        "residual",
        "attention_input",
        "attention",
        "heads",
    ),
    *("ffn_input", "neurons", "ffn"),
)


@pytest.mark.parametrize("case", named(FAST, CASES))
@torch.no_grad()
def test_texts_are_kept_apart(case: Case) -> None:
    """Each record of two texts, and each edit of one of them, is that of the text alone; or it is
    refused.
    """
    model: Any
    model, inputs = build(case)
    alone = [{name: values[[row]] for name, values in inputs.items()} for row in range(2)]
    plain = [model(**text)[0] for text in alone]

    def captured(site: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
        with capture(model, what=site) as seen:
            model(**given)
        return {f"{record.name} {record.call}": record.values for record in seen.records}

    for site in STREAM:
        try:
            both = captured(site, inputs)
        except InputError:
            continue
        for row, text in enumerate(alone):
            expected = captured(site, text)
            assert both.keys() == expected.keys()
            for name, values in both.items():
                torch.testing.assert_close(values[[row]], expected[name], rtol=1e-4, atol=1e-4)
        edit = {"queries": 1, "modules": [find_point(model, site).name]}
        with intervene(model, scale(site, -0.5, examples=0, **edit)):
            found = model(**inputs)[0]
        with intervene(model, scale(site, -0.5, **edit)):
            changed = model(**alone[0])[0]
        torch.testing.assert_close(found[[0]], changed, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[[1]], plain[1], rtol=1e-4, atol=1e-4)


def find_point(model: nn.Module, site: str) -> HookPoint:
    """The first hook point that has a site."""
    return next(
        point
        for point in find_hook_points(model)
        if point.role == ROLES[site] and point.place(site)[0]
    )


@contextmanager
def changed_softmax(
    monkeypatch: pytest.MonkeyPatch, key: int | None, factor: float
) -> Iterator[None]:
    """Eager attention whose scores are multiplied, and do not reach one key."""
    original = nn.functional.softmax

    def softmax(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if scores.dim() == 4:
            scores = scores.clone() * factor
            if key is not None:
                scores[..., key] = -torch.inf
        return original(scores, -1)

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "softmax", softmax)
        yield


@pytest.mark.parametrize(
    "case", named(FAST, [case for case in CASES if case.model.removesuffix("Model") in EDITED])
)
@torch.no_grad()
def test_interventions_are_those_of_plain_hooks(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any
    model, inputs = build(case, torch.float64)
    monkeypatch.setattr(Tensor, "float", lambda values: values)  # norms that compute in float32
    if all(
        hasattr(each, "variance_epsilon")
        for each in model.modules()
        if type(each).__name__.endswith("RMSNorm")
    ):
        exact(model)
    model.set_attn_implementation("eager")
    points = find_hook_points(model)
    last = [point for point in points if point.role == "block"][-1]
    attention = [
        point for point in points if point.role == "attention" and point.block is last.module
    ][-1]
    ffn = next(point for point in points if point.role == "ffn" and point.block is last.module)
    vector = torch.randn(32, dtype=torch.float64)
    plain = model(**inputs)[0]

    width = attention.out_proj.weight.shape[0 if hasattr(attention.out_proj, "nf") else 1]
    mask = torch.ones(attention.heads, width // attention.heads, dtype=torch.float64)
    mask[1] = 0
    for plainly, edit in (
        (
            replaced(attention.out_proj, True, mask.flatten().mul),
            zero("heads", heads=1, modules=[attention.name]),
        ),
        (replaced(last.module, False, vector.add), add("residual", vector, modules=[last.name])),
        (
            replaced(ffn.module, False, lambda values: values * 2),
            scale("ffn", 2, modules=[ffn.name]),
        ),
        (changed_softmax(monkeypatch, 1, 1), forbid(keys=1)),
        (changed_softmax(monkeypatch, None, 1.5), scale("scores", 1.5)),
    ):
        with plainly:
            expected = model(**inputs)[0]
        with intervene(model, edit):
            found = model(**inputs)[0]
        assert (found - expected).abs().max() <= 1e-10
        assert (expected - plain).abs().max() > 1e-6


def test_a_block_whose_parts_do_not_add_up_is_refused() -> None:
    case = next(case for case in CASES if case.model == "GraniteModel")
    model, inputs = build(case._replace(changes={**case.changes, "residual_multiplier": 0.5}))
    for site in ("attention", "ffn", "residual_between"):
        for watched in (capture(model, what=site), intervene(model, zero(site))):
            with refused("GraniteDecoderLayer layers.0"), watched:
                model(**inputs)
    with capture(model, what=("weights", "residual", "heads")) as seen:
        model(**inputs)
    assert len(seen.records) == 6


def test_models_that_are_only_captured_are_refused_by_the_lens() -> None:
    model, inputs = build(next(case for case in CASES if case.model == "Gemma3TextModel"))
    with refused("Gemma3TextModel, which has no projection to logits"):
        logit_lens(model, inputs["input_ids"])


@pytest.mark.parametrize("name", ["Gemma2", "Gemma3", "GPTNeoX", "Olmo2", "Cohere", "Bart", "T5"])
@torch.no_grad()
def test_generation_gives_the_rows_of_one_pass(name: str) -> None:
    """With caches, windows, caps and biases of positions."""
    head = "ForConditionalGeneration" if name in ("Bart", "T5") else "ForCausalLM"
    case = next(case for case in CASES if case.model in (f"{name}Model", f"{name}TextModel"))
    windows = {"sliding_window": 4} if name.startswith("Gemma") else {}
    model: Any
    model, inputs = build(case._replace(model=name + head, changes={**case.changes, **windows}))
    tokens = inputs["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(tokens, **options)
    with capture(model) as seen:
        assert torch.equal(model.generate(tokens, **options), plain)
    with capture(model) as whole:
        model(tokens, decoder_input_ids=plain) if head.endswith("Generation") else model(plain)
    for name_of, records in seen.of("weights").items():
        for record in records:
            expected = whole.weights[name_of][:, :, list(record.queries)][..., list(record.keys)]
            torch.testing.assert_close(record.values, expected, rtol=0, atol=2e-6)
        assert records[-1].queries in ((plain.shape[1] - 2,), tuple(range(9)))
