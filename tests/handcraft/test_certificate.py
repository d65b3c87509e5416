from __future__ import annotations

import json
from dataclasses import replace

import pytest

from glassformer.handcraft.verification import Certificate, Failure

FAILURE = Failure("ABB", 1, (0.25, 0.75), (1.0, 0.0), 0.75)
PROOF = Certificate(
    task="identity",
    verdict="holds",
    rests_on="every sequence",
    criterion="every error at most 0.001",
    dtype="float64",
    num_checked=1092,
    num_possible=1092,
    num_outputs=6015,
    num_right=6015,
    largest_error=1.9e-10,
    worst=None,
    margin=24.0,
    bound=2e-10,
    counterexample=None,
)


def test_a_proof_says_what_it_rests_on() -> None:
    text = str(PROOF)
    assert "identity: HOLDS" in text
    assert "every sequence: 1,092 of 1,092 run" in text
    assert "counterexample" not in text
    assert PROOF.holds


def test_a_refutation_shows_its_counterexample() -> None:
    failed = replace(PROOF, verdict="fails", num_right=6000, worst=FAILURE, counterexample=FAILURE, margin=None)
    assert "counterexample  ABB, position 1: got [0.25 0.75], wanted [1 0]" in str(failed)
    assert "6,000 of 6,015 outputs (99.75%)" in str(failed)
    assert "none needed" in str(failed)
    assert not failed.holds


@pytest.mark.parametrize(
    ("rests_on", "words"),
    [
        (
            "the bound",
            "the bound, for all 3.62e+90 sequences; that the description matches the task was checked on 1,092",
        ),
        ("samples", "no bound covers the rest"),
        ("the listed examples", "other sequences were not checked"),
    ],
)
def test_what_less_than_every_sequence_proves_is_told(rests_on: str, words: str) -> None:
    certificate = replace(PROOF, rests_on=rests_on, num_possible=26**64)  # type: ignore[arg-type]
    assert words in str(certificate)


def test_the_worst_output_is_shown_and_counts_are_written_out_below_a_trillion() -> None:
    text = str(replace(PROOF, worst=FAILURE, num_possible=10**12 - 1))
    assert "largest error   1.9e-10 at ABB, position 1" in text
    assert "1,092 of 999,999,999,999 run" in text
    assert "largest error   1.9e-10\n" in str(PROOF)
    assert "1,092 of 1e+12 run" in str(replace(PROOF, num_possible=10**12))


def test_what_is_not_known_is_said_and_is_null_in_json() -> None:
    unknown = replace(PROOF, verdict="undecided", rests_on="samples", margin=None, bound=float("inf"))
    assert "margin          unknown" in str(unknown)
    assert "bound on error  unknown" in str(unknown)
    assert json.loads(json.dumps(unknown.to_json(), allow_nan=False))["bound"] is None


def test_a_certificate_is_json() -> None:
    values = json.loads(json.dumps(replace(PROOF, worst=FAILURE).to_json()))
    assert values["worst"]["output"] == [0.25, 0.75]
    assert values["num_checked"] == 1092
