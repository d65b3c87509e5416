"""Autoregressive generation with a decoder: texts, or one growing text such as a conversation."""

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.errors import InputError, require_positive
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.sampling import Sampler, SamplingRule
from glassformer.layers.attention import editors
from glassformer.layers.blocks import is_hooked, is_watched
from glassformer.layers.cache import Cache, Snapshot
from glassformer.models.decoder import Decoder
from glassformer.modes import evaluating

GREEDY = SamplingRule(temperature=0.0)
"""Always the most likely token."""

PREFILL = 512
"""Prompt positions per forward pass: enough for full speed, with little memory."""

Prompts = Int[Tensor, "batch position"] | Sequence[Sequence[int]]
"""Texts as token ids: one tensor for texts of one length, a list of lists for texts of several."""


def generate(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    rule: SamplingRule = GREEDY,
    stop_tokens: Sequence[int] = (),
) -> list[list[int]]:
    """Continue each prompt; return the new tokens, without the prompt.

    Args:
        model: The decoder; it is used in evaluation mode and left in the mode it was in.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: Greatest number of new tokens, at least 1. With the longest prompt, at most
            ``max_seq_len`` positions are read.
        rule: Rule by which a token is chosen; greedy by default.
        stop_tokens: Tokens that end a text, as for :func:`stream`.

    Example:
        >>> from glassformer.models import DecoderConfig
        >>> model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8))
        >>> [len(tokens) for tokens in generate(model, [[3, 1, 4], [1, 5]], 4)]
        [4, 4]

    Raises:
        InputError: Empty prompts, tokens outside the vocabulary, or more positions than the model
            can read.
    """
    steps = stream(
        model, prompts, max_new_tokens, rule=rule, stop_tokens=stop_tokens, constant=True
    )
    return [[token for token in text if token is not None] for text in zip(*steps, strict=True)]


def stream(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    rule: SamplingRule = GREEDY,
    stop_tokens: Sequence[int] = (),
    constant: bool = False,
) -> Iterator[list[int | None]]:
    """Yield each text's newest token step by step, or None once the text has ended.

    A text ends after ``max_new_tokens`` tokens or with the first of ``stop_tokens``, which is its
    last token then.

    Prompts of different lengths are padded on the left and masked. Each gets the tokens that it
    would get alone, up to rounding: in bfloat16 and with packed weights, logits alone and in a
    batch differ by some hundredths, which may decide between two tokens. The same ``rule.seed``
    gives the same texts to the same prompts. Random numbers of a step are drawn for all texts at
    once, so that a sampled text differs from the same text alone.

    Args:
        model: The decoder; it is used in evaluation mode and left in the mode it was in.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: Greatest number of new tokens, as for :func:`generate`.
        rule: Rule by which a token is chosen; greedy by default.
        stop_tokens: Tokens that end a text.
        constant: The model is not changed between two steps. Otherwise, each step on a processor
            looks at it anew.
    """
    _require_decoder(model)
    require_positive(max_new_tokens=max_new_tokens)
    stop = frozenset(_whole_numbers(stop_tokens, "stop_tokens"))
    tokens, real = padded(model, prompts)
    _check_positions(model, tokens, real, max_new_tokens)
    batch, length = tokens.shape
    cache = model.new_cache(batch, length + max_new_tokens - 1)
    prompt = partial(read_prompt, model, cache, tokens, real)
    step = _across_border(DecodingStep(model, cache, constant=constant), model, cache, tokens)
    choose = Sampler(rule, tokens, real=real).choose
    return decode(prompt, step, choose, max_new_tokens, stop)


