"""Autoregressive generation with a decoder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import index

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import InputError, require, require_positive
from glassformer.generation.compiled import compiled_step
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.sampling import SamplingRule
from glassformer.generation.speculative import Drafts
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

    Example:
        >>> from glassformer.models import DecoderConfig
        >>> model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8))
        >>> [len(tokens) for tokens in generate(model, [[3, 1, 4], [1, 5]], 4)]
        [4, 4]

    Raises:
        InputError: Empty prompts, tokens outside the vocabulary, more positions than the model can read, or options
            that exclude one another.
    """
    steps = stream(
        model,
        prompts,
        max_new_tokens,
        rule=rule,
        stop_tokens=stop_tokens,
        use_cache=use_cache,
        compile=compile,
        speculate=speculate,
        constant=True,
    )
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
    constant: bool = False,
) -> Iterator[list[int | None]]:
    """As :func:`generate`, step by step: yields each text's newest token, or None once the text has ended.

    The model may be changed between two steps. On a processor each step therefore looks at it anew, unless it is
    promised to stay ``constant``.
    """
    require_positive(max_new_tokens=max_new_tokens)
    require(use_cache or not compile, "compile without use_cache", "compile with use_cache", "Leave one of them out.")
    require(speculate >= 0, f"speculate = {speculate}", "at least 0", "Pass 0 to verify no proposed tokens.")
    tokens, real = _padded(model, prompts)
    texts, length = tokens.shape
    cached = use_cache and not compile
    require(
        speculate == 0 or (texts == 1 and cached),
        f"speculate = {speculate} for {texts} texts" + ("" if cached else ", without use_cache or with compile"),
        "one text, with use_cache and without compile",
        "Leave speculate out, or continue each text by itself.",
    )
    positions = length + max_new_tokens - 1
    require(
        positions <= model.config.max_seq_len,
        f"a prompt of {length} tokens and max_new_tokens = {max_new_tokens}",
        f"at most max_seq_len = {model.config.max_seq_len} positions in all",
        "Shorten the prompt, ask for fewer tokens, or make the model with a larger max_seq_len.",
    )
    if not use_cache:
        prompt, step = _without_cache(model, tokens, real)
    elif compile:
        prompt, step = _with_compiled_step(model, positions, tokens, real)
    else:
        cache = model.new_cache(texts, positions)
        prompt = partial(read_prompt, model, cache, tokens, real)
        step = DecodingStep(model, cache, constant=constant)
    drafts = Drafts(model, cache, tokens[0].tolist(), speculate, max_new_tokens) if speculate else None
    choose = partial(rule.choose, generator=rule.generator(model.device))
    return decode(prompt, step, choose, max_new_tokens, frozenset(stop_tokens), drafts)


Step = Callable[[Int[Tensor, "batch new"]], Float[Tensor, "batch new vocab"]]
"""The logits after each new token of the texts."""


def decode(
    prompt: Callable[[], Float[Tensor, "batch vocab"]],
    step: Step,
    choose: Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]],
    most: int,
    stop: Collection[int] = (),
    drafts: Drafts | None = None,
) -> Iterator[list[int | None]]:
    """The newest token of each text, or None once it has ended: the loop of all generation.

    Args:
        prompt: Reads the prompts and gives the logits after them.
        step: Reads new tokens. With drafts it is given several: the newest and those that may follow it.
        choose: Chooses a token from the logits of a position.
        most: How many tokens a text gets.
        stop: Tokens that end a text.
        drafts: Proposes tokens of a single text, to be verified in one step.
    """
    ended: list[bool] | None = None
    draft: list[int] = []
    with torch.inference_mode():
        positions = [prompt()]
    while True:
        # The tokens of a draft are kept up to the first that is not the one chosen.
        for logits, proposed in zip(positions, [*draft, None], strict=True):
            with torch.inference_mode():
                newest = choose(logits)
                chosen = newest.tolist()
            before = ended or [False] * len(chosen)
            yield [None if over else token for over, token in zip(before, chosen, strict=True)]
            ended = [over or token in stop for over, token in zip(before, chosen, strict=True)]
            most -= 1
            if most == 0 or all(ended):
                return
            if drafts is not None:
                drafts.add(chosen[0])
            if chosen[0] != proposed:
                break
        new = newest[:, None]
        if drafts is not None:
            draft = drafts.propose(most - 1)
            new = new.new_tensor([[chosen[0], *draft]])
        with torch.inference_mode():
            positions = list(step(new).unbind(1))


def read_prompt(
    model: Decoder, cache: Cache, tokens: Tensor, real: Tensor | None = None, prefill: int | None = None
) -> Float[Tensor, "batch vocab"]:
    """Read texts into the cache, ``prefill`` tokens at a time; the logits after them."""
    at_a_time, last = prefill or PREFILL, torch.empty(0)
    with evaluating(model), torch.inference_mode():
        for start in range(0, max(tokens.shape[1], 1), at_a_time):  # once for no tokens, which the model refuses
            piece = slice(start, start + at_a_time)
            padding = None if real is None else real[:, piece]
            last = model.hidden(tokens[:, piece], cache=cache, key_padding=padding, last=1)
        return model.logits(last)[:, -1]


_Way = tuple[Callable[[], Tensor], Step]
"""How a way of decoding reads the prompts, and how it goes on."""


def _without_cache(model: Decoder, tokens: Tensor, real: Tensor | None) -> _Way:
    def prompt() -> Tensor:
        with evaluating(model):
            return model.logits(model.hidden(tokens, key_padding=real, last=1))[:, -1]

    def step(new: Tensor) -> Tensor:
        nonlocal tokens, real
        tokens = torch.cat([tokens, new], dim=1)
        real = None if real is None else torch.cat([real, torch.ones_like(new, dtype=torch.bool)], dim=1)
        return prompt()[:, None]

    return prompt, step


def _with_compiled_step(model: Decoder, positions: int, tokens: Tensor, real: Tensor | None) -> _Way:
    batch, length = tokens.shape
    # Few sizes, so that few steps are compiled; slots that are not filled yet are masked.
    slots = min(max(_FEWEST_SLOTS, 1 << (positions - 1).bit_length()), model.config.max_seq_len)
    cache = model.new_cache(batch, slots)
    compiled = compiled_step(model, batch, slots)
    position = torch.tensor([length - 1], device=tokens.device)
    visible = torch.ones(batch, slots, dtype=torch.bool, device=tokens.device)
    if real is not None:
        visible[:, :length] = real

    def step(new: Tensor) -> Tensor:
        position.add_(1)
        with evaluating(model):
            return compiled(model, new, position, cache, visible)[:, None]

    return partial(read_prompt, model, cache, tokens, real), step


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
