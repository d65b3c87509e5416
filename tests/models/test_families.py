"""What observes and edits, on the random models of every family that tests/checkpoints holds to
transformers.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

from checkpoints.family_models import VOCAB, as_float64, no_rounding, stored_model
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.edits import change, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.lens import direct_logits, logit_lens
from glassformer.observe.sweep import ablation_sweep
from refusals import refused


def pair(
    family: str, directory: Path, fits: Callable[[DecoderConfig], object]
) -> tuple[Decoder, nn.Module]:
    """Ours and transformers', with the same weights in float64, of the first random configuration
    that fits.
    """
    for seed in count():
        theirs = stored_model(family, seed, directory / str(seed))
        ours = Decoder.from_pretrained(directory / str(seed), dtype=torch.float64).eval()
        if fits(ours.config):
            return ours, as_float64(theirs)
    raise AssertionError


@torch.no_grad()
def test_captured_and_edited_scores_are_capped(tmp_path: Path) -> None:
    ours, theirs = pair(
        "gemma2", tmp_path, lambda config: config.attention_cap and config.layer_window(0)
    )
    cap = ours.config.attention_cap
    window = ours.config.layer_window(0)
    assert cap is not None
    tokens = torch.randint(VOCAB, (1, 24))
    captured = ("scores", "weights", "logits", "attention", "residual_before", "residual_between")
    with capture(ours, what=captured) as seen:
        logits = ours(tokens)
    with no_rounding():
        expected = theirs(tokens, output_attentions=True, use_cache=False).attentions
    for layer, weights in enumerate(expected):
        found = seen.last("weights")[f"layers.{layer}.attention"]
        torch.testing.assert_close(found, weights[..., -found.shape[-1] :], rtol=0, atol=1e-10)
        scores = seen.last("scores")[f"layers.{layer}.attention"]
        assert scores.abs()[scores > -torch.inf].max() <= cap
        before, between, added = (
            next(
                value
                for each, value in seen.last(kind).items()
                if each.startswith(f"layers.{layer}")
            )
            for kind in ("residual_before", "residual_between", "attention")
        )
        torch.testing.assert_close(between, before + added, rtol=0, atol=1e-12)
    torch.testing.assert_close(next(iter(seen.last("logits").values())), logits, rtol=0, atol=0)
    unchanged = change("scores", lambda scores: scores.clone(), layers=[0], heads=[2])
    with intervene(ours, unchanged):
        torch.testing.assert_close(ours(tokens), logits, rtol=0, atol=1e-10)
    with (
        intervene(ours, change("scores", torch.zeros_like, layers=[0])),
        capture(ours, what="weights") as flat,
    ):
        ours(tokens)
    uniform = flat.last("weights")["layers.0.attention"][0, 0, -1]
    torch.testing.assert_close(
        uniform[-window:], torch.full((window,), 1 / window, dtype=torch.float64)
    )


@pytest.mark.parametrize("family", ["gemma2", "olmo3", "gpt_neox", "nanochat", "gpt2"])
@torch.no_grad()
def test_sweeps_and_lenses_are_right_or_refused(family: str, tmp_path: Path) -> None:
    parallel = family == "gpt_neox"
    ours, _ = pair(
        family, tmp_path, lambda c: c.num_layers > 1 and c.num_heads > 2 and c.parallel == parallel
    )
    tokens = torch.randint(VOCAB, (2, 9))
    logits = ours(tokens)
    torch.testing.assert_close(logit_lens(ours, tokens)[-1], logits, rtol=0, atol=1e-12)
    for site in ("attention", "ffn"):
        swept = ablation_sweep(
            ours, tokens, lambda logits: logits[:, 0, 3], site=site, by=("layer", "position")
        )
        with intervene(ours, zero(site, layers=[1], queries=[4])):
            expected = ours(tokens)[:, -1, 3].mean()
        torch.testing.assert_close(swept.values[1, 4], expected, rtol=0, atol=1e-10)
    normed = ours.config.norm_place != "before"
    if normed or ours.config.logit_cap is not None:
        with refused("norms after its parts, or with capped logits"):
            direct_logits(ours, tokens, 3)
    else:
        found = direct_logits(ours, tokens, 3)
        torch.testing.assert_close(found.values.sum(0), logits[:, -1, 3], rtol=0, atol=1e-10)
    swept = ablation_sweep(ours, tokens, lambda logits: logits[:, 0, 3], site="heads")
    with intervene(ours, zero("heads", layers=1, heads=2)):
        torch.testing.assert_close(
            swept.values[1, 2], ours(tokens)[:, -1, 3].mean(), rtol=0, atol=1e-10
        )
    if ours.config.parallel:
        with refused("residual_between"), capture(ours, what="residual_between"):
            pass
