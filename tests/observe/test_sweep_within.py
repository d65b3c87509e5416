"""Sweeps, lenses, direct logits and paths of models with adapters, hooks, wrapped projections, and
within edits.
"""

from itertools import product
from typing import Any

import pytest
import torch
from sweep_cases import KINDS, check, of_class, wrapped
from torch import Tensor, nn

from glassformer.observe.capture import capture
from glassformer.observe.circuits import ov_circuit
from glassformer.observe.detectors import attention_faithfulness
from glassformer.observe.edits import add, forbid, patch, put, scale, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.paths import Receiver, Sender, path_patch, path_sweep
from glassformer.observe.sweep import Sweep, ablation_sweep, attribution_sweep, patch_sweep
from refusals import refused
from small_models import decoder, encoder
from transformers_models import exact, gpt2, llama, logits_of, metric

pytestmark = pytest.mark.usefixtures("without_gradients")

CLEAN = torch.randint(2, 20, (2, 6), generator=torch.Generator().manual_seed(0))
CORRUPTED = torch.cat([CLEAN[:, :2], torch.ones(2, 1, dtype=torch.int64), CLEAN[:, 3:]], 1)


def small(kind: str = "decoder") -> Any:
    torch.manual_seed(1)
    model: Any = {"gpt2": gpt2, "llama": llama}.get(kind, decoder)().double().eval()
    if kind == "llama":
        exact(model)
    return model


def projection_of(model: Any, layer: int) -> str:
    name = {
        "Decoder": "layers.{}.attention.output",
        "GPT2LMHeadModel": "transformer.h.{}.attn.c_proj",
    }
    return name.get(type(model).__name__, "model.layers.{}.self_attn.o_proj").format(layer)


def single(model: nn.Module, *edits: Any) -> Tensor:
    with intervene(model, *edits):
        return metric(logits_of(model, CORRUPTED))


def check_sweep(
    model: nn.Module, site: Any, *places: tuple[int, int], near: float = 1e-12, batch: int = 128
) -> Sweep:
    """A patch sweep that has, at these layers and heads or positions, what single runs have."""
    with capture(model, what=site) as seen:
        model(CLEAN)
    found = patch_sweep(model, CLEAN, CORRUPTED, metric, site=site, batch_size=batch)
    axis = "heads" if site in ("heads", "q") else "queries"
    for layer, place in places:
        expected = single(model, patch(site, seen, layers=layer, **{axis: place}))
        torch.testing.assert_close(found.by_text[layer, place], expected, rtol=near, atol=near)
    return found


def carrying(kind: str, what: str, layer: int = 1) -> Any:
    model = small(kind)
    name = projection_of(model, layer)
    base = model.get_submodule(name)
    if what == "hook":
        base.register_forward_hook(lambda module, args, output: output + 0.5 * output.roll(1, -1))
    else:
        model.set_submodule(name, wrapped(base, what).double())
    return model


@pytest.mark.parametrize("what", ["lora", "quantised", "hook", "curved"])
@pytest.mark.parametrize("kind", ["decoder", "gpt2", "llama"])
def test_a_projection_is_what_its_module_does(kind: str, what: str) -> None:
    model = carrying(kind, what)
    places = list(product((0, 1), range(4)))
    last = len(check_sweep(model, "heads", *places, near=1e-10).layers) - 1
    ablated = ablation_sweep(model, CORRUPTED, metric)
    for layer, head in places:
        expected = single(model, zero("heads", layers=layer, heads=head))
        torch.testing.assert_close(ablated.by_text[layer, head], expected, rtol=1e-10, atol=1e-10)
    if what == "curved":
        for look in (lambda: direct_logits(model, CLEAN, 5), lambda: ov_circuit(model, 1, 0)):
            with refused("Curved that is no linear map"):
                look()
        with refused("Curved"):
            path_patch(model, CLEAN, CORRUPTED, metric, Sender(1, 0), "logits")
        return
    found = direct_logits(model, CLEAN, 5)
    torch.testing.assert_close(found.values.sum(0), found.total, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.total, logits_of(model, CLEAN)[:, -1, 5])
    with capture(model, what=("heads", "attention"), layers=1) as seen:
        model(CLEAN)
    (heads,), (added,) = (list(seen.last(kind).values()) for kind in ("heads", "attention"))
    with (
        intervene(model, zero("heads", layers=1, heads=2)),
        capture(model, what="attention", layers=1) as without,
    ):
        model(CLEAN)
    writes = ov_circuit(model, 1, 2).right  # what the head's coordinates write
    expected = added - next(iter(without.last("attention").values()))
    got = heads[:, 2] @ writes.T
    expected = expected - expected.mean(-1, keepdim=True) if kind == "gpt2" else expected
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    if what != "hook":
        path = (
            path_patch(model, CLEAN, CORRUPTED, metric, Sender(1, 2), Receiver(last, 0))
            if last > 1
            else None
        )
        direct = path_patch(model, CLEAN, CORRUPTED, metric, Sender(1, 2), "logits")
        assert path is None or abs(path.effects[0]) > 0
        if last == 1:  # in the last layer the ffn alone is between
            assert abs(direct.effects[0]) > 0


