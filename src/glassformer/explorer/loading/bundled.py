"""The bundled models: small, trained, and in the wheel, so that the page has something to show at first start.

``tools/train_bundled_models.py`` writes them to ``bundled/``, one directory for each model.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.hub import MINILM_PACKAGE, minilm
from glassformer.checkpoints.tensor_files import read_json
from glassformer.classifier import load_classifier
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords
from glassformer.errors import InputError
from glassformer.explorer.loading.hand_designed import head_entries
from glassformer.explorer.loading.loaded_model import LoadedDecoder, LoadedEncoder, ModelEntry
from glassformer.explorer.loading.task_models import (
    FactNames,
    classifier_model,
    course_model,
    encoder_model,
    facts_model,
    load_exact,
    recurrence_model,
)
from glassformer.explorer.messages import ModelCard
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig

BUNDLED = Path(__file__).parents[1] / "bundled"

RECURRENCE = RecurrenceConfig(order=2, vocab_size=7, next_prob=0.1, seq_len=64)
"""The training data of the bundled decoder."""
_NAMES = (
    "ada alan amy ann bea ben bo cara cleo dan dora ed ella emil emma eva finn flo fred gil gus hal ida ines ivy jack "
    "jane joe jon jude kai kate kim kit lea leo lin lola luc mae max mia nan ned nell nina noah noor olga otto pat pia "
    "ray rosa ruth sam sue tess tim ugo una vera will zoe"
)
KEYS = tuple(_NAMES.split())
"""The names of the keys of the bundled lookup model."""
VALUES = tuple(map(str, range(100)))
"""The names of its values."""


def bundled() -> list[ModelEntry]:
    """Every bundled model, in the order in which they are listed; MiniLM only if its package is installed.

    Raises:
        InputError: The installation is damaged.
    """
    entries = [*head_entries(), _sentiment(), _lookup_course(), _lookup_facts(), _recurrence()]
    return [*entries, _minilm()] if find_spec(MINILM_PACKAGE) is not None else entries


def _measurements(name: str) -> dict[str, Any]:
    return read_json(BUNDLED / name / "measured.json")


def _text(name: str) -> str:
    path = BUNDLED / name / "config.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}, which cannot be read: {error}", "a file", "Install glassformer again.") from error


def _sentiment() -> ModelEntry:
    found = _measurements("sentiment")
    card = ModelCard(
        name="sentiment",
        title="Sentiment encoder",
        kind="encoder",
        about=f"Three layers of four heads, trained from scratch on {found['reviews']} short reviews. Of "
        f"{found['held_out']} held-out ones it classifies {found['right']} correctly: {found['plain_right']} of the "
        f"{found['plain']} plain ones, and not many of those with irony or negation. Head 1 of layer 0 attends to "
        "words of praise and blame; see what the others do.",
        views=["attention"],
        text=found["samples"][0],
        samples=found["samples"][1:],
        input_help="a short review in English; unknown words become <UNK>",
        head=1,
        origin="shipped",
    )
    return ModelEntry(card, lambda: classifier_model(card, load_classifier(BUNDLED / "sentiment")))


def _encoder_decoder(name: str) -> EncoderDecoder:
    return load_exact(lambda: EncoderDecoder(EncoderDecoderConfig.from_json(_text(name))), BUNDLED / name)


def _lookup_course() -> ModelEntry:
    found = _measurements("lookup-course")
    card = ModelCard(
        name="lookup-course",
        title="Lookup: the course's model",
        kind="encoder_decoder",
        about=f"An encoder without positions reads five words, a decoder writes the value of the key among them: right "
        f"in {found['right']} of all {found['contexts']} contexts. It ignores the order of the words: shuffle them and "
        "see that nothing changes. The cross-attention shows which words the answer is read from.",
        views=["attention", "scramble"],
        text="",
        source=["NAME", "COLOR", "ALICE", "ITEM", "GREEN"],
        samples=["", "GREEN"],
        input_help="the decoder's output so far, usually nothing; the source is words of its vocabulary, "
        f"such as NAME COLOR, a key ({', '.join(lookup.FACTS)}), ITEM and its value",
        words=list(lookup.VOCAB),
        origin="shipped",
    )
    return ModelEntry(card, lambda: course_model(card, _encoder_decoder("lookup-course")))


def _lookup_facts() -> ModelEntry:
    found = _measurements("lookup-facts")
    names = FactNames(KEYS, VALUES)
    shares = ", ".join(f"{100 * share:.4g} % of {count}" for count, share in found["accuracy"].items())
    card = ModelCard(
        name="lookup-facts",
        title="Lookup: facts in any order",
        kind="encoder_decoder",
        about="Reads unseen facts, name=number, in any order, and answers for the name that is asked. "
        f"Trained on up to {found['trained_facts']} facts; accuracy on unseen ones: {shares}. A name without a fact "
        "gets 'none'. Look at the cross-attention: it lies on the fact that answers, wherever you drag it.",
        views=["attention", "scramble"],
        text="emma",
        source=["ada=17", "emma=42", "leo=8", "noor=99", "otto=42", "zoe=3"],
        samples=["leo", "zoe", "tim"],
        input_help="one of the names, which asks for its number",
        words=list(names.words[1:-1]),
        origin="shipped",
    )
    return ModelEntry(card, lambda: facts_model(card, _encoder_decoder("lookup-facts"), names))


def _recurrence() -> ModelEntry:
    found = _measurements("recurrence")
    (short, long), best = found["accuracy"].items(), found["optimum"]
    card = ModelCard(
        name="recurrence",
        title="Decoder of the recurrence",
        kind="decoder",
        about="Continues numbers that follow a hidden rule: each is the sum of multiples of the last two modulo 7, or "
        "sometimes the last one plus 1. Four layers of four heads with attention sinks, every other one with a window "
        f"of 16, and four experts of which each token gets two. It predicts {100 * short[1]:.1f} % of the numbers in "
        f"sequences of {short[0]}, where {100 * best[short[0]]:.1f} % is possible, and {100 * long[1]:.1f} % of "
        f"{100 * best[long[0]]:.1f} % in those of {int(long[0]):,}.",
        views=["attention", "sampling", "experts"],
        text=found["samples"][0],
        samples=found["samples"][1:],
        input_help=f"up to {int(long[0]):,} numbers from 0 to {RECURRENCE.vocab_size - 1} between spaces",
        words=[str(number) for number in range(RECURRENCE.vocab_size)],
        origin="shipped",
    )

    def opened() -> LoadedDecoder:
        config = DecoderConfig.from_json(_text("recurrence"))
        model = load_exact(lambda: Decoder(config), BUNDLED / "recurrence")
        return recurrence_model(card, model, RECURRENCE, config.max_seq_len)

    return ModelEntry(card, opened)


def _minilm() -> ModelEntry:
    card = ModelCard(
        name="minilm",
        title="MiniLM, a pretrained encoder",
        kind="encoder",
        about="All-MiniLM-L6-v2, six layers of twelve heads, which gives a vector for a sentence. Trained by its "
        "authors on a billion pairs of sentences. Look for heads that attend to the next or the previous word, and for "
        "those that attend to [SEP].",
        views=["attention"],
        text="The animal did not cross the street because it was too tired.",
        samples=["The trophy does not fit into the suitcase because it is too big.", "Time flies like an arrow."],
        input_help="any text, of which up to 512 tokens are read",
        origin="shipped",
    )

    def opened() -> LoadedEncoder:
        source = minilm()
        return encoder_model(card, load_encoder(source), load_subwords(source))

    return ModelEntry(card, opened)
