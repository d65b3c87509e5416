import sys

import pytest

from glassformer.cli.terminal import count, say


def test_saying_what_the_terminal_has_no_character_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, open("/dev/null", "w", encoding="ascii") as narrow:
        patched.setattr(sys, "stdout", narrow)
        say("語 é A")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (1024, "1,024"),
        (1_500_000, "1.50 M"),
        (13_761_264_768, "13.76 B"),
    ],
)
def test_numbers_of_parameters(number: int, expected: str) -> None:
    assert count(number) == expected