def test_a_wrapped_projection_is_found_without_a_weight() -> None:
    model = small("gpt2")
    for name in ("transformer.h.1.attn.c_proj", "lm_head"):
        model.set_submodule(name, wrapped(model.get_submodule(name), "lora").double())
    found = direct_logits(model, CLEAN, 5, 7)
    torch.testing.assert_close(found.values.sum(0), found.total)
    torch.testing.assert_close(
        found.total, logits_of(model, CLEAN)[:, -1, 5] - logits_of(model, CLEAN)[:, -1, 7]
    )
    torch.testing.assert_close(logit_lens(model, CLEAN)[-1], logits_of(model, CLEAN))


OUTER = {
    "the stage after the site (W2)": (
        "residual",
        (add("residual_before", 1.5, layers=2, queries=3),),
    ),
    "a factor after the site": ("ffn", (scale("residual", 2.0, layers=1),)),
    "a value after the heads": ("heads", (put("residual_between", 0.3, layers=1, queries=-1),)),
    "examples (W3)": ("heads", (add("residual", 2.0, layers=0, examples=1),)),
    "a value for each text": (
        "ffn",
        (put("residual", torch.tensor([0.0, 1.0])[:, None, None], layers=0, queries=4),),
    ),
    "the heads of an adapter": ("heads", (put("heads", 0.1, layers=1, heads=3),)),
    "attention (W4)": ("heads", (scale("attention", 3.0, layers=1),)),
    "the stream between (L1)": ("residual_before", (add("residual_between", 1.0, layers=1),)),
    "logits": ("residual", (scale("logits", 2.0, queries=-1),)),
    "keys": ("ffn", (scale("k", 1.5, layers=3), forbid(queries=-1, keys=1, layers=2))),
    "several": ("q", (zero("heads", layers=(1, 3), heads=2), scale("ffn", 1.5, layers=2))),
}


@pytest.mark.parametrize("batch_size", [2, 128])
@pytest.mark.parametrize("name", OUTER)
def test_a_sweep_within_edits_is_single_runs_within_them(name: str, batch_size: int) -> None:
    model, (site, outer) = (
        carrying("decoder", "lora") if "adapter" in name else small(),
        OUTER[name],
    )
    with intervene(model, *outer):
        found = check_sweep(model, site, (0, 2), (1, 3), (2, 2), batch=batch_size)
    assert found.effects.abs().max() > 1e-6


def test_a_sweep_within_a_patch_of_as_many_texts() -> None:  # L2
    model = small()
    with capture(model, what="residual") as seen:
        model(CLEAN.flip(0))
    with intervene(model, patch("residual", seen, layers=1, queries=4)):
        found = ablation_sweep(model, CORRUPTED, metric)
        expected = single(model, zero("heads", layers=2, heads=1))
    torch.testing.assert_close(found.by_text[2, 1], expected, rtol=1e-12, atol=1e-12)
    with intervene(model, add("residual", torch.arange(2.0)[:, None, None], layers=0)):
        ranks = attention_faithfulness(model, CORRUPTED, metric, query=-1)
        expected = metric(model(CORRUPTED)) - single(model, forbid(queries=-1, keys=1))
    torch.testing.assert_close(ranks.effects[:, 0, 0, 1], expected.to(ranks.effects))


@torch.enable_grad()
def test_attribution_within_edits_is_the_derivative() -> None:  # W4, L3
    model = small()
    with intervene(model, scale("attention", 3.0, layers=1)):
        found = attribution_sweep(model, None, CORRUPTED, metric)
        step = 1e-6
        lower, upper = (
            float(single(model, scale("heads", 1 + each, layers=1, heads=2)).mean())
            for each in (-step, step)
        )
    assert float(found.effects[1, 2]) == pytest.approx((lower - upper) / (2 * step), rel=1e-6)
    assert not found.values.requires_grad


