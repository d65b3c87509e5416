"""Hold models in memory, with functions from typed text to inputs and from outputs to words.

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
    """Reentrant lock whose holder can let waiting threads go first during a long computation."""

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
        """Hold the lock for a long computation; other long computations do not give way to it."""
        self._take()
        try:
            yield
        finally:
            self.__exit__()

    def give_way(self) -> None:
        """Let waiting threads have the lock first, unless this thread holds it more than once."""
        while self._waiting > 0 and self._depth == 1:
            self.__exit__()
            # Without a pause this thread would nearly always be the first to take the lock again.
            time.sleep(0.001)
            self._take()

    def _take(self) -> None:
        self._lock.acquire()
        self._depth += 1


@dataclass(frozen=True, eq=False)
class LoadedHead:
    """Head with designed weights, and reasons for the values of each matrix by its name."""

    card: ModelCard
    task: Task
    weights: HeadWeights
    why: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedProgram:
    """Compiled program, with or without its definition."""

    card: ModelCard
    model: CompiledProgram
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """Encoder, ours or a BERT of transformers, with or without a classification head.

    Args:
        encode: Returns the tokens of a text, truncated to what the model reads.
        word: Returns the name of a token.
        classes: Names of the classes; empty without a head.
        codec: See :class:`LoadedDecoder`.
        labels: See :class:`LoadedDecoder`.
    """

    card: ModelCard
    model: nn.Module
    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    classes: tuple[str, ...] = ()
    codec: Mapping[str, Any] | None = None
    labels: Callable[[Sequence[int]], list[str]] | None = None
    lock: Turn = field(default_factory=lambda: Turn(), repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoderDecoder:
    """Encoder-decoder.

    Args:
        source_tokens: Returns the encoder's input for units in their order: ``[1, place]`` or
            ``[1, place, field]``.
        target: Returns the decoder's initial tokens for a text, at least one: ``[1, position]``.
            The text may be empty.
        word: Returns the name of a token of the target.
        max_new_tokens: Largest number of tokens to generate.
        end: The token that ends generation; None if there is none.
        codec: See :class:`LoadedDecoder`.
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
        """Return the encoder's input and the decoder's initial tokens, on the model's device."""
        device = next(self.model.parameters()).device
        return self.source_tokens(units).to(device), self.target(text).to(device)


@dataclass(frozen=True, eq=False)
class LoadedDecoder:
    """Decoder.

    Args:
        model: A decoder of glassformer, or a GPT-2, Llama or Mixtral of transformers.
        encode: Returns the tokens of a text: at least one, and no more than the model reads.
        word: Returns the name of a token.
        join: Returns the text of tokens.
        obeys: Returns whether a token may follow tokens by the rule that generated them; None if no
            rule is known.
        rule: Returns the rule that tokens follow, in words; None if no rule is known.
        longest: Largest number of tokens that the model reads.
        codec: Description of these functions, from which ``web/src/engine/codecs.ts`` makes them;
            None if they are not described.
        labels: Returns the names of a text's tokens, some of which may be parts of one character;
            None if ``word`` names them.
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
    """Text that a decoder has read last, with the logits after it and the cache to continue from.

    ``stamp`` identifies the weights with which it was read.
    """

    stamp: Hashable = None
    tokens: list[int] = field(default_factory=list)
    logits: Tensor | None = None
    cache: Any = None


_ROOM = 256
"""Number of tokens for which a cache has room beyond a text."""
LoadedModel = LoadedHead | LoadedProgram | LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder
_Kind = TypeVar("_Kind", LoadedHead, LoadedProgram, LoadedEncoderDecoder, LoadedDecoder)


@dataclass(frozen=True, eq=False)
class ModelEntry:
    """Model that is loaded on demand.

    Args:
        open: Loads the model.
        stamp: Returns a value that changes when the stored weights do, as during a training run.
            The model is then loaded again.
        afresh: Returns the entry of what is stored now, perhaps of another run; None if the entry
            never changes.
    """

    card: ModelCard
    open: Callable[[], LoadedModel]
    stamp: Callable[[], Hashable] = lambda: None
    afresh: Callable[[], ModelEntry | None] = lambda: None


def labels_of(loaded: LoadedEncoder | LoadedDecoder, tokens: Sequence[int]) -> list[str]:
    """Return the names of a text's tokens."""
    if loaded.labels is None:
        return [loaded.word(token) for token in tokens]
    return loaded.labels(tokens)


def entry_of(loaded: LoadedModel) -> ModelEntry:
    """Return the entry of a model that is in memory already."""
    return ModelEntry(loaded.card, lambda: loaded)


