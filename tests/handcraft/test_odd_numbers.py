"""Heads and circuits whose numbers overflow, vanish or tie: no verdict is of other numbers than
those computed.
"""

import math
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.course.grading import grade_file
from glassformer.explorer.loading.designed import head_card, head_model
from glassformer.explorer.saving.saved_model import saved_model
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, PlaceTables
from glassformer.handcraft.circuits import centred_scores
from glassformer.handcraft.description import Description, same_token
from glassformer.handcraft.designs import design
from glassformer.handcraft.induction import _Bound, build_induction, verify_induction
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.handcraft.single_head import HeadWeights, run_head
from glassformer.handcraft.task_files import read_task
from glassformer.handcraft.tasks import Task, copy_first, identity, majority_letter
from glassformer.handcraft.verification import verify
from glassformer.labs.hand_designed.distances import cosine
from glassformer.models import Decoder
from refusals import refused


def test_keys_that_overflow_at_one_place_alone() -> None:
    task = copy_first(string.ascii_uppercase, 78)
    head = design(task, 1e-6).weights
    letters = 26
    large = 1e38
    small = 2e-38
    km, qm = (np.pad(each, ((0, 0), (0, 2))) for each in (head.Km, head.Qm * math.sqrt(3)))
    m = string.ascii_uppercase.index("M")
    q = string.ascii_uppercase.index("Q")
    km[:letters, 1] = -large
    km[[q, letters + 77], 1] = -2 * large
    km[letters, 1] = km[q, 2] = large
    qm[:letters, 1], qm[m, 1], qm[letters + 76, 1] = 2 * small, small, -small
    qm[:, 2] = qm[:, 1]
    head = HeadWeights(km, qm, head.Vm, head.pos)
    inputs = torch.from_numpy(
        task.space.one_hot(task.space.block([task.space.encode("A" * 76 + "MQ")]))
    )
    matrices = {name: torch.tensor(m, dtype=torch.float32) for name, m in head.matrices.items()}
    assert run_head(inputs.float(), **matrices)[0, 76].isnan().any()
    with refused("queries or keys"):
        verify(head, task, dtype=torch.float32)


