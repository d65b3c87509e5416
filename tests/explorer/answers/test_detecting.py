"""What heads look for: of a model, in lists by layer and head, for decoders alone."""

import numpy as np
import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.bundled import bundled
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.observe.capture import capture
from refusals import refused
from small_models import decoder


def test_the_heads_of_the_induction_circuit_are_found() -> None:
    backend = Backend(bundled())
    found: m.Detected = backend.answer("detect", m.AskDetect(model="induction"))
    previous = np.array(found.previous)
    induction = np.array(found.induction)
    assert previous.shape == (2, 4)
    assert previous.argmax() == 3  # layer 0, head 3
    assert induction.argmax() == 5  # layer 1, head 1
    assert previous.max() > 0.8
    assert backend.answer("detect", m.AskDetect(model="induction")) == found


def test_scores_are_those_of_captured_weights() -> None:
    backend = Backend(bundled())
    loaded = backend.model("recurrence")
    found: m.Detected = backend.answer("detect", m.AskDetect(model="recurrence"))
    half = loaded.model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(half, generator=generator) for _ in range(4)])
    first = torch.full((4, 1), loaded.encode(loaded.card.text)[0])
    with torch.no_grad(), capture(loaded.model) as seen:
        loaded.model(torch.cat([first, rows, rows], 1))
    previous = [record.values.diagonal(-1, 2, 3).mean((0, 2)) for record in seen.records]
    np.testing.assert_allclose(found.previous, torch.stack(previous), atol=1e-4)


def test_weights_that_are_trained_further_are_looked_at_again() -> None:
    backend = Backend(bundled())
    before = backend.answer("detect", m.AskDetect(model="induction"))
    loaded = backend.model("induction")
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(0)
    assert backend.answer("detect", m.AskDetect(model="induction")) != before


def test_what_no_text_shows_is_not_told() -> None:
    """In a text of two places and a first one, no token returns with another one before it."""
    with refused("no text in which tokens return"):
        Backend([wrap_model(decoder(max_seq_len=3))]).answer("detect", m.AskDetect(model="given"))


@pytest.mark.parametrize("model", ["sentiment", "lookup-facts", "identity", "program-sort"])
def test_only_decoders_have_detectors(model: str) -> None:
    with refused("kind"):
        Backend(bundled()).answer("detect", m.AskDetect(model=model))
