"""Hook points: the modules of a model whose computation can be captured, and their selection."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.handcraft.single_head import SingleHead
from glassformer.kernels.dispatch import autocast_dtype
from glassformer.layers.blocks import Block, is_hooked
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.observe.captured import AXES
from glassformer.observe.site_names import meant_site

Role = Literal["attention", "block", "ffn", "experts", "embedding", "logits"]
Where = Literal["input", "output", "first input", "first output"]
"""Place of a tensor: a module's input or output, after its other hooks or before them ("first")."""

Selection = int | slice | Sequence[int]
"""Indices; negative ones count from the end.

Values are in the order of the indices, and repeated indices count once.
"""
Heads = Selection | Mapping[int, Selection] | Mapping[str, Selection]
"""Heads of every attention, or of each layer, or of each module."""
Modules = Sequence[str] | Callable[[str, nn.Module], bool]
"""Names of modules in ``model.named_modules()``, or a predicate on name and module."""

Routed = tuple[Tensor, Tensor, Tensor]
"""Probabilities of all experts, indices of the chosen experts and their routing weights.

All are [batch, position, ...].
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class HookPoint:
    """A module whose computation can be captured; each role of such a module has a subclass.

    Args:
        name: Its name in ``model.named_modules()``.
        module: The module.
        layer: Index of its block in its stack.
        block: The block that contains it; None for logits and for an attention outside of blocks.
        source: Whether it belongs to the encoder of an encoder-decoder.
    """

    name: str
    module: nn.Module
    layer: int
    block: nn.Module | None
    source: bool

    role: ClassVar[Role]
    sites: ClassVar[Mapping[str, tuple[str, Where]]]
    """The sites that can be captured: for each, the field that holds its module, and the place."""

    @property
    def cross(self) -> bool:
        """True for an attention whose keys belong to another text."""
        return False

    @property
    def sinks(self) -> bool:
        """True for an attention whose softmax has sinks."""
        return False

    def place(self, site: str) -> tuple[nn.Module | None, Where]:
        """Return the module at which a site is read or changed, if there is one, and where."""
        field, where = self.sites[site]
        return getattr(self, field), where

    def has(self, site: str) -> bool:
        """Return whether a site can be captured here."""
        return self.place(site)[0] is not None


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionPoint(HookPoint):
    """An attention.

    Args:
        kind: "self" if keys and queries are of one text, "cross" if they are of two.
        heads: Query heads.
        group: Query heads for each key-value head.
        has_sinks: Whether its softmax has sinks.
        out_proj: The module whose input is the output of all heads,
            [batch, query, head * value_dim].
        residual_writer: The module whose output, or the first part of it, is added to the stream.
        post_norm: Whether a norm stands between the sum over heads and the stream.
    """

    kind: Literal["self", "cross"]
    heads: int
    group: int
    has_sinks: bool
    out_proj: nn.Module | None
    residual_writer: nn.Module | None
    post_norm: bool

    role = "attention"
    sites = MappingProxyType(
        {
            "attention_input": ("module", "input"),
            "weights": ("module", "output"),
            "scores": ("module", "output"),
            "sinks": ("module", "output"),
            "q": ("module", "output"),
            "k": ("module", "output"),
            "v": ("module", "output"),
            "heads": ("out_proj", "input"),
            "attention": ("residual_writer", "output"),
        }
    )

    @property
    def cross(self) -> bool:
        """True if the keys belong to another text than the queries."""
        return self.kind == "cross"

    @property
    def sinks(self) -> bool:
        """True if the softmax has sinks."""
        return self.has_sinks

    def has(self, site: str) -> bool:
        """Return whether a site can be captured here; some attentions have no sinks."""
        return self.sinks if site == "sinks" else super().has(site)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockPoint(HookPoint):
    """A block.

    Args:
        between: The norm whose input (of a pre-norm block) or output is the residual stream before
            the ffn; None where attention and ffn are parallel.
        pre_norm: Whether its norms stand before its parts.
        norms: The norms of the sums of a post-norm block of ``transformers``.
    """

    between: nn.Module | None
    pre_norm: bool
    norms: tuple[nn.Module, ...]

    role = "block"
    sites = MappingProxyType(
        {
            "residual_before": ("module", "input"),
            "residual_between": ("between", "output"),
            "residual": ("module", "output"),
        }
    )

    def place(self, site: str) -> tuple[nn.Module | None, Where]:
        """Return the module at which a site is read or changed, if there is one, and where."""
        if site == "residual_between" and self.pre_norm:
            return self.between, "first input"
        return super().place(site)


@dataclass(frozen=True, eq=False, kw_only=True)
class FeedForwardPoint(HookPoint):
    """A feed-forward network, or a mixture of experts as a whole.

    The output of its module is added to the residual stream.

    Args:
        reads: The module whose input is the network's input.
        down_proj: The last projection of a dense network, whose input is the neurons after their
            activation.
    """

    reads: nn.Module | None
    down_proj: nn.Module | None

    role = "ffn"
    sites = MappingProxyType(
        {
            "ffn_input": ("reads", "input"),
            "neurons": ("down_proj", "input"),
            "ffn": ("module", "output"),
        }
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class MixturePoint(HookPoint):
    """A mixture of experts.

    Args:
        experts: Number of experts.
        gate: The module whose output, or the first part of it, is the scores of all experts.
        route: Computes the routing of an input.
        expert_outputs: Computes the output of each chosen expert from the input and the choices.
        post_norm: Whether a norm stands between the sum over experts and the stream.
    """

    experts: int
    gate: nn.Module
    route: Callable[[Tensor], Routed]
    expert_outputs: Callable[[Tensor, Tensor], Tensor]
    post_norm: bool

    role = "experts"
    sites = MappingProxyType(
        {
            "router": ("gate", "output"),
            "choices": ("module", "first output"),
            "shares": ("module", "first output"),
            "experts": ("module", "first output"),
        }
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbeddingPoint(HookPoint):
    """The first block of a stack, whose input is the embedding."""

    role = "embedding"
    sites = MappingProxyType({"embedding": ("module", "input")})


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitsPoint(HookPoint):
    """The module that computes the logits.

    Args:
        owner: In a model of ``transformers``, the module whose argument ``logits_to_keep`` chooses
            the positions that have logits; None otherwise.
    """

    owner: nn.Module | None

    role = "logits"
    sites = MappingProxyType({"logits": ("module", "output")})


_KINDS: tuple[type[HookPoint], ...] = (
    EmbeddingPoint,
    BlockPoint,
    AttentionPoint,
    FeedForwardPoint,
    MixturePoint,
    LogitsPoint,
)
ROLES: Mapping[str, Role] = MappingProxyType(
    {site: kind.role for kind in _KINDS for site in kind.sites}
)
"""The role of the hook points at which each kind of record is captured."""

Point = TypeVar("Point", bound=HookPoint)


def of_kind(points: Iterable[HookPoint], kind: type[Point]) -> list[Point]:
    """Return the hook points that are of one class."""
    return [point for point in points if isinstance(point, kind)]


def has_post_norm(points: Iterable[HookPoint]) -> bool:
    """Return whether a norm follows an attention or mixture before the residual stream."""
    parts = (point for point in points if isinstance(point, AttentionPoint | MixturePoint))
    return any(part.post_norm for part in parts)


def own_points(model: nn.Module) -> Iterator[HookPoint]:
    """Yield every hook point of a model of glassformer's layers, in the order of its modules."""
    two_stacks = any(_crosses(module) for module in model.modules())
    blocks: dict[str, tuple[Block, int]] = {}
    lone_attentions = 0
    for name, module in model.named_modules():
        if isinstance(module, Block):
            layer = layer_of(name, len(blocks))
            blocks[name] = module, layer
            yield from _points_of_block(name, module, layer, two_stacks and not _crosses(module))
        elif isinstance(module, GroupedQueryAttention | SingleHead):
            owners = (block_name for block_name in blocks if name.startswith(f"{block_name}."))
            block_name = max(owners, key=len, default=None)
            if block_name is None:
                yield _own_attention(name, module, layer_of(name, lone_attentions), None, False)
                lone_attentions += 1
            else:
                block, layer = blocks[block_name]
                yield _own_attention(name, module, layer, block, two_stacks and not _crosses(block))
    for name in ("output", "classifier"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Module) and blocks:
            cap = getattr(model, "logit_cap", None)
            last = head if cap is None else cap
            yield LogitsPoint(name=name, module=last, layer=0, block=None, source=False, owner=None)


