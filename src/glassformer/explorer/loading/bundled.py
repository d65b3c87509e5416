"""The bundled models: small, trained, and in the wheel, so that the page has something to show at first start.

``tools/train_bundled_models.py`` writes them to ``bundled/``, one directory for each model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import MINILM_PACKAGE, minilm
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.classifier import load_classifier
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords
from glassformer.explorer.loading.hand_designed import head_card, head_model
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedModel, ModelEntry
from glassformer.explorer.loading.programs import library_entry
from glassformer.explorer.loading.task_models import (
    FactNames,
    course_model,
    facts_model,
    letters_model,
    load_exact,
    recurrence_model,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import ModelCard
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import LETTERS, SequenceSpace
from glassformer.handcraft.tasks import TASKS
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.programs.library import PROGRAMS

BUNDLED = Path(__file__).parents[1] / "bundled"

RECURRENCE = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
"""The training data of the bundled decoder."""
_NAMES = (
    "ada alan amy ann bea ben bo cara cleo dan dora ed ella emil emma eva finn flo fred gil gus hal ida ines ivy jack "
    "jane joe jon jude kai kate kim kit lea leo lin lola luc mae max mia nan ned nell nina noah noor olga otto pat pia "
    "ray rosa ruth sam sue tess tim ugo una vera will zoe"
)
INDUCTION = SequenceSpace(tuple(LETTERS), 64, has_cls=True)
"""The letters that the bundled attention-only decoder reads, after a start token."""
KEYS = tuple(_NAMES.split())
"""The names of the keys of the bundled lookup model."""
VALUES = tuple(map(str, range(100)))
"""The names of its values."""
CARDS = tomllib.loads((Path(__file__).parent / "cards.toml").read_text(encoding="utf-8"))
"""Fields of the models' cards, and for each head also the reason for the values of each matrix."""


def bundled() -> list[ModelEntry]:
    """Every bundled model, in the order in which they are listed; MiniLM only if its package is installed."""
    entries = [
        *map(_head, CARDS["heads"]),
        _sentiment(),
        _lookup_course(),
        _lookup_facts(),
        _recurrence(),
        _induction(),
        *(library_entry(name, CARDS["programs"].get(name, {})) for name in PROGRAMS),
    ]
    return [*entries, _minilm()] if find_spec(MINILM_PACKAGE) is not None else entries


def _json(name: str, file: str = "measured.json") -> dict[str, Any]:
    return read_json(BUNDLED / name / file)


def _card(name: str, measured: Mapping[str, Any], **more: Any) -> ModelCard:
    fields = {**CARDS[name], **more}
    texts = {field: fields.pop(field).format(**measured) for field in ("about", "input_help")}
    return ModelCard(name=name, origin="shipped", **texts, **fields)


def _head(name: str) -> ModelEntry:
    told, task = CARDS["heads"][name], TASKS[name]()
    card = head_card(name, task, told["title"], told["about"], told["text"], told["samples"], origin="shipped")
    return ModelEntry(card, lambda: head_model(card, task, design(task).weights, told["why"]))


def _sentiment() -> ModelEntry:
    found = _json("sentiment")
    card = _card("sentiment", found, text=found["samples"][0], samples=found["samples"][1:])
    return ModelEntry(card, lambda: replace(wrap_model(load_classifier(BUNDLED / "sentiment")), card=card))


def _encoder_decoder(name: str) -> EncoderDecoder:
    return load_exact(lambda: EncoderDecoder(EncoderDecoderConfig(**_json(name, CONFIG_FILE))), BUNDLED / name)


def _lookup_course() -> ModelEntry:
    name, keys = "lookup-course", ", ".join(lookup.FACTS)
    card = _card(name, {**_json(name), "keys": keys}, words=list(lookup.VOCAB))
    return ModelEntry(card, lambda: course_model(card, _encoder_decoder(name)))


def _lookup_facts() -> ModelEntry:
    name, names = "lookup-facts", FactNames(KEYS, VALUES)
    found = _json(name)
    shares = ", ".join(f"{100 * share:.4g} % of {count}" for count, share in found["accuracy"].items())
    card = _card(name, {**found, "shares": shares}, words=list(names.words[1:-1]))
    return ModelEntry(card, lambda: facts_model(card, _encoder_decoder(name), names))


def _recurrence() -> ModelEntry:
    found = _json("recurrence")
    measured = {
        "lengths": [int(length) for length in found["accuracy"]],
        "right": [100 * share for share in found["accuracy"].values()],
        "best": [100 * share for share in found["optimum"].values()],
    }
    words = [str(number) for number in range(RECURRENCE.vocab_size)]
    card = _card("recurrence", measured, text=found["samples"][0], samples=found["samples"][1:], words=words)

    def opened() -> LoadedDecoder:
        config = DecoderConfig(**_json("recurrence", CONFIG_FILE))
        model = load_exact(lambda: Decoder(config), BUNDLED / "recurrence")
        return recurrence_model(card, model, RECURRENCE, config.max_seq_len)

    return ModelEntry(card, opened)


def _induction() -> ModelEntry:
    found = _json("induction")
    measured = {"right": 100 * found["accuracy"], "others": 100 * min(found["others"])}
    for kind in ("previous", "induction"):
        layer, head, _ = found[kind]
        measured |= {kind: f"{layer}.{head}", f"without_{kind}": 100 * found["without"][f"{layer}.{head}"]}
    card = _card("induction", measured, text=found["samples"][0], samples=found["samples"][1:])

    def opened() -> LoadedDecoder:
        config = DecoderConfig(**_json("induction", CONFIG_FILE))
        return letters_model(card, load_exact(lambda: Decoder(config), BUNDLED / "induction"), INDUCTION)

    return ModelEntry(card, opened)


def _minilm() -> ModelEntry:
    card = _card("minilm", {})

    def opened() -> LoadedModel:
        source = minilm()
        return replace(wrap_model(load_encoder(source), tokenizer=load_subwords(source)), card=card)

    return ModelEntry(card, opened)
