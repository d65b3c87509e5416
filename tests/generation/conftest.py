"""What the tests of generation share."""

from collections.abc import Callable, Sequence

import pytest
import torch

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


@pytest.fixture
def uncached() -> Callable[[Decoder, Sequence[Sequence[int]], int], list[list[int]]]:
    """Greedy texts, one by one, of which every step reads the whole text again."""

    @torch.no_grad()
    def texts(model, prompts, count):
        found = [list(prompt) for prompt in prompts]
        for text in found:
            for _ in range(count):
                text.append(int(model.eval()(torch.tensor([text]))[0, -1].argmax()))
        return [text[-count:] for text in found]

    return texts
