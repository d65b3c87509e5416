"""Whether a compiled program gives what its definition gives, on every sequence."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, require_as_built
from glassformer.handcraft.proof_settings import proof_settings
from glassformer.handcraft.sequences import format_count
from glassformer.handcraft.subject import DefinitionDigest, Subject, weights_digest
from glassformer.layers.blocks import Block
from glassformer.layers.feedforward import MLP
from glassformer.processor_time import Budget
from glassformer.programs.checker import Affine, LayerClaim, LayerWeights, Network, check
from glassformer.programs.compiler import compile_program
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import blocks
from glassformer.programs.graph import draw_graph, graph, values_in_words
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
from glassformer.programs.rounding import Ball, outputs_within
from glassformer.text import rounded_up

_OF_A_DIFFERENCE = 2.0**-50
"""More than the relative rounding of a difference in float64, and of a mean of two codes."""
_RESERVE = 8
"""By how much rounding may be larger than was measured, where no bound is small enough."""

Example = tuple[tuple[Value, ...], int, Value, float]
"""A sequence, a position in it, the value that is wanted there, and the number that was computed.
"""


@dataclass(frozen=True)
class ProgramCertificate:
    """The verdict on a compiled program, with the figures that support it.

    It covers the numbers that the transformer computes and the values that are read from them, for
    sequences of 1 to ``max_len`` tokens of ``vocabulary``; not the names of heads and coordinates.

    Attributes:
        subject: The weights, program and criterion that it is about.
        verdict: "holds" wherever the definition has a value, "fails" with a counterexample, or
            "undecided". The first two are so in exact arithmetic and for every way of computing the
            model in its dtype.
        rests_on: "every sequence" was run; or "the bound" of :mod:`~glassformer.programs.checker`
            covers all; or "samples" were run, which prove nothing.
        causal: Whether queries see only keys up to their own position.
        limit: How many sequences might be run.
        num_run: Sequences that were run, of ``num_different``.
        num_different: Of all ``num_possible`` sequences, how many differ by more than tokens that
            are alike, which neither the program nor the weights tell apart.
        num_undefined: Of those that were run, on which the program has no value (a mean of values
            that have none).
        may_lack_values: Whether there can be such sequences among the others.
        num_wrong: Of all outputs, how many were read as another value.
        num_undecided: Of all outputs, for how many rounding decides how they are read.
        largest_error: Largest difference of an output from the number of its value.
        bound: Upper bound on that error for any sequence; infinite if there is none.
        allowed: Half the least difference of two values' numbers; the tolerance if the output is
            the number itself.
        counterexample: The first sequence with a wrong output, its position, what was wanted and
            the number found.
        reason: Why there is no bound, or why not every sequence was run.
        undecided: The first sequence with an output for which rounding decides; as
            ``counterexample``.
        rounding: How far other ways of computing that output may be from it.
        measured: None where rounding was bounded. Otherwise, for dtypes other than float64, the
            largest distance of an output from the exact one that was seen. Exact outputs are
            bounded; they are right by at least half of what is allowed, and by eight times this
            distance.
    """

    subject: Subject
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
    num_undecided: int
    largest_error: float
    bound: float
    allowed: float
    counterexample: Example | None
    reason: str = ""
    undecided: Example | None = None
    rounding: float = 0.0
    measured: float | None = None

    def require_subject(self, model: CompiledProgram) -> None:
        """Refuse to speak of another model or program, by what the certificate's subject names.

        Raises:
            InputError: Other weights, tokens, length, codes or another program. They are named.
        """
        self.subject.require(
            subject_of_program(model, tolerance=self.subject.tolerance, num_run=self.num_run)
        )

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values, tokens and values as texts, with null for numbers that
        JSON does not have.
        """
        named = asdict(self) | {"subject": self.subject.to_json()}
        written = json.dumps(named, default=str)
        values: dict[str, Any] = json.loads(written, parse_constant=lambda _: None)
        return values

    def __str__(self) -> str:
        possible = format_count(self.num_possible)
        if self.num_different < self.num_possible:
            possible += f" ({format_count(self.num_different)} but for tokens that are alike)"
        partly = self.num_undefined > 0 or (
            self.may_lack_values and self.rests_on != "every sequence"
        )
        if self.verdict == "holds" and partly:
            where = " wherever the definition has a value"
        else:
            where = ""
        if self.causal:
            seen = "only keys up to the query"
        else:
            seen = "all keys"
        if math.isfinite(self.bound):
            bound = f"at most {rounded_up(self.bound, 3)}"
        else:
            bound = "no bound"
        lines = [
            f"{self.verdict.upper()}{where} ({self.dtype}; based on {self.rests_on})",
            f"  covers          1 to {self.max_len} tokens of {values_in_words(self.vocabulary)}; "
            f"queries see {seen}",
            "  not covered     names of heads and coordinates",
            f"  sequences run   {self.num_run:,} of {possible}, {self.num_undefined:,} without a "
            "value",
            f"  largest error   {self.largest_error:.3g}, {bound}, allowed: {self.allowed:.3g}",
        ]
        if self.measured is not None and self.verdict != "undecided":
            lines.append(f"  rounding        measured, not bounded: {self.measured:.3g}")
        if self.reason and self.verdict == "undecided":
            lines.append(f"  why             {self.reason}")
        if self.counterexample is not None:
            sequence, position, wanted, got = self.counterexample
            lines.append(
                f"  counterexample  {list(sequence)}, position {position}: {got:.6g}, wanted "
                f"{wanted!r}"
            )
        if self.verdict == "undecided" and self.undecided is not None:
            sequence, position, wanted, got = self.undecided
            lines.append(
                f"  rounding        decides {self.num_undecided:,} outputs, by up to "
                f"{self.rounding:.3g}"
            )
            lines.append(
                f"  the first       {list(sequence)}, position {position}: {got:.6g}, wanted "
                f"{wanted!r}"
            )
        return "\n".join(lines)


