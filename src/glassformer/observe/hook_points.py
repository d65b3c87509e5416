"""Hook points: the modules of a model whose computation can be captured, and how to select among them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.handcraft.single_head import SingleHead
from glassformer.kernels.dispatch import autocast_dtype
from glassformer.layers.blocks import Block, CrossBlock, EncoderBlock, is_hooked
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.quantized.packed_experts import PackedMixture
from glassformer.observe.captured import AXES

Role = Literal["attention", "block", "ffn", "experts", "embedding", "logits"]
_SITES: Mapping[str, tuple[Role, str, str]] = MappingProxyType(
    {
        "embedding": ("embedding", "module", "input"),
        "residual_before": ("block", "module", "input"),
        "residual_between": ("block", "between", "output"),
        "residual": ("block", "module", "output"),
        "attention_input": ("attention", "module", "input"),
        **dict.fromkeys(("weights", "scores", "sinks", "q", "k", "v"), ("attention", "module", "output")),
        "heads": ("attention", "out_proj", "input"),
        "attention": ("attention", "residual_writer", "output"),
        "ffn_input": ("ffn", "reads", "input"),
        "neurons": ("ffn", "down_proj", "input"),
        "ffn": ("ffn", "module", "output"),
        "router": ("experts", "gate", "output"),
        **dict.fromkeys(("choices", "shares", "experts"), ("experts", "module", "first output")),
        "logits": ("logits", "module", "output"),
    }
)
ROLES: Mapping[str, Role] = MappingProxyType({kind: role for kind, (role, _, _) in _SITES.items()})
"""The role of the hook points at which each kind of record is captured."""

Selection = int | slice | Sequence[int]
"""Indices; negative ones count from the end. Values are in the order of the indices; a repeated one counts once."""
Heads = Selection | Mapping[int, Selection] | Mapping[str, Selection]
"""Heads of every attention, or of each layer, or of each module."""
Modules = Sequence[str] | Callable[[str, nn.Module], bool]
"""Names of modules in ``model.named_modules()``, or a predicate on name and module."""

Routed = tuple[Tensor, Tensor, Tensor]
"""Probabilities of all experts, indices of the chosen ones and their routing weights; all [batch, position, ...]."""


@dataclass(frozen=True, eq=False)
class HookPoint:
    """A module whose computation can be captured."""

    role: Role
    name: str
    """Its name in ``model.named_modules()``."""
    module: nn.Module
    layer: int
    """Index of its block in its stack."""
    block: nn.Module | None = None
    """The block that contains it."""
    source: bool = False
    """Whether it belongs to the encoder of an encoder-decoder."""
    cross: bool = False
    heads: int = 0
    """Query heads."""
    group: int = 1
    """Query heads for each key-value head."""
    sinks: bool = False
    out_proj: nn.Module | None = None
    """Of an attention: the module whose input is the output of all heads, [batch, query, head * value_dim]."""
    residual_writer: nn.Module | None = None
    """Of an attention: the module whose output, or the first part of it, is added to the residual stream."""
    post_norm: bool = False
    """Of an attention or a mixture: whether a norm stands between the sum over heads or experts and the stream."""
    between: nn.Module | None = None
    """Of a block: the norm whose input (of a pre-norm block) or output is the residual stream before the ffn.

    None where attention and ffn are parallel."""
    pre_norm: bool = True
    norms: tuple[nn.Module, ...] = ()
    """Of a post-norm block of transformers: the norms of its sums."""
    reads: nn.Module | None = None
    """Of an ffn: the module whose input is what it reads."""
    down_proj: nn.Module | None = None
    """Of a dense ffn: its last projection, whose input is the neurons after their activation."""
    owner: nn.Module | None = None
    """Of logits of transformers: the module whose argument ``logits_to_keep`` chooses their positions."""
    experts: int = 0
    gate: nn.Module | None = None
    """Of a mixture of experts: the module whose output, or the first part of it, is the scores of all experts."""
    route: Callable[[Tensor], Routed] | None = None
    """Of a mixture of experts: the routing of an input."""
    expert_outputs: Callable[[Tensor, Tensor], Tensor] | None = None
    """Of a mixture of experts: the output of each chosen expert, from the input and the choices."""


def place_of(point: HookPoint, site: str) -> tuple[nn.Module | None, str]:
    """The module at which a site of a hook point is read or changed, if it has one, and whether at input or output."""
    _, name, where = _SITES[site]
    return getattr(point, name), "first input" if site == "residual_between" and point.pre_norm else where


def own_points(model: nn.Module) -> Iterator[HookPoint]:
    """Every hook point of a model made of glassformer's layers, in the order of its modules."""
    two_stacks = any(isinstance(module, CrossBlock) for module in model.modules())
    blocks: dict[str, tuple[nn.Module, int]] = {}
    loose = 0
    for name, module in model.named_modules():
        if isinstance(module, Block | EncoderBlock | CrossBlock):
            layer = layer_of(name, len(blocks))
            source = two_stacks and isinstance(module, EncoderBlock)
            place: dict[str, Any] = {"layer": layer, "block": module, "source": source}
            if layer == 0:
                yield HookPoint("embedding", name, module, **place)
            pre_norm = isinstance(module, Block) or module.norm_first
            before = module.cross_attention_norm if isinstance(module, CrossBlock) else module.attention_norm
            between: nn.Module | None = module.ffn_norm if pre_norm else before
            if isinstance(module, Block) and module.parallel:
                between = None
            yield HookPoint("block", name, module, **place, between=between, pre_norm=pre_norm)
            ffn, at = module.ffn, f"{name}.ffn".removeprefix(".")
            post_norm = module.ffn_post_norm if isinstance(module, Block) else None
            down: Any = getattr(ffn, "down", None)  # of experts one tensor for all
            down = down if isinstance(down, nn.Module) else None
            yield HookPoint("ffn", at, ffn if post_norm is None else post_norm, **place, reads=ffn, down_proj=down)
            if isinstance(ffn, MixtureOfExperts | PackedMixture):
                place |= {"route": partial(_route, ffn), "expert_outputs": partial(_expert_outputs, ffn)}
                place["post_norm"] = post_norm is not None
                yield HookPoint("experts", at, ffn, **place, experts=ffn.router.num_experts, gate=ffn.router.score)
            blocks[name] = module, layer
        elif isinstance(module, GroupedQueryAttention | SingleHead):
            alone = None, layer_of(name, loose)
            block, layer = next((blocks[each] for each in reversed(blocks) if name.startswith(f"{each}.")), alone)
            loose += block is None
            if isinstance(module, SingleHead):
                yield HookPoint("attention", name, module, layer, block, heads=1, residual_writer=module)
                continue
            post_norm = getattr(block, "attention_post_norm", None)
            yield HookPoint(
                "attention",
                name,
                module,
                layer,
                block,
                source=two_stacks and isinstance(block, EncoderBlock),
                cross=isinstance(block, CrossBlock) and module is block.cross_attention,
                heads=module.num_heads,
                group=module.num_heads // module.num_kv_heads,
                sinks=module.sinks is not None,
                out_proj=module.output,
                residual_writer=module if post_norm is None else post_norm,
                post_norm=post_norm is not None,
            )
    for name in ("output", "classifier"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Module) and blocks:
            cap = getattr(model, "logit_cap", None)
            yield HookPoint("logits", name, head if cap is None else cap, 0)


