"""Change what a running model computes, at the sites that :func:`~glassformer.observe.capture.capture` reads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.layers.attention import Attended, Rewrite, editing
from glassformer.observe import hugging_face
from glassformer.observe.capture import find_hook_points, network_of, uncompiled
from glassformer.observe.captured import AXES
from glassformer.observe.edits import Edit, Labels, infinite
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    FeedForwardPoint,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    choose_points,
    of_kind,
    select,
    whole_numbers,
)
from glassformer.observe.module_hooks import Change, Given, Phase, Scope, scope
from glassformer.observe.positions import (
    by_text,
    cache_of,
    is_cross,
    kept_logits,
    key_order,
    require_rows,
    rows_of,
    start_of,
)


@contextmanager
def intervene(model: Any, *edits: Edit) -> Iterator[None]:
    """Change what ``model`` computes within the ``with`` block and its thread::

        with intervene(model, zero("heads", layers=3, heads=5), add("residual", 4 * direction, layers=6, queries=-1)):
            logits = model(tokens)

    Edits of one site are made in their order, those of outer blocks first. A capture in the block, or around it, reads
    the edited values. What no edit names is computed as before and by the same kernels: changed scores and weights hold
    the matrix of the heads that they name, while forbidden edges and removed sinks are left to the fused kernel. Where
    the model masks a key, its score stays -inf and its weight 0. Gradients flow through edits. In cached generation
    each step is a call, and an edit reaches the positions that the call computes; edits of ``k`` and ``v`` reach all
    keys that it reads.

    Args:
        model: A model of glassformer's, or one of ``transformers`` that goes through its attention interface; or a
            ``LanguageModel``, as :func:`glassformer.load` gives it; not a compiled one.
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
        InputError: A compiled model; a site, module, layer or head that the model does not have; a patch or mean of a
            run of another model. From within the model:
            a position, example or expert that does not exist, a value that does not fit, or NaN. At the end of the
            block: an edit that no call has reached.
    """
    model = model if isinstance(model, nn.Module) else network_of(model)
    require(
        not hasattr(model, "_orig_mod"), "a compiled model", "the plain one", "Pass the model before torch.compile()."
    )
    wrong = next((type(edit).__name__ for edit in edits if not isinstance(edit, Edit)), None)
    require(wrong is None, f"an edit of type {wrong}", "edits of observe.edits", "Pass them one by one: *edits.")
    for edit in edits:
        origin = None if edit.run is None or edit.run.model is None else edit.run.model()
        own = origin is None or origin is model
        name = type(origin).__name__
        require(own, f"{edit.site} from a run of another {name}", "a run of this model", "Use put(site, values).")
    foreign = hugging_face.is_hugging_face(model)
    points = find_hook_points(model) if edits else ()
    plans = [_Plan(edit, _points_of(edit, points), copies=_copies.get()) for edit in edits]
    # The scope ends first, and with it all changes. The stack is entered twice: if Ctrl-C comes while it is closed, its
    # second closing does the rest.
    with ExitStack() as attached, attached, scope() as here:
        if plans:
            attached.enter_context(uncompiled())
            if foreign:
                attached.enter_context(hugging_face.proving(points, [edit.site for edit in edits]))
            _Attachment(attached, here, points, foreign, plans)
        yield
    missed = "; ".join(missing for plan in plans if (missing := plan.missing()))
    got, fix = f"edits that no call reached: {missed}", "Check queries, keys."
    if missed and here.elsewhere:
        got, fix = f"{got}, while another thread ran the model", "Open the block in the thread that runs the model."
    require(not missed, got, "positions that the model computes", fix)


_copies: ContextVar[int] = ContextVar("copies", default=1)


@contextmanager
def repeating(copies: int) -> Iterator[None]:
    """Within the block a batch holds so many copies of the texts: edits of outer blocks change each as if alone."""
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)


@dataclass(eq=False)
class _Plan:
    """An edit, and the hook points that it concerns, each with its heads."""

    edit: Edit
    points: dict[HookPoint, tuple[int, ...]]
    reached: bool = False
    copies: int = 1
    """How many copies of the texts a call had when the block was opened: more within a step of a sweep."""
    length: int = 0
    """The positions of the text that is running by now."""
    found: dict[str, set[int]] = field(default_factory=lambda: {"queries": set(), "keys": set()})
    """The chosen queries and keys that a call had, as they were given."""

    def note(self, axis: Literal["queries", "keys"], total: int, positions: Sequence[int]) -> None:
        """Keep which of the chosen queries or keys are among ``positions`` of a text that is ``total`` long by now."""
        given = getattr(self.edit, axis)
        if given is not None and not isinstance(given, slice):
            self.found[axis] |= {
                each for each in whole_numbers(axis, given) if (each + total if each < 0 else each) in positions
            }

    def missing(self) -> str:
        """What no call reached; empty if that is nothing."""
        if not self.reached:
            return self.edit.site
        axes = {axis: getattr(self.edit, axis) for axis in self.found}
        given = {axis: each for axis, each in axes.items() if each is not None and not isinstance(each, slice)}
        lost = {axis: sorted({*whole_numbers(axis, each)} - self.found[axis]) for axis, each in given.items()}
        return ", ".join(f"{self.edit.site} at {axis} {each}" for axis, each in lost.items() if each)

    def apply(self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels) -> Tensor:
        """``values`` with the change made at ``places``, indices on the site's axes; others are whole.

        ``labels`` are positions and heads of these places. Of the copies of a sweep each is changed as if alone.
        """
        copies = _copies.get() // self.copies
        if copies > 1:
            return torch.cat([self._applied(each, point, places, labels) for each in values.chunk(copies)])
        return self._applied(values, point, places, labels)

    def _applied(self, values: Tensor, point: HookPoint, places: Mapping[str, Sequence[int]], labels: Labels) -> Tensor:
        edit, axes = self.edit, AXES[self.edit.site]
        examples = select("examples", edit.examples, len(values))
        given = {axes.index(axis): chosen for axis, chosen in {"batch": examples, **places}.items()}
        if any(len(chosen) == 0 for chosen in given.values()):
            return values
        index = _mesh(values, given)
        part = values if index is None else values[index]
        labels = {"batch": examples, "rows": (len(values),), "length": (self.length,), **labels}
        new = _fitting(edit.change(part, point, labels), part, edit.site, point)
        self.reached = True
        # Not expanded: torch's fused attention reads keys without strides of their own past their end.
        return new.contiguous() if index is None else values.clone().index_put_(index, new)


def _allowed(call: Attended, length: int, keys: int) -> Tensor:
    """Which keys the model itself lets each query see, [batch or 1, head or 1, query, key], before edges are forbidden;
    by masks of booleans alone."""
    seen = call.pattern.mask(length, keys, call.q.device)
    if call.mask is None or call.mask.dtype != torch.bool:
        return seen
    return seen & (call.mask if call.forbidden is None else call.mask | call.forbidden)


def _require_zero(weights: Tensor, allowed: Tensor, point: HookPoint) -> None:
    """Refuse weights above 0 of keys that the model masks: they may have changed others, as in a normalised row."""
    if bool(((weights != 0) & ~allowed).any()):
        raise InputError(
            f"a change of weights at {point.name} whose function gives some to keys that the model masks",
            "0 for these, whose weights are 0",
            "Multiply by (weights > 0), or use add() or put(), which leave them out.",
        )


def _mesh(values: Tensor, given: dict[int, Sequence[int]]) -> tuple[Tensor, ...] | None:
    """Indices of the part of ``values`` that has the given ones on some axes; None if that is all of it."""
    some = [axis for axis, chosen in given.items() if tuple(chosen) != tuple(range(values.shape[axis]))]
    if not some:
        return None
    lists = [given[axis] if axis in some else range(values.shape[axis]) for axis in range(max(some) + 1)]
    return tuple(torch.meshgrid(*(torch.tensor(list(each), device=values.device) for each in lists), indexing="ij"))


def _fitting(new: Tensor | float, part: Tensor, site: str, point: HookPoint) -> Tensor:
    got = f"an edit of {site} at {point.name} that gives"
    kind = new.dtype if isinstance(new, Tensor) else type(new)
    real = not new.is_complex() if isinstance(new, Tensor) else isinstance(new, float | int)
    require(real, f"{got} {kind}", "real numbers", "Pass a tensor or a number.")
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
    require(not bool((value.isnan() & known).any()), f"{got} NaN", "numbers", fix)
    infinite = value == torch.inf if site == "scores" else value.isinf()
    require(not bool((infinite & known).any()), f"{got} infinity in {part.dtype}", "finite numbers", fix)
    return torch.where(value.isnan() | infinite, part, value) if site == "scores" else value


def _points_of(edit: Edit, points: Sequence[HookPoint]) -> dict[HookPoint, tuple[int, ...]]:
    asked = "sinks" if edit.kernel == "no sink" else edit.site
    if edit.site not in ("k", "v"):
        return choose_points(points, asked, edit.modules, edit.layers, edit.heads)
    # Heads are key-value heads here.
    twins: dict[HookPoint, HookPoint] = {}
    for point in of_kind(points, AttentionPoint):
        twins[replace(point, heads=point.heads // point.group)] = point
    chosen = choose_points(list(twins), asked, edit.modules, edit.layers, edit.heads)
    return {twins[twin]: heads for twin, heads in chosen.items()}


class _Attachment:
    """The hooks of one intervention, and the state of the forward pass that is running."""

    def __init__(
        self, attached: ExitStack, here: Scope, points: Sequence[HookPoint], foreign: bool, plans: Sequence[_Plan]
    ) -> None:
        self._attached, self._points = attached, points
        self.scope = here
        self._start = 0
        """The position of the first query of this call."""
        self._shape = torch.Size()
        self._cache: Any = None
        self._asked: Any = None
        """The arguments of a model of transformers, where logits are edited."""
        self._attention: AttentionPoint | None = None
        blocks = {point.block: point for point in self._points if point.block is not None}
        for block, point in blocks.items():
            self.scope.insert(block, "input", partial(self._enter_block, point), Phase.BEFORE)
        attend = [plan for plan in plans if plan.edit.site in ("q", "k", "v", "scores", "weights")]
        for point in {point: None for plan in attend for point in of_kind(plan.points, AttentionPoint)}:
            enter = partial(self._enter_attention, point)
            self.scope.insert(point.module, "input", enter, Phase.BEFORE)
            self.scope.insert(point.module, "output", self._leave_attention, Phase.READ)
        # Also without edits of attention: what runs within can then see that it is edited.
        edit = partial(self._edit_attention, attend)
        self._attached.enter_context(hugging_face.editing(edit) if foreign and attend else editing(edit))
        for plan in plans:
            for point in plan.points if plan not in attend else ():
                self._attach_point(plan, point)

    def _attach_point(self, plan: _Plan, point: HookPoint) -> None:
        site = plan.edit.site
        module, where = point.place(site)
        if module is None:
            got = f"{site} of {point.name}, which has no module for it"
            raise InputError(got, "a part that has one", "Edit another site.")
        makes: Any = {"heads": self._heads, "router": self._router, "experts": self._experts}.get(site, self._stream)
        change = partial(makes, plan, point)
        if site == "residual_between" and isinstance(point, BlockPoint) and point.pre_norm:
            self._attach_between(point, module, change)
            return
        self.scope.insert(module, where, change, Phase.EDIT)
        if isinstance(point, LogitsPoint) and point.owner is not None:
            self.scope.insert(point.owner, "input", self._note_arguments, Phase.BEFORE)

    def _enter_block(self, point: HookPoint, values: Tensor, given: tuple[Any, ...]) -> None:
        self._attention = None  # one that has raised has not left
        block: Any = point.module
        checkpoint = getattr(block, "_gradient_checkpointing_func", None)
        again = block.training and getattr(block, "gradient_checkpointing", False)
        late = again and getattr(checkpoint, "keywords", {}).get("use_reentrant", True)
        got = f"{point.name} under {'reentrant ' if late else ''}checkpointing, which computes again after the block"
        require(not late, got, "use_reentrant=False", "Use that, and call backward() within the block.")
        if again and values.requires_grad:
            asked = "backward() within the block", "Call it there."
            values.register_hook(lambda _: require(self.scope.open, got, *asked))
        self._cache = cache_of(given)
        self._start, self._shape = start_of(self._cache, point.layer), values.shape

    def _enter_attention(self, point: AttentionPoint, values: Tensor, given: tuple[Any, ...]) -> None:
        if point.block is None:
            self._enter_block(point, values, given)
        self._attention = point

    def _leave_attention(self, values: Tensor, given: Given) -> None:
        self._attention = None

    def _note_arguments(self, values: Tensor, given: Given) -> None:
        self._asked = given

    def _rows(
        self, plan: _Plan, length: int, kept: Sequence[int] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The chosen queries of a call of ``length`` positions: from its first one, and from the text's start."""
        rows, positions = rows_of(plan.edit.queries, self._start, length, self._cache is not None, kept=kept)
        plan.length = self._start + length
        plan.note("queries", plan.length, positions)
        return rows, positions

    def _stream(self, plan: _Plan, point: HookPoint, values: Tensor, given: Given) -> Tensor:
        """An edit of [batch, position, ...]; a classifier's logits have one position."""
        if values.dim() == 2 and point.name == "output":  # of the last position, as in generate()
            return self._stream(plan, point, values[:, None], given)[:, 0]
        if values.dim() == 2 and plan.edit.site == "logits":
            require_rows(values, self._shape or None, point.name)
            self._start, self._cache = 0, None
            rows, names = self._rows(plan, 1)
            return plan.apply(values[:, None], point, {"query": rows}, {"query": names})[:, 0]
        length: int = values.shape[1]
        if plan.edit.site == "logits":  # of the last positions or of some, where only their logits are asked for
            length = self._shape[1]
            rows, names = self._rows(plan, length, kept=kept_logits(self._asked, length, values.shape[1]))
            return plan.apply(values, point, {"query": rows}, {"query": names})
        texts = self._by_text(plan, point, values)
        rows, names = self._rows(plan, texts.shape[1])
        return plan.apply(texts, point, {"query": rows}, {"query": names}).view(values.shape)

    def _by_text(self, plan: _Plan, point: HookPoint, values: Tensor) -> Tensor:
        return by_text(values, self._shape, f"{plan.edit.site} of {point.name}")

    def _attach_between(self, point: BlockPoint, between: nn.Module, change: Change) -> None:
        block: Any = point.module
        ffn = next(each.module for each in of_kind(self._points, FeedForwardPoint) if each.block is block)
        kept: dict[str, Tensor] = {}

        def before(values: Tensor, given: Given) -> Tensor:
            new = change(values, given)
            kept["new"] = values if new is None else new
            return kept["new"]

        def after(values: Tensor, given: tuple[Any, ...]) -> None:
            kept["ffn"] = values

        def again(values: Tensor, given: tuple[Any, ...]) -> Tensor | None:
            dropout = getattr(block, "dropout", 0.0) if block.training else 0.0
            require(dropout == 0, f"{point.name} with dropout", "a model without", "Call model.eval().")
            # The block has added what the ffn gives to the unedited stream, unless a sweep has skipped it.
            return (kept.pop("new") + kept.pop("ffn")).view(values.shape) if kept else None

        self.scope.insert(between, "first input", before, Phase.EDIT)
        self.scope.insert(ffn, "output", after, Phase.READ)
        self.scope.insert(block, "first output", again, Phase.EDIT)

    def _heads(self, plan: _Plan, point: AttentionPoint, values: Tensor, given: tuple[Any, ...]) -> Tensor:
        split = self._by_text(plan, point, values).unflatten(-1, (point.heads, -1)).transpose(1, 2)
        heads, (rows, names) = plan.points[point], self._rows(plan, split.shape[2])
        new = plan.apply(split, point, {"head": heads, "query": rows}, {"head": heads, "query": names})
        return new.transpose(1, 2).reshape(values.shape)

    def _router(self, plan: _Plan, point: MixturePoint, values: Tensor, given: tuple[Any, ...]) -> Tensor:
        """Scores that have the edited probabilities as their softmax, up to a factor."""
        wide = torch.promote_types(values.dtype, torch.float32)
        probabilities = values.softmax(-1, dtype=wide).view(*self._shape[:2], -1)
        rows, names = self._rows(plan, self._shape[1])
        experts = select("experts", plan.edit.experts, values.shape[-1])
        new = plan.apply(probabilities, point, {"query": rows, "expert": experts}, {"query": names})
        if new is probabilities:
            return values
        got = f"an edit of the router at {point.name} that leaves no expert, or a negative probability"
        expected, fix = "probabilities of at least 0, one of them above 0", "Leave an expert to choose."
        require(bool((new >= 0).all() & (new.sum(-1) > 0).all()), got, expected, fix)
        changed = (new != probabilities).any(-1, keepdim=True)
        scores = torch.where(changed, new.log(), values.view(new.shape))  # unchanged rows stay as they are
        return scores.view(values.shape).to(values.dtype)

    def _experts(self, plan: _Plan, point: MixturePoint, values: Tensor, given: tuple[Any, ...]) -> Tensor:
        """An edit of what chosen experts give: of tokens that chose them, the mixture is computed once more."""
        x, copies = self._by_text(plan, point, given[0]), _copies.get() // plan.copies
        _, choices, shares = point.route(x)
        rows, names = self._rows(plan, x.shape[1])
        wanted = torch.zeros_like(choices, dtype=torch.bool)
        examples = select("examples", plan.edit.examples, len(x) // copies)
        experts = torch.tensor(select("experts", plan.edit.experts, point.experts), device=choices.device)
        index = torch.meshgrid(torch.tensor(examples), torch.tensor(rows, dtype=torch.long), indexing="ij")
        for some, of in zip(wanted.chunk(copies), choices.chunk(copies), strict=True):
            some[index] = torch.isin(of[index], experts)
        if not bool(wanted.any()):
            return values
        before = getattr(values, "experts", None)  # as an edit before this one leaves them
        before = point.expert_outputs(x, choices) if before is None else before
        parts = [each[some] for each, some in zip(before.chunk(copies), wanted.chunk(copies), strict=True)]
        changed = (
            _fitting(plan.edit.change(part, point, {"query": names}), part, "experts", point)
            for part in parts
            if len(part)
        )
        plan.reached = True
        made = before.index_put((wanted,), torch.cat(list(changed)))
        mixed = (shares[..., None] * made).sum(2).to(values.dtype)
        edited: Any = torch.where(wanted.any(-1, keepdim=True), mixed, values.view(mixed.shape)).view(values.shape)
        edited.experts = made
        return edited

    def _edit_attention(self, plans: Sequence[_Plan], call: Attended) -> Attended:
        point = self._attention
        if point is None or not self.scope.here():
            return call
        for plan in plans:
            if point in plan.points:
                call = self._edited(plan, point, plan.points[point], call)
        return call

    def _edited(self, plan: _Plan, point: AttentionPoint, heads: tuple[int, ...], call: Attended) -> Attended:
        edit, site = plan.edit, plan.edit.site
        length, keys = call.q.shape[2], call.k.shape[2]
        rows, names = self._rows(plan, length)
        if site == "q":
            new = plan.apply(call.q, point, {"head": heads, "query": rows}, {"head": heads, "query": names})
            return replace(call, q=new)
        cross = is_cross(point, call, self._cache)
        chosen, positions = self._keys(plan, length, keys, cross)
        if site in ("k", "v"):
            labels = {"head": heads, "key": positions}
            new = plan.apply(getattr(call, site), point, {"head": heads, "key": chosen}, labels)
            return replace(call, k=new) if site == "k" else replace(call, v=new)
        if edit.kernel == "no sink":
            assert call.sinks is not None
            plan.reached = True
            # Not -inf: the gradient of a query without a key would be NaN.
            lowest = torch.finfo(call.sinks.dtype).min
            return replace(call, sinks=call.sinks.index_fill(0, torch.tensor(heads, device=call.q.device), lowest))
        places, labels = {"query": rows, "key": chosen}, {"head": heads, "query": names, "key": positions}
        if edit.kernel == "forbid":
            alike, reached = edit.change is infinite, plan.reached
            several = {} if alike and heads == tuple(range(point.heads)) else {"head": heads}
            batch = 1 if alike and edit.examples is None else len(call.q)
            shape = (batch, point.heads if several else 1, length, keys)
            mask = plan.apply(call.q.new_zeros(()).expand(shape), point, {**several, **places}, labels) == 0
            call = hugging_face.boolean_mask(call)
            if alike and not reached:  # an edge that the model itself forbids is not reached
                plan.reached = bool((_allowed(call, length, keys) & ~mask).any())
            forbidden = ~mask if call.forbidden is None else call.forbidden | ~mask
            return replace(call, mask=mask if call.mask is None else call.mask & mask, forbidden=forbidden)

        if site == "weights":
            call = hugging_face.boolean_mask(call)
        allowed = _allowed(call, length, keys)
        allowed = allowed if allowed.shape[1] == 1 else allowed[:, list(heads)]

        def rewritten(values: Tensor) -> Tensor:
            reached = plan.reached
            new = plan.apply(values, point, places, labels)
            # What is masked stays so, and is not reached.
            seen = values != -torch.inf if site == "scores" else allowed.expand(len(values), -1, -1, -1)
            if site == "weights":
                if not edit.elementwise:
                    _require_zero(new, allowed, point)
                new = new.masked_fill(~allowed, 0.0)
            texts = list(select("examples", edit.examples, len(values) * plan.copies // _copies.get()))
            alive = seen[texts].any(1).any(0)[list(rows)][:, list(chosen)].any(0)
            plan.reached = reached or bool(alive.any())
            there = [place for place, seen in zip(positions, alive.tolist(), strict=True) if seen]
            plan.note("keys", keys if cross else self._start + length, there)
            return new

        return replace(call, rewrites=(*call.rewrites, Rewrite(site, heads, rewritten)))  # type: ignore[arg-type]

    def _keys(self, plan: _Plan, length: int, keys: int, cross: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Indices and positions of the chosen keys."""
        noted = plan.edit.site not in ("scores", "weights") or plan.edit.kernel is not None
        if cross:
            plan.length = keys if plan.edit.site in ("k", "v") else plan.length
            chosen = select("keys", plan.edit.keys, keys)
            if noted:
                plan.note("keys", keys, chosen)
            return chosen, chosen
        order, first = key_order(self._cache, self._start, length, keys)
        index = range(keys) if order is None else order.tolist()
        total = self._start + length
        asked = rows_of(plan.edit.keys, 0, total, self._cache is not None, "keys")[1]
        if noted:
            plan.note("keys", total, asked)
        place = dict(zip(range(first, first + keys), index, strict=True))
        positions = tuple(each for each in asked if each in place)
        return tuple(place[each] for each in positions), positions
