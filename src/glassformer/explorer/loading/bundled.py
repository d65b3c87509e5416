"""List the bundled models: small, trained, and part of the wheel.

``tools/train_bundled_models.py`` writes them to ``bundled/``, one directory for each model.
"""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import MINILM_PACKAGE, minilm
from glassformer.checkpoints.tensor_files import CONFIG_FILE, read_json
from glassformer.classifier import load_classifier
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords
from glassformer.explorer import BUNDLED
from glassformer.explorer.loading.designed import head_card, head_model, library_entry
from glassformer.explorer.loading.loaded_model import LoadedModel, ModelEntry
from glassformer.explorer.loading.task_models import (
    course_model,
    fact_words,
    facts_model,
    letters_model,
    load_exact,
    recurrence_model,
)
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.explorer.messages import MOST_TOKENS, ModelCard
from glassformer.handcraft.designs import design
from glassformer.handcraft.sequences import LETTERS, SequenceSpace
from glassformer.handcraft.tasks import TASKS
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from glassformer.programs.library import PROGRAMS

RECURRENCE = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
"""Training data of the bundled decoder."""
_NAMES = (
    "ada alan amy ann bea ben bo cara cleo dan dora ed ella emil emma eva finn flo fred gil gus "
    "hal ida ines ivy jack jane joe jon jude kai kate kim kit lea leo lin lola luc mae max mia "
    "nan ned nell nina noah noor olga otto pat pia ray rosa ruth sam sue tess tim ugo una vera "
    "will zoe"
)
INDUCTION = SequenceSpace(tuple(LETTERS), 64, has_cls=True)
"""Letters that the bundled attention-only decoder reads, after a start token."""
KEYS = tuple(_NAMES.split())
"""Keys of the bundled lookup model."""
VALUES = tuple(map(str, range(100)))
"""Values of the bundled lookup model."""
CARDS = tomllib.loads((Path(__file__).parent / "cards.toml").read_text(encoding="utf-8"))
"""Fields of the models' cards; for a head also the reasons for the values of each matrix."""


def bundled() -> list[ModelEntry]:
    """List every bundled model; MiniLM only if its package is installed."""
    numbers = list(map(str, range(RECURRENCE.vocab_size)))
    entries = [
        *map(_head, CARDS["heads"]),
        _entry(
            "sentiment",
            lambda card: replace(wrap_model(load_classifier(BUNDLED / "sentiment")), card=card),
        ),
        _entry(
            "lookup-course",
            lambda card: course_model(card, _encoder_decoder(card.name)),
            list(lookup.VOCAB),
        ),
        _entry(
            "lookup-facts",
            lambda card: facts_model(card, _encoder_decoder(card.name), KEYS, VALUES),
            list(fact_words(KEYS, VALUES)[1:-1]),
        ),
        _entry(
            "recurrence",
            lambda card: recurrence_model(card, _decoder(card.name), RECURRENCE, MOST_TOKENS),
            numbers,
        ),
        _entry("induction", lambda card: letters_model(card, _decoder(card.name), INDUCTION)),
        *(library_entry(name, CARDS["programs"].get(name, {})) for name in PROGRAMS),
    ]
    if find_spec(MINILM_PACKAGE) is not None:
        return [*entries, _entry("minilm", _minilm)]
    return entries


def _entry(
    name: str, opened: Callable[[ModelCard], LoadedModel], words: list[str] | None = None
) -> ModelEntry:
    """Return a model with its card from ``cards.toml``, whose texts get the measured numbers."""
    file = BUNDLED / name / "measured.json"
    measured = read_json(file) if file.is_file() else {}
    fields = dict(CARDS[name])
    for field in ("about", "input_help"):
        fields[field] = fields[field].format(**measured)
    if "samples" in measured:
        fields["text"], *fields["samples"] = measured["samples"]
    card = ModelCard(name=name, origin="shipped", words=words, **fields)
    return ModelEntry(card, lambda: opened(card))


def _head(name: str) -> ModelEntry:
    texts = CARDS["heads"][name]
    task = TASKS[name]()
    card = head_card(
        name,
        task,
        texts["title"],
        texts["about"],
        texts["text"],
        texts["samples"],
        origin="shipped",
    )
    return ModelEntry(card, lambda: head_model(card, task, design(task).weights, texts["why"]))


def _encoder_decoder(name: str) -> EncoderDecoder:
    config = EncoderDecoderConfig(**read_json(BUNDLED / name / CONFIG_FILE))
    return load_exact(lambda: EncoderDecoder(config), BUNDLED / name)


def _decoder(name: str) -> Decoder:
    config = DecoderConfig(**read_json(BUNDLED / name / CONFIG_FILE))
    return load_exact(lambda: Decoder(config), BUNDLED / name)


def _minilm(card: ModelCard) -> LoadedModel:
    source = minilm()
    return replace(wrap_model(load_encoder(source), tokenizer=load_subwords(source)), card=card)
