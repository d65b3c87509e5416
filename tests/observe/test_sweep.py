"""Sweeps against one full forward pass for each place."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain import replaced
from torch import Tensor, nn

from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.observe.capture import capture
from glassformer.observe.captured import Captured
from glassformer.observe.circuits import ov_circuit
from glassformer.observe.detectors import head_scores
from glassformer.observe.edits import patch, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import logit_lens
from glassformer.observe.sweep import (
    SWEPT,
    ablation_steps,
    ablation_sweep,
    attribution_sweep,
    patch_sweep,
)
from refusals import refused
from small_models import decoder, encoder, encoder_decoder
from transformers_models import EXPERTS, FAMILIES, THEIRS, gpt_oss, logits_of, metric, packed, pair

DENSE = [site for site in SWEPT if site not in ("experts", "neurons")]


MAKERS: dict[str, Any] = {
    "decoder": decoder,
    "experts": lambda: decoder(**EXPERTS),
    "encoder": encoder,
    "pre-norm": lambda: encoder(norm_first=True),
    **THEIRS,
    "gpt-oss": lambda: gpt_oss(initializer_range=0.2),
}


def made(kind: str) -> Any:
    model = MAKERS[kind]().eval()
    # whose experts have no kernel for float64
    return model if kind == "gpt-oss" else model.double()


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@torch.no_grad()
def captured(model: nn.Module, clean: Tensor, site: Any) -> Captured:
    with capture(model, what=site) as seen:
        model(clean)
    return seen


@torch.no_grad()
def naive(
    model: nn.Module, seen: Captured, corrupted: Tensor, site: str, layer: int, **where: int
) -> float:
    with intervene(model, patch(site, seen, layers=layer, **where)):
        return float(metric(logits_of(model, corrupted)).mean())


@pytest.mark.parametrize("site", DENSE)
@pytest.mark.parametrize(
    "kind",
    ["decoder", *slow("gpt2", "experts", "encoder", "pre-norm", "llama", "mistral", "gpt-oss")],
)
def test_a_sweep_is_a_forward_pass_for_each_place(kind: str, site: Any) -> None:
    model = made(kind)
    # whose norms compute in float32
    near = 1e-5 if kind in ("llama", "mistral", "gpt-oss") else 1e-12
    clean, corrupted = pair()
    found = patch_sweep(model, clean, corrupted, metric, site=site, batch_size=6)
    assert found.clean == pytest.approx(float(metric(logits_of(model, clean)).mean()), abs=near)
    assert found.corrupted == pytest.approx(
        float(metric(logits_of(model, corrupted)).mean()), abs=near
    )
    axis = _NAMES[found.axes[1]][site in ("k", "v")]
    seen = captured(model, clean, site)
    for layer, row in enumerate(found.values):
        for place, value in enumerate(row):
            expected = naive(model, seen, corrupted, site, layer, **{axis: place})
            assert float(value) == pytest.approx(expected, abs=near * max(1, abs(expected)))
    assert found.restored.abs().max() > 1e-6
    # several layers in a pass
    together = patch_sweep(model, clean, corrupted, metric, site=site, batch_size=64)
    torch.testing.assert_close(together.values, found.values, rtol=near, atol=near)


def test_places_of_three_axes_and_chosen_layers() -> None:
    model = decoder().double().eval()
    clean, corrupted = pair()
    found = patch_sweep(
        model, clean, corrupted, metric, by=("layer", "head", "position"), layers=(1, -1)
    )
    assert (found.values.shape, found.layers) == ((2, 4, 6), (1, 3))
    expected = naive(
        model, captured(model, clean, "heads"), corrupted, "heads", 3, heads=2, queries=4
    )
    assert float(found.values[1, 2, 4]) == pytest.approx(expected, abs=1e-6)
    whole = patch_sweep(model, clean, corrupted, metric, site="residual", by=("layer",))
    torch.testing.assert_close(whole.restored, torch.ones(4).double(), rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["decoder", "gpt2"])
def test_only_what_a_patch_can_change_is_computed(kind: str) -> None:
    model = made(kind)
    clean, corrupted = pair(rows=3)
    corrupted[:, 2], corrupted[:, 4] = clean[:, 2], 1
    block = (model.layers if kind == "decoder" else model.transformer.h)[-1]
    sizes: list[tuple[int, int]] = []
    ffn = block.ffn if kind == "decoder" else block.mlp
    ours = ffn.forward
    theirs = block.forward
    ffn.forward = lambda x: (sizes.append(tuple(x.shape[:2])), ours(x))[1]
    found = patch_sweep(model, clean, corrupted, metric, layers=0, batch_size=12)
    # two whole runs, then all four heads at once, for the last position
    assert sizes == [
        (3, 6),
        (3, 6),
        (12, 1),
    ]
    sizes.clear()
    block.forward = lambda x, *args, **kwargs: (
        sizes.append(tuple(x.shape[:2])),
        theirs(x, *args, **kwargs),
    )[1]
    del ffn.forward
    patch_sweep(model, clean, corrupted, metric, site="residual", layers=0, batch_size=3)
    assert sizes == [(3, 6), (3, 6), (3, 2), (3, 1)]  # the first four positions agree
    del block.forward
    assert found.effects.abs().min() > 0
    both = patch_sweep(
        model, clean, corrupted, lambda logits: logits[..., 0].sum(1), logits=(3, -1), layers=0
    )
    with intervene(model, patch("heads", captured(model, clean, "heads"), layers=0, heads=1)):
        expected = logits_of(model, corrupted)[:, [3, 5], 0].sum(1).mean()
    assert float(both.values[0, 1]) == pytest.approx(float(expected), abs=1e-12)


def test_sweeps_in_threads_do_not_disturb_one_another() -> None:
    model = decoder().double().eval()
    texts = [pair() for _ in range(4)]
    alone = [patch_sweep(model, *each, metric, site="residual").values for each in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(
                lambda each: patch_sweep(model, *each, metric, site="residual").values, texts * 3
            )
        )
    for at, values in enumerate(together):
        torch.testing.assert_close(values, alone[at % 4], rtol=0, atol=0)
    assert not any(each._forward_hooks or "forward" in vars(each) for each in model.modules())


def test_an_interrupted_sweep_keeps_what_it_has() -> None:
    model = decoder().double().eval()
    calls = 0

    def interrupted(logits: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise KeyboardInterrupt
        return metric(logits)

    found = patch_sweep(model, *pair(), interrupted, batch_size=8)
    assert found.values.isfinite().sum() == 8
    assert not any(each._forward_hooks or "forward" in vars(each) for each in model.modules())


@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_swept_is_refused() -> None:
    model, (clean, corrupted) = decoder().double().eval(), pair()
    two_stacks = encoder_decoder().double().eval()
    both: dict[str, Any] = {"source": clean, "target": clean}
    calls: dict[str, Callable[[], Any]] = {
        "site = 'pixels'": lambda: patch_sweep(model, clean, corrupted, metric, site="pixels"),  # type: ignore[arg-type]
        "by = ": lambda: patch_sweep(
            model, clean, corrupted, metric, site="ffn", by=("layer", "head")
        ),
        r"\(2, 6\).*\(2, 5\)": lambda: patch_sweep(model, clean, corrupted[:, 1:], metric),
        "NaN": lambda: patch_sweep(
            model, clean, corrupted, lambda logits: logits.sum() * float("nan")
        ),
        "in both": lambda: patch_sweep(model, clean, clean, metric).restored,
        "layers.*7": lambda: patch_sweep(model, clean, corrupted, metric, layers=7),
        "experts of Decoder": lambda: ablation_sweep(model, clean, metric, site="experts"),
        "part = 'cross'": lambda: ablation_sweep(model, clean, metric, part="cross"),
        "ffn of the cross-attention": lambda: ablation_sweep(
            two_stacks, both, metric, site="ffn", part="cross"
        ),
        "restored of an ablation": lambda: ablation_sweep(model, clean, metric).restored,
    }
    for got, call in calls.items():
        with refused(got):
            call()
    for texts, name in (
        ([[1, 2]], "texts of list"),
        ("a text", "str"),
        (clean[0], r"\[6\]"),
        ({"tokens": clean, "cache": None}, "cache"),
    ):
        with refused(name, expected="a row for each text"):
            ablation_sweep(model, texts, metric)  # type: ignore[arg-type]
    for wrong in (
        lambda logits: logits[:, -1],
        lambda logits: 1.0,
        lambda logits: logits[:, -1].argmax(-1),
    ):
        for sweep in (patch_sweep, attribution_sweep):
            with refused("a metric that gives", expected=r"\[2\]"):
                sweep(model, clean, corrupted, wrong)
    stored = model(corrupted)
    with refused("one position with those of 6", fix="logits="):
        patch_sweep(
            model, clean, corrupted, lambda logits: (logits.log_softmax(-1) - stored).sum((1, 2))
        )
    for reads in (-2, 3):
        with refused("fails on logits", expected="logits = -1", fix="logits="):
            patch_sweep(model, clean, corrupted, lambda logits, reads=reads: logits[:, reads, 0])


MIXTURES = {
    "own": lambda: decoder(**EXPERTS, ff_bias=True).double().eval(),
    "packed": lambda: packed(ff_bias=True),
    "mixtral": lambda: FAMILIES["mixtral"](
        initializer_range=0.2
    ),  # whose experts have no kernel for float64
    "gpt-oss": lambda: gpt_oss(initializer_range=0.2),
}


@contextmanager
def without(model: nn.Module, layer: int, expert: int) -> Iterator[nn.Module]:
    """The mixture of a layer, one of whose experts has no second matrix, and so gives zeros."""
    block = model.layers[layer] if hasattr(model, "layers") else model.model.layers[layer]
    mixture = getattr(block, "ffn", None) or block.mlp
    owner = getattr(mixture, "experts", mixture)
    down = "down_blocks" if isinstance(mixture, PackedMixture) else "down"
    names = (down, "down_proj", "down_bias", "down_proj_bias")
    weights = [weight for name in names if (weight := getattr(owner, name, None)) is not None]
    before = [weight[expert].clone() for weight in weights]
    for weight in weights:
        weight[expert] = 0
    try:
        yield mixture
    finally:
        for weight, old in zip(weights, before, strict=True):
            weight[expert] = old


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", *slow("packed", "mixtral", "gpt-oss")])
def test_an_expert_is_removed_as_if_its_last_matrix_were_zero(kind: str) -> None:
    model = MIXTURES[kind]()
    clean, _ = pair()
    found = ablation_sweep(model, clean, metric, site="experts", batch_size=5)
    expected = torch.empty_like(found.values)
    for layer, expert in product(found.layers, range(4)):
        with without(model, layer, expert):
            expected[layer, expert] = metric(logits_of(model, clean)).mean()
    torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)
    assert found.effects.abs().max() > 1e-3
    each = ablation_sweep(
        model, clean, metric, site="experts", by=("layer", "expert", "position"), layers=0
    )
    with capture(model, what="choices", layers=0) as seen:
        logits_of(model, clean)
    for expert in seen.last("choices").popitem()[1][:, 2].unique().tolist():
        with intervene(model, zero("experts", layers=0, experts=expert, queries=2)):
            value = float(metric(logits_of(model, clean)).mean())
        assert float(each.values[0, expert, 2]) == pytest.approx(value, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["own", *slow("packed", "mixtral", "gpt-oss")])
def test_a_patched_expert_gives_what_it_gave_in_the_other_run(kind: str) -> None:
    model = MIXTURES[kind]()
    clean, corrupted = pair()
    for by in (None, ("layer", "expert", "position")):
        found = patch_sweep(model, clean, corrupted, metric, site="experts", by=by)
        for layer, expert in ((0, 1), (1, 2), (1, 0)):
            given: list[tuple[Tensor, Tensor]] = []

            def note(module: nn.Module, args: Any, output: Any, given: Any = given) -> None:
                given.append((args[0].clone(), output[0] if isinstance(output, tuple) else output))

            def whole(x: Tensor, mixture: Any) -> Tensor:
                out = mixture.forward(x)
                return out[0] if isinstance(out, tuple) else out

            with without(model, layer, expert) as mixture:
                pass
            with mixture.register_forward_hook(note):
                logits_of(model, clean), logits_of(model, corrupted)
            with without(model, layer, expert):
                parts = [output - whole(x, mixture) for x, output in given]
            change = parts[0] - parts[1]
            for place in (slice(None),) if by is None else (2, 5):
                there = torch.zeros_like(change)
                there[:, place] = change[:, place]
                with replaced(mixture, False, there.add):
                    expected = float(metric(logits_of(model, corrupted)).mean())
                value = found.values[layer, expert]
                assert float(value if by is None else value[place]) == pytest.approx(
                    expected, abs=1e-5
                )
    assert found.effects.abs().max() > 1e-3
    if kind != "packed":
        estimate = attribution_sweep(model, clean, corrupted, metric, site="experts")
        assert estimate.values.shape == (len(found.layers), 4)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_the_parts_of_an_encoder_decoder(part: Any, norm_first: bool) -> None:
    model = encoder_decoder(norm_first=norm_first, final_norm=norm_first).double().eval()
    source = torch.randint(1, 20, (2, 6))
    target = torch.randint(1, 20, (2, 5))
    texts = {"source": source, "target": target}
    changed = "target" if part == "decoder" else "source"
    other = {**texts, changed: texts[changed] % 19 + 1}
    module = {
        "encoder": "encoder_layers.{}.attention",
        "decoder": "decoder_layers.{}.self_attention",
        "cross": "decoder_layers.{}.cross_attention",
    }[part]
    found = ablation_sweep(model, texts, metric, part=part)
    patched = patch_sweep(model, texts, other, metric, part=part)
    keys = patch_sweep(model, texts, other, metric, part=part, site="k")
    with capture(model, what=("heads", "k")) as seen:
        model(**texts)
    for layer, head in product(found.layers, range(2)):
        where = {"modules": [module.format(layer)], "heads": head}
        for edit, texts_then, sweep in (
            (zero("heads", **where), texts, found),
            (patch("heads", seen, **where), other, patched),
            (patch("k", seen, **where), other, keys),
        ):
            with intervene(model, edit):
                expected = float(metric(model(**texts_then)).mean())
            assert float(sweep.values[layer, head]) == pytest.approx(expected, abs=1e-10)
    assert len(found.layers) == (2 if part == "encoder" else 3)
    for sweep in (found, patched, keys):
        assert sweep.effects.abs().max() > 1e-8
    if part != "cross":
        stream = patch_sweep(model, texts, other, metric, part=part, site="residual", by=("layer",))
        assert stream.restored[-1] == pytest.approx(1)
        assert (
            patch_sweep(model, texts, other, metric, part=part, site="ffn").effects.abs().max()
            > 1e-8
        )


@pytest.mark.parametrize("site", DENSE)
@pytest.mark.parametrize("kind", ["gpt2", *slow("decoder", "encoder", "experts", "llama")])
def test_attribution_is_the_first_order_of_the_exact_sweep(kind: str, site: Any) -> None:
    model = made(kind)
    clean, corrupted = pair()
    with torch.no_grad():
        rows = model.get_input_embeddings().weight if kind in FAMILIES else model.embedding.weight
        # two texts that nearly agree
        rows[1] = rows[clean[0, 2]] + 1e-6 * torch.randn_like(rows[1])
        clean[:, 2] = clean[0, 2]
    exact = patch_sweep(model, clean, corrupted, metric, site=site)
    estimate = attribution_sweep(model, clean, corrupted, metric, site=site)
    assert (estimate.axes, estimate.values.shape) == (exact.axes, exact.values.shape)
    assert all(weight.grad is None for weight in model.parameters())
    effects = estimate.values - estimate.corrupted
    assert effects.abs().max() > 1e-10
    if kind != "llama":  # whose norms compute in float32
        axis = _NAMES[exact.axes[1]][site in ("k", "v")]
        seen = captured(model, clean, site)
        places = range(exact.values.shape[1])
        direct = [
            [naive(model, seen, corrupted, site, n, **{axis: place}) for place in places]
            for n in exact.layers
        ]
        torch.testing.assert_close(
            effects,
            torch.tensor(direct, dtype=torch.double) - exact.corrupted,
            rtol=1e-3,
            atol=1e-11,
        )


@pytest.mark.parametrize("steps", [1, 3])
def test_attribution_runs_the_model_twice_and_once_back(steps: int) -> None:
    model = decoder().double().eval()
    calls = {"forward": 0, "backward": 0}
    block: Any = model.layers[0]
    block.register_forward_hook(lambda *_: calls.update(forward=calls["forward"] + 1))
    block.register_full_backward_hook(lambda *_: calls.update(backward=calls["backward"] + 1))
    found = attribution_sweep(model, *pair(), metric, steps=steps)
    assert calls == {"forward": 2 if steps == 1 else 2 + steps, "backward": steps}
    assert found.effects.abs().max() > 1e-6


_NAMES = {"head": ("heads", "heads"), "position": ("queries", "keys")}


def test_integrated_gradients_agree_better_where_the_metric_saturates() -> None:
    torch.manual_seed(1)
    model = decoder().double().eval()
    clean, corrupted = pair(rows=4)

    def saturated(logits: Tensor) -> Tensor:
        return torch.tanh(5 * metric(logits))

    exact = patch_sweep(model, clean, corrupted, saturated, site="residual_before")
    one, many = (
        attribution_sweep(model, clean, corrupted, saturated, site="residual_before", steps=n)
        for n in (1, 32)
    )
    assert exact.agreement(exact) == pytest.approx(1)
    assert exact.agreement(many) > exact.agreement(one)
    # completeness of integrated gradients
    total = many.values[0].sum() - many.corrupted * many.values.shape[1]
    assert float(total) == pytest.approx(exact.clean - exact.corrupted, abs=0.02)
    with refused("sweeps over"):
        exact.agreement(patch_sweep(model, clean, corrupted, saturated))


def test_a_sweep_in_steps_is_the_sweep() -> None:
    model, (tokens, _) = decoder().eval(), pair()
    whole = ablation_sweep(model, tokens, metric)
    seen = []
    for sweep in ablation_steps(
        model, tokens, metric, batch_size=2 * len(tokens), order=[1, 3, 0, 2]
    ):
        seen.append(sweep.values.isfinite())
        assert sweep.clean == whole.clean
    assert not seen[0].any()
    assert not seen[1][0].any()  # layer 1 is first
    assert seen[-1].all()
    torch.testing.assert_close(sweep.values, whole.values, rtol=0, atol=1e-6)
    passes = [
        sweep.values.isfinite().all(1).tolist() for sweep in ablation_steps(model, tokens, metric)
    ]
    assert passes == [4 * [False], 4 * [True], 4 * [True]]  # all layers of a short text together
    with refused("order"):
        next(ablation_steps(model, tokens, metric, order=[1]))


def test_an_ablation_is_estimated_from_one_gradient() -> None:
    model, (tokens, _) = decoder().eval(), pair()
    found = attribution_sweep(model, None, tokens, metric)
    whole = ablation_sweep(model, tokens, metric)
    assert found.corrupted is None
    assert found.clean == pytest.approx(whole.clean)
    # The last layer's heads reach the logits through the last norm alone.
    assert found.agreement(whole) > 0.9
    with refused("steps = 2"):
        attribution_sweep(model, None, tokens, metric, steps=2)


def test_a_loaded_model_stands_for_its_network() -> None:
    network = decoder().eval()
    loaded = SimpleNamespace(model=network)
    clean, corrupted = pair()
    plain = network(clean)
    for sweep in (
        ablation_sweep(loaded, clean, metric),
        patch_sweep(loaded, clean, corrupted, metric),
    ):
        assert sweep.values.shape[0] == len(network.layers)
    assert torch.equal(head_scores(loaded, clean).previous, head_scores(network, clean).previous)
    assert torch.equal(logit_lens(loaded, clean), logit_lens(network, clean))
    assert torch.equal(ov_circuit(loaded, 0, 0).matrix, ov_circuit(network, 0, 0).matrix)
    with capture(loaded) as seen, intervene(loaded, zero("heads", heads=0)):
        assert not torch.equal(network(clean), plain)
    assert len(seen.records) == len(network.layers)
