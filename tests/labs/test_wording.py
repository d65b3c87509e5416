"""Bounds are rounded outwards, and differences within the noise are none."""

from __future__ import annotations

import pytest

from glassformer.labs import wording


@pytest.mark.parametrize(
    ("bound", "text"), [(3.079e-10, "3.1e-10"), (3e-10, "3.0e-10"), (0.0, "0"), (9.96e-3, "1.0e-02")]
)
def test_an_upper_bound_of_any_size_is_rounded_up(bound: float, text: str) -> None:
    assert wording.below(bound) == text


def test_bounds_are_rounded_outwards() -> None:
    assert (wording.at_most(0.1622), wording.at_least(3.158), wording.at_most(0.16)) == ("0.17", "3.15", "0.16")


def test_shares_within_two_standard_errors_are_alike() -> None:
    assert wording.alike(0.57, 0.62, 100)
    assert not wording.alike(0.57, 0.82, 100)
    assert wording.alike(0.57, 0.82, 100, least=0.3)