def layer_of(name: str, otherwise: int) -> int:
    """The index in a name like ``layers.3.attention``."""
    return next((int(part) for part in reversed(name.split(".")) if part.isdecimal()), otherwise)


def choose_points(
    points: Sequence[HookPoint],
    what: str | Sequence[str],
    modules: Modules | None,
    layers: Selection | None,
    heads: Heads | None,
) -> dict[HookPoint, tuple[int, ...]]:
    """The chosen hook points, each with its chosen heads."""
    kinds = (what,) if isinstance(what, str) else tuple(what)
    got, fix = f"what = {what!r}", "Choose among these."
    require(len(kinds) > 0 and all(kind in AXES for kind in kinds), got, f"one or more of {', '.join(AXES)}", fix)
    roles = {ROLES[kind] for kind in kinds}
    there = [point for point in points if point.role in roles]
    _require_kinds(kinds, there, "a model without any hook point for it")
    found = _by_name(there, modules)
    found = [point for point in found if layers is None or point.layer in _layers_of(layers, point, there)]
    chosen: dict[HookPoint, tuple[int, ...]] = {}
    for point in found:
        if point.role != "attention":
            chosen[point] = ()
        elif not isinstance(heads, Mapping):
            chosen[point] = select("heads", heads, point.heads)
        else:
            given = {key: heads[key] for key in (point.layer, point.name) if key in heads}  # type: ignore[index]
            for selection in given.values():
                chosen[point] = select("heads", selection, point.heads)
    empty = next((point for point, some in chosen.items() if point.role == "attention" and not some), None)
    got = f"heads = {heads!r}, of which {'' if empty is None else empty.name} has none"
    require(empty is None, got, "heads that it has", f"Choose among {0 if empty is None else empty.heads}.")
    if isinstance(heads, Mapping):
        known = {key for point in there if point.role == "attention" for key in (point.layer, point.name)}
        unknown = [key for key in heads if key not in known]
        require(
            not unknown, f"heads of {unknown}", f"keys among {sorted(known, key=str)}", "Use layers or module names."
        )
        left_out = [key for key in heads if all(key not in (point.layer, point.name) for point in chosen)]
        got = f"heads of {left_out}, which layers or modules leave out"
        require(not left_out, got, "heads of what is chosen", "Omit layers and modules.")
    _require_kinds(kinds, list(chosen), "a selection of no module")
    return chosen


