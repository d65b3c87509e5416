"""Sweeps where a following norm amplifies rounding: what is removed or patched is written, not
reached by adding.
"""

from typing import Any

import pytest
import torch
from sweep_search import CONFIGURATIONS, search
from torch import Tensor

from glassformer.observe.capture import capture
from glassformer.observe.edits import add, change, patch, zero
from glassformer.observe.intervene import intervene
from glassformer.observe.paths import Receiver, path_sweep
from glassformer.observe.sweep import ablation_sweep, patch_sweep
from small_models import decoder

pytestmark = pytest.mark.usefixtures("without_gradients")

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
OTHER = torch.tensor([[3, 1, 7, 1, 5], [9, 2, 7, 5, 3]])


def metric(logits: Tensor) -> Tensor:
    return logits[:, -1, 3]


def loud(site: str, layer: int = 1, **options: Any) -> Any:
    """A model in which one part is a million times as large as the rest of the stream, and norms
    have no eps to see.
    """
    torch.manual_seed(0)
    model: Any = decoder(num_layers=3, norm_eps=1e-12, **options).eval()
    block = model.layers[layer]
    if site == "experts":
        block.ffn.down[1].mul_(1e6)
    elif site == "ffn":
        block.ffn.down.weight.mul_(1e6)
    else:
        block.attention.output.weight[:, 6:12].mul_(1e6)  # of head 1
    return model


@pytest.mark.parametrize("site", ["residual_before", "residual_between", "residual"])
@pytest.mark.parametrize("by", [("layer",), ("layer", "position")])
def test_a_removed_stream_is_zero(site: Any, by: Any) -> None:
    model: Any = decoder(num_layers=3, norm_eps=1e-12).eval()
    found = ablation_sweep(model, TOKENS, metric, site=site, by=by)
    for layer in range(3):
        queries = [None] if len(by) == 1 else range(TOKENS.shape[1])
        for query in queries:
            where = {} if query is None else {"queries": query}
            with intervene(model, zero(site, layers=layer, **where)):
                expected = metric(model(TOKENS))
            cell = (layer,) if query is None else (layer, query)
            torch.testing.assert_close(found.by_text[cell].float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("site", "options", "where"),
    [
        ("heads", {}, {"heads": 1}),
        ("attention", {}, {"queries": 3}),
        ("ffn", {}, {"queries": 4}),
        ("experts", {"num_experts": 3}, {"experts": 1}),
        ("experts", {"num_experts": 3, "norm_place": "both"}, {"experts": 1}),
        ("ffn", {"norm_place": "both", "norm": "layer"}, {"queries": 4}),
    ],
)
def test_the_rounding_of_what_is_removed_goes_with_it(
    site: Any, options: Any, where: dict[str, int]
) -> None:
    """A part of 1e6 leaves 0.1 of its rounding in float32, as much as all other parts."""
    model = loud(site, **options)
    found = ablation_sweep(model, TOKENS, metric, site=site)
    with intervene(model, zero(site, layers=1, **where)):
        expected = metric(model(TOKENS))
    torch.testing.assert_close(
        found.by_text[1, *where.values()].float(), expected, rtol=1e-4, atol=1e-4
    )


def test_a_removed_expert_leaves_the_sum_of_the_others() -> None:
    model = loud("experts", num_experts=3)
    with capture(model, what=("choices", "shares", "experts"), layers=1) as seen:
        model(TOKENS)
    choices, shares, outputs = (seen[1, kind] for kind in ("choices", "shares", "experts"))
    expected = (shares[..., None] * outputs).masked_fill((choices == 1)[..., None], 0).sum(2)
    with (
        intervene(model, zero("experts", layers=1, experts=1)),
        capture(model, what="ffn", layers=1) as removed,
    ):
        model(TOKENS)
    torch.testing.assert_close(removed[1, "ffn"], expected)
    block = model.layers[1].ffn
    # after what its experts give
    block.register_forward_hook(lambda module, args, output: 3 * output)
    with (
        intervene(model, zero("experts", layers=1, experts=1)),
        capture(model, what="ffn", layers=1) as hooked,
    ):
        model(TOKENS)
    torch.testing.assert_close(hooked[1, "ffn"], 3 * expected)


def test_a_patched_part_is_that_of_the_clean_run() -> None:
    """The corrupted text alone has the loud head: with the clean one, nothing of it stays."""
    model = loud("heads")
    with capture(model, what="heads") as clean:
        model(TOKENS)
    found = patch_sweep(model, TOKENS, OTHER, metric)
    quiet = change("heads", lambda values: 1e-6 * values, layers=1, heads=1, queries=slice(0, 2))
    with intervene(model, patch("heads", clean, layers=1, heads=1)):
        expected = metric(model(OTHER))
    torch.testing.assert_close(found.by_text[1, 1].float(), expected, rtol=1e-4, atol=1e-4)
    with intervene(model, quiet, add("residual", 0.1, layers=0)):
        within = ablation_sweep(model, OTHER, metric)
        with intervene(model, zero("heads", layers=1, heads=1)):
            expected = metric(model(OTHER))
    torch.testing.assert_close(within.by_text[1, 1].float(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "receivers", ["logits", Receiver(2, 1, "q"), (Receiver(1, 0, "v"), "logits")]
)
def test_a_path_has_the_clean_sender_alone(receivers: Any) -> None:
    """The corrupted embedding is a million times as large as the clean one: in float32 nothing of
    it may stay.
    """
    torch.manual_seed(0)
    model: Any = decoder(num_layers=3, norm_eps=1e-12).eval()
    model.embedding.weight[7].mul_(1e6)
    exact = decoder(num_layers=3, norm_eps=1e-12).double().eval()
    exact.load_state_dict(model.state_dict())
    found, expected = (
        path_sweep(each, TOKENS, OTHER, lambda logits: logits[:, 0, 3], receivers, logits=2)
        for each in (model, exact)
    )
    assert abs(expected.embedding - expected.clean) < 100
    assert found.embedding == pytest.approx(expected.embedding, rel=1e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_random_places_are_their_single_runs(name: str) -> None:
    found, refused = search(name, 7, 12)
    assert len(found) == 12, refused
    assert [each for each in found if not each.share <= each.allowed] == []
