"""Models stored in directories: training runs, classifiers, and checkpoints of encoders and decoders.

The kind of a directory follows from its files and its ``config.json``, which are read when the directory is found; the
weights are read when the model is opened. Nothing is allocated before the stored tensors are known to fit the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from glassformer.checkpoints import bert, decoders
from glassformer.checkpoints.families import family_in
from glassformer.checkpoints.tensor_files import CONFIG_FILE, stored_tensors
from glassformer.classifier import load_classifier
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.released_tokenizer import TOKENIZER_FILE, ReleasedTokenizer, tokenizer_beside, tokenizer_places
from glassformer.data.subword import SubwordTokenizer, load_subwords
from glassformer.errors import InputError, first_line, require
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from glassformer.explorer.loading.task_models import Model, load_exact, recurrence_model
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import MOST_TOKENS, Kind, ModelCard, View
from glassformer.generation.language_model import find_model, require_tokenizer
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig

_T = TypeVar("_T")
_REVIEW = "A slow start, but the ending is wonderful."
NUMBERS = "1 2 3 5 1 6 0 6"
"""The initial text of decoders trained on a recurrence."""
_BYTES_OF = "Once upon a time"
OPENING = "When Mary and John went to the store, John gave a drink to"
"""The initial text of language models: it ends with the name that does not return (Wang et al. 2022)."""
_TOKENS = "1 2 3", "token numbers between spaces"
_ENCODERS = (*bert.FAMILY, bert.OWN)


@dataclass(frozen=True)
class Place:
    """A directory or file, with the name and the title of its model."""

    path: Path
    name: str
    title: str


def trained_decoder(place: Place, description: Mapping[str, Any]) -> ModelEntry | None:
    """The entry of a run of ``glassformer train``."""
    model, data = description.get("model"), description.get("data")
    if not (isinstance(model, dict) and isinstance(data, dict) and data.get("kind") in ("text", "recurrence")):
        return None
    config = DecoderConfig.from_json(json.dumps(model))
    run_weights(place.path)
    longest = min(config.max_seq_len, MOST_TOKENS)

    def model_of_run() -> Decoder:
        return filled(place.path, lambda: Decoder(config), config.num_layers)

    if data["kind"] == "recurrence":
        about = "Trained by 'glassformer train' or the gpt-oss lab on numbers that follow a hidden rule."
        help_text = f"numbers from 0 to {config.vocab_size - 1} between spaces"
        rule = described(place.path, RecurrenceConfig, {name: each for name, each in data.items() if name != "kind"})
        card = decoder_card(place, config, about, NUMBERS, help_text)
        return ModelEntry(card, lambda: recurrence_model(card, model_of_run(), rule, longest))
    about = f"Trained by 'glassformer train' on the bytes of {Path(str(data.get('path', 'a text'))).name}."
    card = decoder_card(place, config, about, _BYTES_OF, f"any text of up to {longest:,} bytes")
    return ModelEntry(card, lambda: replace(wrap_model(model_of_run()), card=card))


def checkpoint(place: Place, config: Mapping[str, Any]) -> ModelEntry | None:
    """The entry of a checkpoint with this ``config.json``; None: of another kind."""
    path, kind = place.path, config.get("model_type")
    if (path / "classes.json").is_file() and (path / "tokenizer.json").is_file():
        stored_tensors(path)  # refuses missing or truncated weights
        about = "A text classifier. Look for heads that attend to the words that decide."
        help_text = "a text in the language of the training texts"
        card = model_card(place, "encoder", about, ["attention", "whatif"], _REVIEW, help_text)
        return ModelEntry(card, lambda: replace(wrap_model(load_classifier(path)), card=card))
    family = family_in(config)
    if family is not None or kind == decoders.OWN:
        experts = config.get("num_experts", config.get("num_local_experts"))
        dense = experts is None and (family is None or "num_experts" not in family.keys)
        return _decoder(place, "glassformer" if family is None else family.name, dense)
    return _encoder(place) if kind in _ENCODERS else None


def language_model(source: str, name: str) -> ModelEntry:
    """What :func:`~glassformer.generation.language_model.load` opens: a GGUF file, or a model with a name."""
    found = find_model(source)
    tokenizer = require_tokenizer(found)
    place, longest = Place(found.path, name, found.name), min(found.config.max_seq_len, MOST_TOKENS)
    card = decoder_card(place, found.config, f"{found.about}.", OPENING, f"any text of up to {longest:,} tokens")
    return ModelEntry(card, lambda: replace(wrap_model(found.load(), OPENING, tokenizer), card=card))


def _encoder(place: Place) -> ModelEntry:
    stored_tensors(place.path)
    about = "An encoder of the BERT family, or of glassformer."
    has_tokenizer = _has_tokenizer(place.path)
    text, help_text = (_REVIEW, "any text") if has_tokenizer else _TOKENS
    card = model_card(place, "encoder", about, ["attention"], text, help_text)

    def opened() -> LoadedModel:
        tokenizer = load_subwords(place.path) if has_tokenizer else None
        return replace(wrap_model(bert.load_encoder(place.path), text, tokenizer), card=card)

    return ModelEntry(card, opened)


def _decoder(place: Place, family: str, dense: bool) -> ModelEntry:
    stored_tensors(place.path)
    about = f"A {family} checkpoint: a decoder" + ("." if dense else " with a mixture of experts.")
    views: list[View] = ["attention", "sampling", "whatif"]
    if not dense:
        views.insert(2, "experts")
    own = family == "glassformer"
    files = [folder / TOKENIZER_FILE for folder in tokenizer_places(place.path)]
    has_tokenizer = any(file.is_file() for file in files) or (own and _has_tokenizer(place.path))
    text, help_text = (_BYTES_OF, "any text") if has_tokenizer else _TOKENS
    card = model_card(place, "decoder", about, views, text, help_text)

    def opened() -> LoadedModel:
        # As it is stored: packed experts stay packed.
        model = decoders.load_decoder(place.path)
        tokenizer = _own_tokenizer(place.path) if own else tokenizer_beside(place.path)
        return replace(wrap_model(model, text, tokenizer), card=card)

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


def model_card(
    place: Place, kind: Kind, about: str, views: list[View], text: str, help_text: str, **more: Any
) -> ModelCard:
    """The card of a stored model; ``more`` are further fields."""
    shown: dict[str, Any] = {"about": about, "views": views, "text": text, "input_help": help_text}
    return ModelCard(name=place.name, title=place.title, kind=kind, origin="run", **shown, **more)


def decoder_card(place: Place, config: DecoderConfig, about: str, text: str, help_text: str) -> ModelCard:
    """The card of a stored decoder, which has the view of experts if the model has experts."""
    views: list[View] = ["attention", "sampling"]
    if config.num_experts is not None:
        views.append("experts")
    views.append("whatif")
    return model_card(place, "decoder", about, views, text, help_text)


def described(path: Path, kind: Callable[..., _T], values: Any) -> _T:
    """A configuration from its description in a file."""
    try:
        return kind(**values)
    except (InputError, TypeError, AttributeError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> InputError:
    """What to raise for a ``config.json`` that describes no model."""
    fix = "Use the version of glassformer that wrote it, or train again."
    return InputError(f"{path / CONFIG_FILE}, which does not describe a model ({error})", "a run", fix)


def run_weights(run: Path) -> Path:
    """The directory of a run's best weights; before its first evaluation, of its latest ones."""
    # Imported here because training loads accelerate, which the bundled models do not need.
    from glassformer.training.run_directory import RunDirectory

    weights = RunDirectory(run).weights()
    if weights is None:
        raise InputError(f"{run}, which has no weights yet", "a run with a checkpoint", "Train it further.")
    stored_tensors(weights)
    return weights


