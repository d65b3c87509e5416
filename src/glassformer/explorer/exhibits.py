"""The models that come with the project, small and trained, so that the page is alive at first start.

What :mod:`glassformer.explorer.make_exhibits` has written into ``shipped/`` is read here: a directory for each model,
whose weights are read when somebody asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.checkpoints.bert import load_encoder
from glassformer.checkpoints.tensor_files import read_json, read_tensors, stored_tensors
from glassformer.data import lookup
from glassformer.data.recurrence import RecurrenceConfig
from glassformer.data.subword import load_subwords
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import InputError, require
from glassformer.explorer.exhibit import DecoderExhibit, EncoderDecoderExhibit, EncoderExhibit, Offer
from glassformer.explorer.following import may_follow, rule_in_words
from glassformer.explorer.head_exhibits import head_offers
from glassformer.explorer.messages import ModelCard
from glassformer.explorer.text_codecs import numbers, text_of_numbers
from glassformer.labs.sentiment.recipes import MINILM_PACKAGE, minilm
from glassformer.labs.sentiment.training_runs import Classifier, load_classifier
from glassformer.models.decoder import Decoder
from glassformer.models.decoder_config import DecoderConfig
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.models.encoder_decoder_config import EncoderDecoderConfig

SHIPPED = Path(__file__).parent / "shipped"

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

_FACT = re.compile(r"\s*([^=\s]+)\s*=\s*([^=\s]+)\s*")


def shipped() -> list[Offer]:
    """Every model that comes along, in the order in which they are offered; MiniLM too where its package is installed.

    Raises:
        InputError: The installation is damaged.
    """
    offers = [*head_offers(), _sentiment(), _lookup_course(), _lookup_facts(), _recurrence()]
    return [*offers, _minilm()] if find_spec(MINILM_PACKAGE) is not None else offers


def classifier_exhibit(card: ModelCard, classifier: Classifier) -> EncoderExhibit:
    """A text classifier of the sentiment lab."""
    encoder, tokenizer = classifier.encoder, classifier.tokenizer
    return EncoderExhibit(
        card,
        encoder.eval(),
        partial(_encoded, tokenizer, encoder.config.max_seq_len),
        tokenizer.pieces,
        classifier.classes,
    )


def course_exhibit(card: ModelCard, model: EncoderDecoder) -> EncoderDecoderExhibit:
    """A model of the lookup course: it reads words, and writes a value and ``[EOS]``."""

    def tokens(words: Sequence[str], longest: int) -> Int64[Tensor, "one position"]:
        unknown = [word for word in words if word not in lookup.VOCAB]
        require(not unknown, f"the word {(unknown or [''])[0]!r}", f"words among {', '.join(lookup.VOCAB)}", "Mend it.")
        require(
            len(words) <= longest, f"{len(words)} words", f"at most {longest}", "Leave some out: the model has no room."
        )
        return torch.tensor([[lookup.VOCAB[word] for word in words]], dtype=torch.int64)

    def source(units: Sequence[str]) -> Int64[Tensor, "one place"]:
        require(len(units) > 0, "a source of nothing", "at least one word", "Add one.")
        return tokens(units, model.config.max_source_len)

    def target(text: str) -> Int64[Tensor, "one position"]:
        return tokens(["[SOS]", *text.split()], model.config.max_target_len)

    def word(token: int) -> str:
        return lookup.ID_TO_TOKEN[token]

    return EncoderDecoderExhibit(card, model.eval(), source, target, word, max_new_tokens=2, end=lookup.EOS)


@dataclass(frozen=True)
class FactNames:
    """What the keys and values of an in-context lookup are called."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The word of each token, in the order of :mod:`glassformer.data.in_context_lookup`."""
        return ("[PAD]", *self.keys, *self.values, "none", "[NO KEY]")


def facts_exhibit(card: ModelCard, model: EncoderDecoder, names: FactNames) -> EncoderDecoderExhibit:
    """A model that reads slots, facts as ``key=value``, and answers for the key that the text names."""
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

    return EncoderDecoderExhibit(card, model.eval(), source, target, lambda token: words[token], max_new_tokens=1)


