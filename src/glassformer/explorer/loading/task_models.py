"""Models of the built-in data sets, lookups and recurrences; their inputs are written as words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.checkpoints.tensor_files import read_tensors, stored_tensors
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.errors import require
from glassformer.explorer.loading.codecs import numbers, numbers_codec, text_of_numbers
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedEncoderDecoder
from glassformer.explorer.loading.recurrence_rule import may_follow, rule_in_words
from glassformer.explorer.messages import ModelCard
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.models.encoder_decoder import EncoderDecoder

Model = TypeVar("Model", bound=nn.Module)

_FACT = re.compile(r"\s*([^=\s]+)\s*=\s*([^=\s]+)\s*")


def course_model(card: ModelCard, model: EncoderDecoder) -> LoadedEncoderDecoder:
    """A model of the lookup course: it reads words, and generates a value and ``[EOS]``."""

    def tokens(words: Sequence[str], longest: int) -> Int64[Tensor, "one position"]:
        unknown = [word for word in words if word not in lookup.VOCAB]
        known = f"words of {', '.join(lookup.VOCAB)}"
        require(not unknown, f"the word {(unknown or [''])[0]!r}", known, "Use these words.")
        require(len(words) <= longest, f"{len(words)} words", f"at most {longest}", "Remove some.")
        return torch.tensor([[lookup.VOCAB[word] for word in words]], dtype=torch.int64)

    def source(units: Sequence[str]) -> Int64[Tensor, "one place"]:
        require(len(units) > 0, "an empty source", "at least one word", "Add one.")
        return tokens(units, model.config.max_source_len)

    def target(text: str) -> Int64[Tensor, "one position"]:
        return tokens(["[SOS]", *text.split()], model.config.max_target_len)

    words = lookup.ID_TO_TOKEN.__getitem__
    return LoadedEncoderDecoder(card, model.eval(), source, target, words, max_new_tokens=2, end=lookup.EOS)


@dataclass(frozen=True)
class FactNames:
    """The names of the keys and values of an in-context lookup."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The word of each token, in the order of :mod:`glassformer.data.in_context_lookup`."""
        return ("[PAD]", *self.keys, *self.values, "none", "[NO KEY]")


def facts_model(card: ModelCard, model: EncoderDecoder, names: FactNames) -> LoadedEncoderDecoder:
    """A model that reads facts as slots ``key=value`` and answers for the key that the text names."""
    keys = {word: 1 + number for number, word in enumerate(names.keys)}
    values = {word: 1 + len(keys) + number for number, word in enumerate(names.values)}
    words, longest = names.words, model.config.max_source_len

    def fact(unit: str) -> tuple[int, int]:
        found = _FACT.fullmatch(unit)
        key, value = found.groups() if found else ("", "")
        require(
            key in keys and value in values,
            f"the fact {unit!r}",
            f"a key and a value, such as {names.keys[0]}={names.values[0]}",
            f"Keys are {_listed(names.keys)}; values are {_listed(names.values)}.",
        )
        return keys[key], values[value]

    def source(units: Sequence[str]) -> Int64[Tensor, "one place two"]:
        require(1 <= len(units) <= longest, f"{len(units)} facts", f"1 to {longest}", "Add or remove some.")
        return torch.tensor([[fact(unit) for unit in units]], dtype=torch.int64)

    def target(text: str) -> Int64[Tensor, "one position"]:
        asked = text.strip()
        require(asked in keys, f"the key {asked[:40]!r}", "one key", f"Ask for one of {_listed(names.keys)}.")
        return torch.tensor([[keys[asked]]], dtype=torch.int64)

    return LoadedEncoderDecoder(card, model.eval(), source, target, lambda token: words[token], max_new_tokens=1)


def tokens_model(card: ModelCard, model: EncoderDecoder, names: FactNames) -> LoadedEncoderDecoder:
    """A model that reads the same facts as single tokens, keys and values, and answers for the key that the text names.

    Only a model with positions can know which value belongs to which key.
    """
    numbered = {word: number for number, word in enumerate(names.words)}
    readable = {*names.keys, *names.values}
    slots = facts_model(card, model, names)
    longest = model.config.max_source_len

    def source(units: Sequence[str]) -> Int64[Tensor, "one place"]:
        require(1 <= len(units) <= longest, f"{len(units)} words", f"1 to {longest}", "Add or remove some.")
        unknown = [unit for unit in units if unit not in readable]
        expected = f"keys ({_listed(names.keys)}) and values ({_listed(names.values)})"
        require(not unknown, f"the word {(unknown or [''])[0]!r}", expected, "Use these words.")
        return torch.tensor([[numbered[unit] for unit in units]], dtype=torch.int64)

    return replace(slots, source_tokens=source)


def recurrence_model(card: ModelCard, model: nn.Module, config: RecurrenceConfig, longest: int) -> LoadedDecoder:
    """A decoder that continues numbers of the recurrence."""
    return LoadedDecoder(
        card,
        model.eval(),
        lambda text: numbers(text, config.vocab_size, longest),
        str,
        text_of_numbers,
        lambda tokens, candidate: may_follow(tokens, candidate, config),
        lambda tokens: rule_in_words(tokens, config),
        longest,
        codec=numbers_codec(config.vocab_size, longest, asdict(config)),
    )


def letters_model(card: ModelCard, model: nn.Module, space: SequenceSpace) -> LoadedDecoder:
    """A decoder that continues letters, and reads the start token of ``space`` before them."""
    start = len(space.letters)
    return LoadedDecoder(
        card,
        model.eval(),
        lambda text: [start, *space.encode(text).tolist()],
        lambda token: space.token_names[token],
        lambda tokens: space.decode([token for token in tokens if token != start]),
        longest=space.num_positions,
        codec={
            "kind": "letters",
            "letters": space.letters,
            "longest": space.max_len,
            "start": space.token_names[start],
        },
    )


def load_exact(build: Callable[[], Model], directory: Path) -> Model:
    """A model with the weights of ``directory``, all of them and no others, as float32 whatever the file's format.

    The global random state is not changed.

    Args:
        build: Makes the model. It is first made on the device "meta", and in memory only if its tensors fit.
        directory: Holds safetensors.
    """
    with torch.device("meta"):
        wanted = {name: (name, list(tensor.shape)) for name, tensor in _saved_tensors(build()).items()}
    tensors = read_tensors(stored_tensors(directory), wanted, torch.float32)
    with torch.random.fork_rng(devices=[]):
        model = build()
    model.load_state_dict(tensors, strict=False)  # a shared table is stored once, under its first name
    return model


def _saved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once."""
    saved = model.state_dict().keys()
    return {name: each for name, each in chain(model.named_parameters(), model.named_buffers()) if name in saved}


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:4])} ... {words[-1]}"
