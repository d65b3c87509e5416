"""The study: groups of trainings, the stories of failing heads, and what the report says of them."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from glassformer.handcraft.designs import design
from glassformer.handcraft.tasks import unique
from glassformer.labs.hand_designed.experiments import Results, study
from glassformer.labs.hand_designed.experiments.study import Group, Moment, Story, course_recipe
from glassformer.labs.hand_designed.experiments.study import UniqueCircuit as Circuit
from glassformer.labs.hand_designed.head_training import Minimum, Outcome, stacked


def outcome(misread: list[int], error: float = 0.1) -> Outcome:
    return Outcome(1 - sum(misread) / 426, error, misread)


@pytest.fixture
def stories() -> list[Story]:
    """What might have become of four heads: one solved, one late, two stuck."""

    def moment(steps: int, misread: list[int], own: float, first: float) -> Moment:
        return Moment(steps, outcome(misread), Circuit([0.1, 0.1, 0.1, own], [3.0, first, -1.0, -1.0, -1.0]))

    late = [moment(100, [0, 0, 1, 3], 0.4, -1.2), moment(300, [0] * 4, 0.1, -1.1)]
    stuck = [moment(100, [3, 3, 3, 3], 0.5, 1.5), moment(1000, [0, 3, 3, 3], 0.5, 1.5)]
    return [
        Story(0, "solved", [moment(100, [0] * 4, 0.45, -1.0)]),
        Story(1, "late", late),
        Story(2, "stuck", stuck, Minimum(0.25, -1e-9, 2.0), False, True),
        Story(3, "stuck", stuck, Minimum(0.35, -0.5, 2.0)),
    ]


def test_a_group_counts_its_outcomes() -> None:
    group = Group("unique", "course", 10, [outcome([0] * 4, 0.005), outcome([0, 0, 0, 2], 1.5), outcome([0] * 4, 0.3)])
    assert group.solved == 2
    assert study.misreading(group.outcomes) == [0, 0, 0, 1]


def test_a_group_is_measured_for_every_seed() -> None:
    recipe = course_recipe("copy_first").scaled(0.001)
    group = study.measure_group(recipe, range(3))
    assert (group.task, group.recipe, group.steps, len(group.outcomes)) == ("copy_first", "course", 10, 3)
    assert study.measure_group(recipe, range(3)) == group
    assert [each.name for each in study.recipes("unique")] == ["course", "course, uniform", "fast"]
    assert [each.name for each in study.recipes("identity")] == ["course", "fast"]


@pytest.mark.slow
def test_failing_heads_are_followed_to_their_ends() -> None:
    # So short a recipe solves nothing.
    first, second = study.follow([4, 7], course_recipe("unique").scaled(0.002), factors=(2, 3))
    assert (first.seed, second.seed, first.kind) == (4, 7, "stuck")
    assert [moment.steps for moment in first.moments] == [20, 40, 60]
    assert first.minimum.lowest_curvature <= first.minimum.highest_curvature
    assert isinstance(first.escaped, bool)
    assert isinstance(first.descended, bool)
    assert study.follow([], course_recipe("unique")) == []


def test_a_head_that_solves_the_task_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stacked([design(unique()).weights] * 2)
    monkeypatch.setattr(study.Recipe, "new", lambda recipe, seeds: {name: each[seeds] for name, each in made.items()})
    monkeypatch.setattr(study.Recipe, "train", lambda recipe, heads, seeds: None)
    stories = study.follow([0, 1], course_recipe("unique"))
    assert [(story.kind, len(story.moments), story.minimum) for story in stories] == [("solved", 1, None)] * 2
    with torch.no_grad():
        made["Vm"][1] *= -1
    assert [story.kind for story in study.follow([0, 1], course_recipe("unique"), ())] == ["solved", "stuck"]


def test_failures_are_reported_by_kind(report: Callable[..., str], stories: list[Story]) -> None:
    text = report(stories=stories)
    assert "Of 4 heads trained by the course's recipe, 3 misread some output" in text
    assert "3 misread some output (95 % interval: 30 % to 95 %)" in text
    assert "1 of them solve the task (*late*), 2 do not (*stuck*)" in text
    assert "1 of the 1 misread an output at the fourth letter, and 0, 0 and 1 at the first" in text
    assert "A quarter of the course's sequences have four letters, of the control's 68 %" in text
    assert "+1.50 to +1.50 in the 2 stuck heads, and -1.20 to -1.00 in the other 2" in text
    assert "does the work of CLS. But a repeated" in text
    assert "0 of the 2 heads solve the task. The others end at losses of 0.25 to 0.35" in text
    assert "for 1 of these 2 no second derivative" in text
    assert "solves the task for 1 of 2" in text


def test_claims_turn_with_the_stories(report: Callable[..., str], stories: list[Story]) -> None:
    def told(*stories: Story) -> str:
        return report(stories=list(stories)).split("### Why training on unique")[1]

    assert "All 1 heads" in told(stories[0])
    assert "misread some output (95 % interval: 34 % to 100 %)" in told(*stories[2:])
    moment = stories[2].moments[0]
    negative = dataclasses.replace(moment, circuit=Circuit([0.1] * 4, [3.0, -1.1, -1.0, -1.0, -1.0]))
    replaced = dataclasses.replace(moment, circuit=Circuit([0.1] * 4, [-1.0, 1.5, -1.0, -1.0, -1.0]))
    swapped = told(*stories[:3], dataclasses.replace(stories[2], moments=[replaced]))
    assert "beside it in 1, and instead of it in 1, where the value of CLS is negative" in swapped
    assert "the work of CLS" not in told(stories[0], dataclasses.replace(stories[2], moments=[negative]))


def test_the_control_is_judged_by_its_noise(results: Results, report: Callable[..., str]) -> None:
    assert "learned late" in report()
    groups = [
        dataclasses.replace(each, outcomes=results.study[4].outcomes) if each.recipe == "course, uniform" else each
        for each in results.study
    ]
    assert "within the noise of 100 seeds" in report(study=groups)


def test_the_quick_version_says_so(report: Callable[..., str]) -> None:
    text = report(quick=True, study=[], stories=[])
    assert "This is the quick version" in text
    assert "leaves this out" in text
    assert "quick version" not in report()


def test_every_training_is_drawn(results: Results) -> None:
    figure = study.draw_study(results.study)
    points = sum(len(line.get_xdata()) for ax in figure.axes for line in ax.lines if line.get_linestyle() == "None")
    assert points == sum(len(group.outcomes) for group in results.study)
    left, right = study.draw_failures(results.stories).axes
    assert len(left.lines) == sum(story.kind != "solved" for story in results.stories)
    drawn = [line for line in right.lines if len(line.get_xdata()) == 1]
    assert len(drawn) == len(results.stories)
