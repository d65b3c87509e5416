"""The one error for bad input: its words, its parts, its way through another process."""

import pickle

import pytest

from glassformer.errors import CheckpointError, InputError, first_line, require_positive
from refusals import refused


def test_the_message_says_what_was_got_what_was_expected_and_how_to_mend() -> None:
    error = InputError("top_k = 9", "at most 8", "Lower top_k.")
    assert str(error) == "got top_k = 9; expected at most 8. Lower top_k."
    assert (error.got, error.expected, error.fix) == ("top_k = 9", "at most 8", "Lower top_k.")
    assert isinstance(error, ValueError)


def test_a_message_does_not_repeat_megabytes() -> None:
    error = InputError(f"hidden_act = '{'a' * 2**22}'", "'silu'", "Take the file anew.")
    assert error.got.startswith("hidden_act = 'aaa")
    assert error.got.endswith("a...")
    assert len(str(error)) < 11_000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_it_survives_the_way_to_another_process() -> None:
    for kind in (InputError, CheckpointError):
        error = kind("a", "b", "c")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert isinstance(copy, InputError)
    assert (copy.got, copy.expected, copy.fix, str(copy)) == ("a", "b", "c", str(error))


def test_require_positive_names_the_first_size_at_fault() -> None:
    require_positive(rows=1, columns=10**9)
    with refused("columns = 0", fix="columns >= 1"):
        require_positive(rows=1, columns=0, depth=-1)


@pytest.mark.parametrize("size", [0, -3, True])
def test_require_positive_refuses_what_is_no_size(size: int) -> None:
    with refused(expected="whole number of at least 1"):
        require_positive(rows=size)


def test_the_first_line_of_an_error() -> None:
    assert first_line(OSError("\n No room.\nNone at all.")) == "No room"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
