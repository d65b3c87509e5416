"""Change what a running model computes, at the sites that
:func:`~glassformer.observe.capture.capture` reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import Attended, Rewrite, boolean_mask
from glassformer.layers.opened import entries, opened
from glassformer.observe import hugging_face
from glassformer.observe.attachment import Attachment
from glassformer.observe.capture import find_hook_points, network_of, uncompiled
from glassformer.observe.captured import AXES
from glassformer.observe.edits import Edit, FactorEdit, Labels, MaskEdit, SinkEdit, infinite
from glassformer.observe.hook_points import (
    AttentionPoint,
    HookPoint,
    MixturePoint,
    choose_points,
    of_kind,
    select,
    whole_numbers,
)
from glassformer.observe.module_hooks import scope
from glassformer.observe.positions import rows_of
from glassformer.observe.running import Visit

Axis = Literal["queries", "keys"]


@contextmanager
def intervene(model: Any, *edits: Edit) -> Iterator[None]:
    """Change what ``model`` computes within the ``with`` block and its thread::

        with intervene(model, zero("heads", layers=3, heads=5), add("residual", 4 * direction,
        layers=6, queries=-1)):
            logits = model(tokens)

    Edits of one site are made in their order, those of outer blocks first. A capture in the block,
    or around it, reads the edited values. What no edit names is computed as before and by the same
    kernels: changed scores and weights hold the matrix of the heads that they name, while forbidden
    edges and removed sinks are left to the fused kernel. Where the model masks a key, its score
    stays -inf and its weight 0. Gradients flow through edits. In cached generation each step is a
    call, and an edit reaches the positions that the call computes; edits of ``k`` and ``v`` reach
    all keys that it reads.

    Args:
        model: A model of glassformer's, or one of ``transformers`` that goes through its attention
            interface; or a ``LanguageModel``, as :func:`glassformer.load` gives it; not a compiled
            one.
        edits: Made by the functions of :mod:`glassformer.observe.edits`.

    Example:
        >>> from glassformer.models import Decoder, DecoderConfig
        >>> from glassformer.observe.edits import zero
        >>> model, tokens = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8)), torch.tensor([[3, 1, 4]])
        >>> plain = model(tokens)
        >>> with intervene(model, zero("heads", layers=0, heads=[1, 2])):
        ...     without = model(tokens)
        >>> torch.equal(plain, without)
        False

    Raises:
        InputError: A compiled model; a site, module, layer or head that the model does not have; a
            patch or mean of a run of another model. From within the model:
            a position, example or expert that does not exist, a value that does not fit, or NaN. At
            the end of the
            block: an edit that no call has reached.
    """
    model = model if isinstance(model, nn.Module) else network_of(model)
    if hasattr(model, "_orig_mod"):
        raise InputError(
            got="a compiled model",
            expected="the plain one",
            fix="Pass the model before torch.compile().",
        )
    wrong = next((type(edit).__name__ for edit in edits if not isinstance(edit, Edit)), None)
    if wrong is not None:
        raise InputError(
            got=f"an edit of type {wrong}",
            expected="edits of observe.edits",
            fix="Pass them one by one: *edits.",
        )
    for edit in edits:
        if edit.run is None or edit.run.model is None:
            origin = None
        else:
            origin = edit.run.model()
        own = origin is None or origin is model
        name = type(origin).__name__
        if not own:
            raise InputError(
                got=f"{edit.site} from a run of another {name}",
                expected="a run of this model",
                fix="Use put(site, values).",
            )
    foreign = hugging_face.is_hugging_face(model)
    points = find_hook_points(model) if edits else ()
    plans = [_plan(edit, points) for edit in edits]
    # The scope ends first, and with it all changes. The stack is entered twice: if Ctrl-C comes
    # while it is closed, its second closing does the rest.
    with ExitStack() as attached, attached, scope() as here:
        if plans:
            attached.enter_context(uncompiled())
            if foreign:
                attached.enter_context(hugging_face.proving(points, [edit.site for edit in edits]))
            Attachment(attached, here, points, foreign, plans)
        yield
    missed = "; ".join(missing for plan in plans if (missing := plan.missing()))
    got = f"edits that no call reached: {missed}"
    fix = "Check queries, keys."
    if missed and here.elsewhere:
        got = f"{got}, while another thread ran the model"
        fix = "Open the block in the thread that runs the model."
    if missed:
        raise InputError(
            got=got,
            expected="positions that the model computes",
            fix=fix,
        )


@dataclass(frozen=True, eq=False)
class _Copies:
    """An open block of :func:`repeating`."""

    number: int


def repeating(copies: int) -> AbstractContextManager[None]:
    """Within the block a batch holds so many copies of the texts: edits of outer blocks change each
    as if alone.
    """
    return opened(_Copies(copies))


def _copies() -> int:
    """Return how many copies of the texts a batch holds."""
    blocks = entries(_Copies)
    return blocks[-1].number if blocks else 1


@dataclass(eq=False)
class _Plan:
    """The tap of an edit, and the hook points that it concerns, each with its heads."""

    edit: Edit
    points: dict[HookPoint, tuple[int, ...]]
    reached: bool = False
    copies: int = 1
    """How many copies of the texts a call had when the block was opened: more within a step of a
    sweep.
    """
    length: int = 0
    """The positions of the text that is running by now."""
    found: dict[Axis, set[int]] = field(default_factory=lambda: {"queries": set(), "keys": set()})
    """The chosen queries and keys that a call had, as they were given."""

    @property
    def site(self) -> str:
        """The site that is edited."""
        return self.edit.site

    def change(self, visit: Visit, values: Tensor) -> Tensor | None:
        """Return a site's tensor with the edit made at the chosen queries, heads and experts."""
        rows, positions = self._rows(visit)
        places: dict[str, Sequence[int]] = {"query": rows}
        labels: Labels = {"query": positions}
        if self.site == "heads":
            heads = self.points[visit.point]
            places["head"] = heads
            labels["head"] = heads
        if self.site == "router":
            places["expert"] = select("experts", self.edit.experts, values.shape[-1])
        new = self.apply(values, visit.point, places, labels)
        return None if new is values else new

    def attended(self, visit: Visit, call: Attended) -> Attended:
        """Return a call of an attention with the edit made."""
        rows, positions = self._rows(visit)
        heads = self.points[visit.point]
        if self.site == "q":
            labels: Labels = {"head": heads, "query": positions}
            return replace(
                call, q=self.apply(call.q, visit.point, {"head": heads, "query": rows}, labels)
            )
        keys, key_positions = self._keys(visit, call)
        if self.site in ("k", "v"):
            labels = {"head": heads, "key": key_positions}
            values = call.k if self.site == "k" else call.v
            new = self.apply(values, visit.point, {"head": heads, "key": keys}, labels)
            if self.site == "k":
                return replace(call, k=new)
            return replace(call, v=new)
        places: dict[str, Sequence[int]] = {"query": rows, "key": keys}
        labels = {"head": heads, "query": positions, "key": key_positions}
        return self._scored(visit, call, places, labels)

    def _scored(
        self, visit: Visit, call: Attended, places: dict[str, Sequence[int]], labels: Labels
    ) -> Attended:
        """Return a call of an attention whose scores or weights are rewritten."""
        point = visit.point
        heads = self.points[point]
        total = call.k.shape[2] if visit.is_cross(call) else visit.total
        if self.site == "weights":
            call = boolean_mask(call)

        def allowed() -> Tensor:
            keys = allowed_keys(call)
            return keys if keys.shape[1] == 1 else keys[:, list(heads)]

        # What is masked stays so, and is not reached.
        def rewritten(values: Tensor) -> Tensor:
            reached = self.reached
            new = self.apply(values, point, places, labels)
            if self.site == "weights" and not isinstance(self.edit, FactorEdit):
                if not self.edit.elementwise:
                    require_zero(new, allowed(), point.name)
                new = new.masked_fill(~allowed(), 0.0)
            if not reached or self._names("keys"):
                is_weights = self.site == "weights"
                if is_weights:
                    seen = allowed().expand(len(values), -1, -1, -1)
                else:
                    seen = values != -torch.inf
                self.reached = self._note_seen(seen, total, places, labels) or reached
            return new

        rewrite = Rewrite(self.site, heads, rewritten)  # type: ignore[arg-type]
        return replace(call, rewrites=(*call.rewrites, rewrite))

    def _note_seen(
        self, seen: Tensor, total: int, places: dict[str, Sequence[int]], labels: Labels
    ) -> bool:
        """Note which of the chosen keys a chosen query sees in a text; return whether there are
        any.

        Args:
            seen: Whether the model lets a query see a key, [batch, head, query, key].
            total: How many keys the text has by now.
            places: The chosen queries and keys, as indices in ``seen``.
            labels: The positions of these.
        """
        texts = select("examples", self.edit.examples, len(seen) * self.copies // _copies())
        by_text = seen[list(texts)].any(1).any(0)
        are_seen = by_text[list(places["query"])][:, list(places["key"])].any(0).tolist()
        self.note(
            "keys",
            total,
            [key for key, is_seen in zip(labels["key"], are_seen, strict=True) if is_seen],
        )
        return any(are_seen)

    def experts(
        self, visit: Visit, choices: Tensor, outputs: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Return the outputs of chosen experts with the edit made, of tokens that chose them, and
        where it is made.
        """
        point = visit.point
        assert isinstance(point, MixturePoint)
        rows, positions = self._rows(visit)
        copies = _copies() // self.copies
        examples = select("examples", self.edit.examples, len(choices) // copies)
        experts = torch.tensor(
            select("experts", self.edit.experts, point.experts), device=choices.device
        )
        index = torch.meshgrid(
            torch.tensor(examples), torch.tensor(rows, dtype=torch.long), indexing="ij"
        )
        is_edited = torch.zeros_like(choices, dtype=torch.bool)
        for edited_copy, chosen_copy in zip(
            is_edited.chunk(copies), choices.chunk(copies), strict=True
        ):
            edited_copy[index] = torch.isin(chosen_copy[index], experts)
        if not bool(is_edited.any()):
            return None
        before = outputs()
        changed: list[Tensor] = []
        for values, edited_copy in zip(before.chunk(copies), is_edited.chunk(copies), strict=True):
            part = values[edited_copy]
            if len(part):
                new = self.edit.change(part, point, {"query": positions})
                changed.append(fitting(new, part, "experts", point.name))
        self.reached = True
        return before.index_put((is_edited,), torch.cat(changed)), is_edited

    def _rows(self, visit: Visit) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the chosen queries of a call, as indices in its tensor and as positions of the
        text.
        """
        rows, positions = visit.rows(self.edit.queries)
        self.length = visit.total
        self.note("queries", self.length, positions)
        return rows, positions

    def _keys(self, visit: Visit, call: Attended) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the indices and the positions of the chosen keys."""
        if visit.is_cross(call):
            keys = call.k.shape[2]
            if self.site in ("k", "v"):
                self.length = keys
            chosen = select("keys", self.edit.keys, keys)
            self._note_keys(keys, chosen)
            return chosen, chosen
        _, chosen = rows_of(self.edit.keys, 0, visit.total, visit.cache is not None, "keys")
        self._note_keys(visit.total, chosen)
        index = visit.key_places(call)
        positions = tuple(position for position in chosen if position in index)
        return tuple(index[position] for position in positions), positions

    def _note_keys(self, total: int, positions: Sequence[int]) -> None:
        if self.site in ("k", "v"):  # of scores and weights, those that are not masked
            self.note("keys", total, positions)

    def note(self, axis: Axis, total: int, positions: Sequence[int]) -> None:
        """Keep which of the chosen queries or keys are among ``positions`` of a text that is
        ``total`` long by now.
        """
        if self._names(axis):
            chosen = whole_numbers(axis, getattr(self.edit, axis))
            self.found[axis] |= {
                number
                for number in chosen
                if (number + total if number < 0 else number) in positions
            }

    def _names(self, axis: Axis) -> bool:
        """Return whether the edit names queries or keys one by one, each of which a call has to
        reach.
        """
        selection = getattr(self.edit, axis)
        return selection is not None and not isinstance(selection, slice)

    def missing(self) -> str:
        """What no call reached; empty if that is nothing."""
        if not self.reached:
            return self.edit.site
        lost: list[str] = []
        for axis, reached in self.found.items():
            if self._names(axis):
                unreached = sorted(set(whole_numbers(axis, getattr(self.edit, axis))) - reached)
                if unreached:
                    lost.append(f"{self.edit.site} at {axis} {unreached}")
        return ", ".join(lost)

    def apply(
        self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels
    ) -> Tensor:
        """``values`` with the change made at ``places``, indices on the site's axes; others are
        whole.

        ``labels`` are positions and heads of these places. Of the copies of a sweep each is changed
        as if alone.
        """
        copies = _copies() // self.copies
        if copies > 1:
            return torch.cat(
                [self._applied(each, point, places, labels) for each in values.chunk(copies)]
            )
        return self._applied(values, point, places, labels)

    def _applied(
        self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels
    ) -> Tensor:
        edit = self.edit
        axes = AXES[self.edit.site]
        examples = select("examples", edit.examples, len(values))
        given = {axes.index(axis): chosen for axis, chosen in {"batch": examples, **places}.items()}
        if any(len(chosen) == 0 for chosen in given.values()):
            return values
        index = _mesh(values, given)
        part = values if index is None else values[index]
        labels = {"batch": examples, "rows": (len(values),), "length": (self.length,), **labels}
        new = fitting(edit.change(part, point, labels), part, edit.site, point.name)
        self.reached = True
        # Not expanded: torch's fused attention reads keys without strides of their own past their
        # end.
        if index is None:
            return new.contiguous()
        return values.clone().index_put_(index, new)


class _MaskPlan(_Plan):
    """The tap of an edit that forbids keys by the kernel's mask."""

    def _scored(
        self, visit: Visit, call: Attended, places: dict[str, Sequence[int]], labels: Labels
    ) -> Attended:
        point = visit.point
        assert isinstance(point, AttentionPoint)
        heads = self.points[point]
        length = call.q.shape[2]
        keys = call.k.shape[2]
        uniform = self.edit.change is infinite
        reached = self.reached
        if uniform and heads == tuple(range(point.heads)):
            several = {}
        else:
            several = {"head": heads}
        if uniform and self.edit.examples is None:
            batch = 1
        else:
            batch = len(call.q)
        shape = (batch, point.heads if several else 1, length, keys)
        mask = (
            self.apply(call.q.new_zeros(()).expand(shape), point, {**several, **places}, labels)
            == 0
        )
        call = boolean_mask(call)
        if uniform and not reached:  # an edge that the model itself forbids is not reached
            self.reached = bool((allowed_keys(call) & ~mask).any())
        if call.forbidden is None:
            forbidden = ~mask
        else:
            forbidden = call.forbidden | ~mask
        return replace(
            call, mask=mask if call.mask is None else call.mask & mask, forbidden=forbidden
        )

    def _note_keys(self, total: int, positions: Sequence[int]) -> None:
        self.note("keys", total, positions)


class _SinkPlan(_Plan):
    """The tap of an edit that removes sinks."""

    def attended(self, visit: Visit, call: Attended) -> Attended:
        """Return a call of an attention without the sinks of the chosen heads."""
        assert call.sinks is not None
        self._rows(visit)
        self.reached = True
        # Not -inf: the gradient of a query without a key would be NaN.
        lowest = torch.finfo(call.sinks.dtype).min
        heads = torch.tensor(self.points[visit.point], device=call.q.device)
        return replace(call, sinks=call.sinks.index_fill(0, heads, lowest))


def _plan(edit: Edit, points: Sequence[HookPoint]) -> _Plan:
    """Return the tap of an edit."""
    kind = _Plan
    if isinstance(edit, SinkEdit):
        kind = _SinkPlan
    elif isinstance(edit, MaskEdit):
        kind = _MaskPlan
    return kind(edit, _points_of(edit, points), copies=_copies())


def allowed_keys(call: Attended) -> Tensor:
    """Return which keys the model itself lets each query see, [batch or 1, head or 1, query, key],
    before edges are forbidden; by masks of booleans alone.
    """
    seen = call.pattern.mask(call.q.shape[2], call.k.shape[2], call.q.device)
    if call.mask is None or call.mask.dtype != torch.bool:
        return seen
    return seen & (call.mask if call.forbidden is None else call.mask | call.forbidden)


def require_zero(weights: Tensor, allowed: Tensor, name: str) -> None:
    """Refuse weights above 0 of keys that the model masks: they may have changed others, as in a
    normalised row.
    """
    if bool(((weights != 0) & ~allowed).any()):
        raise InputError(
            f"a change of weights at {name} whose function gives some to keys that the model masks",
            "0 for these, whose weights are 0",
            "Multiply by (weights > 0), or use add() or put(), which leave them out.",
        )


def _mesh(values: Tensor, given: dict[int, Sequence[int]]) -> tuple[Tensor, ...] | None:
    """Indices of the part of ``values`` that has the given ones on some axes; None if that is all
    of it.
    """
    some = [
        axis for axis, chosen in given.items() if tuple(chosen) != tuple(range(values.shape[axis]))
    ]
    if not some:
        return None
    lists = [
        given[axis] if axis in some else range(values.shape[axis]) for axis in range(max(some) + 1)
    ]
    return tuple(
        torch.meshgrid(
            *(torch.tensor(list(each), device=values.device) for each in lists), indexing="ij"
        )
    )


def fitting(new: Tensor | float, part: Tensor, site: str, name: str) -> Tensor:
    """Return a new value as a tensor like ``part``; refuse one that does not fit, NaN and infinity."""
    got = f"an edit of {site} at {name} that gives"
    kind = new.dtype if isinstance(new, Tensor) else type(new)
    if isinstance(new, Tensor):
        real = not new.is_complex()
    else:
        real = isinstance(new, float | int)
    if not real:
        raise InputError(
            got=f"{got} {kind}",
            expected="real numbers",
            fix="Pass a tensor or a number.",
        )
    try:
        value = torch.as_tensor(new, dtype=part.dtype, device=part.device).expand(part.shape)
    except (RuntimeError, OverflowError) as error:
        raise InputError(
            f"{got} {list(new.shape) if isinstance(new, Tensor) else new}",
            f"{list(part.shape)}, or what can be broadcast to it",
            "Return a value for the part that the function received.",
        ) from error
    known = part.isfinite()  # scores that are -inf stay so
    fix = "Check the function and its vector."
    if bool((value.isnan() & known).any()):
        raise InputError(
            got=f"{got} NaN",
            expected="numbers",
            fix=fix,
        )
    infinite = value == torch.inf if site == "scores" else value.isinf()
    if bool((infinite & known).any()):
        raise InputError(
            got=f"{got} infinity in {part.dtype}",
            expected="finite numbers",
            fix=fix,
        )
    if site == "scores":
        return torch.where(value.isnan() | infinite, part, value)
    return value


def _points_of(edit: Edit, points: Sequence[HookPoint]) -> dict[HookPoint, tuple[int, ...]]:
    asked = "sinks" if isinstance(edit, SinkEdit) else edit.site
    if edit.site not in ("k", "v"):
        return choose_points(points, asked, edit.modules, edit.layers, edit.heads)
    # Heads are key-value heads here.
    twins: dict[HookPoint, HookPoint] = {}
    for point in of_kind(points, AttentionPoint):
        twins[replace(point, heads=point.heads // point.group)] = point
    chosen = choose_points(list(twins), asked, edit.modules, edit.layers, edit.heads)
    return {twins[twin]: heads for twin, heads in chosen.items()}
