"""Certificates that a compiled program computes its definition on every sequence."""

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
from glassformer.programs.enumeration import blocks, count_sequences
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
"""The factor by which rounding may exceed the measured one, where no bound is small enough."""

Example = tuple[tuple[Value, ...], int, Value, float]
"""A sequence, a position in it, the value expected there, and the computed number."""


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
        causal: True if queries see only keys up to their own position.
        limit: Largest number of sequences that might be run.
        num_run: Number of sequences that were run, of ``num_different``.
        num_different: Number of sequences, of ``num_possible``, that differ by more than tokens
            that are alike: neither the program nor the weights tell such tokens apart.
        num_undefined: Number of sequences that were run on which the program has no value (a mean
            of values that have none).
        may_lack_values: True if there can be such sequences among the others.
        num_wrong: Number of outputs that were read as another value.
        num_undecided: Number of outputs for which rounding decides how they are read.
        largest_error: Largest difference of an output from the number of its value.
        bound: Upper bound on that error for any sequence; infinite if there is none.
        allowed: Half the least difference of two values' numbers; the tolerance if the output is
            the number itself.
        counterexample: The first sequence with a wrong output, its position, the expected value and
            the computed number.
        reason: The reason why there is no bound, or why not every sequence was run.
        undecided: The first sequence with an output for which rounding decides; its fields are
            those of ``counterexample``.
        rounding: Largest distance of that output from the same output computed in another way.
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
        """Return all attributes as JSON values.

        Tokens and values are texts. Numbers that JSON does not have are null.
        """
        named = asdict(self) | {"subject": self.subject.to_json()}
        written = json.dumps(named, default=str)
        values: dict[str, Any] = json.loads(written, parse_constant=lambda _: None)
        return values

    def __str__(self) -> str:
        possible = format_count(self.num_possible)
        if self.num_different < self.num_possible:
            possible += f" ({format_count(self.num_different)} but for tokens that are alike)"
        all_run = self.rests_on == "every sequence"
        partly = self.num_undefined > 0 or (self.may_lack_values and not all_run)
        where = ""
        if self.verdict == "holds" and partly:
            where = " wherever the definition has a value"
        seen = "only keys up to the query" if self.causal else "all keys"
        bound = "no bound"
        if math.isfinite(self.bound):
            bound = f"at most {rounded_up(self.bound, 3)}"
        sequences = f"1 to {self.max_len} tokens of {values_in_words(self.vocabulary)}"
        run = f"{self.num_run:,} of {possible}, {self.num_undefined:,} without a value"
        lines = [
            f"{self.verdict.upper()}{where} ({self.dtype}; based on {self.rests_on})",
            f"  covers          {sequences}; queries see {seen}",
            "  not covered     names of heads and coordinates",
            f"  sequences run   {run}",
            f"  largest error   {self.largest_error:.3g}, {bound}, allowed: {self.allowed:.3g}",
        ]
        if self.measured is not None and self.verdict != "undecided":
            lines.append(f"  rounding        measured, not bounded: {self.measured:.3g}")
        if self.reason and self.verdict == "undecided":
            lines.append(f"  why             {self.reason}")
        if self.counterexample is not None:
            lines.append(f"  counterexample  {_in_words(self.counterexample)}")
        if self.verdict == "undecided" and self.undecided is not None:
            decided = f"decides {self.num_undecided:,} outputs, by up to {self.rounding:.3g}"
            lines.append(f"  rounding        {decided}")
            lines.append(f"  the first       {_in_words(self.undecided)}")
        return "\n".join(lines)


