"""Edits for interventions: a site of the model, the part of it to change, and the new value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.observe.captured import AXES, Captured, Record
from glassformer.observe.hook_points import Heads, HookPoint, Modules, Selection, select
from glassformer.observe.positions import from_start
from glassformer.observe.site_names import meant_site

SITES = tuple(kind for kind in AXES if kind not in ("sinks", "choices", "shares"))
"""The kinds of :func:`~glassformer.observe.capture.capture` that can be changed."""

Labels = dict[str, tuple[int, ...]]
"""Labels of the tensor that is changed.

They are the chosen indices on its axes "batch", "head", "query" and "key", in their order; and two
single numbers: "rows", the texts of the call, and "length", the positions of the text so far.
"""


@dataclass(frozen=True)
class Edit:
    """One change of a running model, for :func:`~glassformer.observe.intervene.intervene`.

    The functions of this module make edits.

    Args:
        site: One of :data:`SITES`.
        change: Takes the chosen part of the tensor, its hook point and its labels, and returns the
            new value, which may be broadcast. It must not write into its argument.
        modules: As for ``capture``.
        layers: As for ``capture``: in an encoder-decoder of both stacks, unless ``modules`` names
            modules of one.
        heads: As for ``capture``; key-value heads for ``k`` and ``v``. Here and below values are
            in the order of the selection.
        queries: Positions of the text, for all sites but ``k`` and ``v``; negative ones count from
            the newest.
        keys: Positions of the text (of the memory, in cross-attention), for ``k``, ``v``,
            ``scores`` and ``weights``.
        examples: Rows of the batch.
        experts: Indices of experts, for ``router`` and ``experts``.
        run: The run whose values are used, which must be one of the same model.
        elementwise: Whether each number changes without regard to the others. Only then may
            ``change`` give weights to keys that the model masks; these keep 0.
    """

    site: str
    change: Callable[[Tensor, HookPoint, Labels], Tensor | float]
    modules: Modules | None = None
    layers: Selection | None = None
    heads: Heads | None = None
    queries: Selection | None = None
    keys: Selection | None = None
    examples: Selection | None = None
    experts: Selection | None = None
    run: Captured | None = None
    elementwise: bool = False

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise InputError(
                got=f"site = {self.site!r}",
                expected=f"one of {', '.join(SITES)}",
                fix=meant_site(self.site, SITES),
            )
        axes = AXES[self.site]
        for name, axis in _AXIS_OF_SELECTION.items():
            has_axis = axis in axes or (name == "experts" and self.site == "experts")
            if getattr(self, name) is not None and not has_axis:
                raise InputError(
                    got=f"{name} of the site {self.site}, which has the axes {', '.join(axes)}",
                    expected="a selection on one of these axes",
                    fix=f"Omit {name}, or choose another site.",
                )


_AXIS_OF_SELECTION = {"heads": "head", "queries": "query", "keys": "key", "experts": "expert"}


class MaskEdit(Edit):
    """An edit of scores to -inf or 0 by the kernel's mask, without scores in memory."""


class FactorEdit(Edit):
    """An edit that multiplies: zeros stay 0, such as weights of keys that the model masks."""


class SinkEdit(Edit):
    """An edit that leaves sinks out of the softmax."""


def change(site: str, function: Callable[[Tensor], Tensor | float], **where: Any) -> Edit:
    """Replace the chosen part of a site by ``function`` of it; ``where``: see :class:`Edit`.

    ``function`` receives a copy with the site's axes (see ``capture``) and returns a value that can
    be broadcast to it. For the site ``experts`` it receives ``[choice, dim]``, a row for each token
    that chose the expert. Calls with equal values must return equal values, because a capture of a
    later site may call it once more. For ``weights``, it must return 0 for keys that the model
    masks.
    """

    def changed(values: Tensor, point: HookPoint, labels: Labels) -> Tensor | float:
        new = function(values.clone())
        if not isinstance(new, Tensor | float | int):
            kind = type(new).__name__
            raise InputError(
                got=f"a change of {site} at {point.name} whose function returns {kind}",
                expected="a tensor or a number",
                fix="Return the new value.",
            )
        return new

    return _edit(site, changed, where)


def zero(site: str, **where: Any) -> Edit:
    """Set to 0: zero ablation. A probability of 0 in ``router`` forbids the expert."""
    return _edit(
        site,
        lambda values, point, labels: torch.zeros_like(values),
        where,
        FactorEdit,
        elementwise=True,
    )