def _crosses(module: nn.Module) -> bool:
    """Return whether a module is a block with cross-attention."""
    return isinstance(module, Block) and module.cross_attention is not None


def _points_of_block(name: str, block: Block, layer: int, source: bool) -> Iterator[HookPoint]:
    """Yield the hook points of a block of glassformer, except those of its attentions."""
    shared: dict[str, Any] = {"layer": layer, "block": block, "source": source}
    if layer == 0:
        yield EmbeddingPoint(name=name, module=block, **shared)
    yield BlockPoint(
        name=name,
        module=block,
        **shared,
        between=_own_between(block),
        pre_norm=block.norm_place != "sum",
        norms=(),
    )
    ffn_name = f"{name}.ffn".removeprefix(".")
    ffn = block.ffn
    post_norm = block.ffn_post_norm
    down = getattr(ffn, "down", None)
    yield FeedForwardPoint(
        name=ffn_name,
        module=ffn if post_norm is None else post_norm,
        **shared,
        reads=ffn,
        down_proj=down if isinstance(down, nn.Module) else None,  # experts share one tensor
    )
    if isinstance(ffn, MixtureOfExperts):
        yield MixturePoint(
            name=ffn_name,
            module=ffn,
            **shared,
            experts=ffn.router.num_experts,
            gate=ffn.router.score,
            route=partial(_route, ffn),
            expert_outputs=partial(_expert_outputs, ffn),
            post_norm=post_norm is not None,
        )