def of_kind(kind: type[_Kind], loaded: LoadedModel, call: str, expected: str) -> _Kind:
    """Return ``loaded``; refuse it if it is of another kind than the call needs."""
    if not isinstance(loaded, kind):
        raise InputError(
            got=f"{call} of {loaded.card.name!r}, whose kind is {loaded.card.kind}",
            expected=expected,
            fix="Choose another model, or one of the views that its card names.",
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
    """Return the interventions, hooks and autocast under which a model in memory runs."""
    if isinstance(loaded, LoadedHead):
        return ()
    return (
        editors(),
        other_hooks(loaded.model),
        frozenset(map(autocast_dtype, loaded.model.parameters())),
    )


def weights_stamp(loaded: LoadedModel) -> tuple[Hashable, ...]:
    """Return a value that changes when a model's weights or hooks change.

    It consists of the address and the version counter of each tensor, and of :func:`hooks_stamp`.
    Writes through ``.data`` go unnoticed. The lock identifies the model, since another model may
    get its memory after it was deleted.
    """
    if isinstance(loaded, LoadedHead):
        return loaded.lock, 0, ()  # its matrices cannot be written to
    # Buffers that are not saved are left out, since a forward pass may write to them.
    tensors = loaded.model.state_dict(keep_vars=True).values()
    # A tensor of inference mode counts no writes.
    versions = tuple(
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in tensors
        if isinstance(tensor, Tensor)
    )
    return loaded.lock, hash(versions), hooks_stamp(loaded)


@torch.no_grad()
def last_logits(
    loaded: LoadedDecoder, tokens: Sequence[int], *, afresh: bool = False
) -> Float[Tensor, " vocab"] | None:
    """Return the logits of the token after ``tokens``, in float32 or wider, on the CPU.

    The caller holds ``loaded.lock``. If the text continues the one that was read last with the same
    weights, only the new tokens are read, unless ``afresh``. Return None for a model without an
    output projection.
    """
    reading = loaded.reading
    stamp = weights_stamp(loaded)
    read_tokens: list[int] = []
    if reading.stamp == stamp and not afresh:
        read_tokens = reading.tokens
    if read_tokens == list(tokens):
        return reading.logits
    if not _continues(loaded.model, reading.cache, read_tokens, tokens):
        read_tokens = []
        reading.cache = None
    reading.tokens = []  # in case reading ends with an error
    row = torch.tensor(
        [list(tokens[len(read_tokens) :])], device=next(loaded.model.parameters()).device
    )
    with evaluating(loaded.model):
        logits, reading.cache = _read(loaded.model, row, reading.cache)
    if logits is not None:
        logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).cpu()
    reading.stamp = stamp
    reading.tokens = list(tokens)
    reading.logits = logits
    return logits


def _continues(
    model: nn.Module, cache: Any, read_tokens: Sequence[int], tokens: Sequence[int]
) -> bool:
    """Check that a cache of ``read_tokens`` can be extended to ``tokens``."""
    if cache is None or not 0 < len(read_tokens) < len(tokens):
        return False
    if list(tokens[: len(read_tokens)]) != read_tokens:
        return False
    if isinstance(cache, Cache) and len(tokens) > cache.layers[0].max_seq_len:
        return False
    # Beyond the border, the keys before it would have to be rotated in another way.
    border = model.config.cache_border if isinstance(model, Decoder) else 0
    return not len(read_tokens) <= border < len(tokens)


def _read(
    model: nn.Module, row: Int[Tensor, "one position"], cache: Any
) -> tuple[Tensor | None, Any]:
    """Return the logits after a row that continues a cache, and the cache.

    Either is None for a model that has none.
    """
    if isinstance(model, Decoder):
        if cache is None:
            cache = model.new_cache(1, min(model.config.max_seq_len, row.shape[1] + _ROOM))
        elif row.shape[1] == 1:
            return DecodingStep(model, cache)(row)[0], cache
        return model.logits(model.hidden(row, cache=cache)[0, -1]), cache
    if "past_key_values" not in signature(model.forward).parameters:
        logits = final_logits(model, row)
        return None if logits is None else logits[0], None
    output = model(row, past_key_values=cache, use_cache=True, **_last(model, -1))
    logits = _of_tokens(model, output)
    return None if logits is None else logits[0, -1], output.get("past_key_values")


def _of_tokens(model: nn.Module, output: Any) -> Float[Tensor, "batch position vocab"] | None:
    """Return the logits of the whole vocabulary.

    Return None for a model of transformers with another output, such as labels.
    """
    logits = getattr(output, "logits", output)
    least = getattr(getattr(model, "config", None), "vocab_size", 1)
    if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[2] >= least:
        return logits
    return None


def _last(model: nn.Module, place: int) -> dict[str, Any]:
    """Return the argument by which a model of transformers computes one position's logits alone.

    Return no argument if the model has none for this.
    """
    if "logits_to_keep" in signature(model.forward).parameters:
        return {"logits_to_keep": torch.tensor([place])}
    return {}


def final_logits(
    model: nn.Module, tokens: Int[Tensor, "batch position"], place: int = -1
) -> Float[Tensor, "batch vocab"] | None:
    """Return the logits at one position of a decoder; None for one without an output projection.

    Logits of other positions take most of the memory if the vocabulary is large. They are not
    computed if the model allows it.
    """
    if isinstance(model, Decoder):
        logits = model.logits(model.hidden(tokens)[:, place])
    else:
        options = _last(model, place)
        cache_options = {}
        if "use_cache" in signature(model.forward).parameters:
            cache_options["use_cache"] = False
        output = _of_tokens(model, model(tokens, **options, **cache_options))
        if output is None:
            return None
        logits = output[:, -1 if options else place]
    return logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).cpu()
