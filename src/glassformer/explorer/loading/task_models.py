"""Make loaded models of the built-in data sets, whose inputs are written as words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.checkpoints.tensor_files import read_tensors, stored_tensors
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.errors import InputError
from glassformer.explorer.loading.codecs import numbers, numbers_codec, text_of_numbers
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedEncoderDecoder
from glassformer.explorer.loading.recurrence_rule import may_follow, rule_in_words
from glassformer.explorer.messages import ModelCard
from glassformer.handcraft.sequences import SequenceSpace
from glassformer.models.encoder_decoder import EncoderDecoder

Model = TypeVar("Model", bound=nn.Module)


def course_model(card: ModelCard, model: EncoderDecoder) -> LoadedEncoderDecoder:
    """Return a model of the lookup course, which reads words and writes a value and ``[EOS]``."""
    read = _reader(lookup.VOCAB)
    config = model.config
    words = list(lookup.VOCAB)
    return LoadedEncoderDecoder(
        card,
        model.eval(),
        lambda units: _tokens(units, read, config.max_source_len),
        lambda text: _tokens(["[SOS]", *text.split()], read, config.max_target_len),
        lookup.ID_TO_TOKEN.__getitem__,
        max_new_tokens=2,
        end=lookup.EOS,
        codec={
            "kind": "lookup",
            "words": words,
            "source": card.source,
            "keys": [],
            "values": [],
            "asks": {"what": "word", "known": words, "longest": config.max_target_len},
            "begin": "[SOS]",
            "units": {"known": words, "longest": config.max_source_len},
            "most": 2,
            "end": lookup.EOS,
        },
    )


def fact_words(keys: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
    """Return the word of each token, in the order of :mod:`glassformer.data.in_context_lookup`."""
    return ("[PAD]", *keys, *values, "none", "[NO KEY]")


def facts_model(
    card: ModelCard,
    model: EncoderDecoder,
    keys: Sequence[str],
    values: Sequence[str],
    *,
    slots: bool = True,
) -> LoadedEncoderDecoder:
    """Return a model that reads facts and answers for the key that the text names.

    Facts are slots ``key=value``. With ``slots=False`` they are single words, keys and values: only
    a model with positions then knows which value belongs to which key.
    """
    words = fact_words(keys, values)
    longest = model.config.max_source_len
    tokens = {word: token for token, word in enumerate(words)}
    key_tokens = {key: tokens[key] for key in keys}

    def fact(unit: str) -> tuple[int, int]:
        key, _, value = map(str.strip, unit.partition("="))
        if key not in key_tokens or value not in values:
            raise InputError(
                got=f"the fact {unit!r}",
                expected=f"a key and a value, such as {keys[0]}={values[0]}",
                fix=f"Keys are {_listed(keys)}; values are {_listed(values)}.",
            )
        return tokens[key], tokens[value]

    read: Callable[[str], Any] = fact
    known: list[str] | None = None
    if not slots:
        known = [*keys, *values]
        read = _reader({word: tokens[word] for word in known})
    return LoadedEncoderDecoder(
        card,
        model.eval(),
        lambda units: _tokens(units, read, longest),
        lambda text: _tokens([text.strip()], _reader(key_tokens, "key"), 1),
        words.__getitem__,
        codec={
            "kind": "lookup",
            "words": words,
            "source": card.source,
            "keys": keys,
            "values": values,
            "asks": {"what": "key", "known": keys, "longest": 1},
            "begin": None,
            "units": {"known": known, "longest": longest},
            "most": 1,
            "end": None,
        },
    )


def _reader(token_of: Mapping[str, int], what: str = "word") -> Callable[[str], int]:
    """Return the function that looks up a word's token; refusals call the word ``what``."""

    def read(word: str) -> int:
        if word not in token_of:
            raise InputError(
                got=f"the {what} {word[:40]!r}",
                expected=f"a {what} among {_listed(list(token_of))}",
                fix="Use one of these.",
            )
        return token_of[word]

    return read


def _tokens(
    words: Sequence[str], read: Callable[[str], int | tuple[int, int]], longest: int
) -> Int64[Tensor, "one place *field"]:
    if not 1 <= len(words) <= longest:
        raise InputError(
            got=f"{len(words)} words",
            expected=f"1 to {longest}",
            fix="Add or remove some.",
        )
    return torch.tensor([[read(word) for word in words]])


def recurrence_model(
    card: ModelCard, model: nn.Module, config: RecurrenceConfig, longest: int
) -> LoadedDecoder:
    """Return a decoder that continues numbers of the recurrence."""
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
    """Return a decoder that continues letters, and reads the start token before them."""
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
    """Return a model with exactly the weights of ``directory``, in float32.

    The global random state is not changed.

    Args:
        build: Makes the model. It is first made on the device "meta", and in memory only if its
            tensors fit.
        directory: Where the weights are stored, in any floating-point format.
    """
    with torch.device("meta"):
        model = build()
    # The names lack buffers that are not stored. A shared table has both of its names.
    saved_names = model.state_dict().keys()
    tensors_of = chain(model.named_parameters(), model.named_buffers())
    shapes = {
        name: (name, list(tensor.shape)) for name, tensor in tensors_of if name in saved_names
    }
    tensors = read_tensors(stored_tensors(directory), shapes, torch.float32)
    with torch.random.fork_rng(devices=[]):
        model = build()
    # A shared table is stored once, under its first name.
    model.load_state_dict(tensors, strict=False)
    return model


def _listed(words: Sequence[str]) -> str:
    if len(words) <= 14:
        return ", ".join(words)
    return f"{', '.join(words[:4])} ... {words[-1]}"
