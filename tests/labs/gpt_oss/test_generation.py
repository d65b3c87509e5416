"""Continuations, and what follows a first token: properties that are known, a small run, and the
figures.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.data.recurrence import make_split
from glassformer.labs.gpt_oss.experiments import Results, generation
from glassformer.labs.gpt_oss.experiments.generation import RULES, Behaviour, behaviour
from glassformer.labs.gpt_oss.experiments.sequences import DATA
from glassformer.labs.run import read
from glassformer.models import Decoder, DecoderConfig


def test_steps_are_told_apart() -> None:
    # x[t] = x[t-2] + x[t-1] mod 7 from (1, 1): 2, 3, 5, 1; then an increment, 2; then 0 where 3
    # would follow.
    sequences = torch.tensor([[1, 1, 2, 3, 5, 1, 2, 0]])
    coefficients = torch.tensor([[1, 1]])
    found = behaviour(sequences, coefficients, prompt_length=4, vocab_size=7)
    # 5 and 1 by the rule, 2 = 1 + 1 (the rule says 6), 0 by neither (3 by the rule and by the
    # increment).
    assert (found.rule, found.increment, found.neither) == (0.5, 0.25, 0.25)


def test_repetition_counts_runs_of_four_and_cycles() -> None:
    prompt = torch.zeros(2, 2, dtype=torch.int64)
    cycle = torch.tensor([1, 2, 3]).repeat(4)
    straight = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1])
    found = behaviour(
        torch.cat([prompt, torch.stack([cycle, straight])], dim=1),
        torch.ones(2, 2, dtype=torch.int64),
        2,
        7,
    )
    # Nine runs of four in twelve tokens: three different ones in the cycle, nine in the other.
    assert found.repeated == pytest.approx((6 / 9 + 0) / 2)
    assert found.cycling == 0.5


def test_a_cycle_needs_two_whole_rounds_in_the_second_half() -> None:
    def cycling(continuation: list[int]) -> float:
        return behaviour(
            torch.tensor([[0, 0, *continuation]]), torch.ones(1, 2, dtype=torch.int64), 2, 7
        ).cycling

    assert cycling([6, 5, 4, 3, 1, 2, 1, 2]) == 1
    assert cycling([1, 2, 3, 1, 2, 3, 1, 2]) == 0
    assert cycling([0, 0, 0, 0, 1, 1, 1, 2]) == 0


def test_shares_of_true_sequences_are_those_of_the_process() -> None:
    split = make_split(DATA, num_train=1, num_test=500, seed=0)
    found = behaviour(split.test.tokens, split.test.generators.coefficients, 16, 7)
    assert found.neither == 0
    # A tenth are increments; some of them are what the rule says too.
    assert 0.89 < found.rule < 0.94


def test_a_nucleus_of_errors_is_above_chance_only_beyond_two_standard_errors() -> None:
    def made(share: float, error: float) -> Behaviour:
        return Behaviour(share, 0.1, 0.0, 0.5, 0.5, {"rule": error})

    assert made(0.9, 0.03).above(made(0.8, 0.03), "rule")
    assert not made(0.9, 0.04).above(made(0.8, 0.04), "rule")
    assert made(0.9, 0.0).distance(Behaviour(0.6, 0.2, 0.2, 0.0, 0.0, {})) == pytest.approx(0.3)


def test_standard_errors_are_those_over_continuations() -> None:
    sequences = torch.tensor([[0, 0, 0, 0, 0, 0], [1, 1, 3, 3, 3, 3]])
    found = behaviour(sequences, torch.tensor([[0, 0], [0, 0]]), 2, 7)
    assert (found.rule, found.errors["rule"]) == (0.5, pytest.approx(0.5 / 2**0.5))


def test_the_settings_model_generates_under_every_rule(tiny_run: Path) -> None:
    results = read(tiny_run / "results.json", Results)
    found = results.generation
    assert found.model == "base"
    assert list(found.rules) == list(RULES)
    assert [len(row) for row in found.grid] == [2, 2]
    for cell in [found.true, *found.rules.values(), *(cell for row in found.grid for cell in row)]:
        assert cell.rule + cell.increment + cell.neither == pytest.approx(1)
    assert found.true.neither == 0
    temperature, top_p, cell = found.closest()
    assert cell == found.grid[[0.5, 2.0].index(temperature)][[0.5, 1.0].index(top_p)]
    assert cell.distance(found.true) == min(
        each.distance(found.true) for row in found.grid for each in row
    )


def test_the_next_token_shown_is_one_where_rule_and_increment_differ(tiny_run: Path) -> None:
    shown = read(tiny_run / "results.json", Results).generation.next_token
    assert shown.by_rule != shown.by_increment
    assert list(shown.model) == list(RULES)
    for probabilities in [shown.optimal, *shown.model.values()]:
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    # The optimum knows the generator after forty tokens.
    assert max(range(7), key=shown.optimal.__getitem__) == shown.by_rule


def test_the_published_next_token_shows_what_a_nucleus_removes(results: Results) -> None:
    shown = results.generation.next_token
    assert shown.model["temperature 1"][shown.by_rule] >= 0.9
    assert shown.model["top-p 0.9"][shown.by_rule] == pytest.approx(1)
    assert (
        shown.model["temperature 1"][shown.by_increment]
        > 0
        == shown.model["top-p 0.9"][shown.by_increment]
    )


def test_only_sinks_tell_a_token_from_a_run_of_it() -> None:
    runs = torch.arange(7)[:, None].expand(-1, 5)
    for sinks in (False, True):
        model = Decoder(DecoderConfig(7, 2, 16, 16, 2, 8, key_weights=True, sinks=sinks)).eval()
        with torch.no_grad():
            change = (model(runs) - model(runs)[:, :1]).abs().max()
        assert (change > 1e-3) == sinks


def test_the_lab_compares_the_models_with_the_optimum(tiny_run: Path) -> None:
    first = read(tiny_run / "results.json", Results).first_tokens
    assert list(first.change) == list(first.predictions) == ["optimal", "long-new", "long-sinks"]
    assert first.change["long-new"] < 1e-5 < first.change["long-sinks"]
    assert all(abs(sum(row) - 1) < 1e-6 for rows in first.predictions.values() for row in rows)
    panels = generation.draw_first_tokens(first).axes
    heights = [bar.get_height() for bar in panels[0].patches]
    assert heights == [share for row in first.predictions["optimal"] for share in row]


def test_bars_are_the_probabilities(results: Results) -> None:
    shown = results.generation.next_token
    panels = generation.draw_next_token(results.generation).axes
    assert [panel.get_title(loc="left") for panel in panels] == list(shown.model)
    assert [bar.get_height() for bar in panels[0].patches] == next(iter(shown.model.values()))
    assert {text.get_text() for text in panels[0].texts} == {"rule", "+1"}


def test_shares_of_steps_fill_each_bar(results: Results) -> None:
    left, right = generation.draw_rules(results.generation).axes
    rows = [results.generation.true, *results.generation.rules.values()]
    widths = np.array([bar.get_width() for bar in left.patches]).reshape(3, len(rows))
    assert widths.sum(axis=0) == pytest.approx(np.ones(len(rows)))
    assert widths[:, 1].tolist() == pytest.approx(
        [rows[1].rule, rows[1].increment, rows[1].neither]
    )
    assert len(right.patches) == 2 * len(rows)


def test_the_grid_is_compared_with_the_true_shares(results: Results) -> None:
    shown = results.generation
    panels = generation.draw_grid(shown).axes
    for panel, part in zip(panels, ("rule", "increment", "neither"), strict=False):
        shares = np.array([[getattr(cell, part) for cell in row] for row in shown.grid])
        np.testing.assert_allclose(panel.images[0].get_array(), shares - getattr(shown.true, part))
        assert f"(true: {100 * getattr(shown.true, part):.1f} %)" in panel.get_title(loc="left")
        (box,) = panel.patches
        assert shown.temperatures[round(box.get_y() + 0.5)] == shown.closest()[0]
