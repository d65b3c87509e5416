"""The study in words: counts and numbers are those of the study, and what is told depends on what happened."""

from __future__ import annotations

import dataclasses

from glassformer.labs.hand_designed.results import Results
from glassformer.labs.hand_designed.study import Story, Summary
from glassformer.labs.hand_designed.study_report import failure_text, study_table, study_text
from glassformer.labs.hand_designed.training_runs import Circuit


def test_the_table_has_a_row_for_each_task_and_recipe() -> None:
    summary = Summary("unique", "course", 20, 13, 2, 0.88, 0.4, 1.7, 0.01, 7.66, 10_001)
    last = study_table([summary, dataclasses.replace(summary, recipe="fast")]).splitlines()[-2:]
    assert last[0] == "| unique | course | 10,001 | 13 of 20 | 88.0% | 4.0e-01 | 1.7e+00 | 2 of 20 | 7.7 |"
    assert last[1].startswith("| unique | fast |")


def test_the_text_counts_what_each_recipe_solves(results: Results) -> None:
    summaries = [dataclasses.replace(each, solved=number, seeds=9) for number, each in enumerate(results.summaries)]
    text = study_text(dataclasses.replace(results, summaries=summaries))
    assert "The course recipe solves 0 of 9 on identity, 2 of 9 on copy_first, 4 of 9 on unique." in text
    assert "The fast recipe solves 1 of 9 on identity" in text
    assert "cut to a part" not in text
    assert "cut to a part" in study_text(dataclasses.replace(results, plan="quick"))


def test_failures_are_told_by_kind(stories: list[Story]) -> None:
    first, slow, trapped = failure_text(stories)
    assert "Of 4 heads" in first
    assert "3 misread" in first
    assert "10 times" in first
    assert "1 then solves the task, and 2 do not" in first
    assert "62% have 4 letters" in first
    assert "98%" in slow
    assert "on another occurrence, is 0.40" in slow
    assert "1 of 1 of these heads the worst position is that of letter 2" in slow
    assert "75% of the sequences" in slow
    assert "0.15 in the heads that had solved it" in slow
    assert "to 0.10" in slow
    assert "only 50%" in trapped
    assert "loss of 0.3" in trapped
    assert "for 1 of 2 nothing curves down" in trapped
    assert "second CLS" in trapped
    assert "for 1 of 2: the hollow can hold it too" in trapped


def test_what_did_not_happen_is_not_told(stories: list[Story]) -> None:
    assert "full version" in failure_text([])[0]
    assert failure_text(stories[:1]) == ["None of the 1 heads that were followed failed."]
    late = failure_text(stories[1:2])
    assert len(late) == 2
    assert "had solved it by then" not in late[1]
    stuck = failure_text([dataclasses.replace(stories[2], minimum=None)])
    assert len(stuck) == 2
    assert "curves" not in stuck[1]
    assert "the others" not in stuck[1]
    assert "for 1 of 1: its first steps" in stuck[1]
    as_they_should = dataclasses.replace(stories[2].moments[0], circuit=Circuit(0.95, (0.1,)))
    assert "second CLS" not in failure_text([dataclasses.replace(stories[2], moments=(as_they_should,))])[1]
