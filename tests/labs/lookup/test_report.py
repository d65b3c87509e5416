"""The report and the figures follow from the results: what went badly is not reported as if it had gone well."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from glassformer.data.lookup import FACTS
from glassformer.labs.lookup import LAB
from glassformer.labs.lookup.experiments import Results, Settings
from glassformer.labs.lookup.experiments.course_runs import CourseRun, shares
from glassformer.labs.lookup.experiments.edges import FORBIDDEN, CourseEdges, SlotEdges
from glassformer.labs.lookup.experiments.fresh_facts import Answers, Lookup, Order
from glassformer.labs.lookup.experiments.recipes import BAG, CHANGES, COMBINED, PLAIN, POSITIONS, SLOTS, shortened
from glassformer.labs.run import read, render, run
from glassformer.observe.scrambling import ScrambledContext, Scrambling
from glassformer.training.in_context_lookup import InContextRecipe

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def course(seed: int, positions: str = "none", right: float = 1.0, value: float = 0.95) -> CourseRun:
    """A model of the seed's task: head 1 looks at the value, head 2 at the key."""
    change = 2e-6 if positions == "none" else 0.3
    context = ScrambledContext(5, 120, True, change, 0, 238, (0, 1, 2, 3, 4))
    looks = [[0.0, 0.0, 0.98 - value, 0.02, value]] * 2, [[0.0, 0.0, 0.97, 0.02, 0.01]] * 2
    return CourseRun(
        seed=seed,
        source_positions=positions,
        num_parameters=86_414,
        evaluations=[(epoch, 0.2 / epoch, 1.0 if right == 1 else right) for epoch in range(1, 51)],
        first_epoch=[(5, 0.0), (10, 1.0)],
        best_epoch=50,
        test_seen=1.0,
        test_accuracy=right,
        contexts_accuracy=right,
        scrambling=Scrambling((context,) * 3, 1e-5),
        before=dict.fromkeys(FACTS, [[[0.2] * 5] * 2] * 2),
        after={key: list(looks) for key in FACTS},
        side_by_side=["original   NAME RED  ->  BLUE [EOS]", "scrambled  RED NAME  ->  BLUE [EOS]"],
    )


def fresh(recipe: InContextRecipe, seed: int = 0, accuracy: float | None = None, at_end: float = 0.6) -> Answers:
    """A model that reaches what its encoding allows, or ``accuracy``; with 1,024 facts ``at_end``."""
    slots, lengths = recipe.encoding == "slots", []
    for count in LENGTHS:
        if count > recipe.data.most_facts:
            break
        reached = 1.0 if slots else 1 / count
        reached = at_end if count == 1024 else reached if accuracy is None else accuracy
        found, read = (0.8 if count == 1024 else 1.0, 1.0) if slots else (None, None)
        scores = (16.0, 6.0, 17.0 / count) if slots and count > 2 else (None, None, None)
        lengths.append(Lookup(count, 4000 if count < 128 else 256, reached, found, read, [0.9, 0.8], *scores))
    order = Order(1000, 300 if recipe.encoding == "positions" else 0, 1e-6)
    return Answers(recipe, seed, 100_000, lengths, [0.12, 0.13], order)


def course_edges(seed: int, both: float = 1 / 3, one: float = 1.0) -> CourseEdges:
    """Either token of a fact is enough; without both, the encoder's mixing decides."""
    shares = {**dict.fromkeys(FORBIDDEN, 1.0), "key": one, "value": one}
    return CourseEdges(seed, {**shares, "key and value": both}, {**shares, "key and value": 1 / 3}, [1.0, one])


def slot_edges(seed: int, right: float = 0.001, one_head: float = 0.99) -> SlotEdges:
    """The right slot is needed, in all heads."""
    return SlotEdges(seed, 8, 4000, 1.0, right, [0.999] * 7, 0.995, [one_head] * 4, 0.9)


@pytest.fixture
def good() -> Results:
    """What a good run might have measured."""
    return Results(
        quick=False,
        seed=0,
        course=[course(seed) for seed in range(3)],
        control=course(0, "sinusoidal"),
        encodings={recipe.encoding: [fresh(recipe, seed) for seed in range(3)] for recipe in (SLOTS, BAG, POSITIONS)},
        course_edges=[course_edges(seed, both=2 / 3) for seed in range(3)],
        slot_edges=[slot_edges(seed, right=0.001 * seed) for seed in range(3)],
        plain=[fresh(PLAIN, seed, at_end=0.6 + 0.02 * seed) for seed in range(3)],
        changes=[fresh(recipe, at_end=0.62 + 0.04 * place) for place, recipe in enumerate(CHANGES)],
        combined=[fresh(recipe, at_end=0.99) for recipe in COMBINED],
    )