def _check_positions(
    model: Decoder,
    tokens: Int[Tensor, "batch position"],
    real: Bool[Tensor, "batch position"] | None,
    max_new_tokens: int,
) -> None:
    """Refuse texts with more positions than the model reads, or on both sides of LongRoPE's border.

    Padding counts as positions, which decide the factors of LongRoPE.
    """
    length = tokens.shape[1]
    positions = length + max_new_tokens - 1
    if positions > model.config.max_seq_len:
        raise InputError(
            got=f"a prompt of {length} tokens and max_new_tokens = {max_new_tokens}",
            expected=f"at most max_seq_len = {model.config.max_seq_len} positions in all",
            fix=(
                "Shorten the prompt, ask for fewer tokens, or make the model with a larger "
                "max_seq_len."
            ),
        )
    border = model.config.cache_border
    if not border or real is None:
        return
    shortest = int(real.sum(1).min())
    if positions > border >= shortest:
        raise InputError(
            got=f"prompts of {shortest} and {length} tokens",
            expected=f"all up to {border} positions, or all above (LongRoPE)",
            fix="Continue each by itself.",
        )


def _require_decoder(model: Decoder) -> None:
    if not hasattr(model, "layer_window"):
        raise InputError(
            got=f"a model of type {type(model).__name__}",
            expected="a Decoder",
            fix="Pass .model of the result of load.",
        )


Step = Callable[[Int[Tensor, "batch 1"]], Float[Tensor, "batch vocab"]]
"""The logits after the next token of each text."""


def decode(
    prompt: Callable[[], Float[Tensor, "batch vocab"]],
    step: Step,
    choose: Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, " batch"]],
    most: int,
    stop: Collection[int],
) -> Iterator[list[int | None]]:
    """Yield the newest token of each text, or None once it has ended: the loop of all generation.

    Args:
        prompt: Function that reads the prompts and returns the logits after them.
        step: Function that reads the newest tokens and returns the logits after them.
        choose: Function from logits to the next tokens.
        most: Greatest number of tokens of a text.
        stop: Tokens that end a text.
    """
    first_editors = editors()
    with torch.inference_mode():
        newest = choose(prompt())
    ended = [False] * len(newest)
    while True:
        chosen = newest.tolist()
        yield [None if end else token for end, token in zip(ended, chosen, strict=True)]
        ended = [end or token in stop for end, token in zip(ended, chosen, strict=True)]
        most -= 1
        if most == 0 or all(ended):
            return
        # Keys and values that were computed under other interventions do not go together.
        if first_editors != editors():
            raise InputError(
                got="a text that began under other interventions than it goes on",
                expected="one intervention for the whole text",
                fix="Begin it anew within the block.",
            )
        with torch.inference_mode():
            newest = choose(step(newest[:, None]))


def read_prompt(
    model: Decoder, cache: Cache, tokens: Tensor, real: Tensor | None = None
) -> Float[Tensor, "batch vocab"]:
    """Read texts into the cache and return the logits after them.

    Hooks and edits, which may name positions, see whole texts.
    """
    # Calling the model may give other logits than its methods do.
    is_called = isinstance(model, Decoder) and (
        is_hooked(model) or type(model).forward is not Decoder.forward
    )
    read: Callable[..., Tensor] = model if is_called else partial(model.hidden, last=1)
    length = max(tokens.shape[1], 1)  # the model itself refuses texts of no tokens
    piece_length = length
    if not is_watched(model):
        piece_length = max(PREFILL, model.config.cache_border + 1)
    last = torch.empty(0)
    with evaluating(model), torch.inference_mode():
        for start in range(0, length, piece_length):
            piece = slice(start, start + piece_length)
            padding = None if real is None else real[:, piece]
            last = read(tokens[:, piece], cache=cache, key_padding=padding)
        if not is_called:
            last = model.logits(last)
        return last[:, -1]


def _across_border(step: Step, model: Decoder, cache: Cache, tokens: Tensor) -> Step:
    """Return ``step``, or one that reads the whole text anew where it grows past LongRoPE's border.

    ``tokens`` are the texts so far.
    """
    border = model.config.cache_border
    if not border:
        return step

    def across(new: Tensor) -> Tensor:
        nonlocal tokens
        tokens = torch.cat([tokens, new], 1)
        if cache.length != border:
            return step(new)
        cache.reset()
        return read_prompt(model, cache, tokens)

    return across


