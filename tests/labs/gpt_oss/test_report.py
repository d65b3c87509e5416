"""The report: its length, its five elements, and claims that follow from the numbers."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from glassformer.labs.gpt_oss import LAB
from glassformer.labs.gpt_oss.experiments import Results
from glassformer.labs.gpt_oss.experiments.generation import Behaviour
from glassformer.labs.gpt_oss.experiments.models import MODELS, Trained

ELEMENTS = [
    "Cross-entropy",
    "Generation",
    "Nucleus sampling",
    "Temperature",
    "Accuracy at each position",
]


def sections(text: str) -> dict[str, list[str]]:
    """The paragraphs of prose under each heading; tables and images are none."""
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        heading: [block for block in body.strip().split("\n\n") if block and block[0] not in "!|"]
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }


def check_elements(text: str) -> None:
    parts = sections(text)
    assert list(parts)[-5:] == ELEMENTS
    assert [len(parts[heading]) for heading in ELEMENTS] == [1, 1, 2, 1, 1]
    assert 300 <= sum(len(block.split()) for heading in ELEMENTS for block in parts[heading]) <= 600
    for one_sentence in ELEMENTS[:2]:
        assert parts[one_sentence][0].count(". ") == 0
    assert "whole sequence" in parts["Generation"][0]


def test_the_five_elements_have_the_length_that_the_course_asks_for(
    report: Callable[..., str],
) -> None:
    check_elements(report())


def test_it_is_short(report: Callable[..., str]) -> None:
    text = report()
    assert (
        len(" ".join(block for blocks in sections(text).values() for block in blocks).split())
        <= 1_500
    )


def test_a_small_runs_report_has_them_too(tiny_run: Path) -> None:
    text = (tiny_run / "report.md").read_text(encoding="utf-8")
    check_elements(text)
    addresses = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(addresses) == len(LAB.figures)
    assert all((tiny_run / address).is_file() for address in addresses)


def test_every_row_says_optimizer_and_sequences(
    results: Results, report: Callable[..., str]
) -> None:
    rows = [line for line in report().splitlines() if line.startswith("| ")]
    for seeds in results.models.values():
        assert any(f"| {seeds[0].num_parameters:,} | {seeds[0].steps:,} |" in row for row in rows)
    table = rows[1 : 1 + len(results.models)]
    assert [row.split(" | ")[1] for row in table] == ["AdamW"] + ["Muon"] * (len(table) - 1)


def test_ranks_within_the_noise_are_not_given(results: Results, report: Callable[..., str]) -> None:
    base = results.models["base"]
    variants = ("grouped-heads", "sliding-window", "mixture-of-experts", "all-together")
    text = report(models={**results.models, **dict.fromkeys(variants, base[:1])})
    assert (
        "Not distinguishable: grouped heads, sliding window, mixture of experts and all three."
        in text
    )
    assert "Higher by more" not in text
    better = [replace(base[0], by_position=[1.0] * 64)]
    worse = [replace(base[0], by_position=[1.0] + [0.5] * 63)]
    text = report(models={**results.models, "grouped-heads": better, "long-sinks": worse})
    assert "Higher by more than the noise: grouped heads" in text
    assert "Of the difference of -0.3747, 0.0131 lies at position 0." in text
    assert "training loss went on falling" in text
    lifted = [
        replace(base[0], by_position=[found + by for found in base[0].by_position])
        for by in (0, 2e-5, 1e-3)
    ]
    text = report(models={**results.models, "base": lifted[:2], "grouped-heads": lifted[2:]})
    assert "3.2 times this, 0.0001, and above two standard errors." in text
    assert "Not distinguishable: grouped heads" in text
    (fixed,) = results.models["long-fixed"]
    rising = [replace(fixed, losses=[(step, step / 1000) for step, _ in fixed.losses])]
    assert "training loss went on" not in report(models={**results.models, "long-fixed": rising})


def test_claims_about_sampling_follow_what_was_measured(
    results: Results, report: Callable[..., str]
) -> None:
    generation = results.generation
    quiet = Behaviour(0.9, 0.08, 0.02, 0.4, 0.1, dict.fromkeys(generation.true.errors, 0.01))
    flat = replace(
        generation,
        rules=dict.fromkeys(generation.rules, quiet),
        grid=[[quiet] * len(row) for row in generation.grid],
    )
    text = report(generation=flat)
    assert "does not lower these errors measurably" in text
    assert "does not lower the errors measurably (2.0 % and 2.0 %)" in text
    assert "fewer than of the true ones" not in text
    keen = replace(quiet, rule=0.97, increment=0.01)
    few = report(generation=replace(generation, rules={**generation.rules, "top-p 0.9": keen}))
    assert "Of its steps 1.0 % are plus one, fewer than of the true ones." in few
    assert "A high temperature gives probability" not in text


def test_the_quick_report_says_so_and_leaves_comparisons_out(
    results: Results, report: Callable[..., str]
) -> None:
    quick: list[Trained] = results.models["course"][:1]
    generation = replace(results.generation, model="quick")
    text = report(quick=True, models={"quick": quick}, generation=generation)
    assert "This is the quick version" in text
    assert "What a longer training adds" not in text
    assert "The variants" not in text
    assert "with sinks" not in text
    check_elements(text)


def test_standard_errors_are_those_of_the_accuracies_in_the_table(
    results: Results, report: Callable[..., str]
) -> None:
    trainings = [training for seeds in results.models.values() for training in seeds]
    found = re.search(
        r"at most (\S+) on the further sequences and (\S+) on the test sequences", report()
    )
    assert found is not None
    for printed, num_sequences, accuracies in (
        (
            found[1],
            results.optimum.num_measured,
            [sum(training.by_position) / 64 for training in trainings],
        ),
        (
            found[2],
            results.optimum.num_test,
            [training.evaluations[-1][1] for training in trainings],
        ),
    ):
        error = max(
            (accuracy * (1 - accuracy) / (64 * num_sequences)) ** 0.5 for accuracy in accuracies
        )
        assert error <= float(printed) < error + 1e-5
    position = re.search(
        r"at one position has a standard error of at most (\S+) in this table", report()
    )
    assert position is not None
    assert float(position[1]) < 0.5 / results.optimum.num_measured**0.5, (
        "no accuracy of the table is near one half"
    )


def test_one_model_is_reported_on(results: Results, report: Callable[..., str]) -> None:
    """Continuations and the accuracy at each position are of the same model, which the report
    names.
    """
    text = report()
    sampled = results.models[results.generation.model][0]
    assert (
        f'The report below is about one model: "{MODELS[results.generation.model].title}"' in text
    )
    (paragraph,) = sections(text)["Accuracy at each position"]
    assert f"averages 0.918 and the model {sum(sampled.by_position[12:]) / 52:.3f}." in paragraph
    assert (
        f"Of the {results.optimum.mean - sum(sampled.by_position) / 64:.4f} that the model loses"
        in paragraph
    )
    figure = LAB.figures["accuracy-by-position"](results)
    labels = [label.get_text() for label in figure.axes[0].get_legend().get_texts()]
    assert labels[1].startswith(MODELS[results.generation.model].title)


def test_generators_are_defined_before_they_are_named(report: Callable[..., str]) -> None:
    text = report()
    assert text.index("are its *generator*") < text.index("generators")
    # 7 to the power of two start values and two coefficients
    assert "weighs all 2,401 generators" in text