def worse(results: Results, encoding: str, accuracy: float) -> Results:
    models = [fresh(model.recipe, model.seed, accuracy) for model in results.encodings[encoding]]
    return replace(results, encodings={**results.encodings, encoding: models})


def test_a_good_run(good: Results) -> None:
    text = render(LAB, good)
    for claim in (
        "answers all 3 contexts right",
        "no model can answer more than 12.5 % of the questions right",
        "Slots bind: 100.0 %",
        "binds what is in one position",
        "trained for 50 epochs, as the course says,",
        "the last epoch, 50, in every model",
        "the median of 3 seeds",
        "No token that is written changes",
        "fails the test: no token changes, but a logit changes by up to 0.3",
        "in every seed and for every fact some head has a spike on the value token, of at least 0.950",
        "| seed 0 | head 1: 0.950 |",
        "nowhere above it by more than",
        "they have learned to look up",
        "not more than a bag allows",
        "So finding fails, not reading: in 20.0 % of the questions",
        "the gap goes from 16.0 to 16.0",
        "two standard errors",
    ):
        assert claim in text, claim
    assert set(re.findall(r"\*\*.*?\*\*", text)) == {
        "**Fixed facts**",
        "**Fresh facts**",
        "**Fixed facts.**",
        "**Slots.**",
    }
    assert "quick" not in text


def test_a_bad_run(good: Results) -> None:
    poor = [course(seed, right=0.35, value=0.3) for seed in range(3)]
    text = render(LAB, replace(worse(good, "slots", 0.1), course=poor))
    for claim in (
        "answers 35.0 % of the contexts right at worst",
        "Slots do not do better here: 10.0 %",
        "not learned to look up",
        "exists in 0 of 9 cases",
        "1 of 4 models ever answer",
    ):
        assert claim in text, claim
    assert "binds what is in one position" not in text


def test_claims_turn_with_their_numbers(good: Results) -> None:
    assert "**more than is possible**" in render(LAB, worse(good, "bag", 0.9))
    assert "**which cannot be**" in render(LAB, worse(good, "bag", 0.9))
    assert "Tokens with positions bind within 4,000 steps" in render(LAB, worse(good, "positions", 0.9))
    moved = [replace(model, order=Order(1000, 2, 0.1)) for model in good.encodings["slots"]]
    text = render(LAB, replace(good, encodings={**good.encodings, "slots": moved}))
    assert "Another order of the slots changes 6 answers" in text
    assert "passes as well, so the test shows nothing" in render(LAB, replace(good, control=good.course[0]))
    broken = replace(good.course[0], scrambling=good.control.scrambling)
    assert "**The test fails**" in render(LAB, replace(good, course=[broken]))


def test_claims_about_edges_turn_with_their_numbers(good: Results) -> None:
    text = render(LAB, good)
    for claim in (
        "If the query may not see the right slot, 0.00 % to 0.20 % are (95 % intervals reach up to 0.40 %)",
        "99.50 % of the answers are right whichever single other slot is forbidden",
        "the answer goes with its own edge and stays with any other",
        "the edge is not missed: 99.00 % stay right",
        "| key and value | 66.7 % | 66.7 % | 66.7 % | 33.3 % | 33.3 % | 33.3 % |",
        "None needs the edge to the key, and none the edge to the value.",
        "just one fact of three is right in every seed",
        "Each of the cross-attention's 2 heads can be removed",
    ):
        assert claim in text, claim
    kept = [slot_edges(seed, right=0.9, one_head=0.5) for seed in range(3)]
    weak = [course_edges(seed, one=2 / 3) for seed in range(3)]
    text = render(LAB, replace(good, slot_edges=kept, course_edges=weak))
    for claim in (
        "the answers do not rest on this edge alone",
        "Forbidden in one head only, 50.00 % stay right",
        "without the value alone 66.7 %: for most facts either token will do",
        "Without the mixing, too, 33.3 % are right",
        "Without one head of the cross-attention, 66.7 % to 100.0 % of the contexts stay right",
    ):
        assert claim in text, claim
    assert "stays with any other" not in text


