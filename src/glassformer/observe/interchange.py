"""Interchange interventions: whether a network holds a program's variable where the compiler put
it.

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
    """Coordinates of the residual stream at a time, as of
    :class:`~glassformer.programs.model.Coordinate`.
    """

    time: int
    coordinates: tuple[int, ...]


def places(model: CompiledProgram) -> dict[str, Place]:
    """Where each variable of a compiled program is first held, embeddings and the program itself
    left out.

    The share ``w / (w + 1)`` of a width is held earlier than the width.
    """
    found: dict[str, Place] = {}
    for each in stream_variables(model):
        names = [
            name for name in (each.name, each.name.removeprefix("share of ")) if _parts(model, name)
        ]
        if each.born > 0 and names and names[0] != model.name:
            found.setdefault(
                names[0], Place(each.born, tuple(one.index for one in each.coordinates))
            )
    return found


@torch.no_grad()
def exchange(
    model: CompiledProgram, place: Place, tokens: Tokens, source: Int64[Tensor, "source key"]
) -> Float[Tensor, "sequence position"]:
    """The output for ``tokens`` with what is at ``place`` for ``source``, at every position."""
    if tokens.shape != source.shape:
        raise InputError(
            got=f"tokens of shape {list(tokens.shape)}, a source of {list(source.shape)}",
            expected="equal shapes",
            fix="Exchange between sequences of one length.",
        )
    last = 2 * len(model.layers)
    width = model.embedding.embedding_dim
    fits = 1 <= place.time <= last and all(0 <= each < width for each in place.coordinates)
    if not fits:
        raise InputError(
            got=f"{place}",
            expected=f"a time from 1 to {last} and coordinates below {width}",
            fix="Use places(model).",
        )
    site = ("residual_between", "residual")[(place.time - 1) % 2]
    layer = (place.time - 1) // 2
    with capture(model, what=site, layers=layer) as seen:
        model(source)
    given = seen.records[0].values
    chosen = list(place.coordinates)

    def copied(values: Tensor) -> Tensor:
        values[..., chosen] = given[..., chosen]
        return values

    with intervene(model, change(site, copied, layers=layer)):
        return model(tokens)


@dataclass(frozen=True, eq=False)
class Exchange:
    """Pairs of sequences, and what a program gives for the first with a variable as it is for the
    second.

    Attributes:
        tokens: The first sequences of the pairs.
        source: The second ones, of the same length.
        wanted: The numbers that stand for the program's values; see
            :meth:`~glassformer.programs.model.CompiledProgram.wanted`.
        allowed: By how much less than this an output may differ from its number.
    """

    tokens: Tokens
    source: Tokens
    wanted: Float[np.ndarray, "sequence position"]
    allowed: float


def exchange_in_program(
    model: CompiledProgram, name: str, tokens: Tokens, source: Tokens
) -> Exchange:
    """The pairs on which exchanging a variable changes a value of the program, with the values that
    it then has.

    ``tokens`` and ``source`` are equally many sequences, all of one length.
    """
    allowed = model.allowed_error
    parts = _parts(model, name)
    if len(parts) <= 0:
        raise InputError(
            got=f"name = {name!r}",
            expected=f"one of {', '.join(places(model)) or 'none'}",
            fix="Use places(model).",
        )
    if allowed is None:
        raise InputError(
            "a program whose output is a number",
            "one with listed values",
            "Map it to fewer values.",
        )
    before = model.wanted(model.batch(tokens.numpy()))
    other = model.batch(source.numpy())
    after = model.wanted(model.batch(tokens.numpy(), {part: other.column(part) for part in parts}))
    chosen = np.isfinite(before).all(1) & np.isfinite(after).all(1) & (before != after).any(1)
    return Exchange(tokens[chosen], source[chosen], after[chosen], allowed)


def agreement(model: CompiledProgram, place: Place, wanted: Exchange) -> float:
    """The share of pairs on which exchanging ``place`` in the network gives what the program gives,
    at every position.

    NaN if there are no pairs. ``model`` may have other weights than the compiled program that
    ``wanted`` is from.
    """
    if len(wanted.tokens) == 0:
        return math.nan
    output = exchange(model, place, wanted.tokens, wanted.source).double().numpy()
    return float((np.abs(output - wanted.wanted) < wanted.allowed).all(1).mean())


def _parts(model: CompiledProgram, name: str) -> list[Variable]:
    """The variables of a program that have this name, or compute what one of this name does."""
    if model.program is None:
        return []
    parts = [node.part for node in graph(model.program) if isinstance(node.part, Variable)]
    keys = {model.domains.key(part) for part in parts if str(part) == name}
    return [part for part in parts if model.domains.key(part) in keys]
