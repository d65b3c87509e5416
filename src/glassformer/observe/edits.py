"""What an intervention changes: a site of the model, the part of it that is meant, and the new
value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.observe.captured import AXES, Captured, Record
from glassformer.observe.hook_points import Heads, HookPoint, Modules, Selection, select
from glassformer.observe.site_names import meant_site

SITES = tuple(kind for kind in AXES if kind not in ("sinks", "choices", "shares"))
"""The kinds of :func:`~glassformer.observe.capture.capture` that can be changed."""

Labels = dict[str, tuple[int, ...]]
"""The chosen indices on the axes "batch", "head", "query" and "key" of the tensor that is changed,
in their order; and
one number each: "rows", the texts of the call, and "length", the positions of its text by then.
"""


@dataclass(frozen=True)
class Edit:
    """One change of a running model; made by the functions of this module, used by
    :func:`~glassformer.observe.intervene.intervene`.

    Args:
        site: One of :data:`SITES`.
        change: From the chosen part of the tensor, its hook point and its labels to the new value,
            which may be broadcast. It must not write into its argument.
        modules: As for ``capture``.
        layers: As for ``capture``: in an encoder-decoder of both stacks, unless ``modules`` names
            those of one.
        heads: As for ``capture``; of ``k`` and ``v`` key-value heads. Here and below values are in
            the order of the selection.
        queries: Positions of the text, for all sites but ``k`` and ``v``; negative ones count from
            the newest.
        keys: Positions of the text (of the memory, in cross-attention), for ``k``, ``v``,
            ``scores`` and ``weights``.
        examples: Rows of the batch.
        experts: For ``router`` and ``experts``.
        run: The run whose values are used, which must be one of the same model.
        elementwise: Whether each number changes without regard to the others. Only then may
            ``change`` give weights to keys that the model masks, which keep 0.
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
                f"site = {self.site!r}", f"one of {', '.join(SITES)}", meant_site(self.site, SITES)
            )
        axes = AXES[self.site]
        for name, axis in (
            ("heads", "head"),
            ("queries", "query"),
            ("keys", "key"),
            ("experts", "expert"),
        ):
            given = getattr(self, name) is not None
            fits = axis in axes or (name == "experts" and self.site == "experts")
            if given and not fits:
                raise InputError(
                    got=f"{name} of the site {self.site}, which has the axes {', '.join(axes)}",
                    expected="a selection on one of these axes",
                    fix=f"Omit {name}, or choose another site.",
                )


class MaskEdit(Edit):
    """An edit of scores that gives -inf or 0, which the kernel's mask makes: no scores are in
    memory.
    """


class FactorEdit(Edit):
    """An edit that multiplies: what is 0, such as the weight of a key that the model masks, stays
    0.
    """


class SinkEdit(Edit):
    """An edit that leaves sinks out of the softmax."""


def change(site: str, function: Callable[[Tensor], Tensor | float], **where: Any) -> Edit:
    """Replace the chosen part of a site by ``function`` of it; ``where``: see :class:`Edit`.

    ``function`` receives a copy with the site's axes (see ``capture``) and returns what can be
    broadcast to it. The
    site ``experts`` is an exception: it receives ``[choice, dim]``, a row for each token that chose
    the expert. Calls
    with equal values must give equal values: a capture of what follows from the site may call it
    once more. Of ``weights``, it must give 0 for keys that the model masks, whose weights are 0.
    """

    def changed(values: Tensor, point: HookPoint, labels: Labels) -> Tensor | float:
        new = function(values.clone())
        if not isinstance(new, Tensor | float | int):
            raise InputError(
                got=(
                    f"a change of {site} at {point.name} whose function returns "
                    f"{type(new).__name__}"
                ),
                expected="a tensor or a number",
                fix="Return the new value.",
            )
        return new

    return _edit(site, changed, where)


