"""Positions of a call's queries and keys in their text, which a cache may have begun."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import InputError
from glassformer.layers.attention import Attended
from glassformer.layers.cache import LayerCache
from glassformer.observe.hook_points import HookPoint, Selection, whole_numbers


def kept_logits(arguments: Any, length: int, count: int) -> Sequence[int]:
    """Return the ``count`` positions of a call that have logits.

    They are the last of ``length`` positions, unless a model of transformers, whose arguments these
    are, is asked for others.
    """
    selection = None if arguments is None else arguments.named.get("logits_to_keep")
    if isinstance(selection, Tensor):
        selection = selection.cpu() if selection.dim() > 0 else None
    if not isinstance(selection, slice | Tensor):
        return range(length - count, length)
    positions: list[int] = torch.arange(length)[selection].tolist()
    if len(set(positions)) != len(positions):
        raise InputError(
            got=f"logits_to_keep of the positions {positions}",
            expected="different positions",
            fix="Name each position once.",
        )
    return positions


def by_text(values: Tensor, shape: Sequence[int], place: str) -> Tensor:
    """Return a tensor of a block with an axis of texts and one of positions; some models fold them.

    Args:
        values: [text, position, ...] or [text * position, ...].
        shape: Shape of the input of the block: texts and positions come first, or positions for one
            text of a single head. Empty outside a block, as for the output of a single head.
        place: Name of the tensor in an error.

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
        got=(
            f"{place} of the shape {list(values.shape)} in a block that reads {texts} texts of "
            f"{length} positions"
        ),
        expected="a tensor [text, position, ...], or [text * position, ...]",
        fix="Capture or edit another site.",
    )


def require_rows(logits: Tensor, shape: Sequence[int] | None, name: str) -> None:
    """Refuse a classifier's logits [text, class] that do not have a row for each text."""
    texts = len(logits) if shape is None or len(shape) < 3 else shape[0]
    if len(logits) != texts:
        raise InputError(
            got=f"logits of {name} of the shape {list(logits.shape)} for {texts} texts",
            expected="[text, class] or [text, position, class]",
            fix="Capture or edit another site.",
        )


def is_cross(point: HookPoint, call: Attended, cache: Any) -> bool:
    """Return whether an attention reads another text than that of its queries."""
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
    """Return the chosen positions of a call, counted from the start of the call and of the text.

    The call has ``length`` positions from ``start`` on. Both results keep the order of ``queries``.

    With a cache, positions of other calls are left out. If the tensor has only the ``kept``
    positions of the call, the first result holds indices among these.
    """
    if kept is not None:
        index = {row: slot for slot, row in enumerate(kept)}
        pairs = zip(*rows_of(queries, start, length, cached, name), strict=True)
        kept_pairs = [(index[row], position) for row, position in pairs if row in index]
        return tuple(slot for slot, _ in kept_pairs), tuple(place for _, place in kept_pairs)
    total = start + length
    if queries is None:
        return tuple(range(length)), tuple(range(start, total))
    if isinstance(queries, slice):
        selected: Iterable[int] = range(total)[queries]
    else:
        numbers = whole_numbers(name, queries)
        out_of_range = [number for number in numbers if not -total <= number < total]
        if out_of_range and not cached:
            raise InputError(
                got=f"{name} {out_of_range} of a text of {total} positions",
                expected=f"numbers from {-total} to {total - 1}",
                fix="Choose among these, or pass a slice.",
            )
        selected = dict.fromkeys(from_start(number, total) for number in numbers)
    positions = tuple(position for position in selected if start <= position < total)
    return tuple(position - start for position in positions), positions


def from_start(number: int, total: int) -> int:
    """Return a position of a text of ``total`` positions, counted from its start."""
    return number + total if number < 0 else number


def key_order(cache: Any, start: int, length: int, keys: int) -> tuple[Tensor | None, int]:
    """Return the permutation that sorts a cache's keys by position, and the first position.

    The permutation is None if the keys are sorted.
    """
    first = max(0, start + length - keys)
    if isinstance(cache, LayerCache) and not cache.in_order:
        return cache.positions(length).argsort(), first
    return None, first


def cache_of(arguments: Iterable[Any]) -> Any:
    """Return the cache, of glassformer or of transformers, among a module's arguments."""
    for argument in arguments:
        if isinstance(argument, LayerCache):
            return argument
        if not isinstance(argument, Tensor) and hasattr(argument, "get_seq_length"):
            return argument
    return None


def start_of(cache: Any, layer: int) -> int:
    """Return the position of the next token in a cache."""
    if isinstance(cache, LayerCache):
        return cache.length
    return 0 if cache is None else int(cache.get_seq_length(layer))
