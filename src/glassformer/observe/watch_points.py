"""Where one can look into a model, and which of these places a choice means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.handcraft.single_head import SingleHead
from glassformer.layers.block import Block
from glassformer.layers.decoder_block import CrossBlock
from glassformer.layers.encoder_block import EncoderBlock
from glassformer.layers.experts import MixtureOfExperts
from glassformer.layers.grouped_query import GroupedQueryAttention
from glassformer.layers.linear import autocast_dtype
from glassformer.observe.captured import AXES
from glassformer.quantized.packed_experts import PackedMixture

Role = Literal["attention", "block", "ffn", "experts"]
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        **dict.fromkeys(("weights", "scores", "sinks", "q", "k", "v"), "attention"),
        **dict.fromkeys(("router", "choices", "shares", "experts"), "experts"),
        "residual": "block",
        "ffn": "ffn",
    }
)
"""At which kind of place each thing is seen."""

Selection = int | slice | Sequence[int]
"""Numbers, of which negative ones count from the end."""
Heads = Selection | Mapping[int, Selection] | Mapping[str, Selection]
"""Heads of every attention, or of each layer, or of each module."""
Modules = Sequence[str] | Callable[[str, nn.Module], bool]
"""Names of modules, as ``model.named_modules()`` tells them, or which of them to take."""

Routed = tuple[Tensor, Tensor, Tensor]
"""Probabilities of all experts, the chosen experts, and what each of them counts; all [batch, position, ...]."""


@dataclass(frozen=True, eq=False)
class Point:
    """A module that can be watched.

    Args:
        role: What it is.
        name: Its name within the model.
        module: The module.
        layer: The number of its block in its stack.
        block: The block that it stands in, or None.
        source: Whether it belongs to the encoder of an encoder-decoder.
        cross: Whether it is a cross-attention.
        heads: Its query heads.
        group: How many of them share a key-value head.
        sinks: Whether it has sinks.
        mixed: The module whose input is the attention's output [batch, query, head * value_dim], where there is one.
        route: For a mixture of experts: what its router says of an input.
        expert_outputs: For a mixture of experts: what each chosen expert makes of each of some tokens.
    """

    role: Role
    name: str
    module: nn.Module
    layer: int
    block: nn.Module | None = None
    source: bool = False
    cross: bool = False
    heads: int = 0
    group: int = 1
    sinks: bool = False
    mixed: nn.Module | None = None
    route: Callable[[Tensor], Routed] | None = None
    expert_outputs: Callable[[Tensor, Tensor], Tensor] | None = None


def own_points(model: nn.Module) -> Iterator[Point]:
    """Every place of a model made of glassformer's layers, in the order of its modules."""
    two_stacks = any(isinstance(module, CrossBlock) for module in model.modules())
    blocks: dict[str, nn.Module] = {}
    loose = 0
    for name, module in model.named_modules():
        inside = next((each for each in reversed(blocks) if name.startswith(f"{each}.")), None)
        if isinstance(module, Block | EncoderBlock | CrossBlock):
            source = two_stacks and isinstance(module, EncoderBlock)
            yield Point("block", name, module, layer_of(name, len(blocks)), module, source)
            ffn = module.ffn
            assert isinstance(ffn, nn.Module)
            at = f"{name}.ffn".removeprefix(".")
            yield Point("ffn", at, ffn, layer_of(name, len(blocks)), module, source)
            if isinstance(ffn, MixtureOfExperts | PackedMixture):
                route, outputs = _route(ffn), _expert_outputs(ffn)
                number = layer_of(name, len(blocks))
                yield Point("experts", at, ffn, number, module, source, route=route, expert_outputs=outputs)
            blocks[name] = module
        elif isinstance(module, GroupedQueryAttention | SingleHead):
            block = None if inside is None else blocks[inside]
            number = layer_of(name, loose) if inside is None else layer_of(inside, list(blocks).index(inside))
            loose += inside is None
            source = two_stacks and isinstance(block, EncoderBlock)
            cross = isinstance(block, CrossBlock) and module is block.cross_attention
            if isinstance(module, SingleHead):
                yield Point("attention", name, module, number, block, heads=1)
                continue
            group = module.num_heads // module.num_kv_heads
            sinks, mixed = module.sinks is not None, module.output
            yield Point("attention", name, module, number, block, source, cross, module.num_heads, group, sinks, mixed)


def layer_of(name: str, otherwise: int) -> int:
    """The number in a name like ``layers.3.attention``."""
    return next((int(part) for part in reversed(name.split(".")) if part.isdecimal()), otherwise)


