"""A name that nothing has is bad input, of a kind that can be told from the rest."""

from __future__ import annotations

import pytest

from glassformer.errors import InputError
from glassformer.explorer.messages.unknown import UnknownName


def test_an_unknown_name_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"^got the model 'x'; expected one of a, b\. Mend it\.$"):
        raise UnknownName("the model 'x'", "one of a, b", "Mend it.")
