"""The sequences, what differs between the models that are trained on them, and the figures of the
trainings.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glassformer.data.recurrence import obeys_recurrence
from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments import Results, Settings, models
from glassformer.labs.gpt_oss.experiments.models import (
    COURSE_MODEL,
    MODELS,
    RECIPES,
    Trained,
    train_model,
)
from glassformer.labs.gpt_oss.experiments.sequences import (
    DATA,
    batches,
    measure,
    measured_of,
    split_of,
)
from glassformer.labs.run import Run, read
from glassformer.training import TrainingResult


@pytest.fixture
def current(tmp_path: Path, small: Settings) -> Run:
    return Run(tmp_path, small, 1, SimpleNamespace())


def run_of(seed: int = 0, **changes: int) -> Run:
    settings = {"num_train": 10, "num_test": 7, "num_measured": 16, **changes}
    return Run(Path("nowhere"), SimpleNamespace(**settings), seed, SimpleNamespace())


def test_the_data_are_the_courses() -> None:
    assert (DATA.vocab_size, DATA.order, DATA.next_prob, DATA.seq_len) == (7, 2, 0.1, 64)
    assert (LAB.settings.num_train, LAB.settings.num_test, LAB.settings.epochs) == (
        10_000,
        1_000,
        8,
    )


def test_measured_sequences_are_new_and_of_the_held_out_generators() -> None:
    test = split_of(run_of()).test
    measured = measured_of(run_of())
    assert measured.tokens.shape == (16, 65)
    expected = test.generators.numbers(DATA)
    assert torch.equal(
        measured.generators.numbers(DATA), torch.cat([expected, expected, expected[:2]])
    )
    kinds = obeys_recurrence(measured.tokens, measured.generators.coefficients, 7)
    assert bool((kinds.rule | kinds.increment).all())
    assert not torch.equal(measured.tokens[:7], test.tokens)
    assert torch.equal(measured.tokens, measured_of(run_of()).tokens)
    assert not torch.equal(measured.tokens, measured_of(run_of(seed=1)).tokens)


def test_batches_cut_tokens_and_next_tokens() -> None:
    tokens = torch.arange(600 * 5).view(600, 5)
    parts = batches(tokens)
    assert [len(x) for x, _ in parts] == [250, 250, 100]
    assert torch.equal(torch.cat([x for x, _ in parts]), tokens[:, :-1])
    assert torch.equal(torch.cat([y for _, y in parts]), tokens[:, 1:])


def test_a_reader_blind_to_runs_loses_at_the_first_positions_only() -> None:
    optimum = measure(run_of(num_test=300, num_measured=2_000))
    lost = [
        best - found for best, found in zip(optimum.by_position, optimum.without_runs, strict=True)
    ]
    assert lost[0] > 0.03
    assert max(abs(each) for each in lost[3:]) < 0.01


def test_gaps_of_all_parts_add_up_to_the_whole() -> None:
    optimum = measure(run_of())
    reached = [0.5] * 64
    parts = [optimum.gap(reached, 0, 3), optimum.gap(reached, 3, 12), optimum.gap(reached, 12)]
    assert sum(parts) == pytest.approx(optimum.gap(reached)) == pytest.approx(optimum.mean - 0.5)


def test_every_model_is_one_of_the_course_and_stays_in_its_budget() -> None:
    assert RECIPES["Muon"].steps == 8 * len(batches(torch.zeros(10_000, 65), 128)) == 632
    assert COURSE_MODEL["n_layers"] == 4
    assert {made.recipe for made in MODELS.values()} == {*RECIPES, models.COURSE_RECIPE}
    assert set(LAB.settings.models) | set(LAB.quick["models"]) == set(MODELS)
    assert MODELS["all-together"].changes == {
        name: value
        for each in ("grouped-heads", "sliding-window", "mixture-of-experts")
        for name, value in MODELS[each].changes.items()
    }


def seen(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sequences of the first three batches of a training."""
    found: list[torch.Tensor] = []

    def keep(directory, model, task, config, description):
        found.extend(task.batch(step, 64)["tokens"] for step in range(3))
        return TrainingResult(3, "finished", [], None, 0.0, None)

    with monkeypatch.context() as patch:
        patch.setattr(models, "train_in", keep)
        train_model(run, name)
    return [tuple(row) for each in found for row in each.tolist()]