def _own_between(block: Block) -> nn.Module | None:
    """Return the norm at which the stream between attention and ffn is read, if any."""
    if block.parallel:
        return None
    if block.norm_place != "sum":
        return block.ffn_norm
    if block.cross_attention is None:
        return block.attention_norm
    return block.cross_attention_norm


def _own_attention(
    name: str,
    module: GroupedQueryAttention | SingleHead,
    layer: int,
    block: Block | None,
    source: bool,
) -> AttentionPoint:
    if isinstance(module, SingleHead):
        return AttentionPoint(
            name=name,
            module=module,
            layer=layer,
            block=block,
            source=False,
            kind="self",
            heads=1,
            group=1,
            has_sinks=False,
            out_proj=None,
            residual_writer=module,
            post_norm=False,
        )
    crosses = block is not None and module is block.cross_attention
    post_norm: nn.Module | None = None
    if block is not None:
        part = "cross_attention" if crosses else block.attention_name
        post_norm = getattr(block, f"{part}_post_norm")
    return AttentionPoint(
        name=name,
        module=module,
        layer=layer,
        block=block,
        source=source,
        kind="cross" if crosses else "self",
        heads=module.num_heads,
        group=module.num_heads // module.num_kv_heads,
        has_sinks=module.sinks is not None,
        out_proj=module.output,
        residual_writer=module if post_norm is None else post_norm,
        post_norm=post_norm is not None,
    )


def layer_of(name: str, otherwise: int) -> int:
    """Return the last index in a name like ``layers.3.attention``, or ``otherwise``."""
    return next((int(part) for part in reversed(name.split(".")) if part.isdecimal()), otherwise)