def test_direct_logits_within_edits_name_what_they_add() -> None:  # W5
    model = small()
    for edits in (
        (add("residual", 2.0, layers=1),),
        (scale("attention", 3.0, layers=1), zero("ffn", layers=0)),
    ):
        with intervene(model, *edits):
            found = direct_logits(model, CLEAN, 5, 7)
            logits = model(CLEAN)[:, -1]
        torch.testing.assert_close(found.total, logits[:, 5] - logits[:, 7])
        torch.testing.assert_close(found.values.sum(0), found.total, rtol=1e-10, atol=1e-10)
        assert abs(found.values[found.names.index("interventions")]).max() > 1e-3
    assert "interventions" not in direct_logits(model, CLEAN, 5).names
    with refused("edit of the logits"), intervene(model, scale("logits", 2.0)):
        direct_logits(model, CLEAN, 5)


@pytest.mark.parametrize("kind", ["encoder", "gpt2"])
def test_train_mode_changes_nothing(kind: str) -> None:  # W6, I9
    torch.manual_seed(0)
    own = kind == "encoder"
    model = encoder(norm_first=True, final_norm=True, dropout=0.3) if own else gpt2(resid_pdrop=0.3)
    model.double()
    looks = (
        lambda: patch_sweep(model, CLEAN, CORRUPTED, metric).values,
        lambda: attribution_sweep(model, CLEAN, CORRUPTED, metric, steps=2).values,
        lambda: direct_logits(model, CLEAN, 1).values,
        lambda: logit_lens(model, CLEAN),
    )
    for look in looks:
        model.train()
        found = look()
        assert all(each.training for each in model.modules())
        model.eval()
        torch.testing.assert_close(look(), found)


@torch.enable_grad()
def test_checkpointing_that_computes_again_after_a_block_is_refused() -> None:  # W11
    model = small("llama").train()
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        gradients = []
        edit = scale("residual", 1.5, layers=0)
        if reentrant:
            with refused("reentrant"), intervene(model, edit):
                model(CLEAN)
            continue
        with intervene(model, zero("heads")):
            logits = logits_of(model, CLEAN)
        with refused("checkpointing"):  # where the unedited block would be computed again
            logits.sum().backward()
        for enabled in (True, False):
            model.zero_grad()
            if not enabled:
                model.gradient_checkpointing_disable()
            with intervene(model, edit):
                logits_of(model, CLEAN).square().sum().backward()
            gradients.append(model.model.layers[0].mlp.up_proj.weight.grad.clone())
        torch.testing.assert_close(*gradients)


def test_hooks_that_name_rows_and_positions_are_kept_to_the_texts() -> None:  # W8
    model = small()

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        new = output.clone()
        new[1, 3] *= 5
        return new

    model.layers[2].attention.output.register_forward_hook(hook)
    model.layers[3].register_forward_hook(hook)
    for site in ("heads", "residual", "ffn", "residual_before"):
        check_sweep(model, site, (0, 3), (2, 2), (3, 3))


@pytest.mark.parametrize(
    "kind", ["gemma2", "gemma3", "qwen3", "olmo2", "granite", "cohere", "gpt-neox", "phi"]
)
def test_blocks_that_are_found_by_structure_are_swept(kind: str) -> None:
    torch.manual_seed(3)
    model = KINDS[kind]().double().eval()
    for site in ("heads", "residual"):
        check_sweep(model, site, (0, 2), (1, 3), near=1e-5)
    logits = logits_of(model, CLEAN)
    if kind in ("gemma2", "granite", "cohere"):  # which cap their logits, or have a factor on them
        with refused("not output.norm.stream"):
            logit_lens(model, CLEAN)
    else:
        torch.testing.assert_close(logit_lens(model, CLEAN)[-1], logits, rtol=1e-5, atol=1e-5)


