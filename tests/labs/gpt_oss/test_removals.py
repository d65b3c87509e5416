"""Models without a head or an expert, compared with models whose weights are changed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.labs.gpt_oss.experiments import Results
from glassformer.labs.gpt_oss.experiments.removals import (
    SETTLED,
    Cost,
    Part,
    Removals,
    costliest,
    draw,
    removals,
    returns,
)
from glassformer.labs.gpt_oss.experiments.sequences import DATA
from glassformer.labs.run import read
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.capture import capture

LENGTH = 24


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(DATA.vocab_size, (12, LENGTH + 1), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    made = Decoder(DecoderConfig(DATA.vocab_size, 2, 16, 16, 4, 8, 2, window=6, num_experts=3, top_k=2)).eval()
    with torch.no_grad():  # so that each part matters
        for weight in made.parameters():
            weight.mul_(3.0 if weight.dim() > 1 else 1.0)
    return made


@pytest.fixture(scope="module")
def found(model: Decoder, tokens: Tensor) -> Removals:
    return removals(model, tokens, 3)


def hits_of(model: Decoder, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).double()


def check(cost: Cost, lost: Tensor, again: Tensor) -> None:
    """The numbers of ``cost``, one by one."""
    assert cost.mean == pytest.approx(float(lost.sum()) / lost.numel())
    rows = [sum(row) / len(row) for row in lost.tolist()]
    middle = sum(rows) / len(rows)
    spread = sum((row - middle) ** 2 for row in rows) / (len(rows) - 1)
    assert cost.error == pytest.approx((spread / len(rows)) ** 0.5)
    for value, wanted in ((cost.new, False), (cost.returning, True)):
        cells = [
            float(lost[row, place])
            for row in range(len(lost))
            for place in range(SETTLED, LENGTH)
            if bool(again[row, place]) == wanted
        ]
        assert value == pytest.approx(sum(cells) / len(cells))


def test_a_state_returns_if_both_tokens_stood_together_before(tokens: Tensor) -> None:
    again = returns(tokens)
    assert again.shape == (12, LENGTH)
    for row, places in zip(tokens.tolist(), again.tolist(), strict=True):
        pairs = [tuple(row[place - 1 : place + 1]) for place in range(1, LENGTH)]
        assert places == [False, *(pair in pairs[:place] for place, pair in enumerate(pairs))]


def without(model: Decoder, kind: str, way: str, part: Part) -> Decoder:
    """A copy of ``model`` in which ``part`` is zeroed or replaced, by its weights or by hooks."""
    changed, columns = deepcopy(model), slice(8 * part.number, 8 * part.number + 8)
    attention, ffn = changed.layers[part.layer].attention, changed.layers[part.layer].ffn

    def averaged(_: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = inputs[0].clone()
        x[..., columns] = x[..., columns].mean((0, 1))
        return (x, *inputs[1:])

    if kind == "heads" and way == "zeroed":
        attention.output.weight.data[:, columns] = 0
    elif kind == "heads":
        attention.output.register_forward_pre_hook(averaged)
    elif way == "zeroed":
        ffn.down.data[part.number] = 0
    else:
        forbidden = torch.tensor([part.number])
        ffn.router.score.register_forward_hook(lambda _, __, scores: scores.index_fill(-1, forbidden, -torch.inf))
    return changed


@pytest.mark.parametrize("way", ["zeroed", "replaced"])
@pytest.mark.parametrize(("kind", "count"), [("heads", 4), ("experts", 3)])
def test_costs_are_those_of_a_model_without_the_part(
    kind: str, count: int, way: str, model: Decoder, tokens: Tensor, found: Removals
) -> None:
    parts, intact, again = getattr(found, kind), hits_of(model, tokens), returns(tokens)
    assert [(part.layer, part.number) for part in parts] == [(n, each) for n in range(2) for each in range(count)]
    assert found.intact.by_position == pytest.approx(intact.mean(0).tolist())
    for part in parts:
        check(getattr(part, way), intact - hits_of(without(model, kind, way, part), tokens), again)
    most = costliest(parts)
    assert most.zeroed.mean == max(part.zeroed.mean for part in parts) > 0
    left = found.without_head if kind == "heads" else found.without_expert
    expected = hits_of(without(model, kind, "zeroed", most), tokens).mean(0).tolist()
    assert left.by_position == pytest.approx(expected)
    for layer in range(2):
        assert kind == "heads" or sum(part.use for part in parts if part.layer == layer) == pytest.approx(1)


def test_an_expert_that_no_token_chooses_costs_nothing(tokens: Tensor) -> None:
    torch.manual_seed(1)
    lazy = Decoder(DecoderConfig(DATA.vocab_size, 1, 16, 16, 2, 8, num_experts=3, top_k=1)).eval()
    with torch.no_grad():  # of scores s, -s and 0 the last is never the highest
        lazy.layers[0].ffn.router.score.weight[1] = -lazy.layers[0].ffn.router.score.weight[0]
        lazy.layers[0].ffn.router.score.weight[2] = 0
    unused = removals(lazy, tokens, 0).experts[2]
    assert unused.use == unused.zeroed.mean == unused.replaced.mean == 0


def test_use_is_the_attention_on_what_followed_the_state(model: Decoder, tokens: Tensor, found: Removals) -> None:
    with torch.no_grad(), capture(model) as seen:
        model(tokens[:, :-1])
    weights = list(seen.weights.values())
    for part in found.heads:
        shares = []
        for row, text in enumerate(tokens[:, :-1].tolist()):
            for query in range(SETTLED, LENGTH):
                same = [key for key in range(1, query) if text[key - 1 : key + 1] == text[query - 1 : query + 1]]
                if same:
                    shares.append(sum(float(weights[part.layer][row, part.number, query, key + 1]) for key in same))
        assert part.use == pytest.approx(sum(shares) / len(shares), abs=1e-5)


def test_the_lab_draws_what_it_measured(tiny_run: Path) -> None:
    removed = read(tiny_run / "results.json", Results).removals
    (found,) = removed.seeds
    assert (removed.model, removed.num_sequences, found.seed) == ("all-together", 10, 5)
    heads, experts, without_head, without_expert = draw(removed).axes
    for ax, parts in ((heads, found.heads), (experts, found.experts)):
        drawn = [line.get_ydata().tolist() for line in ax.get_lines() if len(line.get_ydata()) == len(parts)]
        assert [100 * part.zeroed.mean for part in parts] in drawn
        assert [100 * part.replaced.mean for part in parts] in drawn
    assert without_head.get_lines()[-1].get_ydata().tolist() == found.without_head.by_position
    assert found.without_expert is not None
    assert without_expert.get_lines()[-1].get_ydata().tolist() == found.without_expert.by_position
    plain = replace(found, experts=[], without_expert=None)
    assert len(draw(replace(removed, seeds=[plain])).axes) == 2


def test_claims_follow_the_costs(results: Results, report: Callable[..., str]) -> None:
    removed = results.removals
    assert f"{removed.num_sequences} of the further sequences" in report()

    def changed(cost: Callable[[int, str], float], new: float) -> str:
        """The report if parts cost what ``cost`` of layer and way says."""

        def costing(parts: list[Part]) -> list[Part]:
            return [
                replace(
                    part,
                    zeroed=replace(part.zeroed, mean=cost(part.layer, "zeroed")),
                    replaced=replace(part.replaced, mean=cost(part.layer, "replaced")),
                )
                for part in parts
            ]

        seeds = []
        for each in removed.seeds:
            intact = replace(each.intact, new=new)
            seeds.append(replace(each, heads=costing(each.heads), experts=costing(each.experts), intact=intact))
        return report(removals=replace(removed, seeds=seeds))

    falling = changed(lambda layer, way: 0.2 - 0.05 * layer - 0.01 * (way == "replaced"), 0.8)
    assert "The heads of layer 1 cost most on average, in every seed." in falling
    assert "the others can do a part of its work, in every seed" in falling
    assert "these models compute" in falling
    rising = changed(lambda layer, way: 0.01 + 0.05 * layer + 0.01 * (way == "replaced"), 0.2)
    assert "The heads of layer 4 cost most on average, in every seed." in rising
    assert "a wrong expert is worse than none, in every seed" in rising
    assert "these models compute" not in rising