@proof_settings()
@torch.inference_mode()
def verify_program(
    model: CompiledProgram,
    *,
    tolerance: float = 1e-3,
    limit: int = 1_000_000,
    seconds: float = math.inf,
) -> ProgramCertificate:
    """Run ``model`` on every sequence, shortest first, and compare it with its program.

    Where there are more than ``limit``, or ``seconds`` are over, the shortest are run in search of
    a counterexample, and the bound decides. Rounding depends on how sequences are run: alone, in a
    batch, in the page. Without a bound each output is judged together with all those that other
    ways of computing it may give (:mod:`~glassformer.programs.rounding`); where these are read as
    different values, the verdict is undecided. In dtypes other than float64 that radius may be too
    large: ``measured`` says what stands for it.

    Args:
        model: From :func:`~glassformer.programs.compiler.compile_program`, in any dtype; its
            weights may have been changed.
        tolerance: The largest error of an output that is read as a number.
        seconds: Processor time of this thread after which the verdict is undecided, if there is
            none before. A slow machine has more of it, in proportion. A step in progress is not
            interrupted.

    Raises:
        RuntimeError: An error above the bound, or an output further from others than rounding
            allows, which cannot be: there is a fault in the checker.
    """
    require_as_built(model, CompiledProgram)
    for name, number in (("tolerance", tolerance), ("seconds", seconds)):
        ok = (
            isinstance(number, int | float)
            and number > 0
            and (name == "seconds" or number < math.inf)
        )
        if not ok:
            raise InputError(
                got=f"{name} = {number}",
                expected="a positive number",
                fix="Pass another one.",
            )
    require_positive(limit=limit)
    program = model.require_program()
    domains = model.domains
    codes = model.codes
    model.require_codes()
    network = network_of(model)
    budget = Budget(seconds)
    if model.allowed_error is None:
        allowed = tolerance
    else:
        allowed = model.allowed_error
    bound, reason = check(network, domains, program, codes, _claims(model), budget)

    definition = _definition(model)
    letters = _letters(model)
    most = domains.max_len
    different, possible = (
        sum(size**length for length in range(1, most + 1))
        for size in (len(letters), len(domains.vocabulary))
    )
    done = undefined = num_wrong = 0
    largest = 0.0
    judge = _Judge(model, network, allowed)
    for block in blocks(len(letters), most, limit):
        if budget.is_over():
            reason = "; ".join(dict.fromkeys(filter(None, ("the time was over", reason))))
            break
        ids = letters[block]
        run = _Run.of(model, ids)
        definition.add(run.wanted)
        error = np.abs(run.outputs - run.wanted)
        error = np.where(run.defined, np.where(np.isnan(error), np.inf, error), 0.0)
        if codes is None:
            misread = ~(error < allowed)
        else:
            misread = model.misread(run.outputs, run.column, run.values)
        done = done + len(ids)
        num_wrong = num_wrong + int((misread & run.defined).sum())
        undefined += int((~run.defined[:, 0]).sum())
        largest = max(largest, float(error.max()))
        if not bound < allowed:
            judge.add(run)
    if largest > bound:
        raise RuntimeError(
            f"an error of {largest}, above the bound of {bound}: the checker is wrong"
        )
    rests_on: Literal["every sequence", "the bound", "samples"] = (
        "every sequence" if done == different else "samples"
    )
    verdict: Literal["holds", "fails", "undecided"] = "undecided"
    if judge.example is not None:
        verdict = "fails"
    elif bound < allowed:
        verdict = "holds"
        rests_on = "the bound" if done < different else "every sequence"
    elif done == different and judge.decided:
        verdict = "holds"
    elif done == different:
        reason = "outputs so near what is allowed that rounding decides"
    elif not reason:
        reason = "the bound is above what is allowed"
    return ProgramCertificate(
        subject=_subject(model, tolerance, definition),
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
        num_undecided=judge.num_undecided,
        largest_error=largest,
        bound=bound,
        allowed=allowed,
        counterexample=judge.example,
        reason=reason,
        undecided=judge.undecided,
        rounding=judge.rounding,
        measured=judge.measured if judge.rests_on_measured else None,
    )