def choose_points(
    points: Sequence[HookPoint],
    what: str | Sequence[str],
    modules: Modules | None,
    layers: Selection | None,
    heads: Heads | None,
) -> dict[HookPoint, tuple[int, ...]]:
    """Return the chosen hook points, each with its chosen heads."""
    kinds = kinds_of(what)
    _check_kinds(kinds, what)
    roles = {ROLES[kind] for kind in kinds}
    candidates = [point for point in points if point.role in roles]
    _require_kinds(kinds, candidates, "a model without any hook point for it")
    selected = _by_name(candidates, modules)
    if layers is not None:
        selected = [
            point for point in selected if point.layer in _layers_of(layers, point, candidates)
        ]
    chosen: dict[HookPoint, tuple[int, ...]] = {}
    for point in selected:
        if not isinstance(point, AttentionPoint):
            chosen[point] = ()
        elif not isinstance(heads, Mapping):
            chosen[point] = select("heads", heads, point.heads)
        else:
            for key in (point.layer, point.name):
                if key in heads:
                    chosen[point] = select("heads", heads[key], point.heads)  # type: ignore[index]
    for attention in of_kind(chosen, AttentionPoint):
        if not chosen[attention]:
            raise InputError(
                got=f"heads = {heads!r}, of which {attention.name} has none",
                expected="heads that it has",
                fix=f"Choose among {attention.heads}.",
            )
    if isinstance(heads, Mapping):
        _check_head_keys(heads, candidates, chosen)
    _require_kinds(kinds, list(chosen), "a selection of no module")
    return chosen


def kinds_of(what: str | Sequence[str]) -> tuple[str, ...]:
    """Return one kind of records or several as a tuple, each once."""
    if isinstance(what, str):
        return (what,)
    return tuple(dict.fromkeys(what))


def sites_of(what: str | Sequence[str]) -> list[str]:
    """Return the sites of kinds of records; inputs are captured at the same points as queries."""
    return ["q" if kind == "inputs" else kind for kind in kinds_of(what)]


def _check_kinds(kinds: Sequence[str], what: str | Sequence[str]) -> None:
    """Refuse unknown kinds of records, and none."""
    expected = f"one or more of {', '.join(AXES)}"
    if not kinds:
        raise InputError(got=f"what = {what!r}", expected=expected, fix="Choose among these.")
    for kind in kinds:
        if kind not in AXES:
            raise InputError(got=f"what = {kind!r}", expected=expected, fix=meant_site(kind, AXES))


def _check_head_keys(
    heads: Mapping[Any, Selection], candidates: Sequence[HookPoint], chosen: Iterable[HookPoint]
) -> None:
    """Refuse heads of layers or modules that are unknown or not selected."""
    known: set[int | str] = set()
    for attention in of_kind(candidates, AttentionPoint):
        known |= {attention.layer, attention.name}
    unknown = [key for key in heads if key not in known]
    if unknown:
        raise InputError(
            got=f"heads of {unknown}",
            expected=f"keys among {sorted(known, key=str)}",
            fix="Use layers or module names.",
        )
    selected: set[int | str] = set()
    for point in chosen:
        selected |= {point.layer, point.name}
    left_out = [key for key in heads if key not in selected]
    if left_out:
        raise InputError(
            got=f"heads of {left_out}, which layers or modules leave out",
            expected="heads of what is chosen",
            fix="Omit layers and modules.",
        )


def select(name: str, selection: Selection | None, count: int) -> tuple[int, ...]:
    """Return the indices of a selection, from 0 to ``count - 1``, in its order, each once."""
    if selection is None:
        return tuple(range(count))
    if isinstance(selection, slice):
        return tuple(range(count)[selection])
    numbers = whole_numbers(name, selection)
    out_of_range = [number for number in numbers if not -count <= number < count]
    if out_of_range:
        raise InputError(
            got=f"{name} {out_of_range}",
            expected=f"numbers from {-count} to {count - 1}",
            fix="Count from 0.",
        )
    return tuple(dict.fromkeys(number % count for number in numbers))