def _in_words(example: Example) -> str:
    """Return an example as a line of text."""
    sequence, position, value, output = example
    return f"{list(sequence)}, position {position}: {output:.6g}, wanted {value!r}"


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
    _check_request(tolerance, limit, seconds)
    program = model.require_program()
    domains = model.domains
    codes = model.codes
    model.require_codes()
    network = network_of(model)
    budget = Budget(seconds)
    allowed = model.allowed_error
    if allowed is None:
        allowed = tolerance
    bound, reason = check(network, domains, program, codes, _claims(model), budget)

    definition = _definition(model)
    letters = _letters(model)
    max_len = domains.max_len
    different = count_sequences(len(letters), max_len)
    possible = count_sequences(len(domains.vocabulary), max_len)
    done = 0
    undefined = 0
    num_wrong = 0
    largest = 0.0
    judge = _Judge(model, network, allowed)
    for block in blocks(len(letters), max_len, limit):
        if budget.is_over():
            reason = "; ".join(dict.fromkeys(filter(None, ("the time was over", reason))))
            break
        ids = letters[block]
        run = _Run.of(model, ids)
        definition.add(run.targets)
        error = np.abs(run.outputs - run.targets)
        error = np.where(np.isnan(error), np.inf, error)
        error = np.where(run.defined, error, 0.0)
        if codes is None:
            misread = ~(error < allowed)
        else:
            misread = model.misread(run.outputs, run.column, run.values)
        done += len(ids)
        num_wrong += int((misread & run.defined).sum())
        undefined += int((~run.defined[:, 0]).sum())
        largest = max(largest, float(error.max()))
        if not (bound < allowed):
            judge.add(run)
    if largest > bound:
        raise RuntimeError(
            f"an error of {largest}, above the bound of {bound}: the checker is wrong"
        )
    rests_on: Literal["every sequence", "the bound", "samples"] = "samples"
    if done == different:
        rests_on = "every sequence"
    verdict: Literal["holds", "fails", "undecided"] = "undecided"
    if judge.example is not None:
        verdict = "fails"
    elif bound < allowed:
        verdict = "holds"
        if done < different:
            rests_on = "the bound"
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
        max_len=max_len,
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


def _check_request(tolerance: float, limit: int, seconds: float) -> None:
    """Refuse arguments of :func:`verify_program` that are not positive numbers."""
    for name, number in (("tolerance", tolerance), ("seconds", seconds)):
        positive = isinstance(number, int | float) and number > 0
        if not positive or (name == "tolerance" and number == math.inf):
            raise InputError(
                got=f"{name} = {number}",
                expected="a positive number",
                fix="Pass another one.",
            )
    require_positive(limit=limit)


def subject_of_program(
    model: CompiledProgram, *, tolerance: float | None = 1e-3, num_run: int = 1_000_000
) -> Subject:
    """Return the subject of :func:`verify_program`'s certificate, without running the model.

    Args:
        num_run: Number of sequences that were run.
    """
    definition = _definition(model)
    letters = _letters(model)
    for block in blocks(len(letters), model.domains.max_len, num_run):
        definition.add(model.wanted(model.batch(letters[block])))
    return _subject(model, tolerance, definition)


def _subject(
    model: CompiledProgram, tolerance: float | None, definition: DefinitionDigest
) -> Subject:
    readout = "the nearest code"
    needed_tolerance = None
    if model.codes is None:
        readout = "the number itself"
        if tolerance is not None:
            needed_tolerance = float(tolerance)
    return Subject(
        kind="program",
        definition=model.name,
        inputs=tuple(f"{type(token).__name__} {token!r}" for token in model.domains.vocabulary),
        max_len=model.domains.max_len,
        readout=readout,
        tolerance=needed_tolerance,
        dtype=str(model.embedding.weight.dtype).removeprefix("torch."),
        weights_digest=weights_digest(model.state_dict()),
        definition_digest=definition.hexdigest(),
    )


def _definition(model: CompiledProgram) -> DefinitionDigest:
    domains = model.domains
    codes = [(number, typed(value)) for number, value in model.codes or ()]
    return DefinitionDigest(draw_graph(model.require_program(), domains), domains.causal, codes)


def _letters(model: CompiledProgram) -> np.ndarray:
    """Return the tokens that differ for the program or the weights."""
    program = model.require_program()
    return np.array(_different_tokens(model.domains, program, model.embedding.weight))


class _Run(NamedTuple):
    """A model and its program on some sequences of one length."""

    ids: np.ndarray
    outputs: np.ndarray
    defined: np.ndarray
    """True where the program has a value."""
    targets: np.ndarray
    """The number of the program's value."""
    column: np.ndarray
    values: Sequence[Value]
    """The values to which ``column`` points."""

    @classmethod
    def of(cls, model: CompiledProgram, ids: np.ndarray) -> "_Run":
        """Run a model and its program."""
        batch = model.batch(ids)
        outputs = model(torch.from_numpy(ids)).double().numpy()
        defined = np.broadcast_to(batch.defined[:, None], outputs.shape)
        targets = model.wanted(batch)
        column, values = batch.column(model.require_program())
        return cls(ids, outputs, defined, targets, column, values)


