"""Change the computation of a running model at the sites that a capture reads."""

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
from glassformer.observe.positions import from_start, rows_of
from glassformer.observe.running import Visit

Axis = Literal["queries", "keys"]


@contextmanager
def intervene(model: Any, *edits: Edit) -> Iterator[None]:
    """Change what ``model`` computes within the ``with`` block and its thread::

        without_head = zero("heads", layers=3, heads=5)
        steered = add("residual", 4 * direction, layers=6, queries=-1)
        with intervene(model, without_head, steered):
            logits = model(tokens)

    Edits of one site are made in their order, those of outer blocks first. A capture in the block,
    or around it, reads the edited values. Everything that no edit names is computed as before and
    by the same kernels. Changed scores and weights hold the matrix of the heads that they name in
    memory; forbidden edges and removed sinks are left to the fused kernel. Where the model masks a
    key, its score stays -inf and its weight 0. Gradients flow through edits.

    In cached generation each step is a call, and an edit reaches the positions that the call
    computes; edits of ``k`` and ``v`` reach all keys that it reads.

    Args:
        model: A model of glassformer, or one of ``transformers`` that calls its attention
            interface, not compiled; or the ``LanguageModel`` that :func:`glassformer.load` returns.
        edits: Edits from the functions of :mod:`glassformer.observe.edits`.

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
            patch or mean of a run of another model. From within the model: a position, example or
            expert that does not exist, a value that does not fit, or NaN. At the end of the block:
            an edit that no call has reached.
    """
    if not isinstance(model, nn.Module):
        model = network_of(model)
    _check_request(model, edits)
    foreign = hugging_face.is_hugging_face(model)
    points = find_hook_points(model) if edits else ()
    plans = [_plan(edit, points) for edit in edits]
    # The scope ends first, and with it all changes. The stack is entered twice: if Ctrl-C comes
    # while it is closed, its second closing does the rest.
    with ExitStack() as stack, stack, scope() as hooks:
        if plans:
            stack.enter_context(uncompiled())
            if foreign:
                stack.enter_context(hugging_face.proving(points, [edit.site for edit in edits]))
            Attachment(stack, hooks, points, foreign, plans)
        yield
    _check_reached(plans, hooks.ran_in_other_thread)


def require_uncompiled(model: nn.Module) -> None:
    """Refuse a compiled model, whose graph has no hooks."""
    if hasattr(model, "_orig_mod"):
        raise InputError(
            got="a compiled model",
            expected="the plain one",
            fix="Pass the model before torch.compile().",
        )


def _check_request(model: nn.Module, edits: Sequence[Edit]) -> None:
    """Refuse compiled models, objects that are no edits, and edits with values of another model."""
    require_uncompiled(model)
    for edit in edits:
        if not isinstance(edit, Edit):
            raise InputError(
                got=f"an edit of type {type(edit).__name__}",
                expected="edits of observe.edits",
                fix="Pass them one by one: *edits.",
            )
    for edit in edits:
        if edit.run is None or edit.run.model is None:
            continue
        origin = edit.run.model()
        if origin is not None and origin is not model:
            raise InputError(
                got=f"{edit.site} from a run of another {type(origin).__name__}",
                expected="a run of this model",
                fix="Use put(site, values).",
            )


def _check_reached(plans: Sequence["_Plan"], ran_in_other_thread: bool) -> None:
    """Refuse edits that no call has reached."""
    missed = "; ".join(missing for plan in plans if (missing := plan.missing()))
    if not missed:
        return
    got = f"edits that no call reached: {missed}"
    fix = "Check queries, keys."
    if ran_in_other_thread:
        got = f"{got}, while another thread ran the model"
        fix = "Open the block in the thread that runs the model."
    raise InputError(got=got, expected="positions that the model computes", fix=fix)


@dataclass(frozen=True, eq=False)
class _Copies:
    """An open block of :func:`repeating`."""

    number: int


def repeating(copies: int) -> AbstractContextManager[None]:
    """Declare that, within the block, a batch holds several copies of the texts.

    Edits of outer blocks then change each copy as if it were alone.
    """
    return opened(_Copies(copies))


def _copies() -> int:
    """Return how many copies of the texts a batch holds."""
    blocks = entries(_Copies)
    return blocks[-1].number if blocks else 1


