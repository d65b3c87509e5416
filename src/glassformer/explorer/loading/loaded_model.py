"""A model in memory, with what turns a typed text into its inputs and its outputs into words.

There are five kinds without a common base class: a caller that has a :data:`LoadedModel` checks
which kind it is. Several threads may use one model, so every caller holds its ``lock`` while the
model runs, and puts it into evaluation mode for that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.explorer.messages import MOST_TOKENS, ModelCard
from glassformer.generation.native_step import DecodingStep
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task
from glassformer.kernels.dispatch import autocast_dtype
from glassformer.layers.attention import editors
from glassformer.layers.cache import Cache
from glassformer.models.decoder import Decoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating
from glassformer.observe.module_hooks import other_hooks
from glassformer.programs.model import CompiledProgram


class Turn:
    """A reentrant lock of which a holder that computes for long can let the waiting threads have
    their turn.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._waiting = 0
        self._depth = 0

    def __enter__(self) -> None:
        with self._counting:
            self._waiting += 1
        try:
            self._take()
        finally:
            with self._counting:
                self._waiting -= 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        self._lock.release()

    @contextmanager
    def at_leisure(self) -> Iterator[None]:
        """Hold it for a long computation, to which no other one gives way."""
        self._take()
        try:
            yield
        finally:
            self.__exit__()

    def give_way(self) -> None:
        """Let the threads that wait to enter have the lock first, unless this one holds it more
        than once.
        """
        while self._waiting > 0 and self._depth == 1:
            self.__exit__()
            time.sleep(
                0.001
            )  # without it this thread would nearly always be the first to take the lock again
            self._take()

    def _take(self) -> None:
        self._lock.acquire()
        self._depth += 1


@dataclass(frozen=True, eq=False)
class LoadedHead:
    """A head with designed weights, and for each matrix by its name the reason for its values."""

    card: ModelCard
    task: Task
    weights: HeadWeights
    why: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedProgram:
    """A compiled program, with or without its definition."""

    card: ModelCard
    model: CompiledProgram
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """An encoder, ours or a BERT of transformers, with or without a classification head."""

    card: ModelCard
    model: nn.Module
    encode: Callable[[str], list[int]]
    """The tokens of a text, truncated to what the model reads."""
    word: Callable[[int], str]
    """The name of a single token."""
    classes: tuple[str, ...] = ()
    """Their names; empty without a head."""
    codec: Mapping[str, Any] | None = None
    labels: Callable[[Sequence[int]], list[str]] | None = None
    """Both as of a :class:`LoadedDecoder`."""
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoderDecoder:
    """An encoder-decoder.

    Args:
        source_tokens: The encoder's input for some units, in the given order: ``[1, place]`` or
            ``[1, place, field]``.
        target: The decoder's initial tokens for a text, which may be empty: ``[1, position]``, at
            least one.
        word: The name of a token of the target.
        end: The token that ends generation; None: ``max_new_tokens`` are generated.
        codec: As of a :class:`LoadedDecoder`.
    """

    card: ModelCard
    model: EncoderDecoder
    source_tokens: Callable[[Sequence[str]], Int[Tensor, "one place *field"]]
    target: Callable[[str], Int[Tensor, "one position"]]
    word: Callable[[int], str]
    max_new_tokens: int = 1
    end: int | None = None
    codec: Mapping[str, Any] | None = None
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)

    def inputs(self, units: Sequence[str], text: str) -> tuple[Tensor, Tensor]:
        """The encoder's input and the decoder's initial tokens, on the device of the model."""
        device = next(self.model.parameters()).device
        return self.source_tokens(units).to(device), self.target(text).to(device)


