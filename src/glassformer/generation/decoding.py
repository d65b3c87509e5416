"""Autoregressive generation with a decoder: of texts, and of one growing text such as a
conversation.
"""

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
    """Continue each prompt; returns the new tokens, without the prompt.

    Args:
        model: The decoder; it is used in evaluation mode and left in the mode it was in.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: At least 1; with the longest prompt at most ``max_seq_len`` positions are
            read.
        rule: How a token is chosen; greedy by default. This and the others are as for
            :func:`stream`.

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
    """As :func:`generate`, step by step: yields each text's newest token, or None once the text has
    ended.

    A text ends after ``max_new_tokens`` tokens or with the first of ``stop_tokens``, which is its
    last token then. Prompts of different lengths are padded on the left and masked, so each gets
    what it would get alone, up to
    rounding: in bfloat16 and with packed weights, logits alone and in a batch differ by some
    hundredths, which decides where two tokens are nearer to one another. The same ``rule.seed``
    gives the same texts to the same prompts; the random numbers of a step are drawn for all texts
    at once, so that a text alone is another one than in a batch.

    Args:
        model: As for :func:`generate`, as are ``prompts`` and ``max_new_tokens``.
        rule: How a token is chosen; greedy by default.
        stop_tokens: Tokens that end a text.
        constant: The model is not changed between two steps. Otherwise each step on a processor
            looks at it anew.
    """
    _require_decoder(model)
    require_positive(max_new_tokens=max_new_tokens)
    stop = frozenset(_whole_numbers(stop_tokens, "stop_tokens"))
    tokens, real = padded(model, prompts)
    texts, length = tokens.shape
    positions = length + max_new_tokens - 1
    if not positions <= model.config.max_seq_len:
        raise InputError(
            got=f"a prompt of {length} tokens and max_new_tokens = {max_new_tokens}",
            expected=f"at most max_seq_len = {model.config.max_seq_len} positions in all",
            fix=(
                "Shorten the prompt, ask for fewer tokens, or make the model with a larger "
                "max_seq_len."
            ),
        )
    border = model.config.cache_border
    if border and real is not None:  # padding counts as positions, which decide the factors
        shortest = int(real.sum(1).min())
        both = f"prompts of {shortest} and {length} tokens"
        sides = f"all up to {border} positions, or all above"
        if not (positions <= border or shortest > border):
            raise InputError(
                got=both,
                expected=f"{sides} (LongRoPE)",
                fix="Continue each by itself.",
            )
    cache = model.new_cache(texts, positions)
    step = _across_border(DecodingStep(model, cache, constant=constant), model, cache, tokens)
    choose = Sampler(rule, tokens, real=real).choose
    return decode(
        partial(read_prompt, model, cache, tokens, real), step, choose, max_new_tokens, stop
    )


def _require_decoder(model: Decoder) -> None:
    if not hasattr(model, "layer_window"):
        raise InputError(
            got=f"a model of type {type(model).__name__}",
            expected="a Decoder",
            fix="Of what load gives, pass .model.",
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
    """The newest token of each text, or None once it has ended: the loop of all generation.

    ``prompt`` reads the prompts and gives the logits after them, ``step`` reads the newest tokens.
    """
    begun = editors()
    with torch.inference_mode():
        newest = choose(prompt())
    ended = [False] * len(newest)
    while True:
        chosen = newest.tolist()
        yield [None if over else token for over, token in zip(ended, chosen, strict=True)]
        ended = [over or token in stop for over, token in zip(ended, chosen, strict=True)]
        most -= 1
        if most == 0 or all(ended):
            return
        # Keys and values that were computed under other interventions do not go together.
        if begun != editors():
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
    """Read texts into the cache; the logits after them. Hooks and edits, which may name positions,
    see whole texts.
    """
    # Calling the model may give other logits than its methods do.
    whole = isinstance(model, Decoder) and (
        is_hooked(model) or type(model).forward is not Decoder.forward
    )
    read: Callable[..., Tensor] = model if whole else partial(model.hidden, last=1)
    last, length = (
        torch.empty(0),
        max(tokens.shape[1], 1),
    )  # once for no tokens, which the model refuses
    if is_watched(model):
        most = length
    else:
        most = max(PREFILL, model.config.cache_border + 1)
    with evaluating(model), torch.inference_mode():
        for start in range(0, length, most):
            piece = slice(start, start + most)
            padding = None if real is None else real[:, piece]
            last = read(tokens[:, piece], cache=cache, key_padding=padding)
        return (last if whole else model.logits(last))[:, -1]


def _across_border(step: Step, model: Decoder, cache: Cache, tokens: Tensor) -> Step:
    """``step`` after these tokens, which reads the whole text anew where it grows past the border
    of LongRoPE.
    """
    border = model.config.cache_border

    def across(new: Tensor) -> Tensor:
        nonlocal tokens
        tokens = torch.cat([tokens, new], 1)
        if cache.length != border:
            return step(new)
        cache.reset()
        return read_prompt(model, cache, tokens)

    return across if border else step


def padded(
    model: Decoder, prompts: Prompts
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """All prompts in one tensor, padded on the left, and which of its tokens are real (None: all)."""
    device = model.device
    fix = "Pass [prompt] for one prompt, and encode text with its tokenizer."
    if isinstance(prompts, Tensor):
        got = f"prompts of shape {tuple(prompts.shape)}, {prompts.dtype}"
        whole = not (
            prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool
        )
        if prompts.dim() != 2 or not whole:
            raise InputError(
                got=got,
                expected="whole numbers [batch, position]",
                fix=fix,
            )
        return prompts.to(device), None
    got = f"prompts of type {type(prompts).__name__}, not of lists of tokens"
    listed = not isinstance(prompts, str) and hasattr(prompts, "__len__")
    listed = listed and all(hasattr(prompt, "__len__") for prompt in prompts)
    if not listed:
        raise InputError(
            got=got,
            expected="a list of lists of token ids",
            fix=fix,
        )
    lengths = [len(prompt) for prompt in prompts]
    got = f"prompts of lengths {lengths}"
    if not min(lengths, default=0) > 0:
        raise InputError(
            got=got,
            expected="at least one prompt, and a token in each",
            fix="Start an empty text with a start token.",
        )
    longest = max(lengths)
    rows = [[0] * (longest - len(prompt)) + _whole_numbers(prompt) for prompt in prompts]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    if min(lengths) == longest:
        return tokens, None
    start = longest - torch.tensor(lengths, device=device)[:, None]
    return tokens, torch.arange(longest, device=device) >= start


def _whole_numbers(tokens: Sequence[int], name: str = "prompts") -> list[int]:
    try:
        found: list[int] = torch.tensor(
            [index(token) for token in tokens], dtype=torch.int64
        ).tolist()
        return found
    except (TypeError, ValueError) as error:
        got = f"{name} that hold no whole numbers"
        fix = "Encode text with its tokenizer."
        raise InputError(got, "token ids", fix) from error


@dataclass(frozen=True)
class _Mark:
    """State at the end of a prompt: its logits, and what later positions write over."""

    tokens: tuple[int, ...]
    logits: Float[Tensor, "1 vocab"]
    snapshot: Snapshot


class Continuation:
    """Continues prompts that each start with the one before, reading only the new tokens.

    After a reply the text is taken back to the end of its prompt, so that the next prompt may hold
    the reply in another form, as in conversations whose reasoning is left out later. Keys and
    values of full layers are still there then; those of windowed layers, which replies write over,
    were set aside: ``2 * num_kv_heads * window * head_dim`` numbers a layer. Any other prompt is
    read from its start, and so is one under interventions or hooks, which may name positions, or
    under other weights than the last: not one after a change of a layer's settings, or of weights
    through ``.data`` or NumPy, which torch does not count. Make a new continuation after these.

    The tokens are those of :func:`generate` for the whole prompt, up to rounding.

    Args:
        model: Used in evaluation mode, and left in the mode it was in.
        max_seq_len: Positions in all, for which memory is taken at once; None: the model's.
        rule: How tokens are chosen. One generator of random numbers serves all replies.
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
        self._watched, self._weights = is_watched(model), self._versions()
        """How the mark was read: with hooks or interventions, or under other weights, the text is
        read again.
        """

    def unread(self, prompt: Sequence[int]) -> int:
        """Number of tokens of ``prompt`` to read: those after the last prompt, if it starts with
        that.
        """
        return len(prompt) - len(self._mark_before(prompt).tokens)

    def reply(
        self,
        prompt: Sequence[int],
        max_new_tokens: int | None = None,
        *,
        stop_tokens: Sequence[int] = (),
    ) -> Iterator[int]:
        """The tokens that follow ``prompt``, one by one; nothing is computed before the first is
        asked for.

        It may be left at any moment, also by an exception, and the next call goes on as if it had
        ended.

        Args:
            prompt: At least one token and at most ``max_seq_len``.
            max_new_tokens: At most so many; None: until the cache is full, which is after
                ``max_seq_len - len(prompt) + 1``.
            stop_tokens: Tokens that end the reply; the one that does is its last.
        """
        if len(prompt) <= 0:
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
        room = self.max_seq_len - len(prompt) + 1
        if max_new_tokens is None:
            most = room
        else:
            most = min(room, max_new_tokens)
        require_positive(max_new_tokens=most)
        stop = frozenset(_whole_numbers(stop_tokens, "stop_tokens"))
        return self._reply(tuple(_whole_numbers(prompt)), most, stop)

    def _reply(self, prompt: tuple[int, ...], most: int, stop: frozenset[int]) -> Iterator[int]:
        self._turn = turn = self._turn + 1
        # The cache is overwritten: another mark is no longer valid.
        self._mark = mark = self._mark_before(prompt)
        self._watched, self._weights = is_watched(self._model), self._versions()
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
        """Each weight, which may be replaced and freed, and its version, which torch counts."""
        weights = (*self._model.parameters(), *self._model.buffers())
        return [
            (weakref.ref(each), 0 if each.is_inference() else each._version) for each in weights
        ]

    def _mark_before(self, prompt: Sequence[int]) -> _Mark:
        known = self._mark.tokens
        before = self._weights
        now = self._versions()
        same = len(before) == len(now) and all(
            one() is other() and version == newer
            for (one, version), (other, newer) in zip(before, now, strict=True)
        )
        same = (
            same
            and not self._watched
            and not is_watched(self._model)
            and tuple(prompt[: len(known)]) == known
        )
        # A reply that crossed the border was read anew.
        same = same and not len(known) <= self._model.config.cache_border < max(
            len(prompt), self._cache.length
        )
        return self._mark if same else self._start
