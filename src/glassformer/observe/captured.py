"""What has been seen of a running model: tensors with the names of what stands on their axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.errors import InputError, require
from glassformer.observe.exact_attention import Given

AXES = MappingProxyType(
    {
        "weights": ("batch", "head", "query", "key"),
        "scores": ("batch", "head", "query", "key"),
        "sinks": ("batch", "head", "query"),
        "q": ("batch", "head", "query", "dim"),
        "k": ("batch", "head", "key", "dim"),
        "v": ("batch", "head", "key", "dim"),
        "residual": ("batch", "query", "dim"),
        "ffn": ("batch", "query", "dim"),
        "router": ("batch", "query", "expert"),
        "choices": ("batch", "query", "choice"),
        "shares": ("batch", "query", "choice"),
        "experts": ("batch", "query", "choice", "dim"),
    }
)
"""What can be captured, and the axes of each."""

WITH_GRADIENT = ("weights", "scores", "q", "k", "v", "residual", "ffn")
"""What can keep a gradient."""

Texts = tuple[tuple[str, ...], ...]
"""The tokens of each text of a batch, as words."""


@dataclass(frozen=True, eq=False)
class Record:
    """One tensor of one call of one module.

    Args:
        what: What it is: a key of ``AXES``, which names its axes.
        name: The module, as ``model.named_modules()`` tells it.
        layer: The number of its block in its stack, from 0.
        call: The how manieth call of this module within the watched block, from 0.
        values: The numbers; attention weights and scores in float32 or wider.
        heads: The heads on the head axis; for ``k`` and ``v`` those are key-value heads.
        queries: The positions on the query axis, counted from the start of the text.
        keys: The positions on the key axis.
        source: Whether the queries are positions of an encoder-decoder's source.
        cross: Whether the keys are positions of another text than the queries.
    """

    what: str
    name: str
    layer: int
    call: int
    values: Shaped[Tensor, "*axes"]
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | range | None = None
    source: bool = False
    cross: bool = False
    gradient: Callable[[], Tensor | None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require(self.what in AXES, f"what = {self.what!r}", f"one of {', '.join(AXES)}", "Choose among them.")
        axes = AXES[self.what]
        shape = tuple(self.values.shape)
        require(len(shape) == len(axes), f"{self.what} of shape {list(shape)}", f"[{', '.join(axes)}]", "Mend it.")
        for axis, labels in (("head", self.heads), ("query", self.queries), ("key", self.keys)):
            count = None if labels is None else len(labels)
            expected = shape[axes.index(axis)] if axis in axes else None
            require(
                count == expected,
                f"{count} labels for the {axis} axis of {self.what} of shape {list(shape)}",
                "one for each place" if expected is not None else "none",
                "Give each axis its labels.",
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """What stands on each axis of ``values``."""
        return AXES[self.what]

    def numpy(self) -> Shaped[np.ndarray, "*axes"]:
        """The values as a NumPy array on the CPU; bfloat16, which NumPy has no name for, as float32."""
        values = self.values.detach().cpu()
        return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()

    @property
    def grad(self) -> Float[Tensor, "*axes"] | None:
        """The gradient of what has been differentiated since, in the shape of ``values``; None if nothing has.

        Raises:
            InputError: A record that keeps none: see ``retain_grad`` of :func:`~glassformer.observe.capture.capture`.
        """
        if self.gradient is None:
            raise InputError(
                f"a record of {self.what} that keeps no gradient",
                f"one of {', '.join(WITH_GRADIENT)}, captured with retain_grad = True while gradients are on",
                "Capture it so.",
            )
        return self.gradient()


@dataclass(frozen=True, eq=False)
class KeptAttention:
    """What one call of an attention was given: enough to compute any of its rows at any later time, exactly.

    Args:
        name: The module, as ``model.named_modules()`` tells it.
        layer: The number of its block in its stack, from 0.
        given: Queries, keys and what else the weights follow from; copies, without the values (``value_dim`` is 0).
        source: Whether the queries are positions of an encoder-decoder's source.
        cross: Whether the keys are positions of another text than the queries.
    """

    name: str
    layer: int
    given: Given
    source: bool = False
    cross: bool = False


@dataclass(frozen=True, eq=False)
class Captured:
    """What :func:`~glassformer.observe.capture.capture` has seen so far.

    Args:
        records: Everything, in the order in which it ran.
        tokens: The words of the texts whose positions the queries are; for a decoder also those it has written.
        source_tokens: The words of an encoder-decoder's sources.
        given: What each call of each chosen attention was given, where "given" was asked for. It is not saved.
    """

    records: list[Record] = field(default_factory=list)
    tokens: Texts | None = None
    source_tokens: Texts | None = None
    given: list[KeptAttention] = field(default_factory=list)

    def of(self, what: str) -> dict[str, list[Record]]:
        """All records of one kind by module, in the order of the calls; no entry for a module without any."""
        require(what in AXES, f"what = {what!r}", f"one of {', '.join(AXES)}", "Choose among them.")
        found: dict[str, list[Record]] = {}
        for record in self.records:
            if record.what == what:
                found.setdefault(record.name, []).append(record)
        return found

    def last(self, what: str) -> dict[str, Tensor]:
        """The values of each module's last record of one kind."""
        return {name: records[-1].values for name, records in self.of(what).items()}

    def numpy(self, what: str) -> dict[str, np.ndarray]:
        """As :meth:`last`, as NumPy arrays."""
        return {name: records[-1].numpy() for name, records in self.of(what).items()}

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch head query key"]]:
        """The attention weights of each module's last call."""
        return self.last("weights")

    @property
    def calls(self) -> dict[str, list[Float[Tensor, "batch head query key"]]]:
        """The attention weights of every call of each module."""
        return {name: [record.values for record in records] for name, records in self.of("weights").items()}

    def with_tokens(self, tokens: Any = None, source_tokens: Any = None) -> Captured:
        """The same with words: those of one text, or of each text of the batch. None leaves what there is."""
        own = self.tokens if tokens is None else as_texts("tokens", tokens)
        source = self.source_tokens if source_tokens is None else as_texts("source_tokens", source_tokens)
        return Captured(self.records, own, source, self.given)

    def query_names(self, record: Record, row: int = 0) -> list[str]:
        """What stands at the queries of a record: words where there are any, else the numbers of the positions."""
        return self._names(record.queries, self.source_tokens if record.source else self.tokens, row)

    def key_names(self, record: Record, row: int = 0) -> list[str]:
        """What stands at the keys of a record: words where there are any, else the numbers of the positions."""
        return self._names(record.keys, self.source_tokens if record.source or record.cross else self.tokens, row)

    def _names(self, positions: Sequence[int] | None, texts: Texts | None, row: int) -> list[str]:
        require(positions is not None, "a record without such an axis", "one that has it", "See its axes.")
        assert positions is not None
        require(
            texts is None or 0 <= row < len(texts),
            f"row {row} of {len(texts or ())} texts",
            "a row of the batch",
            "Give the words of every text.",
        )
        words = () if texts is None else texts[row]
        return [words[at] if at < len(words) else str(at) for at in positions]


def as_texts(name: str, given: Any) -> Texts | None:
    """The words of one text or of several, as tuples.

    Raises:
        InputError: Anything but words: a bare string, say, or numbers.
    """
    if given is None:
        return None
    message = (f"{name} of {type(given).__name__}", "a list of words, or one for each text", "Split the text first.")
    require(isinstance(given, list | tuple), *message)
    texts = [given] if all(isinstance(each, str) for each in given) else list(given)
    for text in texts:
        require(isinstance(text, list | tuple) and all(isinstance(word, str) for word in text), *message)
    return tuple(tuple(text) for text in texts)
