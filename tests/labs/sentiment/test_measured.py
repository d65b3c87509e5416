"""The table of results: rows as JSON and back, medians of seeds, Markdown."""

from __future__ import annotations

import dataclasses

from pydantic import TypeAdapter

from glassformer.labs.kept import to_json
from glassformer.labs.sentiment.measured import Measured, median_row, table
from refusals import refused

ROW = Measured(
    name="encoder",
    seed=0,
    choice="",
    num_parameters=12345,
    training_seconds=61.26,
    prediction_seconds=0.5,
    num_tested=1821,
    validation_accuracy=0.79,
    test_accuracy=0.8123,
    test_macro_f1=0.81,
    test_loss=0.45,
    test_calibration_error=0.031,
)


def rows(*accuracies: float) -> list[Measured]:
    return [dataclasses.replace(ROW, seed=seed, test_accuracy=value) for seed, value in enumerate(accuracies)]


def test_json_gives_the_row_back() -> None:
    for row in (ROW, dataclasses.replace(ROW, seed=None, choice="C = 3")):
        assert TypeAdapter(Measured).validate_json(to_json(row, Measured)) == row


def test_the_median_is_the_row_in_the_middle() -> None:
    assert median_row(rows(0.83, 0.80, 0.81)).seed == 2
    assert median_row(rows(0.83, 0.80)).seed == 1
    assert median_row(rows(0.7)).seed == 0


def test_medians_of_nothing_or_of_different_recipes_are_refused() -> None:
    with refused(r"rows of \[\]"):
        median_row([])
    with refused(r"rows of .*encoder.*other"):
        median_row([ROW, dataclasses.replace(ROW, name="other")])


def test_the_table_has_every_row_and_the_median_behind_its_seeds() -> None:
    counted = dataclasses.replace(ROW, name="TF-IDF", seed=None, choice="C = 3", test_accuracy=0.7183)
    lines = table([counted, *rows(0.83, 0.80, 0.81)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells} == {10}
    assert [(row[0], row[1], row[6]) for row in cells[2:]] == [
        ("TF-IDF, C = 3", "-", "71.8 %"),
        ("encoder", "0", "83.0 %"),
        ("encoder", "1", "80.0 %"),
        ("encoder", "2", "81.0 %"),
        ("encoder", "median", "81.0 %"),
    ]
    assert cells[2][2:6] == ["12,345", "61.3 s", "0.50 s", "79.0 %"]