@dataclass
class _Judge:
    """The outputs that are right, wrong or undecided, for every way of computing them.

    In float64 every radius is a bound. In other dtypes it may be too large where units make steep
    steps. Then the exact output is bounded, and its rounding is measured: half of the allowed error
    is reserved for it, or :data:`_RESERVE` times the largest rounding of any sequence if that is
    more.
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
    """The distance that every exact output judged by the measured rounding may still move."""

    @property
    def decided(self) -> bool:
        """True if every output that was added is right."""
        return self.undecided is None and self._reserve <= self.least_left

    @property
    def _reserve(self) -> float:
        """The error that is reserved for rounding."""
        return max(_RESERVE * self.measured, self.allowed / 2)

    def add(self, run: _Run) -> None:
        """Judge the outputs of a run."""
        causal = self.model.domains.causal
        within = outputs_within(self.network, run.ids, causal)
        self._require_within(run, within)
        right, wrong = self._certainty(run, within)
        doubtful = run.defined & ~(right | wrong)
        if doubtful.any() and self.network.roundoff > FLOAT64_ROUNDOFF:
            exact_network = self.network._replace(roundoff=FLOAT64_ROUNDOFF)
            exact = outputs_within(exact_network, run.ids, causal)
            self._measure(run, exact)
            distance = np.abs(exact.middle - run.targets) * (1 + _OF_A_DIFFERENCE)
            left = self.allowed - exact.radius - distance
            by_measured = doubtful & (left >= self._reserve)
            _, misread = self._certainty(run, Ball(exact.middle, exact.radius + self._reserve))
            self.rests_on_measured |= bool(by_measured.any() or (doubtful & misread).any())
            self.least_left = min(self.least_left, float(left[by_measured].min(initial=np.inf)))
            wrong |= doubtful & misread
            doubtful &= ~(by_measured | misread)
        # NaN is doubtful: where one order of sums overflows, another may not.
        self.num_undecided += int(doubtful.sum())
        if self.example is None and (wrong & run.defined).any():
            self.example = self._example(run, *np.argwhere(wrong & run.defined)[0].tolist())
        if self.undecided is None and doubtful.any():
            row, position = np.argwhere(doubtful)[0].tolist()
            self.undecided = self._example(run, row, position)
            self.rounding = float(within.radius[row, position])

    def _require_within(self, run: _Run, within: Ball) -> None:
        """Raise if an output of the model is outside its ball."""
        distance = np.abs(run.outputs - within.middle)
        if (run.defined & (distance > within.radius)).any():
            raise RuntimeError(
                "an output further from others of the same model than rounding allows"
            )

    def _measure(self, run: _Run, exact: Ball) -> None:
        """Measure the largest rounding of a batch, and of some of its sequences run alone."""
        rows = np.arange(0, len(run.ids), 1 + len(run.ids) // 16)
        outputs_alone = []
        for row in rows:
            output = self.model(torch.from_numpy(run.ids[[row]]))
            outputs_alone.append(output.double().numpy())
        alone = np.concatenate(outputs_alone)
        for outputs, middle in ((run.outputs, exact.middle), (alone, exact.middle[rows])):
            distance = np.abs(outputs - middle)
            largest = float(np.where(np.isnan(distance), np.inf, distance).max())
            self.measured = max(self.measured, largest)

    def _certainty(self, run: _Run, within: Ball) -> tuple[np.ndarray, np.ndarray]:
        return _certainty(self.model, within, run.targets, run.column, run.values, self.allowed)

    def _example(self, run: _Run, row: int, position: int) -> Example:
        sequence = tuple(self.model.domains.vocabulary[token] for token in run.ids[row])
        value = run.values[run.column[row, position]]
        return sequence, position, value, float(run.outputs[row, position])


def _certainty(
    model: CompiledProgram,
    within: Ball,
    targets: np.ndarray,
    column: np.ndarray,
    values: Sequence[Value],
    allowed: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return where all outputs within a radius are right, and where all are wrong."""
    known = np.isfinite(within.radius)
    if model.codes is None:
        error = np.abs(within.middle - targets)
        slack = within.radius + _OF_A_DIFFERENCE * (error + np.abs(targets))
        right = known & (error + slack < allowed)
        wrong = known & ~(error - slack < allowed)
        return right, wrong
    largest_code = max(abs(number) for number, _ in model.codes)
    slack = within.radius + _OF_A_DIFFERENCE * (np.abs(within.middle) + largest_code)
    low = within.middle - slack
    high = within.middle + slack
    same = known & (model.nearest(low) == model.nearest(high))
    wrong = model.misread(low, column, values)
    return same & ~wrong, same & wrong


