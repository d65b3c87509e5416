"""Compiled programs whose outputs are near what decides, and their outputs in exact arithmetic and
in batches.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch

from glassformer.errors import InputError
from glassformer.kernels import plain
from glassformer.programs import CompiledProgram, compile_program
from glassformer.programs.certificate import ProgramCertificate, network_of
from glassformer.programs.checker import Affine, Network
from glassformer.programs.language import typed
from random_programs import RandomPrograms

Rows = list[list[Any]]

DIGITS = 60


def exact_outputs(network: Network, ids: Sequence[int], causal: bool) -> list[Any]:
    """The outputs for a sequence with 60 digits."""
    with mpmath.workdps(DIGITS):
        pairs = [(network.embedding[token], network.positions[at]) for at, token in enumerate(ids)]
        x = [
            [mpmath.mpf(a) + mpmath.mpf(b) for a, b in zip(*map(list, pair), strict=True)]
            for pair in pairs
        ]
        for layer in network.layers:
            q, k, v = (_linear(x, each) for each in (layer.query, layer.key, layer.value))
            dim = len(q[0]) // layer.num_heads
            wide = len(v[0]) // layer.num_heads
            mixed: Rows = [[] for _ in x]
            for head in range(layer.num_heads):
                part = slice(head * dim, (head + 1) * dim)
                values = slice(head * wide, (head + 1) * wide)
                for at, query in enumerate(q):
                    keys = range(at + 1 if causal else len(x))
                    scores = [
                        mpmath.fdot(query[part], k[key][part]) / mpmath.sqrt(dim) for key in keys
                    ]
                    sink = [] if layer.sinks is None else [mpmath.mpf(float(layer.sinks[head]))]
                    largest = max(scores + sink)
                    weights = [mpmath.exp(score - largest) for score in scores]
                    total = mpmath.fsum(weights) + mpmath.fsum(
                        mpmath.exp(score - largest) for score in sink
                    )
                    columns = zip(*(v[key][values] for key in keys), strict=True)
                    mixed[at] += [mpmath.fdot(weights, column) / total for column in columns]
            x = _added(x, _linear(mixed, layer.output))
            if layer.up is not None and layer.down is not None:
                hidden = [
                    [max(number, mpmath.mpf(0)) for number in row] for row in _linear(x, layer.up)
                ]
                x = _added(x, _linear(hidden, layer.down))
        return [row[0] for row in _linear(x, network.output)]


def _linear(x: Rows, map: Affine) -> Rows:
    rows = [
        [(place, mpmath.mpf(weight)) for place, weight in enumerate(row) if weight]
        for row in map.weight.tolist()
    ]
    biases = [mpmath.mpf(bias) for bias in map.bias.tolist()]
    return [
        [
            mpmath.fsum([bias, *(each[place] * weight for place, weight in row)])
            for row, bias in zip(rows, biases, strict=True)
        ]
        for each in x
    ]


def _added(x: Rows, y: Rows) -> Rows:
    return [
        [one + other for one, other in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)
    ]


class Outputs(NamedTuple):
    """The outputs of all sequences of one length, by one way of computing them."""

    name: str
    ids: np.ndarray
    numbers: list[list[Any]]


def of_every_path(model: CompiledProgram, ids: np.ndarray) -> Iterator[Outputs]:
    """The outputs of these sequences by each way of computing them."""
    network = network_of(model)
    yield Outputs(
        "exact", ids, [exact_outputs(network, row.tolist(), model.domains.causal) for row in ids]
    )
    with torch.inference_mode():
        tokens = torch.from_numpy(ids)
        yield Outputs("batch", ids, model(tokens).double().tolist())
        yield Outputs("reversed", ids, model(tokens.flip(0)).flip(0).double().tolist())
        yield Outputs("alone", ids, [model(row[None])[0].double().tolist() for row in tokens])
        longer = torch.nn.functional.pad(tokens, (0, 1))
        if longer.shape[1] <= model.domains.max_len:
            real = (torch.arange(longer.shape[1]) < tokens.shape[1]).expand(longer.shape)
            padded = model(longer, key_padding=real)[:, : tokens.shape[1]]
            yield Outputs("padded", ids, padded.double().tolist())
        with plain():
            yield Outputs("definition", ids, model(tokens).double().tolist())
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        wide = model.double()(tokens).tolist()
        model.to(next(iter(state.values())).dtype).load_state_dict(state)
        yield Outputs("float64", ids, wide)


def is_read(model: CompiledProgram, number: Any, wanted: Any, tolerance: float) -> bool:
    """Whether a number is read as a value, without NumPy."""
    with mpmath.workdps(700):  # which hold sums of any two floats
        if model.codes is None:
            return bool(abs(number - mpmath.mpf(float(wanted))) < tolerance)
        nearest = min(model.codes, key=lambda code: abs(mpmath.mpf(code[0]) - number))
    return bool(typed(nearest[1]) == typed(wanted))


def contradictions(
    model: CompiledProgram, certificate: ProgramCertificate, tolerance: float = 1e-3
) -> list[str]:
    """What contradicts a certificate: a wrong output where it holds, a right one where it fails."""
    if certificate.verdict == "undecided":
        return []
    found = []
    size = len(model.domains.vocabulary)
    program = model.require_program()
    for length in range(1, model.domains.max_len + 1):
        ids = np.array(list(itertools.product(range(size), repeat=length)))
        if certificate.counterexample is not None:
            tokens = [typed(token) for token in certificate.counterexample[0]]
            ids = np.array(
                [
                    row
                    for row in ids
                    if [typed(model.domains.vocabulary[token]) for token in row] == tokens
                ]
            )
            if not len(ids):
                continue
        for outputs in of_every_path(model, ids):
            for row, numbers in zip(ids, outputs.numbers, strict=True):
                sequence = [model.domains.vocabulary[token] for token in row]
                try:
                    wanted = program(sequence, causal=model.domains.causal)
                except InputError:
                    continue
                right = [
                    is_read(model, number, value, tolerance)
                    for number, value in zip(numbers, wanted, strict=True)
                ]
                if certificate.counterexample is None and not all(right):
                    found.append(f"{outputs.name}: {sequence} gives {numbers}")
                if certificate.counterexample is not None and right[certificate.counterexample[1]]:
                    found.append(f"{outputs.name}: {sequence} is right")
    return found


def near_border(seed: int) -> tuple[CompiledProgram, float] | None:
    """A random program of which an output is near another reading, and its tolerance; None if it
    does not compile.
    """
    draw = random.Random(seed)
    programs = RandomPrograms(seed)
    letters = isinstance(programs.vocabulary[0], str) and draw.random() < 0.5
    dtype = torch.float32 if draw.random() < 0.25 else torch.float64
    try:
        program = programs.variable(draw.choice([0, 1, 1, 2]), letters=letters)
        model = compile_program(
            program,
            programs.vocabulary[:2],
            draw.choice([2, 3]),
            causal=draw.random() < 0.3,
            dtype=dtype,
        )
    except InputError:
        return None
    if sum(parameter.numel() for parameter in model.parameters()) > 2000:
        return None
    if draw.random() < 0.6:
        model.claims = ()
    tolerance = 1e-3
    with torch.no_grad():
        for _ in range(draw.choice([1, 1, 2])):
            _move(model, draw)
    return model, tolerance


def _move(model: CompiledProgram, draw: random.Random) -> None:
    """Move outputs to a border, add what cancels, or change a weight a little."""
    kind = draw.randrange(5)
    allowed = model.allowed_error
    near = draw.choice([0.0, 0.0, 1.0, -1.0]) * 10.0 ** draw.uniform(-17, -6)
    border = 1e-3 if allowed is None else min(allowed, 1e3)
    if kind <= 1:
        model.output.bias += draw.choice([1, -1]) * border * (1 + near) + near
    elif kind == 2:
        large = draw.choice([1, -1]) * 10.0 ** draw.uniform(3, 18)
        column = draw.randrange(model.embedding.embedding_dim)
        model.positions.weight[:, column] += large
        model.output.bias -= model.output.weight[0, column] * large
    elif kind == 3:
        scale = 10.0 ** draw.choice([-290, -200, -30, 30, 200])
        if abs(math.log10(scale)) < 40 or model.output.weight.dtype == torch.float64:
            model.output.weight *= scale
            model.output.bias *= scale
            if model.codes is not None:
                model.codes = [(number * scale, value) for number, value in model.codes]
    else:
        weight = draw.choice([each for each in model.parameters() if each.numel()])
        place = draw.randrange(weight.numel())
        weight.view(-1)[place] += draw.choice([1, -1]) * 10.0 ** draw.uniform(-16, 1)
