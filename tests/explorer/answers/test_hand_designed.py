"""The values of an edited head are the formula's, and the verdict is the prover's."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import InputError
from glassformer.explorer.answers.hand_designed import (
    check,
    head,
    input_names,
    output_names,
    reading,
)
from glassformer.explorer.loading.loaded_model import LoadedHead, LoadedModel
from glassformer.explorer.messages import AskCheck, HeadWeightsMessage
from glassformer.handcraft.designs import design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import TASKS, unique
from glassformer.handcraft.verification import verify
from refusals import refused

DESIGNS = ["identity", "copy-first", "unique"]


def designed(by_name: dict[str, LoadedModel], name: str) -> tuple[LoadedHead, HeadWeightsMessage]:
    loaded = by_name[name]
    return loaded, head(loaded).weights


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_is_shown_as_it_is(name: str, by_name: dict[str, LoadedModel]) -> None:
    loaded, weights = designed(by_name, name)
    shown = head(loaded)
    for matrix, cells in weights.model_dump(exclude_none=True).items():
        np.testing.assert_array_equal(loaded.weights.matrices[matrix], cells)
    assert len(shown.inputs) == len(weights.Km)
    assert len(shown.positions) == (0 if weights.pos is None else len(weights.pos))
    assert (shown.task, shown.has_cls) == (loaded.task.name, loaded.task.space.has_cls)
    assert shown.why == {"Km": "because"}


def test_rows_are_named_after_what_they_are_of(by_name: dict[str, LoadedModel]) -> None:
    assert head(by_name["identity"]).inputs == ["A", "B", "C"]
    shown = head(by_name["unique"])
    assert shown.inputs == ["A", "B", "C", "CLS", "@CLS", "@0", "@1", "@2", "@3"]
    assert shown.positions == ["@CLS", "@0", "@1", "@2", "@3"]
    two = HeadWeights(
        np.ones((6, 1)), np.ones((6, 1)), np.ones((6, 1)), np.arange(10).reshape(5, 2)
    )
    assert input_names(two, unique().space) == ["A", "B", "C", "CLS", "p0", "p1"]


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("text", ["A", "CAB", "AACB"])
def test_numbers_follow_one_from_the_other(
    name: str, text: str, by_name: dict[str, LoadedModel]
) -> None:
    loaded, weights = designed(by_name, name)
    seen = check(loaded, AskCheck(model=name, weights=weights, text=text))
    x, K, Q, V = (np.array(getattr(seen, part).cells) for part in ("inputs", "K", "Q", "V"))
    np.testing.assert_allclose(K, x @ np.array(weights.Km))
    np.testing.assert_allclose(Q, x @ np.array(weights.Qm))
    np.testing.assert_allclose(V, x @ np.array(weights.Vm))
    scores = np.array(seen.scores.cells)
    np.testing.assert_allclose(scores, Q @ K.T / np.sqrt(K.shape[1]))
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    attention = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(seen.weights.cells, attention, atol=1e-15)
    np.testing.assert_allclose(seen.outputs.cells, attention @ V, atol=1e-12)
    first = int(loaded.task.space.has_cls)
    assert seen.tokens == ["CLS"] * first + list(text)
    assert seen.targets.rows == list(text)
    wanted = loaded.task.target(loaded.task.space.encode(text)[None])[0]
    np.testing.assert_array_equal(seen.targets.cells, wanted)
    assert seen.right == [True] * len(text)
    assert seen.reads == seen.wanted
    for part in ("inputs", "K", "Q", "V", "scores", "weights", "outputs", "targets"):
        numbers = getattr(seen, part)
        assert np.shape(numbers.cells) == (len(numbers.rows), len(numbers.columns))


@pytest.mark.parametrize("name", DESIGNS)
def test_the_certificate_is_the_provers(name: str, by_name: dict[str, LoadedModel]) -> None:
    loaded, weights = designed(by_name, name)
    for factor in (1.0, 0.0):
        cells = (factor * np.array(weights.Qm)).tolist()
        edited = weights.model_copy(update={"Qm": cells})
        certificate = check(loaded, AskCheck(model=name, weights=edited, text="AB")).certificate
        head_weights = HeadWeights(**edited.model_dump())
        assert certificate.text == str(verify(head_weights, loaded.task))
        assert certificate.verdict == ("holds" if factor else "fails")
        assert (certificate.counterexample is None) == (factor == 1)
        assert (certificate.num_checked, certificate.num_possible) == (
            loaded.task.count,
            loaded.task.count,
        )


def test_what_fails_is_told_with_its_sequence(by_name: dict[str, LoadedModel]) -> None:
    loaded, weights = designed(by_name, "identity")
    swapped = weights.model_copy(update={"Vm": [[0, 1, 0], [1, 0, 0], [0, 0, 1]]})
    seen = check(loaded, AskCheck(model="identity", weights=swapped, text="CAB"))
    assert (seen.reads, seen.wanted, seen.right) == (
        ["C", "B", "A"],
        ["C", "A", "B"],
        [True, False, False],
    )
    failure = seen.certificate.counterexample
    assert (failure.sequence, failure.position, failure.target) == ("A", 0, [1, 0, 0])


def test_what_rounding_decides_is_told_with_its_sequence() -> None:
    task = unique("A", 1)
    loaded = LoadedHead(
        None, task, HeadWeights([[1], [0]], [[0.8], [0]], [[-7], [7 * np.exp(0.8)]]), {}
    )
    certificate = check(
        loaded, AskCheck(model="unique", weights=head(loaded).weights, text="A")
    ).certificate
    assert (certificate.verdict, certificate.num_undecided) == ("undecided", 1)
    assert certificate.covers == "1 letter of A, after CLS"
    assert (certificate.undecided.sequence, certificate.undecided.target) == ("A", [1.0])
    assert abs(certificate.undecided.output[0]) < certificate.rounding < 1e-12


def test_readings_name_what_is_equal_and_signs() -> None:
    letters = TASKS["majority_letter"]()
    sign = TASKS["unique"]()
    assert output_names(letters) == ["A", "B", "C"]
    assert output_names(sign) == ["output"]
    assert reading(np.array([0.25, 0.5, 0.25]), letters) == "B"
    assert reading(np.array([0.5, 0.0, 0.5]), letters) == "A or C"
    assert [reading(np.array([value]), sign) for value in (-0.2, 0.0, 3.0)] == ["-1", "0", "+1"]


def test_a_task_too_large_to_list_is_decided_by_the_bound(by_name: dict[str, LoadedModel]) -> None:
    task = TASKS["identity"](max_len=12)
    loaded = replace(by_name["identity"], task=task, weights=design(task).weights)
    weights = head(loaded).weights
    certificate = check(loaded, AskCheck(model="long", weights=weights, text="A")).certificate
    assert (certificate.verdict, certificate.rests_on) == ("holds", "the bound")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Km": [[1.0, 0.0], [1.0]]}, "rows of one length"),
        ({"Km": []}, "at least one row"),
        ({"Km": [[]]}, "at least one row"),
        ({"Km": [[1.0]] * 9}, "same number of rows"),
        ({"Km": [[1.0]] * 3}, "same number of columns"),
        ({"Vm": [[1.0]] * 3}, "3 columns"),
        ({"pos": [[1.0]]}, "rows"),
        ({"Km": [[1e300] * 3] * 3, "Qm": [[1e300] * 3] * 3}, "Scale Km or Qm down"),
        ({"Km": [[1.0] * 1400] * 3, "Qm": [[1.0] * 1400] * 3}, "4,200 numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: dict, words: str, by_name: dict[str, LoadedModel]
) -> None:
    loaded, weights = designed(by_name, "identity")
    edited = HeadWeightsMessage.model_validate({**weights.model_dump(), **change})
    with refused(anywhere=words):
        check(loaded, AskCheck(model="identity", weights=edited, text="A"))


def test_texts_of_other_tasks_and_other_models_are_refused(by_name: dict[str, LoadedModel]) -> None:
    loaded, weights = designed(by_name, "identity")
    for text, words in (
        ("", "at least one letter"),
        ("ABD", "'D'"),
        ("A" * 7, "7 letters"),
        ("a", "'a'"),
    ):
        with refused(anywhere=words):
            check(loaded, AskCheck(model="identity", weights=weights, text=text))
    with refused(expected="hand-designed"):
        head(by_name["decoder"])


cell = st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1e-320, 1e150, -1e300, 1e300, 26.0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_typed_is_answered_or_refused(
    by_name: dict[str, LoadedModel], data: st.DataObject
) -> None:
    columns = data.draw(st.integers(1, 4))

    def matrix(rows: int, width: int) -> list[list[float]]:
        row = st.lists(cell, min_size=width, max_size=width)
        return data.draw(st.lists(row, min_size=rows, max_size=rows))

    weights = HeadWeightsMessage(
        Km=matrix(9, columns), Qm=matrix(9, columns), Vm=matrix(9, 1), pos=matrix(5, 5)
    )
    try:
        seen = check(by_name["unique"], AskCheck(model="unique", weights=weights, text="ABA"))
    except InputError:
        return
    json.loads(seen.model_dump_json(), parse_constant=pytest.fail)
