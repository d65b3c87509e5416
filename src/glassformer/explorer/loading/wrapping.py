"""A model that somebody hands over from Python, ours or one of transformers, as an loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.classifier import Classifier
from glassformer.errors import InputError, require
from glassformer.explorer.loading.codecs import Codec, codec_of, numbers, text_of_numbers
from glassformer.explorer.loading.hand_designed import first_text, fitting_task, head_card, head_model
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    final_logits,
)
from glassformer.explorer.loading.python_inputs import require_text, text_of, tokens_in, units_of
from glassformer.explorer.messages import MOST_TOKENS, Kind, ModelCard, View
from glassformer.handcraft.build import Design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task
from glassformer.handcraft.verify import require_fits
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating
from glassformer.observe.capture import find_hook_points

_NUMBERS_HELP = "token numbers between spaces"


def wrap_model(
    model: Any,
    text: Any = None,
    tokenizer: Any = None,
    source: Any = None,
    *,
    task: Task | None = None,
    name: str = "given",
    title: str | None = None,
) -> LoadedModel:
    """The loaded of a model that is there already. It stays in the mode in which it is, training or evaluation.

    ==============================================  =================================================================
    model                                           tokenizer
    ==============================================  =================================================================
    ``Encoder``, ``Decoder``                        ours, one of transformers or that of a released model, or none:
                                                    then the text is numbers, or for a vocabulary of 256 bytes
    ``Classifier`` of glassformer.classifier         its own
    ``EncoderDecoder``                              none: source and text are token numbers; with fields a unit is
                                                    their numbers with ``=`` between them
    ``HeadWeights``, or a ``Design``                none: the task, or else a built-in one that fits, has the letters
    GPT-2, Llama, Mixtral, BERT of transformers     one of transformers, or none
    an loaded                                      none; it is returned as it is
    ==============================================  =================================================================

    Args:
        model: The model.
        text: What to begin with: a text, or tokens as numbers (a list, an array or a tensor). None: one that suits the
            model; for an ``EncoderDecoder`` it has to be given.
        tokenizer: What makes tokens of text.
        source: For an encoder-decoder: what its encoder reads, a list of tokens or of units.
        task: For the weights of a head: what it is to do.
        name: What it is called in requests.
        title: What a person calls it; the name of its class when None.

    Raises:
        InputError: A model that cannot be watched, a tokenizer that is none, or a text that does not fit.
    """
    if isinstance(model, LoadedHead | LoadedEncoder | LoadedDecoder | LoadedEncoderDecoder):
        return model
    if isinstance(model, Design):
        model = model.weights
    if isinstance(model, HeadWeights):
        return _head(model, text, task, name, title)
    require(task is None, f"a task for a {type(model).__name__}", "the weights of a head", "Leave task out.")
    classes: tuple[str, ...] = ()
    if isinstance(model, Classifier):
        model, tokenizer, classes = model.encoder, model.tokenizer, model.classes
    require(
        isinstance(model, nn.Module),
        f"a model of type {type(model).__name__}",
        "a torch module, a Classifier or an loaded",
        "Pass the model itself, not its name.",
    )
    model = getattr(model, "_orig_mod", model)
    absent = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    require(not absent, f"a {type(model).__name__} on the device meta", "one with weights", "Load its weights first.")
    points = find_hook_points(model)
    require(
        any(point.role == "attention" for point in points),
        f"{type(model).__name__}, which has no attention that can be watched",
        "a model of glassformer's attention, or a GPT-2, Llama, Mixtral or BERT of transformers",
        "Pass one of these.",
    )
    title = type(model).__name__ if title is None else title
    if isinstance(model, EncoderDecoder):
        return _encoder_decoder(model, text, source, tokenizer, name, title)
    require(source is None, f"a source for {title}", "an encoder-decoder", "Leave source out.")
    routes = any(point.role == "experts" for point in points)
    return _one_stack(model, text, tokenizer, classes, routes, name, title)


def _head(weights: HeadWeights, text: Any, task: Task | None, name: str, title: str | None) -> LoadedHead:
    task = fitting_task(weights) if task is None else task
    require_fits(weights, task)
    begin = first_text(task) if text is None else str(text)
    task.space.encode(begin)
    about = f"A head that was handed over from Python. The task: {task.summary}."
    card = head_card(name, task, title or task.name, about, begin, origin="given")
    return head_model(card, task, weights)


def _one_stack(
    model: nn.Module, text: Any, tokenizer: Any, classes: tuple[str, ...], routes: bool, name: str, title: str
) -> LoadedEncoder | LoadedDecoder:
    longest, vocab_size = min(MOST_TOKENS, _longest(model)), _vocab_size(model)
    codec = codec_of(tokenizer, vocab_size, longest, text)
    encode, word, join = codec.encode, codec.word, codec.join
    begin = _beginning(text, codec, vocab_size)
    tokens = encode(begin)  # so that a text that does not fit is told now
    kind: Kind = "decoder" if _continues(model) else "encoder"
    views: list[View] = ["attention"]
    if kind == "decoder" and _tells_next(model, tokens[:1], vocab_size):
        views.append("sampling")
    if routes:
        views.append("experts")
    card = ModelCard(
        name=name,
        title=title,
        kind=kind,
        about=f"{title}, handed over from Python.",
        views=views,
        text=begin,
        input_help=f"any text of up to {longest:,} tokens" if tokenizer is not None else _NUMBERS_HELP,
        origin="given",
    )
    if kind == "decoder":
        return LoadedDecoder(card, model, encode, word, join, longest=longest)
    if not classes:
        classes = _classes(model)
    return LoadedEncoder(card, model, encode, lambda tokens: [word(token) for token in tokens], classes)


def _encoder_decoder(
    model: EncoderDecoder, text: Any, source: Any, tokenizer: Any, name: str, title: str
) -> LoadedEncoderDecoder:
    config = model.config
    require(tokenizer is None, "a tokenizer for an encoder-decoder", "none", "Pass tokens, or make an loaded of it.")
    require(source is not None, f"{title} without a source", "what its encoder reads", "Pass source=[...].")
    fields = config.fields_per_slot
    units = units_of(source, fields)

    def source_tokens(given_units: Sequence[str]) -> Tensor:
        require(len(given_units) > 0, "a source of nothing", "at least one place", "Add one.")
        rows = [numbers(unit.replace("=", " "), config.vocab_size, fields) for unit in given_units]
        short = [unit for unit, row in zip(given_units, rows, strict=True) if len(row) != fields]
        require(not short, f"the unit {short[:1]}", f"{fields} numbers with = between them", "Mend it.")
        return torch.tensor([rows if fields > 1 else [row[0] for row in rows]])

    def read_target(written: str) -> list[int]:
        return numbers(written, config.target_vocab, config.max_target_len)

    def target(written: str) -> Tensor:
        return torch.tensor([read_target(written)])

    absent = text is None or (isinstance(text, str) and text == "")
    require(not absent, f"{title} without a text", "at least the start token", "Pass text=[start token].")
    plain = Codec(read_target, str, text_of_numbers, (text_of_numbers,), "")
    begin = _beginning(text, plain, config.target_vocab)
    card = ModelCard(
        name=name,
        title=title,
        kind="encoder_decoder",
        about=f"{title}, handed over from Python.",
        views=["attention", "scramble"],
        text=begin,
        source=units,
        input_help=f"{_NUMBERS_HELP}: what the decoder begins with",
        origin="given",
    )
    source_tokens(units), target(begin)
    return LoadedEncoderDecoder(card, model, source_tokens, target, str, max_new_tokens=1)


def _beginning(text: Any, codec: Codec, vocab_size: int) -> str:
    if text is None:
        return codec.sample
    tokens = tokens_in(text)
    if tokens is None:
        return require_text(text)
    strange = [token for token in tokens if not 0 <= token < vocab_size]
    require(not strange, f"the token {(strange or [0])[0]}", f"numbers from 0 to {vocab_size - 1}", "Mend it.")
    return require_text(text_of(tokens, codec.encode, codec.joins))


def _tells_next(model: nn.Module, tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether a model has logits of the next token; one that is not ours is tried."""
    if isinstance(model, Decoder):
        return True
    with torch.no_grad(), evaluating(model):
        logits = final_logits(model, torch.tensor([list(tokens)], device=next(model.parameters()).device))
    return logits is not None and len(logits) >= vocab_size


