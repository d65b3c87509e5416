"""Text from untrusted sources on one line."""

from hypothesis import given
from hypothesis import strategies as st

from glassformer.text import one_line


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=60), st.integers(4, 30) | st.none())
def test_any_text_becomes_one_line_that_can_be_printed(text: str, longest: int | None) -> None:
    line = one_line(text, longest)
    assert longest is None or len(line) <= longest
    assert line.isprintable()
    line.encode()
    words = " ".join(text.split())
    if text.isprintable() and (longest is None or len(words) <= longest):
        assert line == words


def test_control_characters_are_escaped_and_long_texts_cut() -> None:
    assert one_line("a\n\x1b[31m\tfilm \ud83d") == "a \\x1b[31m film \\ud83d"
    assert one_line("abcdefgh", 7) == "abcd..."
    assert one_line("abcdefg", 7) == "abcdefg"
    assert one_line(" \n ") == ""
    assert one_line("great " * 100_000, 100) == ("great " * 17)[:97] + "..."
    assert one_line("\x00" * 100, 10) == "\\x00\\x0..."