def _claims(model: CompiledProgram) -> Sequence[LayerClaim]:
    """Return the compiler's claims about the weights."""
    if model.claims is not None:
        return model.claims
    program = model.require_program()
    domains = model.domains
    try:
        compiled = compile_program(
            program, domains.vocabulary, domains.max_len, causal=domains.causal
        )
    except InputError:
        return ()
    return compiled.claims or ()


def _may_lack_values(domains: Domains, program: Variable) -> bool:
    """Return whether different values without a mean may be selected somewhere."""
    for node in graph(program):
        part = node.part
        if isinstance(part, Aggregate) and not domains.single(part.selector):
            values = domains.of(part.values)
            numeric = values is None or all(map(is_number, values))
            if part.single or not numeric:
                return True
    return False


def _different_tokens(domains: Domains, program: Variable, embedding: Tensor) -> list[int]:
    """Return the first token of each group that neither the program nor the weights tell apart."""
    parts = [node.part for node in graph(program)]
    readers = [part for part in parts if any(source is tokens for source in part.reads)]

    def seen(part: Variable | Selector, token: Value) -> Any:
        """Return what a part makes of a token."""
        if isinstance(part, Elementwise) and len(set(part.sources)) == 1:
            return typed(apply(part, [token] * len(part.sources)))
        if isinstance(part, Select):
            table = domains.table(part)
            place = domains.place(tokens, token)
            as_key = b""
            as_query = b""
            if part.keys is tokens:
                as_key = table[:, place].tobytes()
            if part.queries is tokens:
                as_query = table[place].tobytes()
            return as_key, as_query
        return typed(token)

    first: dict[Any, int] = {}
    for place, (token, row) in enumerate(zip(domains.vocabulary, embedding.tolist(), strict=True)):
        whole = typed(token) if program is tokens else None
        by_readers = [seen(part, token) for part in readers]
        first.setdefault((tuple(row), whole, *by_readers), place)
    return list(first.values())


def network_of(model: CompiledProgram) -> Network:
    """Return the weights of a compiled program as they are, for the checker."""
    domains = model.domains
    num_tokens = len(model.embedding.weight)
    num_positions = len(model.positions.weight)
    if num_tokens != len(domains.vocabulary) or num_positions < domains.max_len:
        raise InputError(
            got=f"embeddings of {num_tokens} tokens and {num_positions} positions",
            expected="those of the vocabulary and of max_len",
            fix="Compile the program for these sequences.",
        )
    hidden_dim = model.embedding.embedding_dim
    layers = [_layer_weights(block, hidden_dim, domains.causal) for block in model.blocks]
    formats = [torch.finfo(parameter.dtype) for parameter in model.parameters()]
    return Network(
        embedding=_array(model.embedding.weight),
        positions=_array(model.positions.weight),
        layers=layers,
        output=_affine(model.output),
        roundoff=max(numbers.eps for numbers in formats) / 2,
        smallest=max(numbers.tiny for numbers in formats),
        largest=min(numbers.max for numbers in formats),
    )


def _layer_weights(block: Block, hidden_dim: int, causal: bool) -> LayerWeights:
    """Return the weights of a block, which has to be as the compiler builds it."""
    attention = block.attention
    ffn = block.ffn
    units = 0
    if isinstance(ffn, MLP):
        units = ffn.up.out_features
    sinks = None
    if attention.sinks is not None:
        sinks = _array(attention.sinks)
    with torch.device("meta"):
        like = make_block(
            hidden_dim,
            attention.num_heads,
            attention.head_dim,
            units,
            causal=causal,
            sinks=sinks is not None,
        )
    require_as_built(block, Block, like=like)
    up = None
    down = None
    if isinstance(ffn, MLP):
        up = _affine(ffn.up)
        down = _affine(ffn.down)
    return LayerWeights(
        num_heads=attention.num_heads,
        query=_affine(attention.query),
        key=_affine(attention.key),
        value=_affine(attention.value),
        output=_affine(attention.output),
        sinks=sinks,
        up=up,
        down=down,
    )


def _affine(linear: nn.Linear) -> Affine:
    if linear.bias is None:
        raise InputError(
            got="a linear layer without a bias",
            expected="a bias, which may be zero",
            fix="Set the layer's bias to zeros.",
        )
    return Affine(_array(linear.weight), _array(linear.bias))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