def choose_points(
    points: Sequence[Point],
    what: str | Sequence[str],
    modules: Modules | None,
    layers: Selection | None,
    heads: Heads | None,
) -> dict[Point, tuple[int, ...]]:
    """The chosen places, each with its chosen heads.

    Raises:
        InputError: A thing, module, layer or head that there is not, or a choice of nothing.
    """
    kinds = (what,) if isinstance(what, str) else tuple(what)
    require(
        len(kinds) > 0 and all(kind in AXES for kind in kinds),
        f"what = {what!r}",
        f"one or more of {', '.join(AXES)}",
        "Choose among them.",
    )
    roles = {ROLES[kind] for kind in kinds}
    there = [point for point in points if point.role in roles]
    _require_kinds(kinds, there, "a model without any place for it")
    found = _by_name(there, modules)
    found = [point for point in found if layers is None or point.layer in _layers_of(layers, point, there)]
    chosen: dict[Point, tuple[int, ...]] = {}
    for point in found:
        if point.role != "attention":
            chosen[point] = ()
        elif not isinstance(heads, Mapping):
            chosen[point] = select("heads", heads, point.heads)
        else:
            given = {key: heads[key] for key in (point.layer, point.name) if key in heads}  # type: ignore[index]
            for selection in given.values():
                chosen[point] = select("heads", selection, point.heads)
    if isinstance(heads, Mapping):
        known = {key for point in there if point.role == "attention" for key in (point.layer, point.name)}
        unknown = [key for key in heads if key not in known]
        require(not unknown, f"heads of {unknown}", "layers or attention modules that there are", "Mend the keys.")
    _require_kinds(kinds, list(chosen), "a choice of no module")
    return chosen


def select(name: str, selection: Selection | None, count: int) -> tuple[int, ...]:
    """The numbers from 0 to ``count - 1`` that a selection means, ascending, each once.

    Raises:
        InputError: A number out of range, or something else than numbers.
    """
    if selection is None:
        return tuple(range(count))
    if isinstance(selection, slice):
        return tuple(sorted(range(count)[selection]))
    numbers = whole_numbers(name, selection)
    wrong = [number for number in numbers if not -count <= number < count]
    require(not wrong, f"{name} {wrong}", f"numbers from {-count} to {count - 1}", "Choose among them.")
    return tuple(sorted({number % count for number in numbers}))


def whole_numbers(name: str, selection: int | Sequence[int]) -> tuple[int, ...]:
    """One number or several, as a tuple.

    Raises:
        InputError: Anything else.
    """
    given = (selection,) if isinstance(selection, int) else selection
    fits = isinstance(given, Sequence) and not isinstance(given, str)
    if not fits or not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
        raise InputError(f"{name} = {selection!r}", "a whole number, several, or a slice", "Count from 0.")
    return tuple(given)


def _require_kinds(kinds: Sequence[str], points: Sequence[Point], got: str) -> None:
    for kind in kinds:
        fits = any(point.role == ROLES[kind] and (kind != "sinks" or point.sinks) for point in points)
        require(fits, f"what = {kind!r} and {got}", "something that can be seen", "Choose others, or another model.")


def _by_name(there: Sequence[Point], modules: Modules | None) -> list[Point]:
    known = ", ".join(dict.fromkeys(point.name for point in there))
    if modules is None:
        return list(there)
    if callable(modules):
        found = [point for point in there if modules(point.name, point.module)]
    else:
        require(not isinstance(modules, str), f"modules = {modules!r}", "a list of names", f"Write [{modules!r}].")
        names = {point: {name for name in modules if f"{point.name}.".startswith(f"{name}.")} for point in there}
        unknown = [name for name in modules if not any(name in each for each in names.values())]
        require(not unknown, f"modules {unknown}", f"names of modules that are seen: {known}", "Choose among them.")
        found = [point for point, matching in names.items() if matching]
    require(len(found) > 0, "a choice of no module", f"at least one of {known}", "Leave modules out to watch all.")
    return found


def _layers_of(layers: Selection, point: Point, there: Sequence[Point]) -> tuple[int, ...]:
    """The chosen layers of the stack that a place belongs to; one that only another stack has is left out."""
    counts = [max((each.layer for each in there if each.source == source), default=-1) + 1 for source in (False, True)]
    if not isinstance(layers, slice):
        longest = max(counts)
        select("layers", layers, longest)
        count = counts[point.source]
        layers = [number for number in whole_numbers("layers", layers) if -count <= number < count]
    return select("layers", layers, counts[point.source])


def _route(module: MixtureOfExperts | PackedMixture) -> Callable[[Tensor], Routed]:
    def route(x: Tensor) -> Routed:
        shares, choices, scores = module.router.choose(x)
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)), choices, shares

    return route


def _expert_outputs(module: MixtureOfExperts | PackedMixture) -> Callable[[Tensor, Tensor], Tensor]:
    def outputs(x: Tensor, choices: Tensor) -> Tensor:
        tokens, each = x.reshape(-1, x.shape[-1]), choices.reshape(-1, choices.shape[-1])
        tokens = tokens.to(autocast_dtype(tokens))  # as the mixture itself does
        ones = tokens.new_ones(len(tokens), 1)
        made = []
        for choice in each.split(1, dim=1):
            load = choice.flatten().bincount(minlength=module.num_experts)
            made.append(module.mix(tokens, ones, choice, load))
        return torch.stack(made, 1).view(*choices.shape, -1)

    return outputs
