"""Open models stored in directories: training runs, classifiers, encoders and decoders.

The kind of a directory follows from its files and its ``config.json``, which are read when the
directory is found. The weights are read when the model is opened. Nothing is allocated before the
stored tensors are known to fit the model.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch

from glassformer.checkpoints import bert, decoders
from glassformer.checkpoints.families import family_in
from glassformer.checkpoints.families.table import Family
from glassformer.checkpoints.store import KNOWN, build, open_model
from glassformer.checkpoints.tensor_files import (
    CONFIG_FILE,
    read_json,
    run_places,
    run_weights,
    stored_tensors,
)
from glassformer.classifier import load_classifier
from glassformer.data import lookup
from glassformer.data.in_context_lookup import LookupConfig
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.released_tokenizer import (
    TOKENIZER_FILE,
    ReleasedTokenizer,
    tokenizer_beside,
    tokenizer_places,
)
from glassformer.data.subword import SubwordTokenizer, load_subwords
from glassformer.data.tokenizer import MAX_LEN
from glassformer.errors import InputError, first_line
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from glassformer.explorer.loading.task_models import (
    Model,
    course_model,
    facts_model,
    load_exact,
    recurrence_model,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import MOST_TOKENS, Kind, ModelCard, View
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.text import byte_size

_T = TypeVar("_T")
_REVIEW = "A slow start, but the ending is wonderful."
_NUMBERS = "1 2 3 5 1 6 0 6"
_BYTES_OF = "Once upon a time"
OPENING = "When Mary and John went to the store, John gave a drink to"
"""Initial text of language models, whose answer is the name that was not repeated.

Source: Wang et al. 2022, "Interpretability in the Wild", arXiv 2211.00593.
"""
FLIPPED = OPENING.replace("John gave", "Mary gave")
"""Second text of language models, of as many tokens and with the other name as its answer."""
_TOKENS = ("1 2 3", "token numbers between spaces")
"""Initial text and help of a model without a tokenizer."""
_LOOKUP_VIEWS: list[View] = ["attention", "scramble", "whatif"]


@dataclass(frozen=True)
class Place:
    """Directory or file, with the name and the title of its model."""

    path: Path
    name: str
    title: str


def stored_entry(place: Place) -> ModelEntry | None:
    """Return the entry of the model in a directory; None if it holds no model of a known kind."""
    path = place.path
    if not (path / CONFIG_FILE).is_file():
        return None
    config = read_json(path / CONFIG_FILE)
    if "training" in config and isinstance(config.get("description"), dict):
        description = config["description"]
        entry = (
            _in_context(place, description)
            or _lookup_course(place, description)
            or _trained_decoder(place, description)
        )
        if entry is not None:
            stored_tensors(run_weights(path))  # refuses missing or truncated weights
    else:
        entry = _checkpoint(place, config)
    if entry is None:
        return None
    return replace(entry, stamp=lambda: stamp_of(path), afresh=lambda: stored_entry(place))


def _in_context(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """Return the entry of a run of the lookup lab; None for any other run."""
    recipe = description.get("recipe")
    if not isinstance(recipe, dict) or "encoding" not in recipe:
        return None
    from glassformer.training.in_context_lookup import InContextRecipe, build_model

    data = _described(place.path, LookupConfig, recipe.get("data", {}))
    recipe_config = _described(place.path, InContextRecipe, {**recipe, "data": data})
    keys = [f"k{key}" for key in range(data.num_keys)]
    values = [f"v{value}" for value in range(data.num_values)]
    facts = [
        (keys[3 * number % data.num_keys], values[number])
        for number in range(min(6, data.most_facts))
    ]
    slots = recipe_config.encoding == "slots"
    units = list(chain.from_iterable(facts))
    if slots:
        units = [f"{key}={value}" for key, value in facts]
    order = "Their order is irrelevant."
    if recipe_config.encoding == "positions":
        order = "The model knows the order of the facts."
    about = (
        f"The lookup lab's recipe {recipe_config.name!r}: it reads unseen facts, written as "
        f"{recipe_config.encoding}, and answers for the key that is asked. {order}"
    )
    help_text = "a key, which asks for its value"
    card = _card(place, "encoder_decoder", about, _LOOKUP_VIEWS, keys[0], help_text, source=units)

    def opened() -> LoadedModel:
        model = filled(place.path, lambda: build_model(recipe_config, 0), 2)
        return facts_model(card, model, keys, values, slots=slots)

    return ModelEntry(card, opened)


def _lookup_course(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """Return the entry of a run of the lookup course's encoder-decoder; None for any other run."""
    model = description.get("model")
    if not isinstance(model, dict) or "num_encoder_layers" not in model:
        return None
    if "samples" not in description:
        return None
    config = _described(place.path, EncoderDecoderConfig, model)
    about = (
        "The lookup course's model: it reads five words in any order and writes the value of the "
        "key among them."
    )
    if config.source_positions != "none":
        about += " This model's encoder knows positions, so the order may change the answer."
    source = ["NAME", "COLOR", "ALICE", "ITEM", "GREEN"]
    words = list(lookup.VOCAB)
    help_text = (
        "what the decoder has written so far, usually nothing; the question is in the words that "
        "Scramble shows"
    )
    card = _card(
        place, "encoder_decoder", about, _LOOKUP_VIEWS, "", help_text, source=source, words=words
    )
    layers = config.num_encoder_layers + config.num_decoder_layers

    def opened() -> LoadedModel:
        return course_model(card, filled(place.path, lambda: EncoderDecoder(config), layers))

    return ModelEntry(card, opened)


