"""Interchange interventions: whether a network holds a program's variable where the compiler put it.

A variable is given the values that it has on another sequence: in the program, and in the network by copying the
coordinates of the residual stream that hold it. The two agree on a pair of sequences if the network then gives the
program's value at every position.

Source: Geiger et al. 2021, "Causal Abstractions of Neural Networks", arXiv 2106.02997.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.errors import require
from glassformer.handcraft.programs.graph import graph
from glassformer.handcraft.programs.language import Variable
from glassformer.handcraft.programs.model import CompiledProgram
from glassformer.handcraft.programs.parts import stream_variables
from glassformer.observe.capture import capture
from glassformer.observe.edits import change
from glassformer.observe.intervene import intervene

Tokens = Int64[Tensor, "sequence position"]


@dataclass(frozen=True)
class Place:
    """Coordinates of the residual stream at a time, as of :class:`~glassformer.handcraft.programs.model.Coordinate`."""

    time: int
    coordinates: tuple[int, ...]


def places(model: CompiledProgram) -> dict[str, Place]:
    """Where each variable of a compiled program is first held, embeddings and the program itself left out.

    The share ``w / (w + 1)`` of a width is held earlier than the width.
    """
    found: dict[str, Place] = {}
    for each in stream_variables(model):
        names = [name for name in (each.name, each.name.removeprefix("share of ")) if _parts(model, name)]
        if each.born > 0 and names and names[0] != model.name:
            found.setdefault(names[0], Place(each.born, tuple(one.index for one in each.coordinates)))
    return found


@torch.no_grad()
def exchange(
    model: CompiledProgram, place: Place, tokens: Tokens, source: Int64[Tensor, "source key"]
) -> Float[Tensor, "sequence position"]:
    """The output for ``tokens`` with what is at ``place`` for ``source``, at every position.

    Raises:
        InputError: Sequences of different shapes, a time of the embedding or the output, or coordinates out of range.
    """
    shapes = f"tokens of shape {list(tokens.shape)}, a source of {list(source.shape)}"
    require(tokens.shape == source.shape, shapes, "equal shapes", "Exchange between sequences of one length.")
    last, width = 2 * len(model.layers), model.embedding.embedding_dim
    fits = 1 <= place.time <= last and all(0 <= each < width for each in place.coordinates)
    require(fits, f"{place}", f"a time from 1 to {last} and coordinates below {width}", "Use places(model).")
    site, layer = ("residual_between", "residual")[(place.time - 1) % 2], (place.time - 1) // 2
    with capture(model, what=site, layers=layer) as seen:
        model(source)
    given, chosen = seen.records[0].values, list(place.coordinates)

    def copied(values: Tensor) -> Tensor:
        values[..., chosen] = given[..., chosen]
        return values

    with intervene(model, change(site, copied, layers=layer)):
        return model(tokens)


def exchanged(
    reference: CompiledProgram, name: str, tokens: Tokens, source: Tokens
) -> tuple[Float[np.ndarray, "sequence position"], Bool[np.ndarray, " sequence"]]:
    """The numbers that the program gives for ``tokens`` with the variable ``name`` as it is for ``source``.

    Returns:
        The numbers, and for which sequences the exchange changes any of them.

    Raises:
        InputError: No variable of this name, or a model without its program.
    """
    parts = _parts(reference, name)
    require(len(parts) > 0, f"name = {name!r}", f"one of {', '.join(places(reference))}", "Use places(model).")
    before = reference.wanted(reference.batch(tokens.numpy()))
    column = reference.batch(source.numpy()).column(parts[0])
    after = reference.wanted(reference.batch(tokens.numpy(), dict.fromkeys(parts, column)))
    known = np.isfinite(before).all(1) & np.isfinite(after).all(1)
    return after, known & (before != after).any(1)


def agreement(
    model: CompiledProgram, reference: CompiledProgram, name: str, place: Place, tokens: Tokens, source: Tokens
) -> float:
    """The share of pairs on which exchanging ``place`` gives what exchanging ``name`` in the program gives.

    Pairs of sequences for which that changes no value of the program are left out; NaN if none is left.

    Args:
        model: The network: ``reference`` itself, or one of its shape with other weights.
        reference: The compiled program, which gives the numbers that stand for values.
        name: A variable of the program.
        place: Where the network is said to hold it.
        tokens: Sequences of one length.
        source: As many sequences of the same length.
    """
    wanted, chosen = exchanged(reference, name, tokens, source)
    if not chosen.any():
        return float("nan")
    rows = torch.from_numpy(chosen)
    output = exchange(model, place, tokens[rows], source[rows]).double().numpy()
    return float((np.abs(output - wanted[chosen]) < _allowed(reference)).all(1).mean())


def most_agreeing(
    model: CompiledProgram, reference: CompiledProgram, name: str, count: int, tokens: Tokens, source: Tokens
) -> Place:
    """The place of ``count`` coordinates with the largest :func:`agreement`, found one coordinate after the other.

    At each time the coordinate that adds most is taken next; of equal places the latest.
    """
    best, found = -1.0, Place(1, ())
    for time in range(1, 2 * len(model.layers) + 1):
        taken: tuple[int, ...] = ()
        share = 0.0
        for _ in range(count):
            left = [each for each in range(model.embedding.embedding_dim) if each not in taken]
            tried = [(*taken, each) for each in left]
            shares = [agreement(model, reference, name, Place(time, each), tokens, source) for each in tried]
            share = max(shares)
            taken = tried[shares.index(share)]
        if share >= best:
            best, found = share, Place(time, taken)
    return found


def _allowed(reference: CompiledProgram) -> float:
    allowed = reference.allowed_error
    require(allowed is not None, "a program whose output is a number", "one with listed values", "Map it to values.")
    assert allowed is not None
    return allowed


def _parts(model: CompiledProgram, name: str) -> list[Variable]:
    """The variables of a program that compute what the one of this name does."""
    if model.program is None:
        return []
    parts = [node.part for node in graph(model.program) if isinstance(node.part, Variable)]
    keys = {model.domains.key(part) for part in parts if str(part) == name}
    return [part for part in parts if model.domains.key(part) in keys]
