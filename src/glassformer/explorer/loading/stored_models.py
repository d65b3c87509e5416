"""What a directory or file holds that can be looked into: each kind of run and checkpoint as an entry.

A kind is known by its files and by what its ``config.json`` says, which is read when a directory is found; weights are
read when somebody asks for the model. What is another thing altogether gives None, what is broken raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from glassformer.checkpoints import bert, decoders
from glassformer.checkpoints.gpt_oss_config import layout_of
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json, stored_tensors
from glassformer.classifier import load_classifier
from glassformer.data import lookup
from glassformer.data.in_context_lookup import LookupConfig
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.released_tokenizer import ReleasedTokenizer
from glassformer.data.subword import SubwordTokenizer, load_subwords
from glassformer.data.tokenizer_sources import TOKENIZER_FILES, tokenizer_beside, tokenizer_places
from glassformer.errors import InputError, require
from glassformer.explorer.loading.codecs import byte_word, text_bytes, text_of_bytes
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel, ModelEntry
from glassformer.explorer.loading.stored_weights import filled, run_weights, stamp_of
from glassformer.explorer.loading.task_models import (
    FactNames,
    classifier_model,
    course_model,
    facts_model,
    recurrence_model,
    tokens_model,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import MOST_TOKENS, Kind, ModelCard, View
from glassformer.labs.gpt_oss.network import Transformer
from glassformer.labs.gpt_oss.plan import DATA
from glassformer.labs.lookup.in_context import build_model
from glassformer.labs.lookup.recipes import InContextRecipe
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig

_T = TypeVar("_T")
_REVIEW = "A slow start, but the ending is wonderful."
_NUMBERS = "1 2 3 5 1 6 0 6"
_BYTES_OF = "Once upon a time"
_DECODERS = {"mixtral": "Mixtral", "gpt_oss": "gpt-oss", decoders.OWN: "glassformer"}
_ENCODERS = (*bert.FAMILY, bert.OWN)


@dataclass(frozen=True)
class Place:
    """A directory and what its model shall be called."""

    path: Path
    name: str
    title: str


def stored_entry(place: Place) -> ModelEntry | None:
    """The model of a directory; None where it holds nothing that can be looked into.

    Raises:
        InputError: It holds something that is broken.
    """
    path = place.path
    if not (path / CONFIG_FILE).is_file():
        return None
    entry = _entry(place, read_json(path / CONFIG_FILE))
    return None if entry is None else replace(entry, stamp=lambda: stamp_of(path))


def _entry(place: Place, config: Mapping[str, Any]) -> ModelEntry | None:
    path = place.path
    if "training" in config and isinstance(config.get("description"), dict):
        return _run(place, config["description"])
    if (path / "classes.json").is_file() and (path / "tokenizer.json").is_file():
        return _classifier(place)
    kind = config.get("model_type")
    if kind in _DECODERS or layout_of(config) is not None:
        # Those of other makers have experts, always.
        dense = kind == decoders.OWN and config.get("num_experts") is None
        return _decoder(place, _DECODERS.get(str(kind), "gpt-oss"), dense)
    return _encoder(place) if kind in _ENCODERS else None


def _run(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """A run of the training loop, by what it was begun with."""
    model, recipe = description.get("model"), description.get("recipe")
    if isinstance(recipe, dict) and "encoding" in recipe:
        return _in_context(place, recipe)
    if not isinstance(model, dict):
        return None  # a rival of another kind, or an encoder, whose own directory stands beside
    if "num_encoder_layers" in model and "samples" in description:
        return _course(place, model)
    if "n_layers" in model:
        return _gpt_oss(place, model)
    data = description.get("data")
    if isinstance(data, dict) and data.get("kind") in ("text", "recurrence"):
        return _trained(place, model, data)
    return None


def _classifier(place: Place) -> ModelEntry:
    _require_weights(place.path)
    about = "A text classifier of the sentiment lab. Look for heads that read the words that decide."
    card = _card(place, "encoder", about, ["attention"], _REVIEW, "a text in the language that it was trained on")
    return ModelEntry(card, lambda: classifier_model(card, load_classifier(place.path)))


def _in_context(place: Place, recipe: Mapping[str, Any]) -> ModelEntry:
    told = partial(_made, place.path)
    data = told(LookupConfig, recipe.get("data", {}))
    made = told(InContextRecipe, {**recipe, "data": data})
    run_weights(place.path)
    names = FactNames(
        tuple(f"k{number}" for number in range(data.num_keys)),
        tuple(f"v{number}" for number in range(data.num_values)),
    )
    count = min(6, data.most_facts)
    facts = [(names.keys[3 * number % data.num_keys], names.values[number]) for number in range(count)]
    slots = made.encoding == "slots"
    units = [f"{key}={value}" for key, value in facts] if slots else [word for fact in facts for word in fact]
    about = (
        f"The lookup lab's recipe {made.name!r}: it reads fresh facts, written as {made.encoding}, and answers for the "
        "key that is asked. " + ("Any order will do." if made.encoding != "positions" else "It knows their order.")
    )
    card = _card(
        place, "encoder_decoder", about, ["attention", "scramble"], facts[0][0], "a key, which asks for its value"
    )
    card = card.model_copy(update={"source": units})

    def opened() -> LoadedModel:
        model = filled(place.path, lambda: build_model(made, 0), 2)
        return facts_model(card, model, names) if slots else tokens_model(card, model, names)

    return ModelEntry(card, opened)


def _course(place: Place, model: Mapping[str, Any]) -> ModelEntry:
    config = _made(place.path, EncoderDecoderConfig, model)
    run_weights(place.path)
    ordered = config.source_positions != "none"
    about = "The lookup course's model: it reads five words in any order and writes the value of the key among them."
    if ordered:
        about += " This one's encoder knows positions, so the order may change what it answers."
    card = _card(
        place, "encoder_decoder", about, ["attention", "scramble"], "", "what the decoder has written, mostly nothing"
    )
    words = {"source": ["NAME", "COLOR", "ALICE", "ITEM", "GREEN"], "words": list(lookup.VOCAB)}
    card = card.model_copy(update=words)
    layers = config.num_encoder_layers + config.num_decoder_layers
    return ModelEntry(card, lambda: course_model(card, filled(place.path, lambda: EncoderDecoder(config), layers)))


def _gpt_oss(place: Place, model: Mapping[str, Any]) -> ModelEntry:
    try:
        layers = model["n_layers"]
        with torch.device("meta"):  # one layer tells the configuration, whatever the file says of their number
            config = Transformer(**{**model, "n_layers": min(1, layers)}).config
    except TypeError as error:
        raise _damaged(place.path, error) from error
    run_weights(place.path)
    about = "A decoder of the GPT-OSS lab. It continues numbers that follow a hidden rule modulo 7."
    card = _decoder_card(place, config, about, _NUMBERS, f"numbers from 0 to {config.vocab_size - 1} between spaces")
    longest = min(config.max_seq_len, MOST_TOKENS)

    def opened() -> LoadedModel:
        return recurrence_model(card, filled(place.path, lambda: Transformer(**model), layers), DATA, longest)

    return ModelEntry(card, opened)


def _trained(place: Place, model: Mapping[str, Any], data: Mapping[str, Any]) -> ModelEntry:
    """A run of ``glassformer train``."""
    try:
        config = DecoderConfig.from_json(json.dumps(model))
    except TypeError as error:
        raise _damaged(place.path, error) from error
    run_weights(place.path)
    longest = min(config.max_seq_len, MOST_TOKENS)

    def model_of_run() -> Decoder:
        return filled(place.path, lambda: Decoder(config), config.num_layers)

    if data["kind"] == "recurrence":
        about = "Trained by 'glassformer train' on numbers that follow a hidden rule."
        help_text = f"numbers from 0 to {config.vocab_size - 1} between spaces"
        rule = _made(place.path, RecurrenceConfig, {name: each for name, each in data.items() if name != "kind"})
        card = _decoder_card(place, config, about, _NUMBERS, help_text)
        return ModelEntry(card, lambda: recurrence_model(card, model_of_run(), rule, longest))
    about = f"Trained by 'glassformer train' on the bytes of {Path(str(data.get('path', 'a text'))).name}."
    card = _decoder_card(place, config, about, _BYTES_OF, f"any text of up to {longest:,} bytes")
    return ModelEntry(
        card,
        lambda: LoadedDecoder(
            card,
            model_of_run(),
            lambda text: text_bytes(text, longest),
            byte_word,
            text_of_bytes,
            longest=longest,
        ),
    )


def _encoder(place: Place) -> ModelEntry:
    _require_weights(place.path)
    about = "An encoder of the BERT family, or one of glassformer's."
    spelled = _has_tokenizer(place.path)
    text, help_text = (_REVIEW, "any text") if spelled else ("1 2 3", "token numbers between spaces")
    card = _card(place, "encoder", about, ["attention"], text, help_text)

    def opened() -> LoadedModel:
        tokenizer = load_subwords(place.path) if spelled else None
        return _with_card(wrap_model(bert.load_encoder(place.path), card.text, tokenizer, name=place.name), card)

    return ModelEntry(card, opened)


def _decoder(place: Place, family: str, dense: bool) -> ModelEntry:
    _require_weights(place.path)
    about = f"A checkpoint of {family}: a decoder" + (
        "." if dense else ", whose tokens each pass through a few experts."
    )
    views: list[View] = ["attention", "sampling"] if dense else ["attention", "sampling", "experts"]
    own = family == _DECODERS[decoders.OWN]
    spelled = any((folder / name).is_file() for folder in tokenizer_places(place.path) for name in TOKENIZER_FILES)
    spelled = spelled or (own and _has_tokenizer(place.path))
    text, help_text = (_BYTES_OF, "any text") if spelled else ("1 2 3", "token numbers between spaces")
    card = _card(place, "decoder", about, views, text, help_text)

    def opened() -> LoadedModel:
        # As it is stored: experts that are packed stay so.
        model = decoders.load_decoder(place.path)
        tokenizer = _own_tokenizer(place.path) if own else tokenizer_beside(place.path)
        return _with_card(wrap_model(model, card.text, tokenizer, name=place.name), card)

    return ModelEntry(card, opened)


def _own_tokenizer(path: Path) -> SubwordTokenizer | ReleasedTokenizer | None:
    """Of a decoder in our own layout: one that was trained here, or the one of the model that it was converted from."""
    if not _has_tokenizer(path):
        return tokenizer_beside(path)
    try:
        return load_subwords(path)
    except InputError:
        released = tokenizer_beside(path)
        if released is None:
            raise
        return released


def _has_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


def _with_card(loaded: LoadedModel, card: ModelCard) -> LoadedModel:
    return replace(loaded, card=card)


def _card(place: Place, kind: Kind, about: str, views: list[View], text: str, help_text: str) -> ModelCard:
    return ModelCard(
        name=place.name,
        title=place.title,
        kind=kind,
        about=about,
        views=views,
        text=text,
        input_help=help_text,
        origin="run",
    )


def _decoder_card(place: Place, config: DecoderConfig, about: str, text: str, help_text: str) -> ModelCard:
    views: list[View] = ["attention", "sampling"]
    if config.num_experts is not None:
        views.append("experts")
    return _card(place, "decoder", about, views, text, help_text)


def _require_weights(path: Path) -> None:
    """Refuse a directory whose weights are missing or cut off; only their table of contents is read."""
    stored_tensors(path)


def _made(path: Path, kind: Callable[..., _T], values: Any) -> _T:
    """A configuration from what a file says of it."""
    try:
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        unknown = sorted(set(values) - known)
        require(
            not unknown, f"{path / CONFIG_FILE} with {unknown[:3]}", "known fields", "Use the version that wrote it."
        )
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path / CONFIG_FILE}, which does not describe a model ({error})", "what training wrote", "Train it again."
    )
