"""Changes of a model asked for by the page, against plain changes of its weights and masks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel
from glassformer.explorer.service import Explorer
from glassformer.observe.lens import direct_logits, logit_lens
from refusals import refused

TEXT = "1 2 3 5 8 1 2 3"


def whatif(explorer: Explorer, text: str = TEXT, model: str = "decoder", **asked: Any) -> m.WhatIf:
    answer = explorer.answer("whatif", m.AskWhatIf(ask=m.Ask(model=model, text=text), **asked))
    assert isinstance(answer, m.WhatIf)
    return answer


def after(answer: m.WhatIf) -> torch.Tensor:
    return torch.tensor([each.after for each in sorted(answer.outcomes, key=lambda each: each.id)])


def probabilities(model: torch.nn.Module, text: str = TEXT, place: int = -1) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[int(each) for each in text.split()]]))
    return logits[0, place].softmax(-1)


@pytest.fixture
def decoder(by_name: dict[str, LoadedModel]) -> Any:
    loaded = by_name["decoder"]
    assert isinstance(loaded, LoadedDecoder)
    return deepcopy(loaded.model)


def test_without_changes_nothing_changes(small_explorer: Explorer, decoder: Any) -> None:
    answer = whatif(small_explorer)
    assert all(each.before == each.after for each in answer.outcomes)
    assert (answer.distance, answer.changes, answer.place, answer.kind) == (0, [], 7, "token")
    assert answer.offers == ["heads", "edges", "steer", "experts", "sweep", "lens", "contributions"]
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)


def test_a_removed_head_is_zeroed_columns(small_explorer: Explorer, decoder: Any) -> None:
    answer = whatif(small_explorer, removed=[m.RemovedHead(part="self", layer=1, head=0)])
    decoder.layers[1].attention.output.weight.data[:, :8] = 0
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.changes == ["layer 1, head 0 removed"]
    assert answer.distance > 1e-4


def test_a_forbidden_edge_is_a_mask(small_explorer: Explorer, decoder: Any) -> None:
    edge = m.ForbiddenEdge(part="self", layer=None, head=None, query=7, key=7)
    answer = whatif(small_explorer, forbidden=[edge])
    assert answer.changes == ["every layer, every head: 3 (7) may not attend to 3 (7)"]
    assert answer.distance > 1e-4
    one = [m.ForbiddenEdge(part="self", layer=layer, head=head, query=7, key=7) for layer in (0, 1) for head in (0, 1)]
    torch.testing.assert_close(after(whatif(small_explorer, forbidden=one)), after(answer), rtol=0, atol=1e-6)


@pytest.mark.parametrize("strength", [0.0, 0.5, -2.0])
def test_steering_adds_a_direction_to_the_stream(small_explorer: Explorer, decoder: Any, strength: float) -> None:
    answer = whatif(small_explorer, steer=m.Steering(layer=0, toward=3, away=5, strength=strength))

    def add(_: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        rows = decoder.output.weight * decoder.final_norm.weight
        direction = (rows[3] - rows[5]) / (rows[3] - rows[5]).norm()
        return output + strength * output.norm(dim=-1, keepdim=True) * direction

    decoder.layers[0].register_forward_hook(add)
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.changes == [f"steered after layer 0 by {strength:g} toward 3 and away from 5"]


def test_a_forbidden_expert_has_no_score(small_explorer: Explorer, decoder: Any) -> None:
    answer = whatif(small_explorer, swaps=[m.ReplacedExpert(layer=0, expert=1, instead=None)])

    def forbid(_: Any, args: Any, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(-1, torch.tensor(1), -1e30)

    decoder.layers[0].ffn.router.score.register_forward_hook(forbid)
    torch.testing.assert_close(after(answer), probabilities(decoder), rtol=0, atol=1e-6)
    assert answer.distance > 1e-4


def test_a_sweep_removes_each_head(small_explorer: Explorer) -> None:
    found = small_explorer.answer("sweep", m.AskSweep(ask=m.Ask(model="decoder", text=TEXT), target=4))
    assert isinstance(found, m.HeadSweep)
    (stack,) = found.stacks
    for layer in range(2):
        for head in range(2):
            answer = whatif(small_explorer, target=4, removed=[m.RemovedHead(part="self", layer=layer, head=head)])
            odds = torch.logit(after(answer).double())[4]
            assert stack.after[layer][head] == pytest.approx(float(odds), abs=1e-5)
    assert found.before == pytest.approx(float(torch.logit(after(whatif(small_explorer)).double())[4]), abs=1e-5)


def test_a_lens_is_the_projection_of_each_stage(small_explorer: Explorer, decoder: Any) -> None:
    found = small_explorer.answer("lens", m.AskLens(ask=m.Ask(model="decoder", text=TEXT), target=4))
    assert isinstance(found, m.Lens)
    expected = logit_lens(decoder, torch.tensor([[int(each) for each in TEXT.split()]]))[:, 0].softmax(-1)
    torch.testing.assert_close(torch.tensor(found.targets), expected[..., 4], rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.tensor(found.probabilities), expected.amax(-1), rtol=0, atol=1e-6)
    assert found.names == [[str(each) for each in row] for row in expected.argmax(-1).tolist()]
    assert (found.stages, found.positions) == (["embedding", "layer 0", "layer 1"], TEXT.split())


def test_contributions_sum_to_the_logit(small_explorer: Explorer, decoder: Any) -> None:
    ask = m.AskContributions(ask=m.Ask(model="decoder", text=TEXT), place=4, target=4, other=2)
    found = small_explorer.answer("contributions", ask)
    assert isinstance(found, m.Contributions)
    expected = direct_logits(decoder, torch.tensor([[int(each) for each in TEXT.split()]]), 4, 2, query=4)
    assert [part.name for part in found.parts] == list(expected.names)
    assert sum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-5)
    assert found.total == pytest.approx(float(expected.total[0]), abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"removed": [m.RemovedHead(part="self", layer=2, head=0)]}, "a removed head: layer = 2"),
        ({"removed": [m.RemovedHead(part="self", layer=0, head=2)]}, "a removed head: head = 2"),
        ({"removed": [m.RemovedHead(part="cross", layer=0, head=0)]}, "a removed head: part = 'cross'"),
        ({"forbidden": [m.ForbiddenEdge(part="self", layer=0, head=0, query=8, key=0)]}, "query = 8"),
        ({"forbidden": [m.ForbiddenEdge(part="self", layer=0, head=0, query=0, key=8)]}, "key = 8"),
        ({"steer": m.Steering(layer=2, toward=0, away=None, strength=1.0)}, "the steering: layer = 2"),
        ({"steer": m.Steering(layer=0, toward=11, away=None, strength=1.0)}, "toward = 11"),
        ({"swaps": [m.ReplacedExpert(layer=0, expert=3, instead=None)]}, "expert = 3"),
        ({"swaps": [m.ReplacedExpert(layer=0, expert=1, instead=1)]}, "a replaced expert that stays"),
        ({"target": 11}, "target = 11"),
        ({"place": 8}, "place = 8"),
    ],
)
def test_what_does_not_exist_is_refused(small_explorer: Explorer, asked: dict[str, Any], got: str) -> None:
    with refused(got):
        whatif(small_explorer, **asked)