def _trained_decoder(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """Return the entry of a run of ``glassformer train``; None for any other run."""
    data = description.get("data")
    if not isinstance(description.get("model"), dict) or not isinstance(data, dict):
        return None
    if data.get("kind") not in ("text", "recurrence"):
        return None
    config = decoders.read_decoder_config(place.path)
    load = partial(decoders.load_decoder, place.path, dtype=torch.float32)
    longest = min(config.max_seq_len, MOST_TOKENS)
    experts = config.num_experts is not None
    if data["kind"] == "recurrence":
        about = (
            "Trained by 'glassformer train' or the gpt-oss lab on numbers that follow a hidden "
            "rule."
        )
        help_text = f"numbers from 0 to {config.vocab_size - 1} between spaces"
        fields = {name: value for name, value in data.items() if name != "kind"}
        rule = _described(place.path, RecurrenceConfig, fields)
        card = _decoder_card(place, experts, about, _NUMBERS, help_text)
        return ModelEntry(card, lambda: recurrence_model(card, load(), rule, longest))
    file_name = Path(str(data.get("path", "a text"))).name
    about = f"Trained by 'glassformer train' on the bytes of {file_name}."
    card = _decoder_card(place, experts, about, _BYTES_OF, f"any text of up to {longest:,} bytes")
    return ModelEntry(card, lambda: replace(wrap_model(load()), card=card))


def _checkpoint(place: Place, config: Mapping[str, Any]) -> ModelEntry | None:
    """Return the entry of a classifier, an encoder or a decoder; None for any other directory."""
    path = place.path
    kind = config.get("model_type")
    family = family_in(config)
    is_classifier = (path / "classes.json").is_file() and (path / "tokenizer.json").is_file()
    is_decoder = family is not None or kind == decoders.OWN
    if not (is_classifier or is_decoder or kind in (*bert.FAMILY, bert.OWN)):
        return None
    stored_tensors(path)  # refuses missing or truncated weights
    if is_classifier:
        return _classifier(place)
    if is_decoder:
        return _decoder(place, config, family)
    return _encoder(place)


def _classifier(place: Place) -> ModelEntry:
    about = "A text classifier. Look for heads that attend to the words that decide."
    help_text = (
        f"a text in the language of the training texts, of which up to {MAX_LEN} tokens are read"
    )
    card = _card(place, "encoder", about, ["attention", "whatif", "patch"], _REVIEW, help_text)
    return ModelEntry(card, lambda: replace(wrap_model(load_classifier(place.path)), card=card))


def _encoder(place: Place) -> ModelEntry:
    has_tokenizer = _has_tokenizer(place.path)
    text, help_text = _TOKENS
    if has_tokenizer:
        text = _REVIEW
        help_text = "any text, of which as much is read as fits"
    about = "An encoder of the BERT family, or of glassformer."
    card = _card(place, "encoder", about, ["attention"], text, help_text)

    def opened() -> LoadedModel:
        tokenizer = load_subwords(place.path) if has_tokenizer else None
        return replace(wrap_model(bert.load_encoder(place.path), text, tokenizer), card=card)

    return ModelEntry(card, opened)


def _decoder(place: Place, config: Mapping[str, Any], family: Family | None) -> ModelEntry:
    path = place.path
    is_own = config.get("model_type") == decoders.OWN
    experts = config.get("num_experts", config.get("num_local_experts")) is not None
    experts = experts or (family is not None and "num_experts" in family.keys)
    about = f"A {'glassformer' if family is None else family.name} checkpoint: a decoder"
    about += " with a mixture of experts." if experts else "."
    text, help_text = _TOKENS
    has_released = any((folder / TOKENIZER_FILE).is_file() for folder in tokenizer_places(path))
    if has_released or (is_own and _has_tokenizer(path)):
        text = _BYTES_OF
        help_text = "any text"
    card = _decoder_card(place, experts, about, text, help_text)

    def opened() -> LoadedModel:
        model = decoders.load_decoder(path)  # as it is stored: packed experts stay packed
        tokenizer = _own_tokenizer(path) if is_own else tokenizer_beside(path)
        return replace(wrap_model(model, text, tokenizer), card=card)

    return ModelEntry(card, opened)


def language_model(source: str, name: str) -> ModelEntry:
    """Return the entry of a model that ``checkpoints.store.open_model`` opens.

    It is a GGUF file, or a model with a name.
    """
    stored = open_model(source)
    place = Place(stored.path, name, stored.name)
    longest = min(stored.config.max_seq_len, MOST_TOKENS)
    text, help_text = _TOKENS
    if stored.tokenizer is not None:
        text = OPENING
        help_text = f"any text of up to {longest:,} tokens"
    has_experts = stored.config.num_experts is not None
    card = _decoder_card(place, has_experts, f"{stored.about}.", text, help_text)

    def opened() -> LoadedModel:
        return replace(wrap_model(build(stored), text, stored.tokenizer), card=card)

    return ModelEntry(card, opened)


def installed_models() -> list[ModelEntry]:
    """List the language models of :data:`KNOWN` in installed packages; no file is read yet."""
    entries = []
    for name, known in KNOWN.items():
        if not known.packages:
            continue
        if any(find_spec(package) is None for package, _ in known.packages):
            continue
        place = Place(Path(known.file or name), name, name)
        about = f"A language model of {byte_size(known.nbytes or 0)}. Licence: {known.licence}."
        help_text = f"any text of up to {MOST_TOKENS:,} tokens"
        card = _decoder_card(place, False, about, OPENING, help_text)

        def opened(card: ModelCard = card) -> LoadedModel:
            return replace(language_model(card.name, card.name).open(), card=card)

        entries.append(ModelEntry(card, opened))
    return entries


def _own_tokenizer(path: Path) -> SubwordTokenizer | ReleasedTokenizer | None:
    """Load the tokenizer of a decoder in glassformer's layout.

    It was trained here, or belongs to the model from which the decoder was converted.
    """
    try:
        return load_subwords(path)
    except InputError:
        released = tokenizer_beside(path)
        if released is None and _has_tokenizer(path):
            raise
        return released


def _has_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


def _card(
    place: Place, kind: Kind, about: str, views: list[View], text: str, help_text: str, **more: Any
) -> ModelCard:
    return ModelCard(
        name=place.name,
        title=place.title,
        kind=kind,
        origin="run",
        about=about,
        views=views,
        text=text,
        input_help=help_text,
        **more,
    )


def _decoder_card(place: Place, experts: bool, about: str, text: str, help_text: str) -> ModelCard:
    views: list[View] = ["flow", "attention", "sampling", "whatif", "patch"]
    if experts:
        views.insert(3, "experts")
    card = _card(place, "decoder", about, views, text, help_text)
    if text == OPENING:
        return card.model_copy(update={"second": FLIPPED})
    return card


def _described(path: Path, kind: Callable[..., _T], values: Any) -> _T:
    """Return a configuration from its description in a file."""
    try:
        return kind(**values)
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(
            got=f"{path / CONFIG_FILE}, which does not describe a model ({error})",
            expected="a run",
            fix="Use the version of glassformer that wrote it, or train again.",
        ) from error


def stamp_of(directory: Path) -> Hashable:
    """Return a value that changes when the weights in a directory or its run are overwritten.

    Return None if there are no weights at the moment.
    """
    for place in (directory, *run_places(directory)):
        try:
            files = [(file, file.stat()) for file in sorted(place.glob("*.safetensors"))]
        except OSError:
            continue  # a training has just replaced a file
        if files:
            return tuple(
                (str(file), status.st_ino, status.st_size, status.st_mtime_ns)
                for file, status in files
            )
    return None


def filled(run: Path, build: Callable[[], Model], layers: int) -> Model:
    """Return a model with the weights of a run, by :func:`load_exact`.

    ``layers`` is the number of layers in its configuration.
    """
    weights = run_weights(run)
    config = run / CONFIG_FILE
    num_stored = len(stored_tensors(weights))
    if layers > num_stored:
        raise InputError(
            got=f"{config} with {layers:,} layers, but {num_stored:,} stored tensors",
            expected="a configuration and weights of one run",
            fix="Restore config.json, or train again.",
        )
    try:
        return load_exact(build, weights)
    except (RuntimeError, MemoryError) as error:
        # A table of positions, for example, is not stored and may have any length.
        raise InputError(
            got=f"{config}, whose model cannot be built ({first_line(error)})",
            expected="the configuration of a run",
            fix="Restore config.json.",
        ) from error
