"""Interchange interventions: test where a network holds the variables of a program.

A variable is given the values that it has on another sequence: in the program, and in the network
by copying the coordinates of the residual stream that hold it. The two agree on a pair of sequences
if the network then gives the program's value at every position.

A program's variable may be computed at several places, where the compiler puts a function into the
network that reads it; exchanging one of them then does not change all of its readers.

Source: Geiger et al. 2021, "Causal Abstractions of Neural Networks", arXiv 2106.02997.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from glassformer.errors import InputError
from glassformer.observe.capture import capture
from glassformer.observe.edits import change
from glassformer.observe.intervene import intervene
from glassformer.programs.graph import graph
from glassformer.programs.language import Variable
from glassformer.programs.model import CompiledProgram
from glassformer.programs.parts import stream_variables

Tokens = Int64[Tensor, "sequence position"]


@dataclass(frozen=True)
class Place:
    """Coordinates of the residual stream at a time.

    They are indices of :class:`~glassformer.programs.model.Coordinate`.
    """

    time: int
    coordinates: tuple[int, ...]


def places(model: CompiledProgram) -> dict[str, Place]:
    """Return where each variable of a compiled program is first held.

    Embeddings and the program itself are left out.

    The share ``w / (w + 1)`` of a width is held earlier than the width.
    """
    first_places: dict[str, Place] = {}
    for held in stream_variables(model):
        candidates = (held.name, held.name.removeprefix("share of "))
        names = [name for name in candidates if _parts(model, name)]
        if held.born > 0 and names and names[0] != model.name:
            coordinates = tuple(coordinate.index for coordinate in held.coordinates)
            first_places.setdefault(names[0], Place(held.born, coordinates))
    return first_places


@torch.no_grad()
def exchange(
    model: CompiledProgram, place: Place, tokens: Tokens, source: Int64[Tensor, "source key"]
) -> Float[Tensor, "sequence position"]:
    """Return the output for ``tokens`` with the values at ``place`` taken from ``source``."""
    if tokens.shape != source.shape:
        raise InputError(
            got=f"tokens of shape {list(tokens.shape)}, a source of {list(source.shape)}",
            expected="equal shapes",
            fix="Exchange between sequences of one length.",
        )
    last = 2 * len(model.layers)
    width = model.embedding.embedding_dim
    has_coordinates = all(0 <= coordinate < width for coordinate in place.coordinates)
    if not has_coordinates or not 1 <= place.time <= last:
        raise InputError(
            got=f"{place}",
            expected=f"a time from 1 to {last} and coordinates below {width}",
            fix="Use places(model).",
        )
    site = ("residual_between", "residual")[(place.time - 1) % 2]
    layer = (place.time - 1) // 2
    with capture(model, what=site, layers=layer) as seen:
        model(source)
    of_source = seen.records[0].values
    coordinates = list(place.coordinates)

    def copied(values: Tensor) -> Tensor:
        values[..., coordinates] = of_source[..., coordinates]
        return values

    with intervene(model, change(site, copied, layers=layer)):
        return model(tokens)


@dataclass(frozen=True, eq=False)
class Exchange:
    """Pairs of sequences, and a program's output for the first with a variable of the second.

    Attributes:
        tokens: The first sequences of the pairs.
        source: The second sequences, of the same length.
        wanted: The numbers that stand for the program's values; see
            :meth:`~glassformer.programs.model.CompiledProgram.wanted`.
        allowed: Bound of the error: an output must differ from its number by less.
    """

    tokens: Tokens
    source: Tokens
    wanted: Float[np.ndarray, "sequence position"]
    allowed: float


def exchange_in_program(
    model: CompiledProgram, name: str, tokens: Tokens, source: Tokens
) -> Exchange:
    """Return the pairs on which exchanging a variable changes the program, with its new values.

    ``tokens`` and ``source`` are equally many sequences, all of one length.
    """
    allowed = model.allowed_error
    parts = _parts(model, name)
    if not parts:
        raise InputError(
            got=f"name = {name!r}",
            expected=f"one of {', '.join(places(model)) or 'none'}",
            fix="Use places(model).",
        )
    if allowed is None:
        raise InputError(
            got="a program whose output is a number",
            expected="one with listed values",
            fix="Map it to fewer values.",
        )
    before = model.wanted(model.batch(tokens.numpy()))
    other = model.batch(source.numpy())
    after = model.wanted(model.batch(tokens.numpy(), {part: other.column(part) for part in parts}))
    chosen = np.isfinite(before).all(1) & np.isfinite(after).all(1) & (before != after).any(1)
    return Exchange(tokens[chosen], source[chosen], after[chosen], allowed)


def agreement(model: CompiledProgram, place: Place, wanted: Exchange) -> float:
    """Return the share of pairs on which exchanging ``place`` gives the program's output.

    NaN if there are no pairs. ``model`` may have other weights than the compiled program that
    ``wanted`` is from.
    """
    if len(wanted.tokens) == 0:
        return math.nan
    output = exchange(model, place, wanted.tokens, wanted.source).double().numpy()
    return float((np.abs(output - wanted.wanted) < wanted.allowed).all(1).mean())


def _parts(model: CompiledProgram, name: str) -> list[Variable]:
    """Return the variables of a program that have a name, or compute the same as one with it."""
    if model.program is None:
        return []
    parts = [node.part for node in graph(model.program) if isinstance(node.part, Variable)]
    keys = {model.domains.key(part) for part in parts if str(part) == name}
    return [part for part in parts if model.domains.key(part) in keys]