def test_sequences_are_the_same_or_new(current: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {tuple(row) for row in split_of(current).train.tokens.tolist()}
    rows = {
        name: seen(current, name, monkeypatch) for name in ("long-fixed", "long-new", "long-all")
    }
    assert set(rows["long-fixed"]) == own
    assert not set(rows["long-new"]) & own
    assert rows["long-new"] != rows["long-all"]
    # A batch depends on its step alone, so that an interrupted training goes on with the same ones.
    assert rows == {name: seen(current, name, monkeypatch) for name in rows}


def test_held_out_generators_are_left_out_or_not(
    current: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    drawn = models.fresh_batch

    def keep(*arguments, excluded, **options):
        given.append(None if excluded is None else excluded.numbers(DATA).tolist())
        return drawn(*arguments, excluded=excluded, **options)

    monkeypatch.setattr(models, "fresh_batch", keep)
    for name in ("long-new", "long-all", "long-sinks"):
        seen(current, name, monkeypatch)
    held_out = split_of(current).test.generators.numbers(DATA).tolist()
    assert given == [held_out] * 3 + [None] * 6


def test_initial_weights_follow_the_seed_alone(
    current: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        models, "train_in", lambda *_: TrainingResult(0, "finished", [], None, 0.0, None)
    )
    before = torch.random.get_rng_state()
    one, same, other = (train_model(current, "base", number)[0] for number in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_the_lab_measures_every_model_and_seed(tiny_run: Path, small: Settings) -> None:
    results: Results = read(tiny_run / "results.json", Results)
    assert {name: len(seeds) for name, seeds in results.models.items()} == {
        "course": 2, "base": 2, "all-together": 1, "long-new": 1, "long-sinks": 1,
    }  # fmt: skip
    run = Run(tiny_run, small, 5, SimpleNamespace())
    tokens = measured_of(run).tokens
    model, training = train_model(run, "base", 1)
    with torch.no_grad():
        hits = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
    found = results.models["base"][1]
    assert found.by_position == pytest.approx(hits.double().mean(0).tolist())
    assert found.steps == training.step == 3
    course = results.models["course"][0]
    assert [step for step, _ in course.evaluations] == [0, 1, 2]
    assert (
        json.loads((tiny_run / "trainings" / "base" / "config.json").read_text())["description"][
            "seed"
        ]
        == 5
    )


def test_seeds_of_one_model_differ(tiny_run: Path) -> None:
    one, other = (
        read(tiny_run / "steps" / f"model-course-{number}.json", Trained) for number in (0, 1)
    )
    assert one.losses != other.losses


def test_accuracy_is_drawn_beside_the_optimum_and_losses_below(results: Results) -> None:
    above, below = LAB.figures["accuracy-by-position"](results).axes
    optimum = results.optimum
    first = results.models["course"][0]
    reported = results.models[results.generation.model][0]
    lines = [line.get_ydata().tolist() for line in above.get_lines()]
    assert lines[:2] == [optimum.by_position, reported.by_position]
    best = max(results.models.values(), key=lambda seeds: seeds[0].accuracy)[0]
    assert best.by_position in lines[1:]
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels[0] == f"optimal ({optimum.mean:.4f})"
    assert labels[1] == f"{MODELS[results.generation.model].title} ({reported.accuracy:.4f})"
    lost = np.asarray(below.images[0].get_array())
    assert lost.shape == (len(results.models), len(models.RANGES))
    assert lost[0, 0] == pytest.approx(100 * (optimum.by_position[0] - first.by_position[0]))
    ranges = np.array([3, 6, 20, 32])  # positions 3 to 5, 6 to 11, 12 to 31, 32 to 63
    whole = (lost[0, :3].sum() + lost[0, 3:] @ ranges) / 64
    assert whole == pytest.approx(100 * optimum.gap(first.by_position))


def test_training_curves_are_those_that_were_logged(results: Results) -> None:
    panels = LAB.figures["training"](results).axes
    drawn = [
        line.get_ydata().tolist()
        for axes in panels
        for line in axes.get_lines()
        if line.get_label() != "optimum"
    ]
    names = ("course", "base", "long-fixed", "long-new", "long-all", "long-sinks")
    logged = [
        [value for step, value in each.evaluations if step]
        for name in names
        for each in results.models[name]
    ]
    assert sorted(drawn) == sorted(logged)
    assert all(set(axes.get_lines()[-1].get_ydata()) == {results.optimum.test} for axes in panels)
    assert all(
        axes.get_ylim() == panels[0].get_ylim() and axes.get_xscale() == "linear" for axes in panels
    )
    lowest, highest = panels[0].get_ylim()
    assert lowest < min(row[-1] for row in logged)
    assert max(map(max, logged)) < highest
    (alone,) = models.draw_training(results.optimum, {"base": results.models["base"]}).axes
    assert alone.get_ylim()[0] < min(
        value for line in alone.get_lines() for value in line.get_ydata()
    )


def test_noise_exceeds_the_bound_of_single_trainings_in_a_twentieth_of_cases() -> None:
    drawn = np.random.default_rng(0).standard_normal((5, 1_000_000))
    spread = np.ptp(drawn[:3], axis=0)
    single = abs(drawn[3] - drawn[4])
    mean = abs(drawn[3] - drawn[:3].mean(axis=0))
    assert np.mean(single > models.SPREADS * spread) == pytest.approx(0.05, abs=0.001)
    assert np.mean(mean > models.SPREADS * spread) < 0.05