def zero(site: str, **where: Any) -> Edit:
    """Set to 0: zero ablation. Of ``router``, which is probabilities, that forbids the expert."""
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
    """Add a vector, or anything that can be broadcast: steering."""
    _require_numbers(f"a vector for {site}", vector)

    def added(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        return values + _broadcast("a vector", vector, values, f"{site} at {point.name}")

    return _edit(site, added, where, elementwise=True)


def _broadcast(
    name: str, value: Tensor | float | int, values: Tensor, where: str
) -> Tensor | float | int:
    """``value`` in the type of ``values``, to which it can be broadcast."""
    if not isinstance(value, Tensor):
        return value
    ends = zip(reversed(value.shape), reversed(values.shape), strict=False)
    fits = value.dim() <= values.dim() and all(size in (1, whole) for size, whole in ends)
    if not fits or value.is_complex():
        raise InputError(
            got=f"{name} of {value.dtype} and shape {list(value.shape)} for {where}",
            expected=f"what can be broadcast to {list(values.shape)}",
            fix="Pass a real tensor of the site's width.",
        )
    return value.to(values)


def put(site: str, value: Float[Tensor, "..."] | float | int, **where: Any) -> Edit:
    """Replace by ``value``, which is broadcast, in the order of the selections; of ``weights``, it
    forces an attention pattern, in which keys that the model masks keep 0.
    """
    return _edit(site, lambda values, point, labels: value, where, elementwise=True)


def patch(
    site: str, run: Captured, *, positions: Mapping[int, int] | None = None, **where: Any
) -> Edit:
    """Replace by what another run computed at the same place: activation patching.

    Args:
        site: The site, which ``run`` has captured for all that ``where`` names.
        run: A capture of a run of the same model, with one call for each position: of as many texts
            as are edited, of all texts of the batch, from which the edited ones are taken, or of
            one text for all.
        positions: From positions of the texts that are edited to those of ``run``, instead of
            ``queries`` or ``keys``, for runs of texts of another length; negative ones count from
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
        asked = labels[axis]
        (rows,), (length,) = labels["rows"], labels["length"]
        got = f"a patch of {site} at {point.name}"
        records = run.of(site).get(point.name, [])
        if not bool(records):
            raise InputError(
                got=got,
                expected=f"a capture of it: {sorted(run.of(site))}",
                fix=_CAPTURE,
            )
        lengths = {record.length for record in records}
        if positions is not None:
            total = max(length for length in lengths if length is not None)
            source = {
                place + length if place < 0 else place: there for place, there in positions.items()
            }
            wrong = [there for there in source.values() if not -total <= there < total]
            was = f"{got} from positions {wrong} of a text of {total}"
            if wrong:
                raise InputError(
                    got=was,
                    expected=f"numbers from {-total} to {total - 1}",
                    fix="Choose among these.",
                )
            was = f"{got}, positions = {dict(positions)}, of which two keys are one position of {length}"
            if len(source) != len(positions):
                raise InputError(
                    got=was,
                    expected="one source for each position",
                    fix="Omit one of them.",
                )
            source = {place: there % total for place, there in source.items()}
            asked = tuple(source[each] for each in asked)
        having = [record for record in records if set(asked) <= set(_places(record, axis))]
        missing = [
            each for each in asked if all(each not in _places(record, axis) for record in records)
        ]
        if not bool(having):
            raise InputError(
                got=f"{got}, {axis} {missing or asked}",
                expected=f"{axis} in {_places(records[-1], axis)}",
                fix=_CAPTURE,
            )
        equal = [record for record in having if positions is not None or record.length == length]
        if not bool(equal):
            raise InputError(
                got=(
                    f"{got} in a text of {length} positions from one of "
                    f"{sorted(map(str, lengths))[0]}"
                ),
                expected="texts of equal length",
                fix="Say which position is which: positions={here: there}.",
            )
        if len(equal) != 1:
            raise InputError(
                got=f"{got} from a capture of {len(equal)} calls with these positions",
                expected="one of them",
                fix="Capture the run that is meant alone.",
            )
        found = _chosen(equal[0].values, equal[0], axis, asked, got)
        found = _chosen(found, equal[0], "head", labels.get("head"), got)
        if len(found) == rows:
            found = _picked(found, 0, labels["batch"])
        fits = found.shape[1:] == values.shape[1:] and len(found) in (1, len(values))
        if not fits:
            raise InputError(
                got=f"{got} of shape {list(found.shape)}",
                expected=f"{list(values.shape)}, or one example",
                fix="Run both on as many texts, or one for all.",
            )
        return found

    return _edit(site, taken, where, run=run)


Over = Literal["all", "position"]


def mean(site: str, run: Captured, *, over: Over | None = None, **where: Any) -> Edit:
    """Replace by the mean of a reference run: mean ablation.

    A reference run with padding is refused, since padding would count: give it texts of one length,
    or one by one.

    Args:
        site: As for :func:`patch`.
        run: A capture of a run of the same model.
        over: ``"position"``: over the texts, for each position its own; the run has texts of the
            length that is edited. ``"all"``, or None: over the texts and positions of all calls.
            Many real models have values at the first position that are hundreds of times as large
            as others; None is refused where it is more than 10 times.
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
        records = run.of(site).get(point.name, [])
        if not bool(records):
            raise InputError(
                got=got,
                expected=f"a capture of it: {sorted(run.of(site))}",
                fix=_CAPTURE,
            )
        fix = "Give the reference run texts of one length, or one text at a time."
        if any(each.padded for each in records):
            raise InputError(
                got=f"{got} from texts with padding",
                expected="no padding",
                fix=fix,
            )
        record = records[-1]
        across = record.axes.index(axis)
        if over == "position":
            length = labels["length"][0]
            for each in records:
                whole = each.length == length and tuple(_places(each, axis)) == tuple(range(length))
                was = f"{got} for each of {length} positions, from a text of {each.length}"
                fix = "Use texts of equal length, or over='all'."
                if not whole:
                    raise InputError(
                        got=was,
                        expected="a reference of the same length, captured whole",
                        fix=fix,
                    )
            found = torch.cat([each.values for each in records]).mean(0, keepdim=True)
            found = _picked(found, across, labels[axis])
        else:
            if over is None:
                _check_first(records, axis, got)
            rows = [each.values.transpose(1, across).flatten(0, 1) for each in records]
            found = torch.cat(rows).mean(0, keepdim=True).unsqueeze(across)
        return _chosen(found, record, "head", labels.get("head"), got)

    return _edit(site, averaged, where, run=run)


def _check_first(records: Sequence[Record], axis: str, got: str) -> None:
    first: list[Tensor] = []
    others: list[Tensor] = []
    for record in records:
        for place, values in zip(
            _places(record, axis), record.values.unbind(record.axes.index(axis)), strict=True
        ):
            (others if place else first).append(values.detach().double().square().mean())
    if first and others:
        factor = float((torch.stack(first).mean() / torch.stack(others).mean()).sqrt())
        if factor > _FIRST:
            raise InputError(
                got=(
                    f"{got} over all positions, of which the first is {factor:.0f} times as large "
                    "as the others"
                ),
                expected="a mean in which no position drowns the others",
                fix="Pass over='position', or over='all' if that is meant.",
            )


_FIRST = 10


def _across(site: str) -> str:
    return "key" if site in ("k", "v") else "query"


def _places(record: Record, axis: str) -> Sequence[int]:
    found = record.keys if axis == "key" else record.queries
    assert found is not None
    return found


def _chosen(
    values: Tensor, record: Record, axis: str, chosen: Sequence[int] | None, got: str
) -> Tensor:
    """The chosen heads or positions of a record's values, in their order."""
    there = record.heads if axis == "head" else _places(record, axis)
    if chosen is None or there is None:
        return values
    missing = [each for each in chosen if each not in there]
    if missing:
        raise InputError(
            got=f"{got}, {axis} {missing}",
            expected=f"{axis} in {there}",
            fix=_CAPTURE,
        )
    return _picked(values, record.axes.index(axis), [there.index(each) for each in chosen])


def _picked(values: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    return values.index_select(dim, torch.tensor(list(places), device=values.device))


def forbid(queries: Selection | None = None, keys: Selection | None = None, **where: Any) -> Edit:
    """Forbid that ``queries`` attend to ``keys``, of which one has to see another. It is a mask of
    the fused kernel.
    """
    _require_selections("scores", where)
    return MaskEdit("scores", infinite, queries=queries, keys=keys, **where)


def remove_sinks(
    *, modules: Modules | None = None, layers: Selection | None = None, heads: Heads | None = None
) -> Edit:
    """Leave the sinks of the chosen heads out of their softmax, for all queries."""
    return SinkEdit("scores", infinite, modules, layers, heads)


def force_experts(experts: Selection, **where: Any) -> Edit:
    """Route to these experts alone, weighed by the router's own scores; the chosen ``queries``
    only.
    """

    def kept(values: Tensor, point: HookPoint, labels: Labels) -> Tensor:
        chosen = torch.tensor(select("experts", experts, values.shape[-1]), device=values.device)
        return torch.zeros_like(values).index_copy(2, chosen, values.index_select(2, chosen))

    return _edit("router", kept, where)


_SELECTIONS = ("modules", "layers", "heads", "queries", "keys", "examples", "experts")


def _edit(
    site: str,
    change: Callable[[Tensor, HookPoint, Labels], Tensor | float],
    where: Any,
    kind: type[Edit] = Edit,
    **own: Any,
) -> Edit:
    _require_selections(site, where)
    return kind(site, change, **own, **where)


def _require_selections(site: str, where: Any) -> None:
    unknown = [name for name in where if name not in _SELECTIONS]
    if unknown:
        raise InputError(
            got=f"{', '.join(unknown)} of an edit of {site}",
            expected=f"selections by {', '.join(_SELECTIONS)}",
            fix="Choose among these; change(site, function) reaches a part that they do not.",
        )


def _require_numbers(what: str, value: Any) -> None:
    known = isinstance(value, float | int) or hasattr(value, "__array__")
    if not known:
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
    """The change of :func:`forbid`, the same for all heads and examples."""
    return torch.full_like(values, -torch.inf)


_CAPTURE = "Capture it with capture(model, what=..., ...) in the other run."
