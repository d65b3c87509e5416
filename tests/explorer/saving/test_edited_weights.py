from __future__ import annotations

import pytest

from glassformer.explorer.messages import HeadWeightsMessage
from glassformer.explorer.saving.edited_weights import edited, number

DESIGN = HeadWeightsMessage(
    Km=[[1.0, 2.0], [3.0, 4.0], [0.0, 0.5]],
    Qm=[[0.0, 2.0], [1.0, 4.0], [0.0, 0.5]],
    Vm=[[1.0], [2.0], [0.0]],
    pos=[[0.0], [1.0]],
)


def test_edits_are_laid_over_the_design() -> None:
    changed = edited(DESIGN, {"Km.0.1": "9", "pos.1.0": "-1.5", "Vm.9.9": "1", "nothing": "1", "Qm.0.0": "?"})
    assert changed.Km == [[1.0, 9.0], [3.0, 4.0], [0.0, 0.5]]
    assert changed.pos == [[0.0], [-1.5]]
    assert (changed.Qm, changed.Vm) == (DESIGN.Qm, DESIGN.Vm)


def test_other_sizes() -> None:
    changed = edited(DESIGN, {"size.qk": "3", "size.pos": "2", "size.len": "1", "Km.3.2": "4"})
    assert changed.Km == [[1, 2, 0], [3, 4, 0], [0, 0.5, 0], [0, 0, 4]]
    assert changed.pos == [[0.0, 0.0]]
    assert edited(DESIGN, {"size.pos": "0"}).pos is None


def test_sizes_that_would_make_a_matrix_too_large_are_ignored() -> None:
    assert edited(DESIGN, {"size.qk": "999", "size.pos": "99"}) == DESIGN
    assert edited(DESIGN, {"size.pos": "99", "size.len": "99"}) == DESIGN
    assert len(edited(DESIGN, {"size.qk": "999"}).Km[0]) == 999


@pytest.mark.parametrize(
    "address", ["Km..1", "Km.0.", "Km.00.1", "Km. 0.1", "Km.0.1.0", "Km.0x0.1", "Xm.0.1", "Km.0.1\n"]
)
def test_odd_addresses_are_ignored(address: str) -> None:
    assert edited(DESIGN, {address: "9"}) == DESIGN


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\u22122e\u22121", -0.2),
        (" .5\t", 0.5),
        ("5.", 5),
        ("+1E2", 100),
        ("1_0", None),
        ("inf", None),
        ("1e301", None),
        ("0x1F", None),
        ("\u0665", None),
        ("1\n", None),
        ("1" * 40, float("1" * 40)),
        ("1" * 41, None),
    ],
)
def test_numbers_as_they_are_typed(text: str, value: float | None) -> None:
    assert number(text) == value
