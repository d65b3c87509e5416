"""How tests check that bad input is refused: by the fields of the error, not by its wording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from glassformer.errors import InputError


@contextmanager
def refused(
    got: str | None = None,
    *,
    expected: str | None = None,
    fix: str | None = None,
    error: type[InputError] = InputError,
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Fail unless the block raises ``error`` with fields in which these regular expressions are found."""
    with pytest.raises(error) as caught:
        yield caught
    for name, pattern in (("got", got), ("expected", expected), ("fix", fix)):
        text = getattr(caught.value, name)
        assert pattern is None or re.search(pattern, text), f"{pattern!r} is not in {name} = {text!r}"
