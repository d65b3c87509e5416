"""Call user functions with the named tensors of a running model, to read or replace them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import Attended, Rewrite, boolean_mask
from glassformer.observe import hugging_face
from glassformer.observe.attachment import Attachment
from glassformer.observe.capture import find_hook_points, network_of, uncompiled
from glassformer.observe.captured import AXES
from glassformer.observe.edits import SITES
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    HookPoint,
    LogitsPoint,
    kinds_of,
    of_kind,
)
from glassformer.observe.intervene import (
    allowed_keys,
    fitting,
    require_uncompiled,
    require_zero,
)
from glassformer.observe.module_hooks import scope
from glassformer.observe.running import Visit


@dataclass(frozen=True)
class Place:
    """A named tensor of a model, as :func:`tapped` passes it to a tap.

    Args:
        name: Its block and its site: ``"layers.3.heads"``. Sites of a cross-attention begin with
            ``cross_``. Logits belong to no block: ``"logits"``.
        site: Kind of the tensor, a key of :data:`~glassformer.observe.captured.AXES`.
        layer: Index of its block in its stack.
        source: Whether it belongs to the encoder of an encoder-decoder.
        cross: Whether it belongs to a cross-attention.
        module: The name of its hook point in ``model.named_modules()``.
        queries: The positions on its axis "query", counted from the start of the text; in cached
            generation, the positions of the call. None in the places of :func:`tap_places`, and
            for a tensor without that axis.
        keys: The positions on its axis "key", like ``queries``.
    """

    name: str
    site: str
    layer: int
    source: bool
    cross: bool
    module: str
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of its tensor."""
        return AXES[self.site]


Tap = Callable[[Place, Shaped[Tensor, "*axes"]], Shaped[Tensor, "*axes"] | None]
"""Maps a place and its tensor to a new tensor of equal shape and dtype; None keeps the tensor."""


@contextmanager
def tapped(model: Any, tap: Tap, *, sites: str | Sequence[str] | None = None) -> Iterator[None]:
    """Call ``tap`` with every named tensor that ``model`` computes within the ``with`` block::

        def without_heads(place, value):
            return value * 0 if place.name == "layers.3.heads" else None

        with tapped(model, without_heads):
            logits = model(tokens)

    The tensor that ``tap`` returns replaces the value; None keeps it, to the last bit. Only forward
    passes in the thread of the block call ``tap``. Sites and axes are those of
    :func:`~glassformer.observe.intervene.intervene`, except that ``experts`` has the axes that
    :func:`~glassformer.observe.capture.capture` gives it. :func:`tap_places` lists the names.

    Taps and edits of one site act in the order in which their blocks were opened, and captures read
    the result. ``value`` is a copy, through which gradients flow: a tap may write into it and
    return it.

    Args:
        model: As for :func:`~glassformer.observe.intervene.intervene`.
        tap: Takes a :class:`Place` and its tensor. Where the model masks a key, its score stays
            -inf and its weight must stay 0.
        sites: The sites at which it is called; all when None. Scores and weights of all heads and
            the outputs of single experts are computed for the tap, which takes time and memory:
            name the sites that it reads.

    Example:
        >>> from glassformer.models import Decoder, DecoderConfig
        >>> model, tokens = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8)), torch.tensor([[3, 1, 4]])
        >>> shapes = {}
        >>> with tapped(model, lambda place, value: shapes.update({place.name: list(value.shape)})):
        ...     logits = model(tokens)
        >>> shapes["layers.1.heads"]  # batch, head, query, dim
        [1, 4, 3, 8]

    Raises:
        InputError: A compiled model, or one without hook points; an unknown site. From within the
            model: a value of another shape, dtype or device, NaN or infinity, a weight of a masked
            key above 0, a tap that writes into its value and returns None. At the end of the block:
            a tap that was never called.
    """
    if not isinstance(model, nn.Module):
        model = network_of(model)
    require_uncompiled(model)
    points = find_hook_points(model)
    foreign = hugging_face.is_hugging_face(model)
    places = _places(points)
    taps = [_UserTap(site, tap, places[site]) for site in _selected_sites(sites, places)]
    with ExitStack() as stack, stack, scope() as hooks:  # twice, as in intervene()
        stack.enter_context(uncompiled())
        if foreign:
            stack.enter_context(hugging_face.proving(points, [user_tap.site for user_tap in taps]))
        Attachment(stack, hooks, points, foreign, taps)
        yield
    if not any(user_tap.called for user_tap in taps):
        other_thread = ", while another thread ran the model" if hooks.ran_in_other_thread else ""
        raise InputError(
            got=f"a tap that no call reached{other_thread}",
            expected="a run of the model within the block",
            fix="Call the model that was passed, in the thread that opened the block.",
        )


def tap_places(model: Any) -> list[Place]:
    """Return every place at which :func:`tapped` calls its tap, in the order of the modules."""
    points = find_hook_points(model)
    by_site = _places(points)
    places: list[Place] = []
    for point in points:
        of_point = [by_site.get(site, {}).get(point) for site in SITES]
        places += [place for place in of_point if place is not None]
    return places


def _places(points: Sequence[HookPoint]) -> dict[str, dict[HookPoint, Place]]:
    """Return the place of each hook point, for each site that there is."""
    block_names = {block.module: block.name for block in of_kind(points, BlockPoint)}
    places: dict[str, dict[HookPoint, Place]] = {}
    for point in points:
        for site in point.sites:
            if site in SITES and point.has(site):
                places.setdefault(site, {})[point] = Place(
                    name=_name(point, site, block_names),
                    site=site,
                    layer=point.layer,
                    source=point.source,
                    cross=point.cross,
                    module=point.name,
                )
    return places


