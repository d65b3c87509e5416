"""A certificate says what it is about, and refuses to speak of anything else."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.errors import InputError
from glassformer.handcraft.designs import design
from glassformer.handcraft.induction import build_induction, verify_induction
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.subject import Subject, weights_digest
from glassformer.handcraft.tasks import Task, copy_first, identity
from glassformer.handcraft.verification import Certificate, subject_of, verify
from glassformer.programs import (
    CompiledProgram,
    compile_program,
    elementwise,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib
from glassformer.programs.saved import load_program, save_program
from refusals import refused

TASK = identity("AB", 3)
HEAD = design(TASK).weights


def test_certificates_of_other_letters_differ_in_what_they_cover() -> None:
    one, other = (verify(HEAD, identity(letters, 3)) for letters in ("AB", "XY"))
    assert one.subject.inputs == ("A", "B")
    assert one.subject.digest != other.subject.digest
    assert one.to_json()["subject"] != other.to_json()["subject"]
    assert "covers          1 to 3 letters of A B\n" in str(one)
    assert "covers          1 to 3 letters of X Y\n" in str(other)


def moved(head: HeadWeights) -> HeadWeights:
    vm = head.Vm.copy()
    vm[0, 0] = np.nextafter(vm[0, 0], 2.0)
    return HeadWeights(head.Km, head.Qm, vm, head.pos)


def one_more(task: Task) -> Task:
    """The same name, letters and length, and another target for one sequence."""

    def target(x: np.ndarray) -> np.ndarray:
        other = (x == [0, 1, 0]).all(axis=1)[:, None, None] if x.shape[1] == 3 else False
        return np.where(other, 0.5, task.target(x))

    return replace(task, target=target)


OTHERS: dict[str, tuple[HeadWeights, Task, str]] = {
    "weights": (moved(HEAD), TASK, "weights_digest"),
    "letters": (HEAD, identity("XY", 3), "inputs = .*'X'"),
    "length": (HEAD, identity("AB", 4), "max_len = 4"),
    "task": (HEAD, replace(TASK, name="another"), "definition = 'another'"),
    "target": (HEAD, one_more(TASK), "definition_digest"),
    "readout": (HEAD, replace(TASK, readout="sign"), "readout = 'sign'"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("limit", [1_000_000, 5])
def test_a_certificate_is_refused_for_another_subject(name: str, limit: int) -> None:
    certificate = verify(HEAD, TASK, limit=limit)
    certificate.require_subject(HEAD, TASK)
    head, task, expected = OTHERS[name]
    with refused("a certificate of", expected=expected, fix="Verify this one"):
        certificate.require_subject(head, task)


def test_tolerance_dtype_and_version_are_named() -> None:
    certificate = verify(HEAD, TASK, tolerance=1e-6)
    for changes in ({"tolerance": 1e-7}, {"tolerance": None}, {"dtype": torch.float32}):
        with refused(next(iter(changes))):
            certificate.subject.require(subject_of(HEAD, TASK, **{"tolerance": 1e-6, **changes}))
    older = replace(certificate, subject=replace(certificate.subject, version="0.0.1"))
    with refused("version = '0.0.1'"):
        older.require_subject(HEAD, TASK)


@pytest.mark.parametrize("head", [HEAD, moved(HeadWeights(HEAD.Km, HEAD.Qm, -HEAD.Vm))])
def test_a_certificate_comes_back_from_json(head: HeadWeights) -> None:
    certificate = verify(head, TASK)
    text = json.dumps(certificate.to_json(), allow_nan=False)
    again = Certificate.from_json(json.loads(text))
    assert again == certificate
    again.require_subject(head, TASK)
    assert json.loads(text)["subject"]["digest"] == certificate.subject.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("subject"),
        lambda values: values["subject"].pop("inputs"),
        lambda values: values["subject"].update(max_len=9),
        lambda values: values["subject"].update(digest="0"),
        lambda values: values["subject"].update(more=1),
        lambda values: values.update(more=1),
    ],
)
def test_a_certificate_that_names_no_subject_is_refused(change: Any) -> None:
    values = verify(HEAD, TASK).to_json()
    change(values)
    with pytest.raises(InputError):
        Certificate.from_json(values)


def test_results_of_earlier_versions_vouch_for_nothing() -> None:
    certificate = replace(verify(HEAD, TASK), subject=None)
    assert "covers" not in str(certificate)
    with refused("names no subject"):
        certificate.require_subject(HEAD, TASK)


def test_digests_are_of_names_shapes_dtypes_and_bits() -> None:
    one = np.arange(6.0).reshape(2, 3)
    same = weights_digest({"a": one})
    assert (
        same
        == weights_digest({"a": torch.from_numpy(one.copy())})
        == weights_digest({"a": one.copy("F")})
    )
    others = (
        {"b": one},
        {"a": one.T},
        {"a": one.ravel()},
        {"a": one.astype(np.float32)},
        {"a": one + 1e-16 * one},
    )
    assert len({same, *(weights_digest(each) for each in others[:-1])}) == len(others)
    assert weights_digest({"a": torch.zeros(2, dtype=torch.bfloat16)}) != weights_digest(
        {"a": torch.zeros(2).half()}
    )


def histogram(vocabulary: Any = "ab", length: int = 3) -> CompiledProgram:
    return compile_program(lib.histogram(), vocabulary, length)


def with_weight(model: Any, name: str, more: float) -> Any:
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] += more
    return model


def with_program(program: Any) -> CompiledProgram:
    model = histogram()
    model.program = program
    return model


def test_a_certificate_of_a_program_is_refused_for_another(tmp_path: Any) -> None:
    model = histogram()
    certificate = verify_program(model)
    certificate.require_subject(model)
    save_program(model, tmp_path / "model.json")
    again = load_program(tmp_path / "model.json")
    again.program = model.program
    certificate.require_subject(again)
    others = {
        "weights_digest": with_weight(histogram(), "output.weight", 1e-9),
        "inputs": histogram("xy"),
        "max_len": histogram("ab", 4),
        "dtype": histogram().float(),
        "definition_digest": with_program(
            elementwise(lambda token: 1 if token == "a" else 2, tokens)
        ),
    }
    for name, other in others.items():
        with refused(expected=name):
            certificate.require_subject(other)
    written = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
    assert Subject.from_json(written["subject"]) == certificate.subject
    assert written["subject"]["inputs"] == ["str 'a'", "str 'b'"]


def test_tokens_that_are_equal_in_python_are_other_inputs() -> None:
    one, other = (compile_program(tokens, vocabulary, 2) for vocabulary in ((1, 2), (1.0, 2)))
    with refused(expected="float 1.0"):
        verify_program(one).require_subject(other)


def test_certificates_of_induction_circuits_are_refused_for_others() -> None:
    circuit = build_induction("AB", 4)
    certificate = verify_induction(circuit, "AB", limit=10)
    certificate.require_subject(circuit, "AB")
    changed = with_weight(build_induction("AB", 4), "embedding.weight", 1e-6)
    cases = (
        (circuit, "XY", "inputs"),
        (build_induction("AB", 5), "AB", "max_len"),
        (changed, "AB", "weights_digest"),
    )
    for model, letters, name in cases:
        with refused(expected=name):
            certificate.require_subject(model, letters)
    assert Subject.from_json(certificate.to_json()["subject"]) == certificate.subject


def test_a_task_with_positions_names_its_cls() -> None:
    task = copy_first("AB", 2)
    assert verify(design(task).weights, task).covers == "1 to 2 letters of A B"
