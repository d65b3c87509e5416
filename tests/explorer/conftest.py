"""Small models to look into: a design, a decoder, an encoder and an encoder-decoder, drawn at
random and untrained.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from glassformer.errors import InputError
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading import codecs
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    LoadedProgram,
)
from glassformer.explorer.messages import ModelCard
from glassformer.handcraft.designs import design
from glassformer.handcraft.tasks import TASKS
from glassformer.models.encoder import Positions
from glassformer.programs import compile_program
from glassformer.programs.library import PROGRAMS
from serving import serving
from small_models import decoder, encoder_decoder

WORDS = 11
LONGEST = 96
numbers = partial(codecs.numbers, vocab_size=WORDS, longest=LONGEST)


def card(
    name: str, kind: Any, views: list[Any], text: str, source: list[str] | None = None
) -> ModelCard:
    rest: dict[str, Any] = {
        "title": name,
        "about": "For tests.",
        "input_help": "numbers",
        "origin": "given",
    }
    return ModelCard(name=name, kind=kind, views=views, text=text, source=source, **rest)


def head_model(name: str) -> LoadedHead:
    task = TASKS[name]()
    why = {"Km": "because"}
    return LoadedHead(
        card(name.replace("_", "-"), "head", ["design"], "CAB"), task, design(task).weights, why
    )


def program_model(name: str) -> LoadedProgram:
    example = PROGRAMS[name]
    model = compile_program(
        example.program, example.vocabulary, example.max_len, causal=example.causal
    )
    return LoadedProgram(card(name, "program", ["program"], "abac"), model)


def decoder_model() -> LoadedDecoder:
    torch.manual_seed(1)
    sizes = {
        "vocab_size": WORDS,
        "num_layers": 2,
        "hidden_dim": 16,
        "ff_dim": 16,
        "num_heads": 2,
        "head_dim": 8,
    }
    return LoadedDecoder(
        card("decoder", "decoder", ["attention", "sampling", "whatif", "patch"], "1 2 3"),
        decoder(**sizes, window=4, num_experts=3, sinks=True, max_seq_len=LONGEST).eval(),
        encode=numbers,
        word=str,
        join=codecs.text_of_numbers,
        obeys=lambda tokens, candidate: candidate == (tokens[-1] + 1) % WORDS,
        rule=lambda tokens: "x[t] = x[t-1] + 1",
        longest=LONGEST,
    )


def encoder_decoder_model(source_positions: Positions = "none") -> LoadedEncoderDecoder:
    torch.manual_seed(2)
    sizes = {
        "vocab_size": WORDS + 1,
        "hidden_dim": 16,
        "ff_dim": 16,
        "max_source_len": 16,
        "max_target_len": 16,
    }
    model = encoder_decoder(
        **sizes, num_encoder_layers=1, num_decoder_layers=1, source_positions=source_positions
    )

    def source(units: Any) -> torch.Tensor:
        if not 0 < len(units) <= 16:
            raise InputError(f"{len(units)} numbers", "1 to 16", "Take less.")
        return torch.tensor([[1 + number for each in units for number in one(each)]])

    def one(unit: str) -> list[int]:
        found = numbers(unit)
        if len(found) != 1:
            raise InputError(f"{unit[:40]!r}", "one number", "Type another.")
        return found

    name = "lookup" if source_positions == "none" else "ordered"
    return LoadedEncoderDecoder(
        card(name, "encoder_decoder", ["scramble", "whatif"], "4", list("12345")),
        model.eval(),
        source_tokens=source,
        target=lambda text: torch.tensor([[1 + number for number in numbers(text)[:8]]]),
        word=str,
    )


@pytest.fixture(scope="session")
def loaded_models() -> list[LoadedModel]:
    """One of each kind that can be looked into."""
    return [
        *(head_model(name) for name in ("identity", "copy_first", "unique")),
        decoder_model(),
        encoder_decoder_model(),
        encoder_decoder_model("learned"),
        program_model("histogram"),
    ]


@pytest.fixture(autouse=True)
def nothing_read(loaded_models: list[LoadedModel]) -> None:
    """Decoders forget what tests before this one have read, since what is read on from a cache is
    rounded otherwise.
    """
    for loaded in loaded_models:
        if isinstance(loaded, LoadedDecoder):
            loaded.reading.tokens = []


@pytest.fixture(scope="session")
def by_name(loaded_models: list[LoadedModel]) -> dict[str, LoadedModel]:
    """The same by what they are called."""
    return {loaded.card.name: loaded for loaded in loaded_models}


@pytest.fixture(scope="session")
def small_backend(loaded_models: list[LoadedModel]) -> Backend:
    """An explorer of them."""
    return Backend(loaded_models)


@pytest.fixture(scope="session")
def small_server(small_backend: Backend) -> Iterator[int]:
    """The port of a real server of the small models."""
    with serving(small_backend) as port:
        yield port
