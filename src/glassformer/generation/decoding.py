"""Autoregressive generation with a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import index

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import InputError, require, require_positive
from glassformer.generation.compiled import compiled_step
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.sampling import SamplingRule
from glassformer.generation.speculative import speculated
from glassformer.layers.cache import Cache
from glassformer.models.decoder import Decoder
from glassformer.modes import evaluating

GREEDY = SamplingRule(temperature=0.0)
"""Always the most likely token."""

PREFILL = 512
"""Prompt positions per forward pass: enough for full speed, with little memory."""

_FEWEST_SLOTS = 256
"""Positions that the cache of a compiled step has at least; larger ones are powers of two."""

Prompts = Int[Tensor, "batch position"] | Sequence[Sequence[int]]
"""Texts as token ids: one tensor for texts of one length, a list of lists for texts of several."""


def generate(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    rule: SamplingRule = GREEDY,
    stop_tokens: Sequence[int] = (),
    use_cache: bool = True,
    compile: bool = False,
    speculate: int = 0,
) -> list[list[int]]:
    """Continue each prompt; returns the new tokens, without the prompt.

    A text ends after ``max_new_tokens`` tokens or with the first of ``stop_tokens``, which is its last token then.
    Prompts of different lengths are padded on the left and masked, so each gets what it would get alone, up to
    rounding: in bfloat16 and with packed weights, logits alone and in a batch differ by some hundredths, which decides
    where two tokens are nearer to one another. The same ``rule.seed`` gives the same texts to the same prompts;
    the random numbers of a step are drawn for all texts at once, so that a text alone is another one than in a batch.

    Args:
        model: The decoder; it is used in evaluation mode and left in the mode it was in.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: At least 1; with the longest prompt at most ``max_seq_len`` positions are read.
        rule: How a token is chosen; greedy by default.
        stop_tokens: Tokens that end a text.
        use_cache: Keep keys and values between steps. Without, every step reads the whole text again: the reference
            that the cached path is tested against.
        compile: Compile the decoding step with ``torch.compile``. Needs ``use_cache`` and a C++ compiler. For GPUs; on
            a processor :class:`~glassformer.generation.native_step.DecodingStep` is faster. Each batch size and each
            cache size (256 positions, then powers of two) is compiled once for each model, in about half a minute.
        speculate: Most tokens of one text that are looked up in it and verified in one forward pass: see
            :mod:`~glassformer.generation.speculative`. The tokens are the same up to rounding, and come faster where a
            text repeats what it has said. Needs ``use_cache``, and not ``compile``.

    Raises:
        InputError: Empty prompts, tokens outside the vocabulary, more positions than the model can read, or options
            that exclude one another.
    """
    steps = _stream(model, prompts, max_new_tokens, rule, stop_tokens, use_cache, compile, speculate, constant=True)
    return [[token for token in text if token is not None] for text in zip(*steps, strict=True)]


def stream(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    rule: SamplingRule = GREEDY,
    stop_tokens: Sequence[int] = (),
    use_cache: bool = True,
    compile: bool = False,
    speculate: int = 0,
) -> Iterator[list[int | None]]:
    """As :func:`generate`, step by step: yields each text's newest token, or None once the text has ended.

    The model may be changed between two steps. On a processor each step therefore looks at it anew, which ``generate``
    need not do.
    """
    return _stream(model, prompts, max_new_tokens, rule, stop_tokens, use_cache, compile, speculate, constant=False)


def _stream(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    rule: SamplingRule,
    stop_tokens: Sequence[int],
    use_cache: bool,
    compile: bool,
    speculate: int,
    constant: bool,
) -> Iterator[list[int | None]]:
    require_positive(max_new_tokens=max_new_tokens)
    require(use_cache or not compile, "compile without use_cache", "compile with use_cache", "Leave one of them out.")
    tokens, real = _padded(model, prompts)
    _require_speculation(speculate, len(tokens), use_cache and not compile)
    positions = tokens.shape[1] + max_new_tokens - 1
    require(
        positions <= model.config.max_seq_len,
        f"a prompt of {tokens.shape[1]} tokens and max_new_tokens = {max_new_tokens}",
        f"at most max_seq_len = {model.config.max_seq_len} positions in all",
        "Shorten the prompt, ask for fewer tokens, or make the model with a larger max_seq_len.",
    )
    stop = frozenset(stop_tokens)
    if speculate:
        return _speculated(model, tokens, max_new_tokens, rule, stop, speculate)
    if not use_cache:
        logits = _logits_without_cache(model, tokens, real)
    elif compile:
        logits = _logits_with_compiled_step(model, positions, tokens, real)
    else:
        logits = _logits_with_cache(model, model.new_cache(len(tokens), positions), tokens, real, constant)
    return _steps(model, logits, len(tokens), max_new_tokens, rule, stop)


_Logits = Callable[[Int[Tensor, "batch 1"] | None], Float[Tensor, "batch vocab"]]
"""Logits after one more token of each text; after the prompts for None."""


def _steps(
    model: Decoder, logits: _Logits, batch: int, max_new_tokens: int, rule: SamplingRule, stop: frozenset[int]
) -> Iterator[list[int | None]]:
    generator = rule.generator(model.device)
    ended = [False] * batch
    newest: Tensor | None = None
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            newest = rule.choose(logits(newest), generator)[:, None]
            chosen = newest[:, 0].tolist()
        yield [None if over else token for over, token in zip(ended, chosen, strict=True)]
        ended = [over or token in stop for over, token in zip(ended, chosen, strict=True)]
        if all(ended):
            return


def _require_speculation(speculate: int, texts: int, cached: bool) -> None:
    require(speculate >= 0, f"speculate = {speculate}", "at least 0", "Pass 0 to verify no proposed tokens.")
    require(
        speculate == 0 or (texts == 1 and cached),
        f"speculate = {speculate} for {texts} texts" + ("" if cached else ", without use_cache or with compile"),
        "one text, with use_cache and without compile",
        "Leave speculate out, or continue each text by itself.",
    )


def _speculated(
    model: Decoder, tokens: Tensor, max_new_tokens: int, rule: SamplingRule, stop: frozenset[int], longest: int
) -> Iterator[list[int | None]]:
    cache = model.new_cache(1, tokens.shape[1] + max_new_tokens - 1)
    generator = rule.generator(tokens.device)
    with torch.inference_mode():
        logits = _logits_with_cache(model, cache, tokens, None)(None)
    choose = partial(rule.choose, generator=generator)
    for token in speculated(model, cache, tokens[0].tolist(), logits, choose, max_new_tokens, longest):
        yield [token]
        if token in stop:
            return


def _logits_without_cache(model: Decoder, tokens: Tensor, real: Tensor | None) -> _Logits:
    def logits(newest: Tensor | None) -> Tensor:
        nonlocal tokens, real
        if newest is not None:
            tokens = torch.cat([tokens, newest], dim=1)
            real = None if real is None else torch.cat([real, torch.ones_like(newest, dtype=torch.bool)], dim=1)
        with evaluating(model):
            return model.logits(model.hidden(tokens, key_padding=real, last=1))[:, -1]

    return logits


def _logits_with_cache(
    model: Decoder, cache: Cache, tokens: Tensor, real: Tensor | None, constant: bool = False
) -> _Logits:
    step = DecodingStep(model, cache, constant=constant)

    def logits(newest: Tensor | None) -> Tensor:
        if newest is not None:
            return step(newest)[:, -1]
        last = None
        with evaluating(model):
            for start in range(0, max(tokens.shape[1], 1), PREFILL):  # once for no tokens, which the model refuses
                piece = slice(start, start + PREFILL)
                padding = None if real is None else real[:, piece]
                last = model.hidden(tokens[:, piece], cache=cache, key_padding=padding, last=1)
            assert last is not None
            return model.logits(last)[:, -1]

    return logits


def _logits_with_compiled_step(model: Decoder, positions: int, tokens: Tensor, real: Tensor | None) -> _Logits:
    batch, length = tokens.shape
    # Few sizes, so that few steps are compiled; slots that are not filled yet are masked.
    slots = min(max(_FEWEST_SLOTS, 1 << (positions - 1).bit_length()), model.config.max_seq_len)
    cache = model.new_cache(batch, slots)
    prompt = _logits_with_cache(model, cache, tokens, real)
    step = compiled_step(model, batch, slots)
    position = torch.tensor([length - 1], device=tokens.device)
    visible = torch.ones(batch, slots, dtype=torch.bool, device=tokens.device)
    if real is not None:
        visible[:, :length] = real

    def logits(newest: Tensor | None) -> Tensor:
        if newest is None:
            return prompt(None)
        position.add_(1)
        with evaluating(model):
            return step(model, newest, position, cache, visible)

    return logits


def _padded(
    model: Decoder, prompts: Prompts
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """All prompts in one tensor, padded on the left, and which of its tokens are real (None: all)."""
    device = model.device
    fix = "Pass [prompt] for one prompt, and encode text with its tokenizer."
    if isinstance(prompts, Tensor):
        got = f"prompts of shape {tuple(prompts.shape)}, {prompts.dtype}"
        whole = not (prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool)
        require(prompts.dim() == 2 and whole, got, "whole numbers [batch, position]", fix)
        return prompts.to(device), None
    got = f"prompts of type {type(prompts).__name__}, not of lists of tokens"
    listed = not isinstance(prompts, str) and all(hasattr(prompt, "__len__") for prompt in prompts)
    require(listed, got, "a list of lists of token ids", fix)
    lengths = [len(prompt) for prompt in prompts]
    require(
        len(lengths) > 0 and min(lengths) > 0,
        f"prompts of lengths {lengths}",
        "at least one prompt, and a token in each",
        "Start an empty text with a start token.",
    )
    longest = max(lengths)
    try:
        rows = [[0] * (longest - len(prompt)) + [index(token) for token in prompt] for prompt in prompts]
        tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    except (TypeError, ValueError) as error:
        raise InputError(
            "prompts that hold no whole numbers", "token ids", "Encode text with its tokenizer."
        ) from error
    if min(lengths) == longest:
        return tokens, None
    start = longest - torch.tensor(lengths, device=device)[:, None]
    return tokens, torch.arange(longest, device=device) >= start
