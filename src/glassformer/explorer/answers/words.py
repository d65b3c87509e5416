"""Write tokens, and the values and names of a program's parts, as text for JSON."""

from collections.abc import Sequence

from glassformer.programs.graph import value_in_words
from glassformer.programs.language import Value
from glassformer.text import one_line

_LONGEST_NAME = 80


def json_text(text: str) -> str:
    """Replace half surrogate pairs, which bytes that are not UTF-8 leave and JSON cannot carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def words_of(values: Sequence[Value]) -> list[str]:
    """Write each value on one line."""
    return [json_text(value_in_words(value)) for value in values]


def part_name(part: object) -> str:
    """Return the name of a part on one line of limited length."""
    return json_text(one_line(str(part), _LONGEST_NAME))