def scale(site: str, factor: Float[Tensor, "..."] | float | int, **where: Any) -> Edit:
    """Multiply by a number, or by a tensor that can be broadcast to the values."""
    _require_numbers(f"a factor for {site}", factor)

    def scaled(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        return values * _broadcast("a factor", factor, values, f"{site} at {point.name}")

    return _edit(site, scaled, where, FactorEdit, elementwise=True)


def add(site: str, vector: Float[Tensor, "..."] | float | int, **where: Any) -> Edit:
    """Add a vector, or a tensor that can be broadcast: steering."""
    _require_numbers(f"a vector for {site}", vector)

    def added(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        return values + _broadcast("a vector", vector, values, f"{site} at {point.name}")

    return _edit(site, added, where, elementwise=True)


def _broadcast(
    name: str, value: Tensor | float | int, values: Tensor, where: str
) -> Tensor | float | int:
    """Return ``value`` in the dtype of ``values``, to which it must be possible to broadcast it."""
    if not isinstance(value, Tensor):
        return value
    sizes = zip(reversed(value.shape), reversed(values.shape), strict=False)
    can_broadcast = value.dim() <= values.dim() and all(
        size in (1, full_size) for size, full_size in sizes
    )
    if not can_broadcast or value.is_complex():
        raise InputError(
            got=f"{name} of {value.dtype} and shape {list(value.shape)} for {where}",
            expected=f"what can be broadcast to {list(values.shape)}",
            fix="Pass a real tensor of the site's width.",
        )
    return value.to(values)


def put(site: str, value: Float[Tensor, "..."] | float | int, **where: Any) -> Edit:
    """Replace by ``value``, which is broadcast, in the order of the selections.

    For ``weights``, it forces an attention pattern, in which keys that the model masks keep 0.
    """
    return _edit(site, lambda values, point, labels: value, where, elementwise=True)


def patch(
    site: str, run: Captured, *, positions: Mapping[int, int] | None = None, **where: Any
) -> Edit:
    """Replace by the values of another run at the same place: activation patching.

    Args:
        site: The site, which ``run`` has captured for everything that ``where`` selects.
        run: A capture of a run of the same model, with one call for each position. It has as many
            texts as are edited; or all texts of the batch, from which the edited ones are taken; or
            one text for all.
        positions: Maps positions of the edited texts to positions of ``run``, instead of
            ``queries`` or ``keys``, for runs of texts of another length. Negative ones count from
            the end.
        where: See :class:`Edit`.
    """
    _check_run("a patch", site, run)
    axis = _across(site)
    if positions is not None:
        selector = {"query": "queries", "key": "keys"}[axis]
        if selector in where:
            raise InputError(
                got=f"positions and {selector}",
                expected="one of them",
                fix=f"Omit {selector}.",
            )
        where[selector] = tuple(positions)

    def taken(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        (num_texts,) = labels["rows"]
        (length,) = labels["length"]
        got = f"a patch of {site} at {point.name}"
        records = _records_of(run, site, point, got)
        places = labels[axis]
        if positions is None:
            record = _record_with(records, axis, places, length, got)
        else:
            source_length = max(record.length for record in records if record.length is not None)
            source = _source_places(positions, length, source_length, got)
            places = tuple(source[place] for place in places)
            record = _record_with(records, axis, places, None, got)
        patched = _select(record.values, record, axis, places, got)
        patched = _select(patched, record, "head", labels.get("head"), got)
        if len(patched) == num_texts:
            patched = _picked(patched, 0, labels["batch"])
        if patched.shape[1:] != values.shape[1:] or len(patched) not in (1, len(values)):
            raise InputError(
                got=f"{got} of shape {list(patched.shape)}",
                expected=f"{list(values.shape)}, or one example",
                fix="Run both on as many texts, or one for all.",
            )
        return patched

    return _edit(site, taken, where, run=run)


def _records_of(run: Captured, site: str, point: HookPoint, got: str) -> list[Record]:
    """Return the records of a site at a hook point; refuse a run without any."""
    by_module = run.of(site)
    if point.name not in by_module:
        raise InputError(
            got=got,
            expected=f"a capture of it: {sorted(by_module)}",
            fix=_CAPTURE,
        )
    return by_module[point.name]


def _source_places(
    positions: Mapping[int, int], length: int, source_length: int, got: str
) -> dict[int, int]:
    """Return ``positions`` with both sides counted from the start of their text."""
    out_of_range = [
        place for place in positions.values() if not -source_length <= place < source_length
    ]
    if out_of_range:
        raise InputError(
            got=f"{got} from positions {out_of_range} of a text of {source_length}",
            expected=f"numbers from {-source_length} to {source_length - 1}",
            fix="Choose among these.",
        )
    source = {
        from_start(place, length): source_place % source_length
        for place, source_place in positions.items()
    }
    if len(source) != len(positions):
        mapping = dict(positions)
        raise InputError(
            got=f"{got}, positions = {mapping}, of which two keys are one position of {length}",
            expected="one source for each position",
            fix="Omit one of them.",
        )
    return source


def _record_with(
    records: Sequence[Record], axis: str, places: Sequence[int], length: int | None, got: str
) -> Record:
    """Return the only record with these positions, of a text of ``length`` unless it is None."""
    candidates = [record for record in records if set(places) <= set(_places(record, axis))]
    if not candidates:
        captured = set(chain.from_iterable(_places(record, axis) for record in records))
        missing = [place for place in places if place not in captured]
        raise InputError(
            got=f"{got}, {axis} {missing or places}",
            expected=f"{axis} in {_places(records[-1], axis)}",
            fix=_CAPTURE,
        )
    if length is not None:
        candidates = [record for record in candidates if record.length == length]
    if not candidates:
        shortest = min(str(record.length) for record in records)
        raise InputError(
            got=f"{got} in a text of {length} positions from one of {shortest}",
            expected="texts of equal length",
            fix="Say which position is which: positions={here: there}.",
        )
    if len(candidates) != 1:
        raise InputError(
            got=f"{got} from a capture of {len(candidates)} calls with these positions",
            expected="one of them",
            fix="Capture the run that is meant alone.",
        )
    return candidates[0]


Over = Literal["all", "position"]


def mean(site: str, run: Captured, *, over: Over | None = None, **where: Any) -> Edit:
    """Replace by the mean of a reference run: mean ablation.

    A reference run with padding is refused, since padding would count: use texts of one length, or
    one text at a time.

    Args:
        site: As for :func:`patch`.
        run: A capture of a run of the same model.
        over: ``"position"`` is a mean over texts for each position; the run then needs texts of the
            edited length. ``"all"`` and None are a mean over texts and positions of all calls. In
            many models the first position has values hundreds of times as large as the others;
            None is refused if they are more than 10 times as large.
        where: See :class:`Edit`.
    """
    _check_run("a mean", site, run)
    if over not in (None, *get_args(Over)):
        raise InputError(
            got=f"over = {over!r}",
            expected="'position' or 'all'",
            fix="Choose one of these.",
        )
    axis = _across(site)

    def averaged(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        got = f"a mean of {site} at {point.name}"
        records = _records_of(run, site, point, got)
        if any(record.padded for record in records):
            raise InputError(
                got=f"{got} from texts with padding",
                expected="no padding",
                fix="Give the reference run texts of one length, or one text at a time.",
            )
        record = records[-1]
        dim = record.axes.index(axis)
        if over == "position":
            _check_whole(records, axis, labels["length"][0], got)
            mean = torch.cat([record.values for record in records]).mean(0, keepdim=True)
            mean = _picked(mean, dim, labels[axis])
        else:
            if over is None:
                _check_first(records, axis, got)
            rows = [record.values.transpose(1, dim).flatten(0, 1) for record in records]
            mean = torch.cat(rows).mean(0, keepdim=True).unsqueeze(dim)
        return _select(mean, record, "head", labels.get("head"), got)

    return _edit(site, averaged, where, run=run)


def _check_whole(records: Sequence[Record], axis: str, length: int, got: str) -> None:
    """Refuse records that do not hold all positions of texts of ``length``."""
    for record in records:
        if record.length != length or tuple(_places(record, axis)) != tuple(range(length)):
            raise InputError(
                got=f"{got} for each of {length} positions, from a text of {record.length}",
                expected="a reference of the same length, captured whole",
                fix="Use texts of equal length, or over='all'.",
            )


def _check_first(records: Sequence[Record], axis: str, got: str) -> None:
    """Refuse records whose values at the first position would dominate a mean over positions."""
    first: list[Tensor] = []
    others: list[Tensor] = []
    for record in records:
        by_place = record.values.unbind(record.axes.index(axis))
        for place, values in zip(_places(record, axis), by_place, strict=True):
            size = values.detach().double().square().mean()
            if place == 0:
                first.append(size)
            else:
                others.append(size)
    if not first or not others:
        return
    ratio = float((torch.stack(first).mean() / torch.stack(others).mean()).sqrt())
    if ratio > _MAX_RATIO:
        raise InputError(
            got=(
                f"{got} over all positions, of which the first is {ratio:.0f} times as large as "
                "the others"
            ),
            expected="a mean in which no position drowns the others",
            fix="Pass over='position', or over='all' if that is meant.",
        )


_MAX_RATIO = 10


def _across(site: str) -> str:
    return "key" if site in ("k", "v") else "query"


def _places(record: Record, axis: str) -> Sequence[int]:
    places = record.keys if axis == "key" else record.queries
    assert places is not None
    return places


def _select(
    values: Tensor, record: Record, axis: str, selected: Sequence[int] | None, got: str
) -> Tensor:
    """Return the selected heads or positions of a record's values, in their order."""
    labels = record.heads if axis == "head" else _places(record, axis)
    if selected is None or labels is None:
        return values
    missing = [label for label in selected if label not in labels]
    if missing:
        raise InputError(
            got=f"{got}, {axis} {missing}",
            expected=f"{axis} in {labels}",
            fix=_CAPTURE,
        )
    return _picked(values, record.axes.index(axis), [labels.index(label) for label in selected])


def _picked(values: Tensor, dim: int, indices: Sequence[int]) -> Tensor:
    return values.index_select(dim, torch.tensor(list(indices), device=values.device))


def forbid(queries: Selection | None = None, keys: Selection | None = None, **where: Any) -> Edit:
    """Forbid ``queries`` to attend to ``keys``, by a mask of the fused kernel.

    At least one of the queries must otherwise see one of the keys.
    """
    _require_selections("scores", where)
    return MaskEdit("scores", infinite, queries=queries, keys=keys, **where)


def remove_sinks(
    *, modules: Modules | None = None, layers: Selection | None = None, heads: Heads | None = None
) -> Edit:
    """Leave the sinks of the chosen heads out of their softmax, for all queries."""
    return SinkEdit("scores", infinite, modules, layers, heads)


def force_experts(experts: Selection, **where: Any) -> Edit:
    """Route the chosen ``queries`` to these experts alone, weighted by the router's own scores."""

    def forced(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        chosen = torch.tensor(select("experts", experts, values.shape[-1]), device=values.device)
        return torch.zeros_like(values).index_copy(2, chosen, values.index_select(2, chosen))

    return _edit("router", forced, where)


_SELECTIONS = ("modules", "layers", "heads", "queries", "keys", "examples", "experts")


def _edit(
    site: str,
    change: Callable[[Tensor, HookPoint, Labels], Tensor | float],
    where: Any,
    kind: type[Edit] = Edit,
    **fields: Any,
) -> Edit:
    _require_selections(site, where)
    return kind(site, change, **fields, **where)


def _require_selections(site: str, where: Any) -> None:
    unknown = [name for name in where if name not in _SELECTIONS]
    if unknown:
        raise InputError(
            got=f"{', '.join(unknown)} of an edit of {site}",
            expected=f"selections by {', '.join(_SELECTIONS)}",
            fix="Choose among these; change(site, function) reaches a part that they do not.",
        )


def _require_numbers(what: str, value: Any) -> None:
    if not isinstance(value, float | int) and not hasattr(value, "__array__"):
        raise InputError(
            got=f"{what} of type {type(value).__name__}",
            expected="a tensor or a number",
            fix="Pass torch.tensor(...) of it.",
        )


def _check_run(name: str, site: str, run: Captured) -> None:
    if site in ("experts", "scores", "weights"):
        raise InputError(
            got=f"{name} of {site}",
            expected="another site",
            fix="Use put(...).",
        )
    if not isinstance(run, Captured):
        raise InputError(
            got=f"{name} of {site} from {type(run).__name__}",
            expected="what capture() gives",
            fix="Use put(site, value) for a tensor.",
        )


def infinite(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
    """Return the change of :func:`forbid`, the same for all heads and examples."""
    return torch.full_like(values, -torch.inf)


_CAPTURE = "Capture it with capture(model, what=..., ...) in the other run."