def padded(
    model: Decoder, prompts: Prompts
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """Return all prompts in one tensor, padded on the left, and a mask of its real tokens.

    The mask is None if all tokens are real.
    """
    device = model.device
    if isinstance(prompts, Tensor):
        _check_prompt_tensor(prompts)
        return prompts.to(device), None
    _check_prompt_lists(prompts)
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    rows = [[0] * (longest - len(prompt)) + _whole_numbers(prompt) for prompt in prompts]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    if min(lengths) == longest:
        return tokens, None
    start = longest - torch.tensor(lengths, device=device)[:, None]
    return tokens, torch.arange(longest, device=device) >= start


_FIX_PROMPTS = "Pass [prompt] for one prompt, and encode text with its tokenizer."


def _check_prompt_tensor(prompts: Tensor) -> None:
    is_other = prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool
    if prompts.dim() != 2 or is_other:
        raise InputError(
            got=f"prompts of shape {tuple(prompts.shape)}, {prompts.dtype}",
            expected="whole numbers [batch, position]",
            fix=_FIX_PROMPTS,
        )


def _check_prompt_lists(prompts: Sequence[Sequence[int]]) -> None:
    are_lists = not isinstance(prompts, str) and hasattr(prompts, "__len__")
    if not are_lists or not all(hasattr(prompt, "__len__") for prompt in prompts):
        raise InputError(
            got=f"prompts of type {type(prompts).__name__}, not of lists of tokens",
            expected="a list of lists of token ids",
            fix=_FIX_PROMPTS,
        )
    lengths = [len(prompt) for prompt in prompts]
    if min(lengths, default=0) < 1:
        raise InputError(
            got=f"prompts of lengths {lengths}",
            expected="at least one prompt, and a token in each",
            fix="Start an empty text with a start token.",
        )


def _whole_numbers(tokens: Sequence[int], name: str = "prompts") -> list[int]:
    """Return tokens as ints that fit into 64 bits."""
    try:
        numbers = torch.tensor([index(token) for token in tokens], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} that hold no whole numbers", "token ids", "Encode text with its tokenizer."
        ) from error
    listed: list[int] = numbers.tolist()
    return listed


@dataclass(frozen=True)
class _Mark:
    """State at the end of a prompt: its logits, and keys and values that replies write over."""

    tokens: tuple[int, ...]
    logits: Float[Tensor, "1 vocab"]
    snapshot: Snapshot


