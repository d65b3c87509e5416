"""Make a loaded model of a model that is passed from Python, ours or one of transformers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.classifier import Classifier
from glassformer.data.tokenizer import MAX_LEN
from glassformer.errors import InputError
from glassformer.explorer.loading.codecs import (
    Codec,
    codec_of,
    numbers,
    require_text,
    text_of,
    text_of_numbers,
    tokens_in,
    units_of,
)
from glassformer.explorer.loading.designed import (
    first_text,
    fitting_task,
    head_card,
    head_model,
    program_model,
)
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    LoadedProgram,
    final_logits,
)
from glassformer.explorer.messages import MOST_TOKENS, Kind, ModelCard, View
from glassformer.generation.language_model import LanguageModel
from glassformer.handcraft.designs import Design
from glassformer.handcraft.single_head import HeadWeights
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating
from glassformer.observe.capture import find_hook_points
from glassformer.observe.hugging_face import require_resumable
from glassformer.programs import library
from glassformer.programs.model import CompiledProgram

_NUMBERS_HELP = "token numbers between spaces"


def wrap_model(
    model: Any, text: Any = None, tokenizer: Any = None, source: Any = None
) -> LoadedModel:
    """Return the loaded model of a model in memory, which stays in training or evaluation mode.

    Args:
        model: An ``Encoder``, ``Decoder``, ``EncoderDecoder``, ``Classifier``, ``LanguageModel``,
            ``HeadWeights``, ``Design`` or ``CompiledProgram``; a GPT-2, Llama, Mixtral or BERT of
            transformers; or a loaded model, which is returned as it is. Weights of a head get a
            built-in task that fits.
        text: The initial text, or its tokens: a list, an array or a tensor. Models have a default,
            except for an ``EncoderDecoder``.
        tokenizer: A tokenizer for an encoder or a decoder: ours, one of transformers, or that of a
            released model. With None, the text is token numbers, or bytes if the vocabulary has 256
            tokens. Other models have their own.
        source: The input of an encoder-decoder's encoder: a list of tokens, or of units of several
            numbers.
    """
    if isinstance(model, LoadedModel):
        return model
    reads_by_itself = isinstance(
        model, LanguageModel | Classifier | Design | HeadWeights | CompiledProgram
    )
    if reads_by_itself and not (tokenizer is None and source is None):
        raise InputError(
            got=f"a {'source' if tokenizer is None else 'tokenizer'} for a {type(model).__name__}",
            expected="none, since it reads by itself",
            fix="Leave it out.",
        )
    if isinstance(model, LanguageModel):
        loaded = wrap_model(model.model, text, model.tokenizer)
        card = loaded.card.model_copy(update={"title": model.name, "about": f"{model.about}."})
        return replace(loaded, card=card)
    if isinstance(model, Design):
        model = model.weights
    if isinstance(model, HeadWeights):
        return _head(model, text)
    if isinstance(model, CompiledProgram):
        return _program(model, text)
    classes: tuple[str, ...] = ()
    if isinstance(model, Classifier):
        tokenizer = model.tokenizer
        classes = model.classes
        model = model.encoder
    if not isinstance(model, nn.Module):
        raise InputError(
            got=f"a model of type {type(model).__name__}",
            expected="a torch module, a Classifier or a loaded model",
            fix="Pass the model itself, not its name.",
        )
    model = getattr(model, "_orig_mod", model)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InputError(
            got=f"a {type(model).__name__} on the device meta",
            expected="one with weights",
            fix="Load its weights first.",
        )
    points = find_hook_points(model)
    attention = next((point.module for point in points if point.role == "attention"), None)
    if attention is None:
        raise InputError(
            got=f"{type(model).__name__}, whose attention cannot be captured",
            expected=(
                "a model of glassformer's attention, or a GPT-2, Llama, Mixtral or BERT of "
                "transformers"
            ),
            fix="Pass one of these.",
        )
    # Sweeps and lenses resume the model at a block.
    require_resumable(model, [point for point in points if point.role == "block"])
    if isinstance(model, EncoderDecoder):
        return _encoder_decoder(model, text, source, tokenizer)
    if source is not None:
        raise InputError(
            got=f"a source for {type(model).__name__}",
            expected="an encoder-decoder",
            fix="Leave source out.",
        )
    routes = any(point.role == "experts" for point in points)
    return _one_stack(model, text, tokenizer, classes, _is_causal(model, attention), routes)


def _head(weights: HeadWeights, text: Any) -> LoadedHead:
    task = fitting_task(weights)
    initial = first_text(task) if text is None else str(text)
    task.space.encode(initial)
    about = f"A head passed from Python. The task: {task.summary}."
    card = head_card("given", task, task.name, about, initial, origin="given")
    return head_model(card, task, weights)


def _program(model: CompiledProgram, text: Any) -> LoadedProgram:
    if text is not None and not isinstance(text, str):
        text = " ".join(map(str, text))
    if text is not None:
        library.tokens_in(text, model.domains.vocabulary)
    return program_model(model, "given", model.name, origin="given", text=text)


def _one_stack(
    model: nn.Module,
    text: Any,
    tokenizer: Any,
    classes: tuple[str, ...],
    causal: bool,
    routes: bool,
) -> LoadedEncoder | LoadedDecoder:
    """Return the loaded model of an encoder or a decoder."""
    # A Classifier, whose classes are named, cuts its texts.
    longest = min(MAX_LEN if classes else MOST_TOKENS, _longest(model))
    vocab_size = _vocab_size(model)
    codec = codec_of(tokenizer, vocab_size, longest, text, cuts=not causal)
    initial = _initial_text(text, codec, vocab_size)
    tokens = codec.encode(initial)  # refuses a text that does not fit
    views: list[View] = ["attention"]
    if causal and _predicts_tokens(model, tokens[:1], vocab_size):
        views = ["flow", "attention", "sampling"]
    if routes:
        views.append("experts")
    classes = classes or _classes(model)
    if "sampling" in views or (classes and not causal):
        views += ["whatif", "patch"]
    input_help = _NUMBERS_HELP
    if tokenizer is not None:
        input_help = f"any text of up to {longest:,} tokens"
    kind: Kind = "decoder" if causal else "encoder"
    card = _card(model, kind, views=views, text=initial, input_help=input_help)
    if causal:
        return LoadedDecoder(
            card,
            model,
            codec.encode,
            codec.word,
            codec.joins[-1],
            longest=longest,
            codec=codec.data,
            labels=codec.labels,
        )
    return LoadedEncoder(card, model, codec.encode, codec.word, classes, codec.data, codec.labels)


def _encoder_decoder(
    model: EncoderDecoder, text: Any, source: Any, tokenizer: Any
) -> LoadedEncoderDecoder:
    config = model.config
    title = type(model).__name__
    if tokenizer is not None:
        raise InputError(
            got="a tokenizer for an encoder-decoder",
            expected="none",
            fix="Pass tokens, or a LoadedEncoderDecoder.",
        )
    if source is None:
        raise InputError(
            got=f"{title} without a source",
            expected="the encoder's input",
            fix="Pass source=[...].",
        )
    fields = config.fields_per_slot
    units = units_of(source)

    def source_tokens(typed_units: Sequence[str]) -> Tensor:
        if not typed_units:
            raise InputError(
                got="an empty source",
                expected="at least one unit",
                fix="Add one.",
            )
        rows = [numbers(unit.replace("=", " "), config.vocab_size, fields) for unit in typed_units]
        short = [unit for unit, row in zip(typed_units, rows, strict=True) if len(row) != fields]
        if short:
            raise InputError(
                got=f"the unit {short[:1]}",
                expected=f"{fields} numbers with = between them",
                fix="Separate them by =.",
            )
        if fields > 1:
            return torch.tensor([rows])
        return torch.tensor([[row[0] for row in rows]])

    def read_target(written: str) -> list[int]:
        return numbers(written, config.target_vocab, config.max_target_len)

    if text is None or (isinstance(text, str) and not text):
        raise InputError(
            got=f"{title} without a text",
            expected="at least the start token",
            fix="Pass text=[start token].",
        )
    plain = Codec(read_target, str, (text_of_numbers,), "")
    initial = _initial_text(text, plain, config.target_vocab)
    views: list[View] = ["attention", "scramble", "whatif"]
    input_help = f"{_NUMBERS_HELP}: the decoder's initial tokens"
    card = _card(
        model, "encoder_decoder", views=views, text=initial, source=units, input_help=input_help
    )
    loaded = LoadedEncoderDecoder(
        card, model, source_tokens, lambda text: torch.tensor([read_target(text)]), str
    )
    # A source or a text that does not fit is refused here.
    loaded.source_tokens(units)
    loaded.target(initial)
    return loaded


def _card(model: nn.Module, kind: Kind, **fields: Any) -> ModelCard:
    title = type(model).__name__
    about = f"{type(model).__name__}, passed from Python."
    return ModelCard(name="given", title=title, kind=kind, about=about, origin="given", **fields)


def _initial_text(text: Any, codec: Codec, vocab_size: int) -> str:
    if text is None:
        return codec.sample
    tokens = tokens_in(text)
    if tokens is None:
        return require_text(text)
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InputError(
                got=f"the token {token}",
                expected=f"numbers from 0 to {vocab_size - 1}",
                fix="Use tokens of the vocabulary.",
            )
    return require_text(text_of(tokens, codec.encode, codec.joins))


def _predicts_tokens(model: nn.Module, tokens: Sequence[int], vocab_size: int) -> bool:
    """Check that a model has logits of the next token; run it to find out if it is not ours."""
    if isinstance(model, Decoder):
        return True
    row = torch.tensor([list(tokens)], device=next(model.parameters()).device)
    with torch.no_grad(), evaluating(model):
        logits = final_logits(model, row)
    return logits is not None and logits.shape[1] >= vocab_size


def _is_causal(model: nn.Module, attention: Any) -> bool:
    """Check if a model is causal, by its first attention.

    The masks of transformers do not show it.
    """
    if isinstance(model, Decoder | Encoder):
        return isinstance(model, Decoder)
    pattern = getattr(attention, "pattern", None)
    if pattern is not None:
        return bool(pattern.causal)
    is_decoder = bool(getattr(getattr(model, "config", None), "is_decoder", False))
    return is_decoder or bool(getattr(attention, "is_causal", False))


def _classes(model: nn.Module) -> tuple[str, ...]:
    config: Any = getattr(model, "config", None)
    if isinstance(model, Encoder):
        return tuple(f"class {number}" for number in range(model.config.num_classes or 0))
    names = getattr(config, "id2label", None) or {}
    # A single output is a score. With several labels a text, each has a probability of its own.
    problem = getattr(config, "problem_type", None)
    are_exclusive = len(names) > 1 and problem in (None, "single_label_classification")
    if are_exclusive and hasattr(model, "classifier"):
        return tuple(str(names[number]) for number in sorted(names))
    return ()


def _longest(model: nn.Module) -> int:
    config: Any = getattr(model, "config", None)
    for field in ("max_seq_len", "max_position_embeddings", "n_positions"):
        if isinstance(getattr(config, field, None), int):
            longest = int(getattr(config, field))
            # RoBERTa numbers its positions from 2, after the one for padding.
            if getattr(config, "model_type", "") in ("roberta", "xlm-roberta"):
                return longest - 2
            return longest
    return MOST_TOKENS


def _vocab_size(model: nn.Module) -> int:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(size, int):
        return size
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise InputError(
            got=f"{type(model).__name__} without an embedding",
            expected="a model of tokens",
            fix="Pass another model.",
        )
    return tables[0].num_embeddings
