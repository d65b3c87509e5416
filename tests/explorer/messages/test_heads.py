"""Weights from strangers are numbers, and not too many."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from glassformer.explorer.messages.base import MOST_CELLS
from glassformer.explorer.messages.heads import HeadWeightsMessage

ONE = [[1.0]]


@pytest.mark.parametrize(
    "cells", [[[float("inf")]], [[float("nan")]], [["1; drop"]], [[None]], [[1.0] * (MOST_CELLS + 1)], "1", [1.0]]
)
def test_what_is_no_matrix_is_refused(cells: object) -> None:
    with pytest.raises(ValidationError):
        HeadWeightsMessage.model_validate({"Km": cells, "Qm": ONE, "Vm": ONE})


def test_numbers_come_back_as_they_were() -> None:
    weights = HeadWeightsMessage(Km=[[0.1, 5e-324]], Qm=ONE, Vm=ONE)
    assert HeadWeightsMessage.model_validate_json(weights.model_dump_json()) == weights
    assert weights.pos is None
