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
"""What the shipped decoder was trained on."""
_NAMES = (
    "ada alan amy ann bea ben bo cara cleo dan dora ed ella emil emma eva finn flo fred gil gus hal ida ines ivy jack "
    "jane joe jon jude kai kate kim kit lea leo lin lola luc mae max mia nan ned nell nina noah noor olga otto pat pia "
    "ray rosa ruth sam sue tess tim ugo una vera will zoe"
)
KEYS = tuple(_NAMES.split())
"""What the keys of the shipped lookup model are called."""
VALUES = tuple(map(str, range(100)))
"""What its values are called."""


def bundled() -> list[ModelEntry]:
    """Every model that comes along, in the order in which they are entry_of; MiniLM too where its package is installed.

    Raises:
        InputError: The installation is damaged.
    """
    entries = [*head_entries(), _sentiment(), _lookup_course(), _lookup_facts(), _recurrence()]
    return [*entries, _minilm()] if find_spec(MINILM_PACKAGE) is not None else entries


def _measured(name: str) -> dict[str, Any]:
    return read_json(BUNDLED / name / "measured.json")


def _text(name: str) -> str:
    path = BUNDLED / name / "config.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}, which cannot be read: {error}", "a file", "Install glassformer again.") from error


def _sentiment() -> ModelEntry:
    told = _measured("sentiment")
    card = ModelCard(
        name="sentiment",
        title="Sentiment encoder",
        kind="encoder",
        about=f"Three layers of four heads, trained from nothing on {told['reviews']} short reviews. Of "
        f"{told['held_out']} that it never saw it judges {told['right']} right: {told['plain_right']} of the "
        f"{told['plain']} plain ones, and not many of those with irony or negation. Head 1 of layer 0 reads the words "
        "of praise and blame; see what the others do.",
        views=["attention"],
        text=told["samples"][0],
        samples=told["samples"][1:],
        input_help="a short review in English; words that it does not know become <UNK>",
        head=1,
        origin="shipped",
    )
    return ModelEntry(card, lambda: classifier_model(card, load_classifier(BUNDLED / "sentiment")))


def _encoder_decoder(name: str) -> EncoderDecoder:
    return load_exact(lambda: EncoderDecoder(EncoderDecoderConfig.from_json(_text(name))), BUNDLED / name)


def _lookup_course() -> ModelEntry:
    told = _measured("lookup-course")
    card = ModelCard(
        name="lookup-course",
        title="Lookup: the course's model",
        kind="encoder_decoder",
        about=f"An encoder without positions reads five words, a decoder writes the value of the key among them: right "
        f"in {told['right']} of all {told['contexts']} contexts. The order of the words means nothing to it: shuffle "
        "them and see that nothing moves. Look at the cross-attention to see which words the answer is read from.",
        views=["attention", "scramble"],
        text="",
        source=["NAME", "COLOR", "ALICE", "ITEM", "GREEN"],
        samples=["", "GREEN"],
        input_help="what the decoder has written already, usually nothing; the source is words of its vocabulary, "
        f"such as NAME COLOR, a key ({', '.join(lookup.FACTS)}), ITEM and its value",
        words=list(lookup.VOCAB),
        origin="shipped",
    )
    return ModelEntry(card, lambda: course_model(card, _encoder_decoder("lookup-course")))


def _lookup_facts() -> ModelEntry:
    told = _measured("lookup-facts")
    names = FactNames(KEYS, VALUES)
    shares = ", ".join(f"{100 * share:.4g} % of {count}" for count, share in told["accuracy"].items())
    card = ModelCard(
        name="lookup-facts",
        title="Lookup: facts in any order",
        kind="encoder_decoder",
        about="Reads facts that it has never seen, name=number, in no order, and answers for the name that is asked. "
        f"Trained on up to {told['trained_facts']} facts; right among fresh ones: {shares}. A name without a fact gets "
        "'none'. Look at the cross-attention: it lies on the fact that answers, wherever it is dragged.",
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
    told = _measured("recurrence")
    (short, long), best = told["accuracy"].items(), told["optimum"]
    card = ModelCard(
        name="recurrence",
        title="Decoder of the recurrence",
        kind="decoder",
        about="Continues numbers that follow a hidden rule, each the sum of multiples of the last two modulo 7, or now "
        "and then the last one plus 1. Four layers of four heads with attention sinks, every other one with a window "
        f"of 16, and four experts of which each token gets two. It predicts {100 * short[1]:.1f} % of the numbers in "
        f"sequences of {short[0]}, where {100 * best[short[0]]:.1f} % is possible, and {100 * long[1]:.1f} % of "
        f"{100 * best[long[0]]:.1f} % in those of {int(long[0]):,}.",
        views=["attention", "sampling", "experts"],
        text=told["samples"][0],
        samples=told["samples"][1:],
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
        about="All-MiniLM-L6-v2, six layers of twelve heads, which makes a vector of a sentence. Trained by others on "
        "a billion pairs of sentences. Look for heads that read the next or the previous word, and for those that rest "
        "on [SEP].",
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
