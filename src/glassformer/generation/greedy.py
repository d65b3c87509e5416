"""Greedy decoding with an encoder-decoder: the most likely token at every step."""

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from glassformer.errors import InputError, require_positive
from glassformer.generation.decoding import GREEDY
from glassformer.layers.blocks import is_hooked
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating


def greedy_decode(
    model: EncoderDecoder,
    source: Int[Tensor, "batch source *field"],
    max_new_tokens: int,
    start_id: int,
    end_id: int | None = None,
    source_real: Bool[Tensor, "batch source"] | None = None,
) -> Int64[Tensor, "batch token"]:
    """Return the tokens that the model writes for each source, without the start token.

    The source is encoded once. Each step takes the most likely token, the lowest of equally likely
    ones. A text ends with ``end_id``, which is its last token, and holds ``pad_id`` from there on;
    decoding stops when all texts have ended, and after ``max_new_tokens`` whatever they hold.

    Args:
        model: The encoder-decoder; it is used in evaluation mode and left in the mode it was in.
        source: Source tokens, as for :meth:`EncoderDecoder.encode`.
        max_new_tokens: From 1 to the model's ``max_target_len``, since the start token takes the
            place of the last.
        start_id: The token that stands before every target.
        end_id: The token that ends a text; None: every text has ``max_new_tokens``.
        source_real: True where a source position is real; :meth:`EncoderDecoder.real_source` when
            None.
    """
    _check_request(model, max_new_tokens, start_id, end_id)
    # Unlike inference mode, no_grad returns tokens that are usable in training.
    with evaluating(model), torch.no_grad():
        memory = model.encode(source, source_real)
        real = source_real
        if real is None:
            real = model.real_source(source)
        cache = model.new_cache(memory, max_new_tokens)
        tokens = torch.full((len(source), 1), start_id, dtype=torch.int64, device=source.device)
        ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        for _ in range(max_new_tokens):
            newest = tokens[:, -1:]
            # Generated tokens are not padding, even if they equal pad_id.
            logits = model.decode(
                newest, memory, real, torch.ones_like(newest, dtype=torch.bool), cache
            )[:, -1]
            chosen = GREEDY.choose(logits).masked_fill(ended, model.config.pad_id)
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            if end_id is not None:
                ended |= chosen == end_id
                if ended.all():
                    break
    return tokens[:, 1:]


def _check_request(
    model: EncoderDecoder, max_new_tokens: int, start_id: int, end_id: int | None
) -> None:
    """Refuse a request that :func:`greedy_decode` cannot serve."""
    if isinstance(model, EncoderDecoder) and is_hooked(model):
        raise InputError(
            got="a model with hooks of its own",
            expected="none, as its steps are calls of decode()",
            fix="Hook a part of it, such as model.output.",
        )
    require_positive(max_new_tokens=max_new_tokens)
    longest = model.config.max_target_len
    if max_new_tokens > longest:
        raise InputError(
            got=f"max_new_tokens = {max_new_tokens}",
            expected=f"at most max_target_len = {longest}",
            fix="Ask for fewer, or make the model with a larger max_target_len.",
        )
    vocab_size = model.config.target_vocab
    for name, token in (("start_id", start_id), ("end_id", end_id)):
        if token is None and name == "end_id":
            continue
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InputError(
                got=f"{name} = {token!r}",
                expected=f"a token of the target vocabulary, in [0, {vocab_size})",
                fix="Use the tokens that the model was trained with.",
            )