def _name(point: HookPoint, site: str, block_names: dict[Any, str]) -> str:
    if isinstance(point, LogitsPoint):
        owner = point.name.rpartition(".")[0]
    else:
        owner = block_names.get(point.block, point.name)
    cross = "cross_" if point.cross else ""
    return f"{owner}.{cross}{site}".removeprefix(".")


def _selected_sites(sites: str | Sequence[str] | None, places: dict[str, Any]) -> list[str]:
    if not places:
        raise InputError(
            got="a model without places that can be tapped",
            expected=(
                "a model of glassformer's attention, or one of transformers that calls "
                "ALL_ATTENTION_FUNCTIONS"
            ),
            fix="Pass such a model.",
        )
    if sites is None:
        return list(places)
    selected = list(kinds_of(sites))
    unknown = [site for site in selected if site not in places]
    if unknown or not selected:
        raise InputError(
            got=f"sites = {sites!r}",
            expected=f"one or more of {', '.join(places)}",
            fix="Choose among these.",
        )
    return selected


@dataclass(eq=False)
class _UserTap:
    """A user's tap at one site."""

    site: str
    tap: Tap
    points: dict[HookPoint, Place]
    called: bool = field(default=False)

    def change(self, visit: Visit, values: Tensor) -> Tensor | None:
        """Return the tap's value for the tensor of a site."""
        _, queries = visit.rows(None)
        return self._tapped(visit.point, values, queries=queries)

    def attended(self, visit: Visit, call: Attended) -> Attended:
        """Return a call of an attention with the tap's q, k, v, scores or weights."""
        point = visit.point
        _, queries = visit.rows(None)
        if self.site == "q":
            q = self._tapped(point, call.q, queries=queries)
            return call if q is None else replace(call, q=q)
        slot_of = visit.key_places(call)
        if not visit.is_cross(call):  # empty slots of a cache come after the text
            slot_of = {key: slot for key, slot in slot_of.items() if key < visit.total}
        keys = tuple(slot_of)
        slots = torch.tensor(list(slot_of.values()), device=call.q.device)
        if self.site == "k":
            new_k = self._new_keys(point, call.k, slots, keys)
            return call if new_k is None else replace(call, k=new_k)
        if self.site == "v":
            new_v = self._new_keys(point, call.v, slots, keys)
            return call if new_v is None else replace(call, v=new_v)
        assert isinstance(point, AttentionPoint)
        heads = tuple(range(point.heads))
        rewritten = partial(self._rewritten, point, call, slots, queries, keys)
        rewrite = Rewrite(self.site, heads, rewritten, may_keep=True)  # type: ignore[arg-type]
        return replace(call, rewrites=(*call.rewrites, rewrite))

    def _new_keys(
        self, point: HookPoint, values: Tensor, slots: Tensor, keys: tuple[int, ...]
    ) -> Tensor | None:
        """Return the tap's keys or values, in the slots of a cache."""
        new = self._tapped(point, values.index_select(2, slots), keys=keys)
        return None if new is None else values.index_copy(2, slots, new)

    def _rewritten(
        self,
        point: HookPoint,
        call: Attended,
        slots: Tensor,
        queries: tuple[int, ...],
        keys: tuple[int, ...],
        values: Tensor,
    ) -> Tensor | None:
        """Return the tap's scores or weights."""
        new = self._tapped(point, values.index_select(3, slots), queries=queries, keys=keys)
        if new is None:
            return None
        new = values.index_copy(3, slots, new)
        if self.site == "weights":
            require_zero(new, allowed_keys(boolean_mask(call)), self.points[point].name)
        return new

    def experts(
        self, visit: Visit, choices: Tensor, outputs: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Return the tap's outputs of the chosen experts, and where they are new."""
        _, queries = visit.rows(None)
        before = outputs()
        new = self._tapped(visit.point, before, queries=queries)
        return None if new is None else (new, (new != before).any(-1))

    def _tapped(
        self,
        point: HookPoint,
        values: Tensor,
        *,
        queries: tuple[int, ...] | None = None,
        keys: tuple[int, ...] | None = None,
    ) -> Tensor | None:
        """Return the tap's value for a tensor, or None; refuse one that does not fit."""
        place = replace(self.points[point], queries=queries, keys=keys)
        self.called = True
        value = values.clone()
        new = self.tap(place, value)
        if new is None:
            _check_unchanged(value, values, place)
            return None
        _check_same_form(new, values, place)
        return fitting(new, values, self.site, place.name).contiguous()


def _check_unchanged(value: Tensor, original: Tensor, place: Place) -> None:
    """Refuse a tap that has written into its value without returning it."""
    if not torch.equal(value.nan_to_num(), original.nan_to_num()):
        raise InputError(
            got=f"a tap that writes into the tensor of {place.name} and returns None",
            expected="the new tensor, or None and no change",
            fix="Return the tensor.",
        )


def _check_same_form(new: Any, original: Tensor, place: Place) -> None:
    """Refuse a value that is no tensor with the shape, dtype and device of the original one."""
    if not isinstance(new, Tensor):
        raise InputError(
            got=f"a tap that returns {type(new).__name__} for {place.name}",
            expected="a tensor or None",
            fix="Return the new tensor.",
        )
    if (new.shape, new.dtype, new.device) != (original.shape, original.dtype, original.device):
        form = f"{list(new.shape)} {new.dtype} on {new.device}"
        raise InputError(
            got=f"a tap that returns {form} for {place.name}",
            expected=f"{list(original.shape)} {original.dtype} on {original.device}",
            fix="Return a tensor like the one that was passed.",
        )