def test_a_mean_over_reference_texts_is_put_at_each_place() -> None:
    model = small()
    reference = torch.randint(2, 20, (5, 6))
    with capture(model, what=("heads", "ffn")) as seen:
        model(reference)
    for mode, axes in (("position", 0), ("all", (0, 2))):
        found = ablation_sweep(model, CORRUPTED, metric, reference=reference, mean=mode)
        value = seen.last("heads")["layers.1.attention"].mean(axes, keepdim=True)[:, [3]]
        expected = single(model, put("heads", value, layers=1, heads=3))
        torch.testing.assert_close(found.by_text[1, 3], expected, rtol=1e-12, atol=1e-12)
        assert found.corrupted is None
    value = seen.last("ffn")["layers.2.ffn"].mean(0, keepdim=True)
    found = ablation_sweep(model, CORRUPTED, metric, reference=reference, site="ffn", by=("layer",))
    torch.testing.assert_close(
        found.by_text[2], single(model, put("ffn", value, layers=2)), rtol=1e-12, atol=1e-12
    )
    assert torch.equal(found.values, found.by_text.mean(-1))
    torch.testing.assert_close(found.effects_by_text.mean(-1), found.effects)
    with refused("for each of 6 positions, from reference texts of 4"):
        ablation_sweep(model, CORRUPTED, metric, reference=reference[:, :4])
    ablation_sweep(model, CORRUPTED, metric, reference=reference[:, :4], mean="all")
    with refused("mean = "):
        ablation_sweep(model, CORRUPTED, metric, reference=reference, mean="median")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["decoder", "llama"])
def test_a_path_sweep_is_a_path_patch_for_each_sender(kind: str) -> None:
    model = small(kind)
    last = 3 if kind == "decoder" else 1
    for receivers in (
        Receiver(last, 1),
        [Receiver(last, 1), Receiver(1, 0, "k"), Receiver(last, 2), "logits"],
        "logits",
    ):
        found = path_sweep(model, CLEAN, CORRUPTED, metric, receivers, batch_size=6)
        several = receivers if isinstance(receivers, list) else [receivers]
        for layer in range(len(found.layers)):
            later = [each for each in several if each == "logits" or each.layer > layer]
            for head in (0, 3):
                one = path_patch(model, CLEAN, CORRUPTED, metric, Sender(layer, head), later)
                assert float(found.values[layer, head]) == pytest.approx(
                    float(one.values[0]), abs=1e-10
                )
        of_ffn = path_sweep(model, CLEAN, CORRUPTED, metric, receivers, senders="ffn")
        one = path_patch(
            model,
            CLEAN,
            CORRUPTED,
            metric,
            Sender(0),
            [e for e in several if e == "logits" or e.layer > 0],
        )
        assert float(of_ffn.values[0]) == pytest.approx(float(one.values[0]), abs=1e-10)
        assert (found.embedding, found.corrupted) == (of_ffn.embedding, one.corrupted)
        # keys
        assert (abs(found.embedding - found.corrupted) > 1e-9) == isinstance(receivers, list)
    # All that is written into the logits' stream, at once, is the clean stream.
    with capture(model, what="residual") as clean:
        model(CLEAN)
    whole = single(model, patch("residual", clean, layers=-1)).mean()
    assert float(whole) == pytest.approx(found.clean)
    with refused("receiver = "):
        path_sweep(model, CLEAN, CORRUPTED, metric, "logit")
    with refused("within an intervention"), intervene(model, zero("ffn", layers=0)):
        path_sweep(model, CLEAN, CORRUPTED, metric, "logits")


def test_the_lens_of_targets_is_the_lens() -> None:
    model = small()
    targets = torch.tensor([4, 9])
    whole = logit_lens(model, CLEAN)
    for given in (targets, 4):
        found = logit_lens(model, CLEAN, targets=given)
        chosen = torch.as_tensor(given).expand(2).view(1, 2, 1, 1).expand(5, 2, 6, 1)
        torch.testing.assert_close(found.logits, whole.gather(3, chosen)[..., 0])
        torch.testing.assert_close(found.probabilities, whole.softmax(-1).gather(3, chosen)[..., 0])
        order = whole.argsort(-1, descending=True)
        assert torch.equal(found.ranks, (order == chosen).long().argmax(-1))
    with refused("targets = 50"):
        logit_lens(model, CLEAN, targets=50)


def test_other_classes_are_refused_with_what_is_supported() -> None:
    with refused("blocks of Gemma2DecoderLayer", expected="LlamaDecoderLayer"):
        ov_circuit(of_class("Gemma2")(), 0, 0)


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_a_sample_of_the_campaign(start: int) -> None:
    for seed in range(start, start + 10):
        how, what = check(seed)
        assert how in ("equal", "refused"), f"{seed}: {what}"
