"""How tests check that bad input is refused: by the fields of the error, not by its wording."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from glassformer.errors import InputError

Refuses = Callable[..., None]
Output = Callable[..., Any]
"""The fixtures of these names of the tests of commands."""


@contextmanager
def refused(
    got: str | None = None,
    *,
    expected: str | None = None,
    fix: str | None = None,
    anywhere: str | None = None,
    error: type[InputError] = InputError,
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Fail unless the block raises ``error`` with fields in which these regular expressions are
    found.

    ``anywhere`` is for tables of cases whose decisive field differs: it is to be found in one of
    the three.
    """
    with pytest.raises(error) as caught:
        yield caught
    for name, pattern in (("got", got), ("expected", expected), ("fix", fix)):
        text = getattr(caught.value, name)
        assert pattern is None or re.search(pattern, text), (
            f"{pattern!r} is not in {name} = {text!r}"
        )
    fields = (caught.value.got, caught.value.expected, caught.value.fix)
    assert anywhere is None or any(re.search(anywhere, text) for text in fields), (
        f"{anywhere!r} is not in {fields}"
    )
