"""A program for tests of what is shown of programs: its parts' names stay as they are."""

import operator

from glassformer.programs import (
    CompiledProgram,
    aggregate,
    compile_program,
    elementwise,
    indices,
    select,
    selector_width,
    tokens,
)

unique = elementwise(lambda token, index: 5 * token + index, tokens, indices, label="unique key")
place = selector_width(select(unique, unique, operator.lt), "place")
SORTED = aggregate(select(place, indices, operator.eq), tokens, label="tokens sorted")


def sorting() -> CompiledProgram:
    """The transformer that sorts up to 5 of the numbers 1 to 4."""
    return compile_program(SORTED, (1, 2, 3, 4), 5)
