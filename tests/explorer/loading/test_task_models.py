"""What each of the labs' models reads, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.explorer import messages as m
from glassformer.explorer.answers.forward import read
from glassformer.explorer.loading.bundled import BUNDLED, bundled
from glassformer.explorer.loading.loaded_model import LoadedEncoderDecoder
from glassformer.explorer.loading.task_models import load_exact
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from refusals import refused

ENTRIES = {entry.card.name: entry for entry in bundled()}


@pytest.mark.parametrize(
    ("name", "ask", "message"),
    [
        ("lookup-course", {"text": "PURPLE"}, "PURPLE"),
        ("lookup-course", {"text": "", "source": ["BLUE"] * 11}, "11 words"),
        ("lookup-course", {"text": "BLUE " * 10}, "11 words"),
        ("lookup-course", {"text": "", "source": []}, "an empty source"),
        ("lookup-facts", {"text": ""}, "the key ''"),
        ("lookup-facts", {"text": "ada ben"}, "the key 'ada ben'"),
        ("lookup-facts", {"text": "ada", "source": ["ada"]}, "the fact 'ada'"),
        ("lookup-facts", {"text": "ada", "source": ["ada=100"]}, "the fact 'ada=100'"),
        ("lookup-facts", {"text": "ada", "source": ["none=1"]}, "the fact 'none=1'"),
        ("recurrence", {"text": "1 7"}, "'7' at place 2"),
        ("recurrence", {"text": "1 " * 4097}, "4,097 numbers"),
    ],
)
def test_what_a_model_cannot_read_is_refused(name: str, ask: dict[str, Any], message: str) -> None:
    loaded = ENTRIES[name].open()
    with refused(message):
        read(loaded, m.Ask(model=name, **ask))


def test_blanks_around_a_fact_do_not_matter() -> None:
    loaded = ENTRIES["lookup-facts"].open()
    assert isinstance(loaded, LoadedEncoderDecoder)
    assert torch.equal(loaded.source_tokens([" ada = 5 "]), loaded.source_tokens(["ada=5"]))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    config = DecoderConfig.from_json((BUNDLED / "recurrence" / "config.json").read_text())
    other = DecoderConfig(**{**config.__dict__, "ff_dim": 32})
    with refused("instead of"):
        load_exact(lambda: Decoder(other), BUNDLED / "recurrence")
    with refused("no file"):
        load_exact(lambda: Decoder(other), tmp_path)
