"""Whether a compiled program gives what its definition gives, on every sequence."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require, require_positive
from glassformer.handcraft.bounds import require_as_built
from glassformer.handcraft.sequences import format_count
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.programs.checker import Affine, LayerClaim, LayerWeights, Network, check
from glassformer.programs.compiler import compile_program
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch, blocks
from glassformer.programs.graph import graph, values_in_words
from glassformer.programs.language import (
    Aggregate,
    Elementwise,
    Select,
    Selector,
    Value,
    Variable,
    apply,
    is_number,
    tokens,
    typed,
)
from glassformer.programs.model import CompiledProgram, make_block


@dataclass(frozen=True)
class ProgramCertificate:
    """The verdict on a compiled program, with the figures that support it.

    It covers the numbers that the transformer computes and the values that are read from them, for sequences of 1 to
    ``max_len`` tokens of ``vocabulary``; not the names of heads and coordinates.

    Attributes:
        verdict: "holds" wherever the definition has a value, "fails" with a counterexample, or "undecided".
        rests_on: "every sequence" was run; or "the bound" of :mod:`~glassformer.programs.checker` covers all;
            or "samples" were run, which prove nothing.
        causal: Whether queries see only keys up to their own position.
        limit: How many sequences might be run.
        num_run: Sequences that were run, of ``num_different``.
        num_different: Of all ``num_possible`` sequences, how many differ by more than tokens that are alike, which
            neither the program nor the weights tell apart.
        num_undefined: Of those that were run, on which the program has no value (a mean of values that have none).
        may_lack_values: Whether there can be such sequences among the others.
        num_wrong: Of all outputs, how many were read as another value.
        largest_error: Largest difference of an output from the number of its value.
        bound: Upper bound on that error for any sequence; infinite if there is none.
        allowed: Half the least difference of two values' numbers; the tolerance if the output is the number itself.
        counterexample: The first sequence with a wrong output, its position, what was wanted and the number found.
        reason: Why there is no bound, or why not every sequence was run.
    """

    verdict: Literal["holds", "fails", "undecided"]
    rests_on: Literal["every sequence", "the bound", "samples"]
    dtype: str
    vocabulary: tuple[Value, ...]
    max_len: int
    causal: bool
    limit: int
    num_run: int
    num_different: int
    num_possible: int
    num_undefined: int
    may_lack_values: bool
    num_wrong: int
    largest_error: float
    bound: float
    allowed: float
    counterexample: tuple[tuple[Value, ...], int, Value, float] | None
    reason: str = ""

    def __str__(self) -> str:
        possible = format_count(self.num_possible)
        if self.num_different < self.num_possible:
            possible += f" ({format_count(self.num_different)} but for tokens that are alike)"
        partly = self.num_undefined > 0 or (self.may_lack_values and self.rests_on != "every sequence")
        where = " wherever the definition has a value" if self.verdict == "holds" and partly else ""
        seen = "only keys up to the query" if self.causal else "all keys"
        bound = f"at most {self.bound:.3g}" if math.isfinite(self.bound) else "no bound"
        lines = [
            f"{self.verdict.upper()}{where} ({self.dtype}; based on {self.rests_on})",
            f"  covers          1 to {self.max_len} tokens of {values_in_words(self.vocabulary)}; queries see {seen}",
            "  not covered     names of heads and coordinates",
            f"  sequences run   {self.num_run:,} of {possible}, {self.num_undefined:,} without a value",
            f"  largest error   {self.largest_error:.3g}, {bound}, allowed: {self.allowed:.3g}",
        ]
        if self.reason and self.verdict == "undecided":
            lines.append(f"  why             {self.reason}")
        if self.counterexample is not None:
            sequence, position, wanted, got = self.counterexample
            lines.append(f"  counterexample  {list(sequence)}, position {position}: {got:.6g}, wanted {wanted!r}")
        return "\n".join(lines)


@torch.inference_mode()
def verify_program(
    model: CompiledProgram, *, tolerance: float = 1e-3, limit: int = 1_000_000, seconds: float = math.inf
) -> ProgramCertificate:
    """Run ``model`` on every sequence, shortest first, and compare it with its program.

    Where there are more than ``limit``, or ``seconds`` are over, the shortest are run in search of a counterexample,
    and the bound decides. Sequences are run in batches, on which rounding may depend: without a bound some are run
    alone too, and errors may be half of what is allowed.

    Args:
        model: From :func:`~glassformer.programs.compiler.compile_program`, in any dtype; its weights may have been
            changed.
        tolerance: The largest error of an output that is read as a number.
        seconds: Time after which the verdict is undecided, if there is none before. A step in progress is not
            interrupted.

    Raises:
        RuntimeError: An error above the bound, which cannot be: there is a fault in the checker.
    """
    require_as_built(model, CompiledProgram)
    for name, number in (("tolerance", tolerance), ("seconds", seconds)):
        ok = isinstance(number, int | float) and number > 0 and (name == "seconds" or number < math.inf)
        require(ok, f"{name} = {number}", "a positive number", "Pass another one.")
    require_positive(limit=limit)
    program, domains, codes = model.require_program(), model.domains, model.codes
    model.require_codes()
    network, deadline = network_of(model), time.monotonic() + seconds
    allowed = tolerance if model.allowed_error is None else model.allowed_error
    bound, reason = check(network, domains, program, codes, _claims(model), deadline)

    def run(ids: np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray, np.ndarray]:
        """The definition on some sequences, the model's outputs, their errors, and which are wrong."""
        batch, outputs = model.batch(ids), model(torch.from_numpy(ids)).double().numpy()
        error = np.abs(outputs - model.wanted(batch))
        wrong = ~(error < allowed) if codes is None else model.misread(outputs, *batch.column(program))
        defined = batch.defined[:, None]
        return batch, outputs, np.where(defined, np.where(np.isnan(error), np.inf, error), 0.0), wrong & defined

    letters, most = np.array(_different_tokens(domains, program, model.embedding.weight)), domains.max_len
    different, possible = (
        sum(size**length for length in range(1, most + 1)) for size in (len(letters), len(domains.vocabulary))
    )
    done = undefined = num_wrong = 0
    largest, example = 0.0, None
    for block in blocks(len(letters), most, limit):
        if time.monotonic() > deadline:
            reason = "; ".join(dict.fromkeys(filter(None, ("the time was over", reason))))
            break
        block = letters[block]
        batch, _, error, wrong = run(block)
        done, num_wrong = done + len(block), num_wrong + int(wrong.sum())
        undefined += int((~batch.defined).sum())
        largest = max(largest, float(error.max()))
        # Rounding may depend on what else is in a batch: what is wrong, or else some of them, are run alone.
        some = np.arange(0, len(block) if bound >= allowed else 0, 1 + len(block) // 16)
        if wrong.any():
            some = np.flatnonzero(wrong.any(1))[:1]
        for row in some if example is None else ():
            batch, outputs, error, mistaken = run(block[[row]])
            largest = max(largest, float(error.max()))
            if mistaken.any():
                position, (column, values) = int(mistaken[0].argmax()), batch.column(program)
                sequence = tuple(domains.vocabulary[token] for token in block[row])
                example = sequence, position, values[column[0, position]], float(outputs[0, position])
                num_wrong += 0 if wrong.any() else int(mistaken.sum())
                break
    if largest > bound:
        raise RuntimeError(f"an error of {largest}, above the bound of {bound}: the checker is wrong")
    rests_on: Literal["every sequence", "the bound", "samples"] = "every sequence" if done == different else "samples"
    verdict: Literal["holds", "fails", "undecided"] = "undecided"
    if example is not None:
        verdict = "fails"
    elif bound < allowed:
        verdict, rests_on = "holds", "the bound" if done < different else "every sequence"
    elif done == different and not num_wrong and largest <= allowed / 2:
        verdict = "holds"
    elif done == different:
        reason = "errors near what is allowed, which rounding in another batch may exceed"
    elif not reason:
        reason = "the bound is above what is allowed"
    return ProgramCertificate(
        verdict=verdict,
        rests_on=rests_on,
        dtype=str(model.embedding.weight.dtype).removeprefix("torch."),
        vocabulary=tuple(domains.vocabulary),
        max_len=most,
        causal=domains.causal,
        limit=limit,
        num_run=done,
        num_different=different,
        num_possible=possible,
        num_undefined=undefined,
        may_lack_values=_may_lack_values(domains, program),
        num_wrong=num_wrong,
        largest_error=largest,
        bound=bound,
        allowed=allowed,
        counterexample=example,
        reason=reason,
    )


def _claims(model: CompiledProgram) -> Sequence[LayerClaim]:
    """What the compiler says that the weights are for."""
    if model.claims is not None:
        return model.claims
    program, domains = model.require_program(), model.domains
    try:
        return compile_program(program, domains.vocabulary, domains.max_len, causal=domains.causal).claims or ()
    except InputError:
        return ()


def _may_lack_values(domains: Domains, program: Variable) -> bool:
    """Whether different values without a mean may be selected somewhere."""
    for part in (node.part for node in graph(program)):
        if isinstance(part, Aggregate) and not domains.single(part.selector):
            values = domains.of(part.values)
            if part.single or (values is not None and not all(map(is_number, values))):
                return True
    return False


def _different_tokens(domains: Domains, program: Variable, embedding: Tensor) -> list[int]:
    """Of tokens that neither the program nor the weights tell apart, the first."""
    readers = [node.part for node in graph(program) if any(each is tokens for each in node.part.reads)]

    def seen(part: Variable | Selector, token: Value) -> Any:
        if isinstance(part, Elementwise) and len(set(part.sources)) == 1:
            return typed(apply(part, [token] * len(part.sources)))
        if isinstance(part, Select):
            table, place = domains.table(part), domains.place(tokens, token)
            as_key = table[:, place].tobytes() if part.keys is tokens else b""
            return as_key, table[place].tobytes() if part.queries is tokens else b""
        return typed(token)

    first: dict[Any, int] = {}
    for place, (token, row) in enumerate(zip(domains.vocabulary, embedding.tolist(), strict=True)):
        whole = typed(token) if program is tokens else None
        first.setdefault((tuple(row), whole, *(seen(part, token) for part in readers)), place)
    return list(first.values())


def network_of(model: CompiledProgram) -> Network:
    """The weights of a compiled program as they are, for the checker."""
    layers, domains = [], model.domains
    tokens, most = len(model.embedding.weight), len(model.positions.weight)
    fits = tokens == len(domains.vocabulary) and most >= domains.max_len
    got, wanted = f"embeddings of {tokens} tokens and {most} positions", "those of the vocabulary and of max_len"
    require(fits, got, wanted, "Compile the program for these sequences.")
    for block in model.blocks:
        attention, ffn = block.attention, block.ffn
        units = ffn.up.out_features if isinstance(ffn, MLP) else 0
        sinks = None if attention.sinks is None else _array(attention.sinks)
        sizes = model.embedding.embedding_dim, attention.num_heads, attention.head_dim, units
        with torch.device("meta"):
            like = make_block(*sizes, causal=domains.causal, sinks=sinks is not None)
        require_as_built(block, Block, like=like)
        up, down = (_affine(ffn.up), _affine(ffn.down)) if isinstance(ffn, MLP) else (None, None)
        q, k, v, out = map(_affine, (attention.query, attention.key, attention.value, attention.output))
        layers.append(LayerWeights(attention.num_heads, q, k, v, out, sinks, up, down))
    kinds = [torch.finfo(each.dtype) for each in model.parameters()]
    limits = max(each.eps for each in kinds) / 2, max(each.tiny for each in kinds), min(each.max for each in kinds)
    tables = _array(model.embedding.weight), _array(model.positions.weight)
    return Network(*tables, layers, _affine(model.output), *limits)


def _affine(linear: nn.Linear) -> Affine:
    require(
        linear.bias is not None, "a linear layer without a bias", "one, which may be zero", "Set its bias to zeros."
    )
    return Affine(_array(linear.weight), _array(linear.bias))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