def tokens_exhibit(card: ModelCard, model: EncoderDecoder, names: FactNames) -> EncoderDecoderExhibit:
    """A model that reads the same facts as single tokens, keys and values, and answers for the key that the text names.

    Whether it can tell which value stands with which key depends on what it knows of their order.
    """
    numbered = {word: number for number, word in enumerate(names.words)}
    readable = {*names.keys, *names.values}
    slots = facts_exhibit(card, model, names)
    longest = model.config.max_source_len

    def source(units: Sequence[str]) -> Int64[Tensor, "one place"]:
        require(1 <= len(units) <= longest, f"{len(units)} words", f"1 to {longest}", "Add or remove some.")
        unknown = [unit for unit in units if unit not in readable]
        expected = f"keys ({_listed(names.keys)}) and values ({_listed(names.values)})"
        require(not unknown, f"the word {(unknown or [''])[0]!r}", expected, "Mend it.")
        return torch.tensor([[numbered[unit] for unit in units]], dtype=torch.int64)

    return replace(slots, source_tokens=source)


def recurrence_exhibit(card: ModelCard, model: nn.Module, config: RecurrenceConfig, longest: int) -> DecoderExhibit:
    """A decoder that continues numbers of the recurrence."""
    return DecoderExhibit(
        card,
        model.eval(),
        lambda text: numbers(text, config.vocab_size, longest),
        str,
        text_of_numbers,
        lambda tokens, candidate: may_follow(tokens, candidate, config),
        lambda tokens: rule_in_words(tokens, config),
        longest,
    )


def load_exact(model: nn.Module, directory: Path) -> None:
    """Fill a model with the weights of ``directory``, all of them and no others, as float32.

    Raises:
        InputError: A file that is missing or damaged, or tensors that do not fit.
    """
    wanted = {name: (name, list(tensor.shape)) for name, tensor in model.state_dict().items()}
    model.load_state_dict(read_tensors(stored_tensors(directory), wanted, torch.float32), assign=True)


def _encoded(tokenizer: Tokenizer, longest: int, text: str) -> list[int]:
    return tokenizer.encode(text, longest)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= 8 else f"{', '.join(words[:4])} ... {words[-1]}"


def _measured(name: str) -> dict[str, Any]:
    return read_json(SHIPPED / name / "exhibit.json")


def _text(name: str) -> str:
    path = SHIPPED / name / "config.json"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}, which cannot be read: {error}", "a file", "Install glassformer again.") from error


def _sentiment() -> Offer:
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
    return Offer(card, lambda: classifier_exhibit(card, load_classifier(SHIPPED / "sentiment")))


def _encoder_decoder(name: str) -> EncoderDecoder:
    model = EncoderDecoder(EncoderDecoderConfig.from_json(_text(name)))
    load_exact(model, SHIPPED / name)
    return model


def _lookup_course() -> Offer:
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
    return Offer(card, lambda: course_exhibit(card, _encoder_decoder("lookup-course")))


def _lookup_facts() -> Offer:
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
    return Offer(card, lambda: facts_exhibit(card, _encoder_decoder("lookup-facts"), names))


def _recurrence() -> Offer:
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

    def opened() -> DecoderExhibit:
        config = DecoderConfig.from_json(_text("recurrence"))
        model = Decoder(config)
        load_exact(model, SHIPPED / "recurrence")
        return recurrence_exhibit(card, model, RECURRENCE, config.max_seq_len)

    return Offer(card, opened)


def _minilm() -> Offer:
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

    def opened() -> EncoderExhibit:
        source = minilm()
        encoder, tokenizer = load_encoder(source).eval(), load_subwords(source)
        return EncoderExhibit(card, encoder, partial(_encoded, tokenizer, encoder.config.max_seq_len), tokenizer.pieces)

    return Offer(card, opened)
