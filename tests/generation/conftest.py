"""What the tests of generation share."""

import pytest

from glassformer.models import Decoder


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions each forward pass reads."""
    lengths: list[int] = []
    hidden = Decoder.hidden

    def counted(self, tokens, **more):
        lengths.append(tokens.shape[1])
        return hidden(self, tokens, **more)

    monkeypatch.setattr(Decoder, "hidden", counted)
    return lengths