class Continuation:
    """Continues prompts that each start with the one before, reading only the new tokens.

    After a reply the text is taken back to the end of its prompt, so that the next prompt may hold
    the reply in another form, as in conversations whose reasoning is left out later. Keys and
    values of full layers are still there then. Replies write over those of windowed layers, so that
    these were set aside: ``2 * num_kv_heads * window * head_dim`` numbers a layer.

    A prompt is read from its start if it does not begin with the last one, under interventions or
    hooks, which may name positions, and if weights have changed. Torch does not count changes of
    weights through ``.data`` or NumPy, or of a layer's settings. After these, make a new
    continuation.

    The tokens are those of :func:`generate` for the whole prompt, up to rounding.

    Args:
        model: The decoder; it is used in evaluation mode and left in the mode it was in.
        max_seq_len: Positions in all, for which memory is taken at once; None: the model's.
        rule: Rule by which tokens are chosen. One random generator serves all replies.
    """

    def __init__(
        self, model: Decoder, max_seq_len: int | None = None, *, rule: SamplingRule = GREEDY
    ) -> None:
        _require_decoder(model)
        if max_seq_len is None:
            self.max_seq_len = model.config.max_seq_len
        else:
            self.max_seq_len = max_seq_len
        require_positive(max_seq_len=self.max_seq_len)
        self._model = model
        self._rule = rule
        self._cache = model.new_cache(1, self.max_seq_len)
        self._generator = rule.generator(model.device)
        self._start = self._mark = _Mark((), torch.empty(1, 0), self._cache.snapshot())
        self._turn = 0
        self._watched = is_watched(model)
        """Hooks or interventions were in place when the mark was read."""
        self._weights = self._versions()
        """Weights with which the mark was read."""

    def unread(self, prompt: Sequence[int]) -> int:
        """Return the number of tokens of ``prompt`` to read.

        If it starts with the last prompt, only the tokens after that are read.
        """
        return len(prompt) - len(self._mark_before(prompt).tokens)

    def reply(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = None,
        *,
        stop_tokens: Sequence[int] = (),
    ) -> Iterator[int]:
        """Yield the tokens that follow ``prompt``, one by one.

        Nothing is computed before the first is asked for. A reply may be left at any moment, also
        by an exception; the next call goes on as if it had ended.

        Args:
            prompt: At least one token and at most ``max_seq_len``.
            max_new_tokens: Greatest number of new tokens. None: until the cache is full, which is
                after ``max_seq_len - len(prompt) + 1``.
            stop_tokens: Tokens that end the reply; the one that does is its last.
        """
        self._check_prompt(prompt)
        most = self.max_seq_len - len(prompt) + 1
        if max_new_tokens is not None:
            most = min(most, max_new_tokens)
        require_positive(max_new_tokens=most)
        stop = frozenset(_whole_numbers(stop_tokens, "stop_tokens"))
        return self._reply(tuple(_whole_numbers(prompt)), most, stop)

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if len(prompt) == 0:
            raise InputError(
                got="an empty prompt",
                expected="at least one token",
                fix="Start an empty text with a token.",
            )
        if len(prompt) > self.max_seq_len:
            raise InputError(
                got=f"a prompt of {len(prompt)} tokens",
                expected=f"at most max_seq_len = {self.max_seq_len}",
                fix="Shorten it, or make the continuation with a larger max_seq_len.",
            )

    def _reply(self, prompt: tuple[int, ...], most: int, stop: frozenset[int]) -> Iterator[int]:
        self._turn = turn = self._turn + 1
        # The cache is overwritten: another mark is no longer valid.
        self._mark = mark = self._mark_before(prompt)
        self._watched = is_watched(self._model)
        self._weights = self._versions()
        self._cache.restore(mark.snapshot)
        logits = mark.logits
        new = prompt[len(mark.tokens) :]
        if new:
            tokens = torch.tensor([new], dtype=torch.int64, device=self._model.device)
            logits = read_prompt(self._model, self._cache, tokens)
        self._mark = _Mark(prompt, logits, self._cache.snapshot())
        text = torch.tensor([prompt], dtype=torch.int64, device=self._model.device)
        step = _across_border(
            DecodingStep(self._model, self._cache), self._model, self._cache, text
        )
        choose = Sampler(self._rule, text, generator=self._generator).choose
        for (token,) in decode(lambda: logits, step, choose, most, stop):
            assert token is not None  # the only text
            yield token
            if turn != self._turn:
                raise InputError(
                    got="a reply that another has followed",
                    expected="the newest reply",
                    fix="Ask for it again.",
                )

    def _versions(self) -> list[tuple[Callable[[], Tensor | None], int]]:
        """Return each weight, which may be replaced and freed, and its version, as torch counts."""
        weights = (*self._model.parameters(), *self._model.buffers())
        return [
            (weakref.ref(weight), 0 if weight.is_inference() else weight._version)
            for weight in weights
        ]

    def _mark_before(self, prompt: Sequence[int]) -> _Mark:
        """Return the mark from which ``prompt`` is read on: that of the last prompt if it holds."""
        mark = self._mark
        length = len(mark.tokens)
        if self._watched or is_watched(self._model) or not self._has_same_weights():
            return self._start
        if tuple(prompt[:length]) != mark.tokens:
            return self._start
        # A reply that crossed the border was read anew.
        if length <= self._model.config.cache_border < max(len(prompt), self._cache.length):
            return self._start
        return mark

    def _has_same_weights(self) -> bool:
        """Return whether the weights are those with which the mark was read."""
        versions = self._versions()
        return len(versions) == len(self._weights) and all(
            last_weight() is weight() and last_version == version
            for (last_weight, last_version), (weight, version) in zip(
                self._weights, versions, strict=True
            )
        )
