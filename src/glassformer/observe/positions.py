"""Positions of a call's queries and keys in their text, which with a cache has more of them than
the call.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.layers.attention import Attended
from glassformer.layers.cache import LayerCache
from glassformer.observe.hook_points import HookPoint, Selection, whole_numbers


def kept_logits(arguments: Any, length: int, count: int) -> Sequence[int]:
    """Of a call of ``length`` positions, the ``count`` ones that have logits: the last ones, unless
    a model of transformers, whose arguments these are, is asked for others.
    """
    if arguments is None:
        kept = None
    else:
        kept = arguments.named.get("logits_to_keep")
    if isinstance(kept, slice) or (isinstance(kept, Tensor) and kept.dim() > 0):
        found: list[int] = torch.arange(length)[
            kept.cpu() if isinstance(kept, Tensor) else kept
        ].tolist()
        if len(set(found)) != len(found):
            raise InputError(
                got=f"logits_to_keep of the positions {found}",
                expected="different positions",
                fix="Name each position once.",
            )
        return found
    return range(length - count, length)


def by_text(values: Tensor, shape: Sequence[int], place: str) -> Tensor:
    """A tensor of a block with an axis of texts and one of positions, which some models fold into
    one.

    Args:
        values: [text, position, ...] or [text * position, ...].
        shape: That of the input of the block: texts and positions come first; of one text of a
            single head, positions. Empty outside a block, as of the output of a single head.
        place: What the tensor is, for an error.

    Raises:
        InputError: A tensor of other texts or positions.
    """
    if not shape:
        return values if values.dim() > 2 else values[None]
    texts, length = shape[:2] if len(shape) > 2 else (1, shape[0])
    if values.shape[:2] == (texts, length):
        return values
    if values.dim() == 2 and len(values) == texts * length:
        return values.unflatten(0, (texts, length))
    raise InputError(
        f"{place} of the shape {list(values.shape)} in a block that reads {texts} texts of "
        f"{length} positions",
        "a tensor [text, position, ...], or [text * position, ...]",
        "Capture or edit another site.",
    )


def require_rows(logits: Tensor, shape: Sequence[int] | None, name: str) -> None:
    """Refuse a classifier's logits [text, class] that are of other rows than the texts of the last
    block.
    """
    texts = len(logits) if shape is None or len(shape) < 3 else shape[0]
    if len(logits) != texts:
        raise InputError(
            got=f"logits of {name} of the shape {list(logits.shape)} for {texts} texts",
            expected="[text, class] or [text, position, class]",
            fix="Capture or edit another site.",
        )


def is_cross(point: HookPoint, call: Attended, cache: Any) -> bool:
    """Whether an attention reads another text than that of its queries."""
    return point.cross or (
        not call.pattern.causal and call.q.shape[2] != call.k.shape[2] and cache is None
    )


def rows_of(
    queries: Selection | None,
    start: int,
    length: int,
    cached: bool,
    name: str = "queries",
    kept: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The chosen positions of a call of ``length`` positions from ``start`` on, counted from its
    first one, and from the text's start; in the order in which they were chosen.

    With a cache, positions of other calls are left out. If the tensor has only the ``kept``
    positions of the call, the indices are among these.
    """
    if kept is not None:
        index = {row: at for at, row in enumerate(kept)}
        pairs = zip(*rows_of(queries, start, length, cached, name), strict=True)
        found = [(index[row], position) for row, position in pairs if row in index]
        return tuple(at for at, _ in found), tuple(position for _, position in found)
    total = start + length
    if queries is None:
        return tuple(range(length)), tuple(range(start, total))
    if isinstance(queries, slice):
        asked = list(range(total)[queries])
    else:
        given = whole_numbers(name, queries)
        asked = list(dict.fromkeys(each + total if each < 0 else each for each in given))
        wrong = [each for each in given if not -total <= each < total]
        if not cached and wrong:
            raise InputError(
                got=f"{name} {wrong} of a text of {total} positions",
                expected=f"numbers from {-total} to {total - 1}",
                fix="Choose among these, or pass a slice.",
            )
    positions = tuple(each for each in asked if start <= each < total)
    return tuple(each - start for each in positions), positions


def key_order(cache: Any, start: int, length: int, keys: int) -> tuple[Tensor | None, int]:
    """The permutation that sorts a cache's keys by position (None: they are sorted), and the first
    position.
    """
    first = max(0, start + length - keys)
    if isinstance(cache, LayerCache) and not cache.in_order:
        return cache.positions(length).argsort(), first
    return None, first


def cache_of(given: Iterable[Any]) -> Any:
    """The cache among the arguments of a block or an attention, of glassformer or of transformers."""
    for each in given:
        if isinstance(each, LayerCache) or (
            not isinstance(each, Tensor) and hasattr(each, "get_seq_length")
        ):
            return each
    return None


def start_of(cache: Any, layer: int) -> int:
    """The position of the next token in a cache."""
    if isinstance(cache, LayerCache):
        return cache.length
    return 0 if cache is None else int(cache.get_seq_length(layer))
