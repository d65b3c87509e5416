"""Verdicts on programs whose outputs are near another reading, against exact arithmetic and PyTorch
in batches.
"""

import numpy as np
import pytest

from compiled_programs import compiled
from exact_programs import contradictions, exact_outputs, near_border
from glassformer.errors import InputError
from glassformer.programs import verify_program
from glassformer.programs.certificate import network_of
from glassformer.programs.rounding import outputs_within


def judged(seed: int) -> str:
    """The verdict on a model, which nothing contradicts."""
    made = near_border(seed)
    if made is None:
        return "none"
    model, tolerance = made
    try:
        certificate = verify_program(model, tolerance=tolerance)
    except InputError:
        return "refused"
    assert contradictions(model, certificate, tolerance) == []
    return certificate.verdict


@pytest.mark.parametrize("block", range(3))
def test_nothing_contradicts_a_verdict_near_a_border(block: int) -> None:
    verdicts = [judged(seed) for seed in range(10_000 + 30 * block, 10_000 + 30 * (block + 1))]
    assert {"holds", "fails", "undecided"} <= set(verdicts)


@pytest.mark.parametrize("seed", [3143, 3165, 3730])
def test_an_output_that_overflows_in_one_order_of_sums_is_undecided(seed: int) -> None:
    assert judged(seed) == "undecided"


@pytest.mark.slow
def test_nothing_contradicts_hundreds_of_verdicts_near_a_border() -> None:
    verdicts = [judged(seed) for seed in range(20_000, 20_250)]
    assert min(verdicts.count(verdict) for verdict in ("holds", "fails", "undecided")) > 20


@pytest.mark.parametrize("name", ["histogram", "reverse", "induction", "shuffle-dyck-2"])
def test_radii_reach_the_exact_outputs(name: str) -> None:
    """And not much further: they are about what a bound of all roundings can be."""
    model = compiled(name, 3)
    network = network_of(model)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(model.domains.vocabulary), size=(6, 3))
    within = outputs_within(network, ids, model.domains.causal)
    exact = np.array(
        [exact_outputs(network, row.tolist(), model.domains.causal) for row in ids], dtype=float
    )
    assert (np.abs(exact - within.middle) <= within.radius + 1e-15).all()
    assert within.radius.max() < 1e-9
