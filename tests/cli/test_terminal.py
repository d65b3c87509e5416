import sys

import pytest

from glassformer.cli.terminal import count, in_memory, on_disk, say


def test_saying_what_the_terminal_has_no_character_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, open("/dev/null", "w", encoding="ascii") as narrow:
        patched.setattr(sys, "stdout", narrow)
        say("語 é A")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, ("0 B", "0 B", "0")),
        (999, ("999 B", "999 B", "999")),
        (1024, ("1.02 kB", "1.00 KiB", "1,024")),
        (1_500_000, ("1.50 MB", "1.43 MiB", "1.50 M")),
        (13_761_264_768, ("13.76 GB", "12.82 GiB", "13.76 B")),
    ],
)
def test_units(number: int, expected: tuple[str, str, str]) -> None:
    assert (on_disk(number), in_memory(number), count(number)) == expected