def select(name: str, selection: Selection | None, count: int) -> tuple[int, ...]:
    """The indices from 0 to ``count - 1`` of a selection, in its order, each once."""
    if selection is None:
        return tuple(range(count))
    if isinstance(selection, slice):
        return tuple(range(count)[selection])
    numbers = whole_numbers(name, selection)
    wrong = [number for number in numbers if not -count <= number < count]
    require(not wrong, f"{name} {wrong}", f"numbers from {-count} to {count - 1}", "Count from 0.")
    return tuple(dict.fromkeys(number % count for number in numbers))


def whole_numbers(name: str, selection: int | Sequence[int]) -> tuple[int, ...]:
    """One integer or several, as a tuple."""
    given = (selection,) if isinstance(selection, int) else selection
    fits = isinstance(given, Sequence) and not isinstance(given, str)
    if not fits or not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
        raise InputError(f"{name} = {selection!r}", "an integer, several, or a slice", "Count from 0.")
    return tuple(given)


def _require_kinds(kinds: Sequence[str], points: Sequence[HookPoint], got: str) -> None:
    for kind in kinds:
        there = [point for point in points if point.role == ROLES[kind]]
        fits = any(point.sinks if kind == "sinks" else place_of(point, kind)[0] is not None for point in there)
        have = ", ".join(dict.fromkeys(point.role for point in points)) or "none"
        expected = f"a hook point for each kind; found of these: {have}"
        if there and not fits:
            lacks = {
                "neurons": "networks whose last projection is not found",
                "residual_between": "blocks whose attention and ffn are parallel or not found",
            }
            got = f"{got}: {lacks.get(kind, 'blocks whose parts are not found')}"
        alone = kind in ("embedding", "logits")
        fix = "Capture it in a block of its own, without layers." if alone else "Choose other kinds or modules."
        require(fits, f"what = {kind!r} and {got}", expected, fix)


def _by_name(there: Sequence[HookPoint], modules: Modules | None) -> list[HookPoint]:
    known = ", ".join(dict.fromkeys(point.name for point in there))
    if modules is None:
        return list(there)
    if callable(modules):
        found = [point for point in there if modules(point.name, point.module)]
    else:
        require(not isinstance(modules, str), f"modules = {modules!r}", "a list of names", f"Write [{modules!r}].")
        names = {point: {name for name in modules if f"{point.name}.".startswith(f"{name}.")} for point in there}
        unknown = [name for name in modules if not any(name in each for each in names.values())]
        require(not unknown, f"modules {unknown}", f"among {known}", "Use names of find_hook_points().")
        found = [point for point, matching in names.items() if matching]
    require(len(found) > 0, "a selection of no module", f"at least one of {known}", "Omit modules to capture all.")
    return found


def _layers_of(layers: Selection, point: HookPoint, there: Sequence[HookPoint]) -> tuple[int, ...]:
    """The chosen layers of a hook point's stack; indices that only the other stack has are left out."""
    counts = [max((each.layer for each in there if each.source == source), default=-1) + 1 for source in (False, True)]
    if not isinstance(layers, slice):
        longest = max(counts)
        select("layers", layers, longest)
        count = counts[point.source]
        layers = [number for number in whole_numbers("layers", layers) if -count <= number < count]
    return select("layers", layers, counts[point.source])


def _route(module: MixtureOfExperts | PackedMixture, x: Tensor) -> Routed:
    got = f"a {type(module).__name__} whose router has hooks"
    require(not is_hooked(module.router), got, "choices by scores alone", "Hook router.score in place of router.")
    shares, choices, scores = module.router.choose(x)
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)), choices, shares


def _expert_outputs(module: MixtureOfExperts | PackedMixture, x: Tensor, choices: Tensor) -> Tensor:
    return one_by_one(module.mix, x.to(autocast_dtype(x)), choices)  # as the mixture itself does


def one_by_one(mix: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, choices: Tensor) -> Tensor:
    """The output of each chosen expert; ``mix`` takes tokens, routing weights and choices."""
    tokens, each = x.reshape(-1, x.shape[-1]), choices.reshape(-1, choices.shape[-1])
    ones = tokens.new_ones(len(tokens), 1)
    made = [mix(tokens, ones, choice) for choice in each.split(1, dim=1)]
    return torch.stack(made, 1).view(*choices.shape, -1)