@dataclass(frozen=True, eq=False)
class LoadedDecoder:
    """A decoder.

    Args:
        model: Ours, or a GPT-2, Llama or Mixtral of transformers.
        encode: The tokens of a text: at least one, and no more than the model reads.
        word: The name of a single token.
        join: The text of some tokens.
        obeys: Whether a token may follow some tokens by the rule that generated them; None if no
            rule is known.
        rule: The rule that some tokens follow, in words; None if none is known.
        longest: Largest number of tokens that the model reads.
        labels: The names of a text's tokens, some of which may be parts of one character; None:
            those of single tokens.
        codec: What these functions do, as data of which ``web/src/engine/codecs.ts`` makes them;
            None: not described.
    """

    card: ModelCard
    model: nn.Module
    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    join: Callable[[Sequence[int]], str]
    obeys: Callable[[Sequence[int], int], bool | None] = lambda tokens, candidate: None
    rule: Callable[[Sequence[int]], str | None] = lambda tokens: None
    longest: int = MOST_TOKENS
    codec: Mapping[str, Any] | None = None
    labels: Callable[[Sequence[int]], list[str]] | None = None
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)
    reading: Reading = field(default_factory=lambda: Reading(), repr=False)


@dataclass(eq=False)
class Reading:
    """The text that a decoder has read last, with the logits after it, and the keys and values to
    read on from.
    """

    stamp: Hashable = None
    tokens: list[int] = field(default_factory=list)
    logits: Tensor | None = None
    cache: Any = None


_ROOM = 256
"""Tokens for which a cache has room beyond a text."""
LoadedModel = LoadedHead | LoadedProgram | LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder
_Kind = TypeVar("_Kind", LoadedHead, LoadedProgram, LoadedEncoderDecoder, LoadedDecoder)


@dataclass(frozen=True, eq=False)
class ModelEntry:
    """A model that is loaded on demand."""

    card: ModelCard
    open: Callable[[], LoadedModel]
    stamp: Callable[[], Hashable] = lambda: None
    """Changes when the stored weights do, such as those of a run that is still training: it is
    loaded again.
    """
    afresh: Callable[[], ModelEntry | None] = lambda: None
    """The entry of what is stored there now, perhaps of another run; None: the same as ever."""


def labels_of(loaded: LoadedEncoder | LoadedDecoder, tokens: Sequence[int]) -> list[str]:
    """The names of a text's tokens."""
    if loaded.labels is None:
        return [loaded.word(token) for token in tokens]
    return loaded.labels(tokens)


def entry_of(loaded: LoadedModel) -> ModelEntry:
    """The entry of a model that is in memory already."""
    return ModelEntry(loaded.card, lambda: loaded)


def of_kind(kind: type[_Kind], loaded: LoadedModel, call: str, expected: str) -> _Kind:
    """``loaded``, for a call that only models of one kind answer."""
    if not isinstance(loaded, kind):
        got = f"{call} of {loaded.card.name!r}, whose kind is {loaded.card.kind}"
        raise InputError(
            got, expected, "Choose another model, or one of the views that its card names."
        )
    return loaded


def require_order(order: Sequence[int], count: int) -> None:
    """Refuse an ``order`` that is no permutation of ``count`` units."""
    if sorted(order) != list(range(count)):
        raise InputError(
            got=f"order = {list(order)[:20]} of {count} units",
            expected=f"every number from 0 to {count - 1} once",
            fix="Name every place once: place i is read from unit order[i].",
        )


def hooks_stamp(loaded: LoadedModel) -> tuple[Hashable, ...]:
    """The interventions, hooks and autocast under which a model in memory runs."""
    if isinstance(loaded, LoadedHead):
        return ()
    return (
        editors(),
        other_hooks(loaded.model),
        frozenset(map(autocast_dtype, loaded.model.parameters())),
    )


def weights_stamp(loaded: LoadedModel) -> tuple[Hashable, ...]:
    """A value that changes when the weights of a model in memory are trained or overwritten, and
    with its hooks.

    It consists of the address and the version counter of each tensor, so writes through ``.data``
    go unnoticed, and of
    :func:`hooks_stamp`. The lock identifies the model, whose memory another one may get after its
    deletion.
    """
    if isinstance(loaded, LoadedHead):
        return loaded.lock, 0, ()  # its matrices cannot be written to
    # Without buffers that are not saved, which a forward pass may write to.
    tensors = loaded.model.state_dict(keep_vars=True).values()
    # A tensor of inference mode counts no writes.
    versions = tuple(
        (each.data_ptr(), 0 if each.is_inference() else each._version)
        for each in tensors
        if isinstance(each, Tensor)
    )
    return loaded.lock, hash(versions), hooks_stamp(loaded)