def subject_of_program(
    model: CompiledProgram, *, tolerance: float | None = 1e-3, num_run: int = 1_000_000
) -> Subject:
    """The subject of the certificate of a model that :func:`verify_program` gives, without running
    the model.

    Args:
        num_run: How many sequences were run.
    """
    definition = _definition(model)
    letters = _letters(model)
    for block in blocks(len(letters), model.domains.max_len, num_run):
        definition.add(model.wanted(model.batch(letters[block])))
    return _subject(model, tolerance, definition)


def _subject(
    model: CompiledProgram, tolerance: float | None, definition: DefinitionDigest
) -> Subject:
    return Subject(
        kind="program",
        definition=model.name,
        inputs=tuple(f"{type(token).__name__} {token!r}" for token in model.domains.vocabulary),
        max_len=model.domains.max_len,
        readout="the number itself" if model.codes is None else "the nearest code",
        tolerance=float(tolerance) if model.codes is None and tolerance is not None else None,
        dtype=str(model.embedding.weight.dtype).removeprefix("torch."),
        weights_digest=weights_digest(model.state_dict()),
        definition_digest=definition.hexdigest(),
    )


def _definition(model: CompiledProgram) -> DefinitionDigest:
    domains = model.domains
    codes = [(number, typed(value)) for number, value in model.codes or ()]
    return DefinitionDigest(draw_graph(model.require_program(), domains), domains.causal, codes)


def _letters(model: CompiledProgram) -> np.ndarray:
    """The tokens that differ for the program or the weights."""
    return np.array(
        _different_tokens(model.domains, model.require_program(), model.embedding.weight)
    )


class _Run(NamedTuple):
    """A model and its program on some sequences of one length."""

    ids: np.ndarray
    outputs: np.ndarray
    defined: np.ndarray
    """Whether the program has a value."""
    wanted: np.ndarray
    """The number of the program's value."""
    column: np.ndarray
    values: Sequence[Value]
    """The values to which ``column`` points."""

    @classmethod
    def of(cls, model: CompiledProgram, ids: np.ndarray) -> "_Run":
        batch = model.batch(ids)
        outputs = model(torch.from_numpy(ids)).double().numpy()
        defined = np.broadcast_to(batch.defined[:, None], outputs.shape)
        return cls(
            ids, outputs, defined, model.wanted(batch), *batch.column(model.require_program())
        )