def test_a_change_within_the_noise_is_not_ranked(good: Results) -> None:
    text = render(LAB, good)
    farther = text[text.index("more is reached with") : text.index("cannot be told from")]
    assert "*256 values* (86.0 %)" in farther
    alike = farther[farther.index(". ") :]
    assert "*shared tables* (62.0 %)" in alike
    assert "*256 values*" not in alike


def test_the_scores_of_log_scaling_are_given_without_its_factor(good: Results) -> None:
    (row,) = (row for row in render(LAB, good).splitlines() if row.startswith("| log-length scaling |"))
    gap, noise, ratio = (float(cell) for cell in row.split("|")[8:11])
    assert gap == pytest.approx(16 * np.log(9) / np.log(1025), abs=0.06)
    assert noise == pytest.approx(6 * np.log(9) / np.log(1025), abs=0.06)
    assert ratio == pytest.approx(16 / 6, abs=0.06)


def lines(ax: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in ax.lines}


def test_figures_hold_what_the_results_say(good: Results) -> None:
    figures = {name: draw(good) for name, draw in LAB.figures.items()}
    left, right = figures["accuracy"].axes
    np.testing.assert_allclose(lines(left)["bag of tokens, 64 keys"][:4], [[1, 1], [2, 0.5], [4, 0.25], [8, 0.125]])
    assert lines(right)["slots, 1,024 keys: plain"][-1].tolist() == [1024, 0.62]
    loss, early = figures["training"].axes
    assert len(loss.lines) == len(early.lines) == 4
    changes = lines(figures["scrambling"].axes[0])
    assert changes["no positions in it"][:, 1].tolist() == [2e-6] * 3
    bars = figures["sharpness"].axes[0].patches
    tops = sorted(bar.get_y() + bar.get_height() for bar in bars)
    run = good.course[0]
    expected = np.concatenate([[each[:, 0], each.sum(1)] for each in map(shares, (run.before, run.after))]).ravel()
    np.testing.assert_allclose(tops, sorted(expected))
    shares_, scores = figures["finding"].axes
    assert lines(shares_)["right slot has the largest weight"][-1].tolist() == [1024, 0.8]
    assert lines(scores)["gap: right slot above the mean of the others"][:, 1].tolist() == [16.0] * 9
    fixed, slots = figures["edges"].axes
    assert lines(fixed)["seed 0"][:, 1].tolist() == list(good.course_edges[0].mixed.values())
    assert lines(fixed)["seed 2, encoder does not mix"][:, 1].tolist() == list(good.course_edges[2].unmixed.values())
    drawn = [line.get_ydata().tolist() for line in slots.lines]
    assert [1.0, 0.002, 0.999, 0.99, 0.99, 0.99, 0.99] in drawn
    names = [label.get_text() for label in figures["changes"].axes[0].get_yticklabels()]
    assert set(names[:2]) == {"shared tables", "plain (3 seeds)"}


@pytest.mark.slow
def test_a_tiny_run_is_resumed_and_a_seed_decides_it(tmp_path: Path) -> None:
    recipes = tuple(replace(shortened(recipe), steps=3) for recipe in (SLOTS, BAG, POSITIONS))
    options = {"epochs": 1, "encodings": recipes, "num_questions": 20}
    report = run(LAB, tmp_path / "one", quick=True, seed=5, **options)
    assert "This is the quick version" in report.read_text()
    assert "changes.png" not in report.read_text()
    names = {path.name for path in (tmp_path / "one" / "trainings").iterdir()}
    assert names == {"course-5", "course-sinusoidal-5", "slots-5", "bag-5", "positions-5"}
    shown = {path.stem for path in (tmp_path / "one" / "figures").glob("*.png")}
    assert shown == set(LAB.figures) - {"changes"}
    run(LAB, tmp_path / "two", quick=True, seed=5, **options)
    first, second = (read(tmp_path / name / "results.json", Results) for name in ("one", "two"))
    assert first == second
    with pytest.raises(Exception, match="another num_questions"):
        run(LAB, tmp_path / "one", quick=True, seed=5, resume=True, **{**options, "num_questions": 21})
    assert Settings().seeds == 3
