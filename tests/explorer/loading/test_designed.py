"""The bundled hand-designed heads are proved, and each matrix has a reason."""

import numpy as np
import pytest

from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.designed import first_text, fitting_task
from glassformer.explorer.loading.loaded_model import ModelEntry
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS
from glassformer.handcraft.verification import verify
from refusals import refused

HEADS = [entry for entry in bundled() if entry.card.kind == "head"]


@pytest.mark.parametrize("entry", HEADS, ids=lambda entry: entry.card.name)
def test_every_design_is_proved_and_told_of(entry: ModelEntry) -> None:
    loaded = entry.open()
    assert loaded.card == entry.card
    assert verify(loaded.weights, loaded.task).holds
    assert set(loaded.why) == set(loaded.weights.matrices)
    for text in (entry.card.text, *entry.card.samples):
        loaded.task.space.encode(text)


def test_a_head_that_nobody_gave_a_text_begins_with_its_letters() -> None:
    assert first_text(TASKS["identity"]("ABCDE", 3)) == "ABC"
    assert first_text(TASKS["identity"]("AB", 7)) == "AB"


def test_the_courses_three_tasks_are_first() -> None:
    assert [entry.card.name for entry in HEADS][:3] == ["identity", "copy_first", "unique"]


@pytest.mark.parametrize(
    "name", ["identity", "copy_first", "unique", "previous_token", "occurs_earlier", "last_token"]
)
def test_weights_find_the_task_that_they_solve(name: str) -> None:
    task = fitting_task(design(TASKS[name]()).weights)
    assert verify(design(TASKS[name]()).weights, task).holds
    assert task.space == TASKS[name]().space


def test_weights_that_solve_nothing_get_a_task_that_they_fit() -> None:
    task = fitting_task(HeadWeights(np.ones((3, 2)), np.ones((3, 2)), np.eye(3)))
    assert task.space.num_tokens == 3
    assert task.v_dim == 3


def test_weights_that_fit_no_task_are_refused() -> None:
    with refused("inputs of 9"):
        fitting_task(HeadWeights(np.ones((9, 2)), np.ones((9, 2)), np.ones((9, 5))))
