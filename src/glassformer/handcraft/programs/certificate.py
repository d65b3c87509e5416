"""Whether a compiled program gives what its definition gives, on every sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.handcraft.programs.checker import Affine, LayerWeights, Network, check
from glassformer.handcraft.programs.domains import Domains
from glassformer.handcraft.programs.enumeration import Batch
from glassformer.handcraft.programs.graph import graph, sources_of
from glassformer.handcraft.programs.language import Elementwise, Select, Selector, Value, Variable, apply, tokens
from glassformer.handcraft.programs.model import CompiledProgram, compile_program
from glassformer.layers.feedforward import MLP, NoFeedForward

_NUMBERS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class ProgramCertificate:
    """The verdict on a compiled program, with the figures that support it.

    Attributes:
        verdict: "holds", "fails" with a counterexample, or "undecided".
        rests_on: "every sequence" was run; or "the bound" on errors, for weights that are those of the compiler, covers
            all; or "samples" were run, which prove nothing.
        dtype: In which the transformer was run.
        num_run: Sequences that were run, of ``num_different``.
        num_different: Of all ``num_possible`` sequences, how many differ by more than tokens that are alike, which
            neither the program nor the weights tell apart.
        num_undefined: Of these, on which the program has no value (a mean of values that are no numbers).
        num_wrong: Of all outputs, how many were read as another value.
        largest_error: Largest difference of an output from the number of its value.
        bound: Upper bound on that error for any sequence, see :mod:`~glassformer.handcraft.programs.bounds`; infinite
            if there is none, or if the weights are others than the compiler's.
        allowed: Half the least difference of two values' numbers; the tolerance if the output is the number itself.
        counterexample: The first sequence with a wrong output, its position, what was wanted and the number found.
    """

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: Literal["every sequence", "the bound", "samples"]
    dtype: str
    num_run: int
    num_different: int
    num_possible: int
    num_undefined: int
    num_wrong: int
    largest_error: float
    bound: float
    allowed: float
    counterexample: tuple[tuple[Value, ...], int, Value, float] | None

    def __str__(self) -> str:
        possible = f"{self.num_possible:,}"
        if self.num_different < self.num_possible:
            possible += f" ({self.num_different:,} but for tokens that are alike)"
        lines = [
            f"{self.verdict.upper()} ({self.dtype}; based on {self.rests_on})",
            f"  sequences run   {self.num_run:,} of {possible}, {self.num_undefined:,} without a value",
            f"  largest error   {self.largest_error:.3g}, at most {self.bound:.3g}, allowed: {self.allowed:.3g}",
        ]
        if self.counterexample is not None:
            sequence, position, wanted, got = self.counterexample
            lines.append(f"  counterexample  {list(sequence)}, position {position}: {got:.6g}, wanted {wanted!r}")
        return "\n".join(lines)


@torch.inference_mode()
def verify_program(model: CompiledProgram, *, tolerance: float = 1e-3, limit: int = 1_000_000) -> ProgramCertificate:
    """Run ``model`` on every sequence, shortest first, and compare it with its program.

    Where there are more than ``limit``, the shortest are run in search of a counterexample, and the bound decides.

    Args:
        model: From :func:`~glassformer.handcraft.programs.model.compile_program`, in any dtype.
        tolerance: The largest error of an output that is read as a number.
        limit: Most sequences to run.

    Raises:
        InputError: A model without its program, such as one that was read from a file.
    """
    require(tolerance > 0, f"tolerance = {tolerance}", "a positive number", "Pass the largest error to accept.")
    if model.program is None:
        raise InputError("a model without its program", "a program to compare it with", "Assign model.program.")

    def errors(ids: Tensor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        found = model(ids).double().numpy()
        return np.abs(found - model.wanted(batch)), found

    allowed = tolerance if model.allowed_error is None else model.allowed_error
    return certify(model, model.program, model.embedding.weight, errors, allowed, _bound(model, model.program), limit)


def certify(
    model: CompiledProgram,
    program: Variable,
    embedding: Tensor,
    errors: Callable[[Tensor, Batch], tuple[np.ndarray, np.ndarray]],
    allowed: float,
    bound: float,
    limit: int,
) -> ProgramCertificate:
    """The certificate of a program on the sequences of a model.

    ``embedding`` has a row for each token; ``errors`` gives the error and the number found at all positions.
    """
    require_positive(limit=limit)
    domains = model.domains
    letters, most = np.array(_different_tokens(domains, program, embedding)), domains.max_len
    different, possible = (
        sum(size**length for length in range(1, most + 1)) for size in (len(letters), len(domains.vocabulary))
    )
    run = undefined = wrong = 0
    largest, example = 0.0, None
    for block in _blocks(len(letters), most, limit):
        block = letters[block]
        batch = model.batch(block)
        error, found = errors(torch.from_numpy(block), batch)
        error = np.where(batch.defined[:, None], np.where(np.isnan(error), np.inf, error), 0.0)
        failed = error >= allowed
        run, undefined, wrong = run + len(block), undefined + int((~batch.defined).sum()), wrong + int(failed.sum())
        largest = max(largest, float(error.max()))
        if example is None and failed.any():
            row, position = (int(each) for each in np.argwhere(failed)[0])
            sequence = tuple(domains.vocabulary[token] for token in block[row])
            column, values = batch.column(program)
            example = sequence, position, values[column[row, position]], float(found[row, position])
    rests_on: Literal["every sequence", "the bound", "samples"] = "every sequence" if run == different else "samples"
    verdict: Literal["holds", "fails", "undecided"] = "undecided"
    if example is not None:
        verdict = "fails"
    elif run == different:
        verdict = "holds"
    elif bound < allowed:
        verdict, rests_on = "holds", "the bound"
    dtype = str(embedding.dtype).removeprefix("torch.")
    return ProgramCertificate(
        verdict, rests_on, dtype, run, different, possible, undefined, wrong, largest, bound, allowed, example
    )


def _different_tokens(domains: Domains, program: Variable, embedding: Tensor) -> list[int]:
    """Of tokens that neither the program nor the weights tell apart, the first."""
    readers = [node.part for node in graph(program) if any(each is tokens for each in sources_of(node.part))]

    def seen(part: Variable | Selector, token: Value) -> Value:
        if isinstance(part, Elementwise) and len(set(part.sources)) == 1:
            return apply(part, [token] * len(part.sources))
        if isinstance(part, Select):
            pairs = domains.table(part).items()
            as_key = [holds for (key, _), holds in pairs if part.keys is tokens and key == token]
            return as_key, [holds for (_, query), holds in pairs if part.queries is tokens and query == token]
        return token

    first: dict[str, int] = {}
    for place, (token, row) in enumerate(zip(domains.vocabulary, embedding.tolist(), strict=True)):
        whole = token if program is tokens else None
        first.setdefault(repr((row, whole, [seen(part, token) for part in readers])), place)
    return list(first.values())


def network_of(model: CompiledProgram) -> Network:
    """The weights of a compiled program as they are, for the checker.

    Raises:
        InputError: Modules that compute something else than :func:`~.model.make_block`'s.
    """
    layers = []
    for block in model.blocks:
        attention, ffn = block.attention, block.ffn
        plain = (
            type(block.attention_norm) is type(block.ffn_norm) is nn.Identity
            and block.attention_post_norm is block.ffn_post_norm is None
            and not block.parallel
            and attention.num_kv_heads == attention.num_heads
            and (attention.scale, attention.cap, attention.key_weights) == (None, None, None)
            and (attention.query_norm, attention.key_norm, attention.pattern.window) == (None, None, None)
            and attention.pattern.causal == model.domains.causal
            and (type(ffn) is NoFeedForward or (type(ffn) is MLP and ffn.activation == "relu"))
        )
        require(plain, "a block of another kind", "attention and a ReLU network without norms", "Compile it again.")
        sinks = None if attention.sinks is None else _array(attention.sinks)
        up, down = (_affine(ffn.up), _affine(ffn.down)) if isinstance(ffn, MLP) else (None, None)
        maps = (_affine(each) for each in (attention.query, attention.key, attention.value, attention.output))
        layers.append(LayerWeights(attention.num_heads, *maps, sinks, up, down))
    dtype = torch.finfo(model.output.weight.dtype)
    tables = _array(model.embedding.weight), _array(model.positions.weight)
    return Network(*tables, layers, _affine(model.output), dtype.eps / 2, dtype.tiny)


def _affine(linear: nn.Linear) -> Affine:
    return Affine(_array(linear.weight), _array(linear.bias))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def _blocks(letters: int, most: int, limit: int) -> Iterator[np.ndarray]:
    """Sequences of one length each, shorter ones first, ``limit`` in all."""
    for length in range(1, most + 1):
        count = min(letters**length, limit)
        limit -= count
        step = max(1, _NUMBERS_AT_ONCE // length**2 // 8)
        for start in range(0, count, step):
            numbers = np.arange(start, min(start + step, count))
            yield numbers[:, None] // letters ** np.arange(length)[::-1] % letters