def whole_numbers(name: str, selection: int | Sequence[int]) -> tuple[int, ...]:
    """Return one integer or several as a tuple."""
    numbers = (selection,) if isinstance(selection, int) else selection
    is_sequence = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_sequence or not all(map(_is_integer, numbers)):
        raise InputError(
            got=f"{name} = {selection!r}",
            expected="an integer, several, or a slice",
            fix="Count from 0.",
        )
    return tuple(numbers)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_kinds(kinds: Sequence[str], points: Sequence[HookPoint], got: str) -> None:
    """Refuse kinds of records that none of the hook points has; ``got`` describes the points."""
    for kind in kinds:
        candidates = [point for point in points if point.role == ROLES[kind]]
        if any(point.has(kind) for point in candidates):
            continue
        if candidates:
            missing = _MISSING_MODULES.get(kind, "blocks whose parts are not found")
            got = f"{got}: {missing}"
        if kind in ("embedding", "logits"):
            fix = "Capture it in a block of its own, without layers."
        else:
            fix = "Choose other kinds or modules."
        roles = ", ".join(dict.fromkeys(point.role for point in points)) or "none"
        raise InputError(
            got=f"what = {kind!r} and {got}",
            expected=f"a hook point for each kind; found of these: {roles}",
            fix=fix,
        )


_MISSING_MODULES = MappingProxyType(
    {
        "neurons": "networks whose last projection is not found",
        "residual_between": "blocks whose attention and ffn are parallel or not found",
    }
)
"""Reasons for which a model has the role of a site but no module for it."""


def _by_name(candidates: Sequence[HookPoint], modules: Modules | None) -> list[HookPoint]:
    """Return the hook points that ``modules`` selects."""
    if modules is None:
        return list(candidates)
    known = ", ".join(dict.fromkeys(point.name for point in candidates))
    if callable(modules):
        selected = [point for point in candidates if modules(point.name, point.module)]
    else:
        if isinstance(modules, str):
            raise InputError(
                got=f"modules = {modules!r}",
                expected="a list of names",
                fix=f"Write [{modules!r}].",
            )
        matched: set[str] = set()
        selected = []
        for point in candidates:
            names = {name for name in modules if f"{point.name}.".startswith(f"{name}.")}
            matched |= names
            if names:
                selected.append(point)
        unknown = [name for name in modules if name not in matched]
        if unknown:
            raise InputError(
                got=f"modules {unknown}",
                expected=f"among {known}",
                fix="Use names of find_hook_points().",
            )
    if not selected:
        raise InputError(
            got="a selection of no module",
            expected=f"at least one of {known}",
            fix="Omit modules to capture all.",
        )
    return selected


def _layers_of(
    layers: Selection, point: HookPoint, candidates: Sequence[HookPoint]
) -> tuple[int, ...]:
    """Return the chosen layers of a hook point's stack, which may be the shorter one of two."""
    num_layers = [0, 0]  # of the decoder or the only stack, and of the encoder
    for candidate in candidates:
        stack = int(candidate.source)
        num_layers[stack] = max(num_layers[stack], candidate.layer + 1)
    count = num_layers[point.source]
    if isinstance(layers, slice):
        return select("layers", layers, count)
    select("layers", layers, max(num_layers))  # refuses indices that neither stack has
    in_stack = [index for index in whole_numbers("layers", layers) if -count <= index < count]
    return select("layers", in_stack, count)


def _route(module: MixtureOfExperts, x: Tensor) -> Routed:
    if is_hooked(module.router):
        raise InputError(
            got=f"a {type(module).__name__} whose router has hooks",
            expected="choices by scores alone",
            fix="Hook router.score in place of router.",
        )
    shares, choices, scores = module.router.choose(x)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=wide), choices, shares


def _expert_outputs(module: MixtureOfExperts, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(module.mix, x.to(autocast_dtype(x)), choices)  # as the mixture itself does


def one_by_one(
    mix: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, choices: Tensor
) -> Tensor:
    """Return the output of each chosen expert.

    ``mix`` takes tokens, routing weights and choices, and returns the weighted sum over experts.
    """
    tokens = x.reshape(-1, x.shape[-1])
    ones = tokens.new_ones(len(tokens), 1)
    ranks = choices.reshape(-1, choices.shape[-1]).split(1, dim=1)
    outputs = [mix(tokens, ones, choice) for choice in ranks]
    return torch.stack(outputs, 1).view(*choices.shape, -1)