@torch.no_grad()
def last_logits(
    loaded: LoadedDecoder, tokens: Sequence[int], *, afresh: bool = False
) -> Float[Tensor, " vocab"] | None:
    """The logits of the token after some tokens, in float32 or wider, on the CPU. Hold
    ``loaded.lock``.

    Only the tokens after those that were read last are read, if the text starts with these and
    weights are the same, and not ``afresh``. None for a model without an output projection.
    """
    reading = loaded.reading
    stamp = weights_stamp(loaded)
    if reading.stamp == stamp and not afresh:
        known = reading.tokens
    else:
        known = []
    if known == list(tokens):
        return reading.logits
    has_room = (
        not isinstance(reading.cache, Cache) or len(tokens) <= reading.cache.layers[0].max_seq_len
    )
    if isinstance(loaded.model, Decoder):
        border = loaded.model.config.cache_border
    else:
        border = 0
    goes_on = 0 < len(known) < len(tokens) and list(tokens[: len(known)]) == known
    if reading.cache is None or not has_room or not goes_on or len(known) <= border < len(tokens):
        known = []
        reading.cache = None
    reading.tokens = []  # in case that reading ends with an error
    row = torch.tensor([list(tokens[len(known) :])], device=next(loaded.model.parameters()).device)
    with evaluating(loaded.model):
        logits, reading.cache = _read(loaded.model, row, reading.cache)
    if logits is not None:
        logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).cpu()
    reading.stamp = stamp
    reading.tokens = list(tokens)
    reading.logits = logits
    return logits


def _read(
    model: nn.Module, row: Int[Tensor, "one position"], cache: Any
) -> tuple[Tensor | None, Any]:
    """The logits after a row that continues what a cache holds, and the cache; None where a model
    has none.
    """
    if isinstance(model, Decoder):
        if cache is None:
            cache = model.new_cache(1, min(model.config.max_seq_len, row.shape[1] + _ROOM))
        elif row.shape[1] == 1:
            return DecodingStep(model, cache)(row)[0], cache
        return model.logits(model.hidden(row, cache=cache)[0, -1]), cache
    if "past_key_values" not in signature(model.forward).parameters:
        found = final_logits(model, row)
        return None if found is None else found[0], None
    output = model(row, past_key_values=cache, use_cache=True, **_last(model, -1))
    logits = _of_tokens(model, output)
    return None if logits is None else logits[0, -1], output.get("past_key_values")


def _of_tokens(model: nn.Module, output: Any) -> Float[Tensor, "batch position vocab"] | None:
    """The logits of the whole vocabulary; None for a model of transformers with another output,
    such as labels.
    """
    logits = getattr(output, "logits", output)
    least = getattr(getattr(model, "config", None), "vocab_size", 1)
    if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[2] >= least:
        return logits
    return None


def _last(model: nn.Module, place: int) -> dict[str, Any]:
    """The argument by which a model of transformers computes the logits of one position alone, if
    it has one.
    """
    if "logits_to_keep" in signature(model.forward).parameters:
        return {"logits_to_keep": torch.tensor([place])}
    return {}


def final_logits(
    model: nn.Module, tokens: Int[Tensor, "batch position"], place: int = -1
) -> Float[Tensor, "batch vocab"] | None:
    """The logits at one position of a decoder; None for one without an output projection.

    Logits of other positions, which take most of the memory if the vocabulary is large, are not
    computed where the model allows it.
    """
    if isinstance(model, Decoder):
        logits = model.logits(model.hidden(tokens)[:, place])
    else:
        options = _last(model, place)
        if "use_cache" in signature(model.forward).parameters:
            alone = {"use_cache": False}
        else:
            alone = {}
        output = _of_tokens(model, model(tokens, **options, **alone))
        if output is None:
            return None
        logits = output[:, -1 if options else place]
    return logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).cpu()