def _continues(model: nn.Module) -> bool:
    """Whether a model is causal: by what its attention says, since a mask of transformers does not tell."""
    if isinstance(model, Decoder | Encoder):
        return isinstance(model, Decoder)
    for point in find_hook_points(model):
        if point.role == "attention":
            pattern = getattr(point.module, "pattern", None)
            if pattern is not None:
                return bool(pattern.causal)
            config: Any = getattr(model, "config", None)
            is_decoder = bool(getattr(config, "is_decoder", False))
            return is_decoder or bool(getattr(point.module, "is_causal", False))
    raise InputError("a model without attention", "one with", "Pass another.")


def _classes(model: nn.Module) -> tuple[str, ...]:
    config: Any = getattr(model, "config", None)
    if isinstance(model, Encoder):
        return tuple(f"class {number}" for number in range(model.config.num_classes or 0))
    names = getattr(config, "id2label", None)
    return tuple(str(names[number]) for number in sorted(names)) if names and hasattr(model, "classifier") else ()


def _longest(model: nn.Module) -> int:
    config: Any = getattr(model, "config", None)
    for field in ("max_seq_len", "max_position_embeddings", "n_positions"):
        if isinstance(getattr(config, field, None), int):
            longest = int(getattr(config, field))
            # RoBERTa counts its positions from behind the padding's.
            return longest - 2 if getattr(config, "model_type", "") in ("roberta", "xlm-roberta") else longest
    return MOST_TOKENS


def _vocab_size(model: nn.Module) -> int:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(size, int):
        return size
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    require(len(tables) > 0, f"{type(model).__name__} without an embedding", "a model of tokens", "Pass another model.")
    return tables[0].num_embeddings