def stamp_of(directory: Path) -> Hashable:
    """A value that changes when the weights in a directory, or the best ones of the run in it, are overwritten.

    None: there are no weights at the moment.
    """
    from glassformer.training.run_directory import RunDirectory

    run = RunDirectory(directory)
    for place in (directory, run.best, *reversed(run.checkpoints())):
        try:
            found = [(file, file.stat()) for file in sorted(place.glob("*.safetensors"))]
        except OSError:
            continue  # a training has just replaced it
        if found:
            return tuple((str(file), each.st_ino, each.st_size, each.st_mtime_ns) for file, each in found)
    return None


def filled(run: Path, build: Callable[[], Model], layers: int) -> Model:
    """A model with the weights of a run, by :func:`load_exact`; ``layers`` is the number in its configuration."""
    weights, config = run_weights(run), run / CONFIG_FILE
    stored = len(stored_tensors(weights))
    require(
        layers <= stored,
        f"{config} with {layers:,} layers, but {stored:,} stored tensors",
        "a configuration and weights of one run",
        "Restore config.json, or train again.",
    )
    try:
        return load_exact(build, weights)
    except (RuntimeError, MemoryError) as error:  # such as a table of positions of any length, which is not stored
        got = f"{config}, whose model cannot be built ({first_line(error)})"
        raise InputError(got, "the configuration of a run", "Restore config.json.") from error