def test_sums_of_values_that_overflow() -> None:
    letters = string.ascii_uppercase
    length = 78
    size = float(np.finfo(np.float32).max) / 32
    space = SequenceSpace(tuple(letters), length)
    positions = np.repeat(np.resize([1.0, 1.0, -1.0, -1.0], length)[:, None] * size, 26, axis=1)
    description = Description(
        space, same_token(), {each: np.zeros(26) for each in letters}, positions
    )
    task = Task(
        "",
        "",
        space,
        26,
        lambda x: description.output(space.block([x])),
        "argmax",
        size / 20,
        0.0,
        description,
    )
    own = np.eye(26 + length, 26)
    values = np.concatenate([np.zeros((26, 26)), positions])
    with refused("sums of values"):
        verify(
            HeadWeights(own, 60 * math.sqrt(26) * own, values, np.eye(length)),
            task,
            dtype=torch.float32,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("qk_dim", [1, 2])
def test_a_tie_is_undecided(dtype: torch.dtype, qk_dim: int) -> None:
    task = majority_letter("AB", 5)
    zeros = np.zeros((2, qk_dim))
    certificate = verify(
        HeadWeights(zeros, zeros, [[0.75, 0.25], [0.125, 0.875]]), task, tolerance=None, dtype=dtype
    )
    assert certificate.verdict == "undecided"
    assert certificate.undecided is not None
    assert sorted(certificate.undecided.sequence) == list("AAABB")


@pytest.mark.parametrize("size", [5e-10, 1.0, 3e7])
def test_targets_of_any_size_are_read(size: float, tmp_path: Path) -> None:
    examples = [("A", [[size, 0]]), ("B", [[0, size]]), ("AB", [[size, 0], [0, size]])]
    listed = ", ".join(f'{{"input": "{text}", "output": {rows}}}' for text, rows in examples)
    (tmp_path / "task.json").write_text(f'{{"letters": "AB", "examples": [{listed}]}}')
    task = read_task(tmp_path / "task.json")
    own = np.eye(2)
    for values, verdict in ((size * own, "holds"), (size * own[::-1], "fails")):
        head = HeadWeights(own, 80 * own, values)
        assert verify(head, task, tolerance=None).verdict == verdict


def test_a_bound_includes_how_far_the_description_is_from_the_target() -> None:
    task = identity("ABC", 12)
    off = replace(task, target=lambda x: task.target(x) + 1e-10)
    head = design(task, 1e-13).weights
    assert verify(head, task, tolerance=1e-12, limit=10).verdict == "holds"
    assert verify(head, off, tolerance=1e-11, limit=10).verdict == "fails"
    assert verify(head, off, tolerance=2e-10, limit=10).bound >= 1e-10


def test_every_sequence_counts_once() -> None:
    task = identity("AB", 6)
    certificate = verify(design(task).weights, task, limit=10)
    assert certificate.num_checked == certificate.num_possible == 126
    found = verify_induction(build_induction("AB", 6), "AB", limit=10)
    assert found.num_run <= found.num_texts == 126


def test_numbers_below_the_normal_ones_are_in_the_bound() -> None:
    space = SequenceSpace(tuple("AB"), 3)
    tiny = 1e-39
    large = 1e38
    head = HeadWeights([[tiny], [tiny]], [[large], [large]], np.eye(2))
    # of a difference of two scores, each of two inputs
    lost = 2 * 2 * np.finfo(np.float32).tiny * large
    assert PlaceTables.of(head, space, 2.0**-24).score_rounding >= lost > tiny * large
    assert PlaceTables.of(head, space, FLOAT64_ROUNDOFF).score_rounding < 1e-12


def test_more_sequences_than_a_float_can_hold() -> None:
    """Of 3 letters, at 660 positions."""
    task = identity("ABC", 6)
    certificate = replace(
        verify(design(task).weights, task), num_possible=SequenceSpace(tuple("ABC"), 660).count
    )
    assert "1.19e+315 sequences" in str(replace(certificate, rests_on="the bound"))


def test_a_probability_that_is_proved_is_not_above_those_computed() -> None:
    found = verify_induction(build_induction("AB", 3).double(), "AB", limit=100)
    assert found.holds
    assert found.probability <= found.least_probability


def test_a_base_that_float32_cannot_hold() -> None:
    """Its pairs but the first do not turn: a bound of pairs that do held for weights that predict
    wrongly.
    """
    model = build_induction("AB", 4)
    model = (
        Decoder(replace(model.config, rope_base=1e39, head_dim=400))
        .to(model.embedding.weight.dtype)
        .eval()
    )
    turned, _ = model.rotary.rotation(5)
    torch.testing.assert_close(
        _Bound(model, SequenceSpace(tuple("AB"), 4, has_cls=True))._angles.cos().float(), turned
    )


def test_one_sharp_row_does_not_blank_the_others() -> None:
    own = np.eye(2)
    head = HeadWeights(np.diag([1.0, 1e-9]) @ own, np.diag([1e12, 1e3]) @ own, own)
    found = centred_scores(head, SequenceSpace(tuple("AB"), 2))
    assert np.nanmax(np.abs(found), axis=1).min() > 0


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_cosines_of_numbers_of_any_size(size: float) -> None:
    one = np.array([1.0, -2.0]) * size
    assert cosine(one, one) == pytest.approx(1.0)
    assert cosine(one, -one) == pytest.approx(-1.0)
    assert cosine(one, 0 * one) == 0.0


def test_a_head_of_more_sequences_than_are_kept_is_not_saved_as_data() -> None:
    task = identity("ABCDEFGHIJKL", 4)
    loaded: Any = head_model(
        head_card("x", task, "x", "x", "A", origin="given"), task, design(task).weights
    )
    assert saved_model(loaded) == (None, [])


@pytest.mark.parametrize("missing", ["Km", "Qm", "Vm"])
def test_no_matrix_takes_the_place_of_another(missing: str, tmp_path: Path) -> None:
    own = np.eye(3).tolist()
    matrices = {name: own for name in ("Km", "Qm", "Vm", "pos") if name != missing}
    matrices["Km" if missing != "Km" else "Qm"] = (30 * np.eye(3)).tolist()
    file = tmp_path / "answer.json"
    file.write_text(str({"lab": "page", "exercise": "identity", **matrices}).replace("'", '"'))
    (grade,) = grade_file(file)
    assert grade.points == 0
