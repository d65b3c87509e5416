"""Which numbers an edit writes, and where: dtypes, the order of selections, texts of other shapes,
kept logits.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.observe.capture import capture
from glassformer.observe.edits import add, change, forbid, mean, patch, put, scale, zero
from glassformer.observe.intervene import intervene
from refusals import refused
from small_models import decoder, encoder_decoder
from transformers_models import FAMILIES

pytestmark = pytest.mark.usefixtures("without_gradients")

TOKENS = torch.randint(1, 50, (3, 10), generator=torch.Generator().manual_seed(0))


def model(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return decoder(**changes).double().eval()


def seen_with(network: nn.Module, what: str, *edits: Any, tokens: Tensor = TOKENS) -> Tensor:
    with intervene(network, *edits), capture(network, what=what, layers=1) as seen:
        network(tokens)
    return seen.records[0].values


def test_a_number_is_the_number_in_the_dtype_of_the_model() -> None:
    network = model()
    plain = seen_with(network, "heads")
    assert (seen_with(network, "heads", put("heads", 0.37, layers=1)) == 0.37).all()
    assert (seen_with(network, "heads", change("heads", lambda values: 0.1, layers=1)) == 0.1).all()
    assert torch.equal(seen_with(network, "heads", add("heads", 0.1, layers=1)), plain + 0.1)


def test_a_number_for_all_keys_is_the_number() -> None:
    # torch's fused attention read expanded keys past their end
    network = model(sinks=True, num_kv_heads=2)
    for site in ("q", "k", "v"):
        found = [seen_with(network, "residual", put(site, 0.0, layers=1)) for _ in range(20)]
        dense = seen_with(network, "residual", change(site, torch.zeros_like, layers=1))
        assert all(torch.equal(each, dense) for each in found)


def test_values_are_in_the_order_of_the_selection() -> None:
    network = model()
    values = torch.randn(2, 8).double()
    plain = seen_with(network, "residual")
    found = seen_with(network, "residual", put("residual", values, layers=1, queries=[5, 2]))
    assert torch.equal(found[:, [5, 2]], values.expand(3, 2, 8))
    found = seen_with(network, "residual", add("residual", values, layers=1, queries=[-1, 0, -1]))
    assert torch.equal(found[:, [9, 0]], plain[:, [9, 0]] + values)
    found = seen_with(
        network, "heads", put("heads", torch.tensor([[[1.0]], [[2.0]]]), layers=1, heads=[3, 1])
    )
    assert [float(found[0, head, 0, 0]) for head in (3, 1)] == [1, 2]
    texts = torch.arange(2.0)[:, None, None]
    found = seen_with(network, "residual", put("residual", texts, layers=1, examples=[2, 0]))
    assert [float(found[row, 0, 0]) for row in (2, 0)] == [0, 1]
    found = seen_with(
        network, "k", put("k", torch.tensor([[1.0], [2.0]]), layers=1, keys=slice(4, 2, -1))
    )
    assert [float(found[0, 0, place, 0]) for place in (4, 3)] == [1, 2]
    other = TOKENS.flip(0)
    with capture(network, what=("residual", "weights"), queries=[6, 1], heads=[2, 0]) as seen:
        network(other)
    (residual, *_), (weights, *_) = (
        seen.of("residual")["layers.1"],
        seen.of("weights")["layers.1.attention"],
    )
    assert (residual.queries, weights.queries, weights.heads) == ((6, 1), (6, 1), (2, 0))
    assert torch.equal(residual.values, seen_with(network, "residual", tokens=other)[:, [6, 1]])
    assert torch.allclose(
        weights.values[:, 0, 0, :7], seen_with(network, "weights", tokens=other)[:, 2, 6, :7]
    )
    found = seen_with(
        network, "residual", patch("residual", seen, layers=1, queries=[1, 6], examples=[2, 0])
    )
    assert torch.equal(found[[2, 0]][:, [1, 6]], residual.values[[2, 0]][:, [1, 0]])


def test_a_patch_is_from_texts_of_the_same_shape_or_by_a_map() -> None:
    network = model()
    longer = torch.randint(1, 50, (3, 14))
    with capture(network, what=("residual", "k"), layers=1) as seen:
        network(longer)
    for edit in (patch("residual", seen, layers=1), patch("residual", seen, layers=1, queries=2)):
        with refused("a text of 10 positions from one of 14"), intervene(network, edit):
            network(TOKENS)
    whole = seen.last("residual")["layers.1"]
    found = seen_with(
        network, "residual", patch("residual", seen, layers=1, positions={-1: -1, 2: 3})
    )
    assert torch.equal(found[:, [9, 2]], whole[:, [13, 3]])
    found = seen_with(network, "k", patch("k", seen, layers=1, positions={4: 12}))
    assert torch.equal(found[:, :, 4], seen.last("k")["layers.1.attention"][:, :, 12])
    for positions, name in (
        ({2: 20}, "from positions .20. of a text of 14"),
        ({-1: 2, 9: 3}, "two keys"),
    ):
        with (
            refused(name),
            intervene(network, patch("residual", seen, layers=1, positions=positions)),
        ):
            network(TOKENS)
    cache = network.new_cache(3, 10)
    later = patch("residual", seen, layers=1, positions={4: 1, 9: 2})
    with intervene(network, later), capture(network, what="residual", layers=1) as steps:
        network(TOKENS[:, :5], cache=cache)  # in which position 9 is none of the text's
        network(TOKENS[:, 5:], cache=cache)
    assert torch.equal(
        torch.cat([each.values for each in steps.records], 1)[:, [4, 9]], whole[:, [1, 2]]
    )
    with refused("positions and queries"):
        patch("residual", seen, positions={1: 1}, queries=1)
    with (
        refused("of shape .3, 10, 8."),
        intervene(network, patch("residual", run_of(network, TOKENS), layers=1)),
    ):
        network(TOKENS[:2])
    found = seen_with(network, "residual", patch("residual", run_of(network, TOKENS[:1]), layers=1))
    assert torch.equal(found[2], found[0])
    with refused("a capture of 2 calls"):
        edit = patch("residual", run_of(network, TOKENS, TOKENS.flip(0)), layers=1)
        with intervene(network, edit):
            network(TOKENS)


def run_of(network: nn.Module, *runs: Tensor) -> Any:
    with capture(network, what=("residual", "ffn")) as seen:
        for each in runs:
            network(each)
    return seen


def test_logits_that_a_model_of_transformers_is_asked_for_have_their_positions() -> None:
    network: Any = FAMILIES["llama"]().double()
    plain = network(TOKENS).logits
    for kept in (torch.tensor([2, 5, 8]), torch.tensor([8, 2]), 3, torch.tensor([-2]), slice(1, 9)):
        positions = torch.arange(10)[slice(-kept, None) if isinstance(kept, int) else kept].tolist()
        with (
            intervene(network, put("logits", 0.0, queries=8)),
            capture(network, what="logits") as seen,
        ):
            found = network(TOKENS, logits_to_keep=kept).logits
        assert seen.records[0].queries == tuple(sorted(positions))
        assert torch.equal(seen.records[0].values, found[:, torch.tensor(positions).argsort()])
        at = positions.index(8)
        assert (found[:, at] == 0).all()
        others = [each for each in range(len(positions)) if each != at]
        torch.testing.assert_close(found[:, others], plain[:, [positions[each] for each in others]])
    with refused("logits at queries .5."), intervene(network, put("logits", 0.0, queries=(2, 5))):
        network(TOKENS, logits_to_keep=torch.tensor([2]))
    with (
        refused("logits_to_keep of the positions .8, 2, 8."),
        intervene(network, put("logits", 0.0, queries=8)),
    ):
        network(TOKENS, logits_to_keep=torch.tensor([8, 2, 8]))


@pytest.mark.usefixtures("without_type_checks")
def test_what_the_order_of_the_kernel_makes_impossible_is_refused() -> None:
    network = model()
    with refused("scores at keys .9."):
        seen_with(network, "q", put("scores", 5.0, queries=3, keys=(1, 9)))
    with refused("scores"):
        seen_with(network, "q", add("scores", 5.0, queries=3, keys=slice(5, None)))
    seen_with(network, "q", put("scores", 5.0, keys=9))
    for edits in ((put("weights", 0.1), forbid(keys=2)), (forbid(keys=2), put("weights", 0.1))):
        with refused("weights.*forbidden"):
            seen_with(network, "q", *edits)
        with refused("weights.*forbidden"), intervene(network, edits[0]):
            seen_with(network, "q", edits[1])
    seen_with(network, "q", forbid(keys=2), scale("weights", 0.5), zero("weights", keys=2))
    for wrong, name in (
        (put("heads", float("inf")), "infinity"),
        (add("residual", torch.tensor(1j)), "complex"),
        (put("residual", torch.tensor(1j)), "complex"),
        (scale("ffn", 1e300), "infinity in torch.float32"),
        (put("ffn", 1e300), "infinity in torch.float32"),
    ):
        with refused(name):
            seen_with(network.float(), "q", wrong)


def test_a_mask_of_blocks_is_refused() -> None:  # I11
    network: Any = FAMILIES["llama"]()
    network.set_attn_implementation("flex_attention")
    with refused("flex_attention, whose mask is a BlockMask"), intervene(network, forbid(keys=2)):
        network(TOKENS)


def test_a_mean_in_which_the_first_position_drowns_the_others_is_refused() -> None:
    network = model()
    large = add("ffn", 1000.0, queries=0, layers=1)
    with intervene(network, large), capture(network, what="ffn") as reference:
        network(TOKENS)
    values = reference.last("ffn")["layers.1.ffn"]
    with refused("the first is .* times as large", fix="over='position'"):
        seen_with(network, "ffn", mean("ffn", reference, layers=1))
    found = seen_with(network, "ffn", mean("ffn", reference, layers=1, over="all"))
    torch.testing.assert_close(found, values.mean((0, 1)).expand_as(values))
    found = seen_with(
        network, "ffn", mean("ffn", reference, layers=1, over="position", queries=(4, 1))
    )
    torch.testing.assert_close(found[:, [1, 4]], values.mean(0)[[1, 4]].expand(3, 2, 8))
    with refused("for each of 10 positions, from a text of 7"):
        seen_with(
            network, "ffn", mean("ffn", run_of(network, TOKENS[:, :7]), layers=1, over="position")
        )
    with refused("over = "):
        mean("ffn", reference, over="both")  # type: ignore[arg-type]


def test_layers_of_an_encoder_decoder_are_those_of_both_stacks_unless_modules_are_named() -> None:
    torch.manual_seed(0)
    network = encoder_decoder().double().eval()
    texts = torch.randint(1, 20, (2, 6)), torch.randint(1, 20, (2, 5))
    for where, count in (({"layers": 0}, 2), ({"layers": 0, "modules": ["decoder_layers.0"]}, 1)):
        with (
            intervene(network, put("residual", 1.0, **where)),
            capture(network, what="residual", layers=0) as seen,
        ):
            network(*texts)
        assert sum(bool((record.values == 1).all()) for record in seen.records) == count