@dataclass(eq=False)
class _Plan:
    """The tap of an edit, with the hook points that it changes and the heads of each."""

    edit: Edit
    points: dict[HookPoint, tuple[int, ...]]
    reached: bool = False
    copies: int = 1
    """Copies of the texts in a call when the block was opened; a step of a sweep has more."""
    length: int = 0
    """Number of positions of the running text so far."""
    reached_numbers: dict[Axis, set[int]] = field(
        default_factory=lambda: {"queries": set(), "keys": set()}
    )
    """The chosen queries and keys that a call had, as the edit names them."""

    @property
    def site(self) -> str:
        """The site that is edited."""
        return self.edit.site

    def change(self, visit: Visit, values: Tensor) -> Tensor | None:
        """Return a site's tensor, edited at the chosen queries, heads and experts."""
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
        """Return the edited call of an attention."""
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
            key_places = {"head": heads, "key": keys}
            if self.site == "k":
                return replace(call, k=self.apply(call.k, visit.point, key_places, labels))
            return replace(call, v=self.apply(call.v, visit.point, key_places, labels))
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
            if keys.shape[1] == 1:
                return keys
            return keys[:, list(heads)]

        # Masked keys stay masked, and do not count as reached.
        def rewritten(values: Tensor) -> Tensor:
            was_reached = self.reached
            new = self.apply(values, point, places, labels)
            if self.site == "weights" and not isinstance(self.edit, FactorEdit):
                if not self.edit.elementwise:
                    require_zero(new, allowed(), point.name)
                new = new.masked_fill(~allowed(), 0.0)
            if not was_reached or self._names("keys"):
                if self.site == "weights":
                    seen = allowed().expand(len(values), -1, -1, -1)
                else:
                    seen = values != -torch.inf
                self.reached = self._note_seen(seen, total, places, labels) or was_reached
            return new

        rewrite = Rewrite(self.site, heads, rewritten)  # type: ignore[arg-type]
        return replace(call, rewrites=(*call.rewrites, rewrite))

    def _note_seen(
        self, seen: Tensor, total: int, places: dict[str, Sequence[int]], labels: Labels
    ) -> bool:
        """Store which of the chosen keys some chosen query sees; return whether there are any.

        Args:
            seen: Whether the model lets a query see a key, [batch, head, query, key].
            total: How many keys the text has by now.
            places: The chosen queries and keys, as indices in ``seen``.
            labels: The positions of these.
        """
        texts = select("examples", self.edit.examples, len(seen) * self.copies // _copies())
        by_text = seen[list(texts)].any(1).any(0)
        are_seen = by_text[list(places["query"])][:, list(places["key"])].any(0).tolist()
        keys = [key for key, is_seen in zip(labels["key"], are_seen, strict=True) if is_seen]
        self.note("keys", total, keys)
        return any(are_seen)

    def experts(
        self, visit: Visit, choices: Tensor, outputs: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Return the edited outputs of the chosen experts, and where they are edited."""
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
        copies_of_both = zip(is_edited.chunk(copies), choices.chunk(copies), strict=True)
        for edited_copy, chosen_copy in copies_of_both:
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
        """Return the chosen queries of a call, as indices in its tensor and as text positions."""
        rows, positions = visit.rows(self.edit.queries)
        self.length = visit.total
        self.note("queries", self.length, positions)
        return rows, positions

    def _keys(self, visit: Visit, call: Attended) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the chosen keys of a call, as indices in its tensor and as text positions."""
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
        if self.site in ("k", "v"):  # for scores and weights, _note_seen() stores unmasked keys
            self.note("keys", total, positions)

    def note(self, axis: Axis, total: int, positions: Sequence[int]) -> None:
        """Store which chosen queries or keys are among ``positions`` of a text of ``total``."""
        if self._names(axis):
            for number in whole_numbers(axis, getattr(self.edit, axis)):
                if from_start(number, total) in positions:
                    self.reached_numbers[axis].add(number)

    def _names(self, axis: Axis) -> bool:
        """Return whether the edit names single queries or keys, which a call then must reach."""
        selection = getattr(self.edit, axis)
        return selection is not None and not isinstance(selection, slice)

    def missing(self) -> str:
        """Return the site, queries and keys that no call reached, or an empty string."""
        if not self.reached:
            return self.edit.site
        missing: list[str] = []
        for axis, reached in self.reached_numbers.items():
            if self._names(axis):
                unreached = sorted(set(whole_numbers(axis, getattr(self.edit, axis))) - reached)
                if unreached:
                    missing.append(f"{self.edit.site} at {axis} {unreached}")
        return ", ".join(missing)

    def apply(
        self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels
    ) -> Tensor:
        """Return ``values`` with the change made at ``places``: indices on axes of the site.

        ``labels`` are positions and heads of these places. Each copy of the texts in a sweep is
        changed as if it were alone.
        """
        copies = _copies() // self.copies
        if copies > 1:
            chunks = values.chunk(copies)
            return torch.cat([self._applied(chunk, point, places, labels) for chunk in chunks])
        return self._applied(values, point, places, labels)

    def _applied(
        self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels
    ) -> Tensor:
        edit = self.edit
        axes = AXES[self.edit.site]
        examples = select("examples", edit.examples, len(values))
        selections = {axes.index("batch"): examples}
        for axis, indices in places.items():
            selections[axes.index(axis)] = tuple(indices)
        if not all(selections.values()):
            return values
        index = _mesh(values, selections)
        part = values if index is None else values[index]
        labels = {"batch": examples, "rows": (len(values),), "length": (self.length,), **labels}
        new = fitting(edit.change(part, point, labels), part, edit.site, point.name)
        self.reached = True
        # Contiguous: torch's fused attention reads expanded keys past their end.
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
        is_uniform = self.edit.change is infinite
        was_reached = self.reached
        num_texts = 1 if is_uniform and self.edit.examples is None else len(call.q)
        num_heads = 1
        if not is_uniform or heads != tuple(range(point.heads)):
            num_heads = point.heads
            places = {"head": heads, **places}
        shape = (num_texts, num_heads, call.q.shape[2], call.k.shape[2])
        scores = self.apply(call.q.new_zeros(()).expand(shape), point, places, labels)
        mask = scores == 0
        forbidden = ~mask
        call = boolean_mask(call)
        if is_uniform and not was_reached:  # an edge that the model itself forbids does not count
            self.reached = bool((allowed_keys(call) & forbidden).any())
        if call.mask is not None:
            mask = call.mask & mask
        if call.forbidden is not None:
            forbidden = call.forbidden | forbidden
        return replace(call, mask=mask, forbidden=forbidden)

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
    """Return the keys that the model's boolean masks let each query see, before any are forbidden.

    The shape is [batch or 1, head or 1, query, key].
    """
    seen = call.pattern.mask(call.q.shape[2], call.k.shape[2], call.q.device)
    if call.mask is None or call.mask.dtype != torch.bool:
        return seen
    if call.forbidden is None:
        return seen & call.mask
    return seen & (call.mask | call.forbidden)


def require_zero(weights: Tensor, allowed: Tensor, name: str) -> None:
    """Refuse weights above 0 for keys that the model masks.

    They may have changed other weights, as in a normalised row.
    """
    if bool(((weights != 0) & ~allowed).any()):
        raise InputError(
            got=(
                f"a change of weights at {name} whose function gives some to keys that the model "
                "masks"
            ),
            expected="0 for these, whose weights are 0",
            fix="Multiply by (weights > 0), or use add() or put(), which leave them out.",
        )


def _mesh(values: Tensor, selections: Mapping[int, Sequence[int]]) -> tuple[Tensor, ...] | None:
    """Return the index of the selected part of ``values``; None if that is all of it."""
    partial_axes = [
        axis
        for axis, selected in selections.items()
        if tuple(selected) != tuple(range(values.shape[axis]))
    ]
    if not partial_axes:
        return None
    indices: list[Tensor] = []
    for axis in range(max(partial_axes) + 1):
        selected = selections.get(axis, range(values.shape[axis]))
        indices.append(torch.tensor(list(selected), device=values.device))
    return tuple(torch.meshgrid(*indices, indexing="ij"))


def fitting(new: Tensor | float, part: Tensor, site: str, name: str) -> Tensor:
    """Return a new value as a tensor like ``part``; refuse other shapes, NaN and infinity."""
    got = f"an edit of {site} at {name} that gives"
    is_real = isinstance(new, float | int)
    kind: object = type(new)
    form: object = new
    if isinstance(new, Tensor):
        is_real = not new.is_complex()
        kind = new.dtype
        form = list(new.shape)
    if not is_real:
        raise InputError(
            got=f"{got} {kind}",
            expected="real numbers",
            fix="Pass a tensor or a number.",
        )
    try:
        value = torch.as_tensor(new, dtype=part.dtype, device=part.device).expand(part.shape)
    except (RuntimeError, OverflowError) as error:
        raise InputError(
            got=f"{got} {form}",
            expected=f"{list(part.shape)}, or what can be broadcast to it",
            fix="Return a value for the part that the function received.",
        ) from error
    was_finite = part.isfinite()  # scores of -inf may stay
    fix = "Check the function and its vector."
    if bool((value.isnan() & was_finite).any()):
        raise InputError(
            got=f"{got} NaN",
            expected="numbers",
            fix=fix,
        )
    infinite = value == torch.inf if site == "scores" else value.isinf()
    if bool((infinite & was_finite).any()):
        raise InputError(
            got=f"{got} infinity in {part.dtype}",
            expected="finite numbers",
            fix=fix,
        )
    if site == "scores":
        return torch.where(value.isnan() | infinite, part, value)
    return value


def _points_of(edit: Edit, points: Sequence[HookPoint]) -> dict[HookPoint, tuple[int, ...]]:
    """Return the hook points that an edit changes, and the heads of each."""
    site = "sinks" if isinstance(edit, SinkEdit) else edit.site
    if edit.site not in ("k", "v"):
        return choose_points(points, site, edit.modules, edit.layers, edit.heads)
    # Heads are key-value heads: choose among copies of the points that count these.
    originals: dict[HookPoint, HookPoint] = {}
    for point in of_kind(points, AttentionPoint):
        originals[replace(point, heads=point.heads // point.group)] = point
    chosen = choose_points(list(originals), site, edit.modules, edit.layers, edit.heads)
    return {originals[copy]: heads for copy, heads in chosen.items()}