@dataclass
class _Judge:
    """Whether outputs are right for every way of computing them.

    In float64 every radius is a bound. In other dtypes it may be too large where units make steep
    steps. Then the exact output is bounded, and its rounding is taken to be below half of what is
    allowed where :data:`_RESERVE` times the largest rounding that any sequence shows is.
    """

    model: CompiledProgram
    network: Network
    allowed: float
    num_undecided: int = 0
    example: Example | None = None
    undecided: Example | None = None
    rounding: float = 0.0
    measured: float = 0.0
    rests_on_measured: bool = False
    least_left: float = math.inf
    """Of outputs judged by what was measured: how far the exact one may still move."""

    @property
    def decided(self) -> bool:
        """Whether every output that was added is right."""
        return self.undecided is None and self._reserve <= self.least_left

    @property
    def _reserve(self) -> float:
        return max(_RESERVE * self.measured, self.allowed / 2)

    def add(self, run: _Run) -> None:
        """Judge the outputs of a run."""
        causal = self.model.domains.causal
        within = outputs_within(self.network, run.ids, causal)
        self._require_within(run, within)
        right, wrong = self._certainty(run, within)
        doubtful = run.defined & ~(right | wrong)
        if doubtful.any() and self.network.roundoff > FLOAT64_ROUNDOFF:
            exact = outputs_within(
                self.network._replace(roundoff=FLOAT64_ROUNDOFF), run.ids, causal
            )
            self._measure(run, exact)
            left = (
                self.allowed
                - exact.radius
                - np.abs(exact.middle - run.wanted) * (1 + _OF_A_DIFFERENCE)
            )
            by_measured = doubtful & (left >= self._reserve)
            _, misread = self._certainty(run, Ball(exact.middle, exact.radius + self._reserve))
            self.rests_on_measured |= bool(by_measured.any() or (doubtful & misread).any())
            self.least_left = min(self.least_left, float(left[by_measured].min(initial=np.inf)))
            wrong |= doubtful & misread
            doubtful &= ~(by_measured | misread)
        # An output that is no number is doubtful: where one order of sums overflows, another may
        # not.
        self.num_undecided += int(doubtful.sum())
        if self.example is None and (wrong & run.defined).any():
            self.example = self._example(run, *np.argwhere(wrong & run.defined)[0].tolist())
        if self.undecided is None and doubtful.any():
            row, position = np.argwhere(doubtful)[0].tolist()
            self.undecided = self._example(run, row, position)
            self.rounding = float(within.radius[row, position])

    def _require_within(self, run: _Run, within: Ball) -> None:
        if (run.defined & (np.abs(run.outputs - within.middle) > within.radius)).any():
            raise RuntimeError(
                "an output further from others of the same model than rounding allows"
            )

    def _measure(self, run: _Run, exact: Ball) -> None:
        """Take the largest rounding into account, of the batch and of some sequences alone."""
        rows = np.arange(0, len(run.ids), 1 + len(run.ids) // 16)
        alone = np.concatenate(
            [self.model(torch.from_numpy(run.ids[[row]])).double().numpy() for row in rows]
        )
        for outputs, middle in ((run.outputs, exact.middle), (alone, exact.middle[rows])):
            distance = np.abs(outputs - middle)
            self.measured = max(
                self.measured, float(np.where(np.isnan(distance), np.inf, distance).max())
            )

    def _certainty(self, run: _Run, within: Ball) -> tuple[np.ndarray, np.ndarray]:
        return _certainty(self.model, within, run.wanted, run.column, run.values, self.allowed)

    def _example(self, run: _Run, row: int, position: int) -> Example:
        sequence = tuple(self.model.domains.vocabulary[token] for token in run.ids[row])
        return (
            sequence,
            position,
            run.values[run.column[row, position]],
            float(run.outputs[row, position]),
        )


def _certainty(
    model: CompiledProgram,
    within: Ball,
    wanted: np.ndarray,
    column: np.ndarray,
    values: Sequence[Value],
    allowed: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Whether all outputs within a radius are right, and whether all are wrong."""
    known = np.isfinite(within.radius)
    if model.codes is None:
        error = np.abs(within.middle - wanted)
        slack = within.radius + _OF_A_DIFFERENCE * (error + np.abs(wanted))
        return known & (error + slack < allowed), known & ~(error - slack < allowed)
    slack = within.radius + _OF_A_DIFFERENCE * (
        np.abs(within.middle) + max(abs(number) for number, _ in model.codes)
    )
    low = within.middle - slack
    high = within.middle + slack
    same = known & (model.nearest(low) == model.nearest(high))
    wrong = model.misread(low, column, values)
    return same & ~wrong, same & wrong


def _claims(model: CompiledProgram) -> Sequence[LayerClaim]:
    """What the compiler says that the weights are for."""
    if model.claims is not None:
        return model.claims
    program = model.require_program()
    domains = model.domains
    try:
        return (
            compile_program(
                program, domains.vocabulary, domains.max_len, causal=domains.causal
            ).claims
            or ()
        )
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
    readers = [
        node.part for node in graph(program) if any(each is tokens for each in node.part.reads)
    ]

    def seen(part: Variable | Selector, token: Value) -> Any:
        if isinstance(part, Elementwise) and len(set(part.sources)) == 1:
            return typed(apply(part, [token] * len(part.sources)))
        if isinstance(part, Select):
            table = domains.table(part)
            place = domains.place(tokens, token)
            if part.keys is tokens:
                as_key = table[:, place].tobytes()
            else:
                as_key = b""
            return as_key, table[place].tobytes() if part.queries is tokens else b""
        return typed(token)

    first: dict[Any, int] = {}
    for place, (token, row) in enumerate(zip(domains.vocabulary, embedding.tolist(), strict=True)):
        whole = typed(token) if program is tokens else None
        first.setdefault((tuple(row), whole, *(seen(part, token) for part in readers)), place)
    return list(first.values())


def network_of(model: CompiledProgram) -> Network:
    """The weights of a compiled program as they are, for the checker."""
    layers = []
    domains = model.domains
    tokens = len(model.embedding.weight)
    most = len(model.positions.weight)
    fits = tokens == len(domains.vocabulary) and most >= domains.max_len
    if not fits:
        raise InputError(
            got=f"embeddings of {tokens} tokens and {most} positions",
            expected="those of the vocabulary and of max_len",
            fix="Compile the program for these sequences.",
        )
    for block in model.blocks:
        attention = block.attention
        ffn = block.ffn
        units = ffn.up.out_features if isinstance(ffn, MLP) else 0
        if attention.sinks is None:
            sinks = None
        else:
            sinks = _array(attention.sinks)
        sizes = model.embedding.embedding_dim, attention.num_heads, attention.head_dim, units
        with torch.device("meta"):
            like = make_block(*sizes, causal=domains.causal, sinks=sinks is not None)
        require_as_built(block, Block, like=like)
        up, down = (_affine(ffn.up), _affine(ffn.down)) if isinstance(ffn, MLP) else (None, None)
        q, k, v, out = map(
            _affine, (attention.query, attention.key, attention.value, attention.output)
        )
        layers.append(LayerWeights(attention.num_heads, q, k, v, out, sinks, up, down))
    kinds = [torch.finfo(each.dtype) for each in model.parameters()]
    limits = (
        max(each.eps for each in kinds) / 2,
        max(each.tiny for each in kinds),
        min(each.max for each in kinds),
    )
    tables = _array(model.embedding.weight), _array(model.positions.weight)
    return Network(*tables, layers, _affine(model.output), *limits)


def _affine(linear: nn.Linear) -> Affine:
    if linear.bias is None:
        raise InputError(
            got="a linear layer without a bias",
            expected="one, which may be zero",
            fix="Set its bias to zeros.",
        )
    return Affine(_array(linear.weight), _array(linear.bias))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
