"""Search for a wrong certificate: random programs, models of them, damaged models.

    python benchmarks/program_proofs.py --models 1000 --seconds 600 --out proofs.json

Every model is made from its number alone, so a run can be continued: the file says which is next.
The truth is the definition in plain Python, on every sequence where they are few; beyond that a
climb from random sequences to the one with the largest error. Counted are, among others:

- unsound: "holds", and an output of some sequence is read as another value;
- wrong fails: "fails" with a counterexample that is none;
- bounds below errors: some error is above what the certificate prints as the most;
- raw exceptions: an error that is no ``InputError``;
- no end: a step that takes longer than its seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import operator
import random
import signal
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from glassformer.errors import InputError
from glassformer.programs import (
    CompiledProgram,
    Selector,
    Variable,
    aggregate,
    compile_program,
    elementwise,
    everything,
    indices,
    pick,
    select,
    selector_width,
    tokens,
    verify_program,
)
from glassformer.programs.certificate import ProgramCertificate
from glassformer.programs.checker import HeadClaim, LayerClaim
from glassformer.programs.domains import Domains
from glassformer.programs.graph import graph
from glassformer.programs.language import Aggregate, Width, distinct, is_number, typed
from glassformer.programs.saved import load_program, save_program

FAULTS = ("unsound", "wrong fails", "bounds below errors", "raw exceptions", "no end")
MOST_SECONDS = 60
_FEW = 150
_TOLERANCE = 1e-3

Truth = Callable[[Sequence[Any]], list[Any] | None]
"""The definition's values; None where it has none."""


class Programs:
    """Random programs over random values."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        kind = draw.choice(
            ["letters", "small", "small", "dense", "wide", "near", "mixed", "fractions"]
        )
        count = draw.randrange(2, 5)
        self.vocabulary: tuple[Any, ...] = tuple(distinct(self.tokens(kind, count)))
        self.kind = kind
        self.results = [
            *self.vocabulary,
            *draw.choice([(), (None,), (0, 1), ("x", "y"), (True, 1, 1.0)]),
        ]

    def tokens(self, kind: str, count: int) -> list[Any]:
        draw = self.draw
        if kind == "letters":
            return list("abcd"[:count])
        if kind == "small":
            return list(range(count))
        if kind == "dense":
            return [draw.choice([draw.random, lambda: draw.gauss(0, 100)])() for _ in range(count)]
        if kind == "wide":
            return [
                draw.choice([1, -1]) * draw.randrange(10 ** draw.randrange(1, 13))
                for _ in range(count)
            ]
        if kind == "near":
            middle = draw.choice([0, 1, 7.5, 10**4, 10**8, 1_700_000_000])
            gap = Fraction(draw.randrange(1, 20), 10 ** draw.randrange(0, 14))
            as_one = draw.choice([float, Fraction])
            return [as_one(middle + number * gap) for number in range(count)]
        if kind == "mixed":
            return draw.sample(
                [
                    True,
                    False,
                    0,
                    1,
                    1.0,
                    Fraction(1, 2),
                    0.5,
                    "1",
                    "a",
                    (1, "a"),
                    (True, "a"),
                    -0.0,
                ],
                count,
            )
        return [Fraction(draw.randrange(-9, 10), draw.randrange(1, 12)) for _ in range(count)]

    def table(self, results: Sequence[Any]) -> Callable[..., Any]:
        salt = self.draw.randrange(1000)
        return lambda *values: results[zlib.crc32(repr((salt, values)).encode()) % len(results)]

    def variable(self, depth: int) -> Variable:
        draw = self.draw
        if depth <= 0:
            return draw.choice(
                [tokens, tokens, indices, elementwise(self.table(self.some()), tokens)]
            )
        kind = draw.randrange(8)
        if kind <= 1:
            return elementwise(
                self.table(self.some()),
                *(self.variable(self.lower(depth)) for _ in range(kind + 1)),
            )
        if kind == 2:
            first = self.number(depth - 1)
            second = self.number(depth - 1)
            return draw.choice(
                [first + second, first - second, 2 * first - 1, first / 3, -first + second * 5]
            )
        if kind == 3:
            return selector_width(self.selector(depth - 1))
        if kind == 4:
            limit = draw.choice([0, 1, 2, Fraction(1, 2), 0.3])
            compare = draw.choice([operator.lt, operator.ge, operator.eq])
            return compare(self.number(depth - 1), limit)
        values = self.number(depth - 1) if draw.random() < 0.4 else self.variable(self.lower(depth))
        default = draw.choice([None, 0, 1, False, 0.0, "a"])
        selector = everything if draw.random() < 0.2 else self.selector(depth - 1)
        return draw.choice([aggregate, aggregate, pick])(selector, values, default)

    def number(self, depth: int) -> Variable:
        draw = self.draw
        if depth > 0 and draw.random() < 0.3:
            return aggregate(
                self.selector(depth - 1), self.number(depth - 1), draw.choice([0, 1, 0.5])
            )
        if depth > 0 and draw.random() < 0.3:
            return selector_width(self.selector(depth - 1))
        if all(map(is_number, self.vocabulary)) and draw.random() < 0.6:
            return tokens
        numbers = [result for result in self.results if is_number(result)] or [0, 1, 3]
        return draw.choice([indices, elementwise(self.table(numbers), tokens)])

    def selector(self, depth: int) -> Selector:
        draw = self.draw
        kind = self.draw.random()
        if kind < 0.25 and depth > 0:
            first = self.selector(depth - 1)
            second = self.selector(depth - 1)
            return first & second if kind < 0.18 else first | second
        if kind < 0.35:
            return ~self.selector(depth - 1)
        predicates: list[Any] = [operator.eq, operator.ne, self.table((False, False, True))]
        if draw.random() < 0.5:
            predicates += [operator.lt, operator.le, lambda key, query: key == query - 1]
            return select(
                indices,
                draw.choice([indices, self.variable(0) if kind > 0.9 else indices]),
                draw.choice(predicates),
            )
        if all(map(is_number, self.vocabulary)):
            return select(tokens, tokens, draw.choice([*predicates, operator.lt, operator.le]))
        return select(
            self.variable(depth - 1), self.variable(depth - 1), draw.choice(predicates[:3])
        )

    def some(self) -> list[Any]:
        return self.draw.choices(self.results, k=self.draw.randrange(1, 5))

    def lower(self, depth: int) -> int:
        return self.draw.choice([depth - 1, depth - 1, 0])


class Over(BaseException):
    """The seconds of a step are over. Not an Exception, which programs under test may catch."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise Over

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor, whatever else runs
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def damage(model: CompiledProgram, draw: random.Random) -> tuple[str, CompiledProgram]:
    """Damage a model, and say what was damaged."""
    kind = draw.choice(
        ["weights", "weights", "weights", "codes", "names", "claims", "claims", "space", "file"]
    )
    if kind == "claims":
        _lie(model, draw)
    if kind == "weights" or (kind == "claims" and draw.random() < 0.5):
        _damage_weights([weight for weight in model.parameters() if weight.numel()], draw)
    elif kind == "codes" and model.codes:
        codes = list(model.codes)
        first = draw.randrange(len(codes))
        second = draw.randrange(len(codes))
        how = draw.randrange(5)
        if how <= 1:
            codes[first], codes[second] = (
                (codes[first][0], codes[second][1]),
                (codes[second][0], codes[first][1]),
            )
        elif how == 2:
            codes[first] = (
                codes[first][0] + draw.choice([0.3, -2.0, math.nan, math.inf, 1e-9]),
                codes[first][1],
            )
        elif how == 3:
            del codes[first]
        else:
            codes[first] = codes[first][0], draw.choice([None, True, 1, 1.0, "zz"])
        model.codes = codes
    elif kind == "names":
        model.heads = tuple(tuple(f"head {draw.random()}" for _ in names) for names in model.heads)
        model.coordinates = model.coordinates[::-1]
        model.name = "another"
    elif kind == "space":
        domains = model.domains
        vocabulary = list(model.domains.vocabulary)
        how = draw.randrange(3)
        if how == 0:
            draw.shuffle(vocabulary)
        more = draw.choice([-1, 1]) if how == 1 else 0
        model.domains = Domains(
            tuple(vocabulary), max(1, domains.max_len + more), domains.causal ^ (how == 2)
        )
    elif kind == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            save_program(model, path)
            content = json.loads(path.read_text())
            key = draw.choice(
                [
                    "weights",
                    "weights",
                    "codes",
                    "max_len",
                    "causal",
                    "vocabulary",
                    "heads",
                    "num_heads",
                ]
            )
            if key == "weights":
                name = draw.choice(sorted(content["weights"]))
                rows = content["weights"][name]
                row = draw.choice(rows) if rows and isinstance(rows[0], list) else rows
                if row:
                    row[draw.randrange(len(row))] = draw.choice([0.0, 1.0, -1.0, 1e-3, 60.0, 1e300])
            elif key in ("codes", "vocabulary", "heads", "num_heads"):
                content[key] = draw.choice([None, content[key][::-1] if content[key] else None, []])
            else:
                content[key] = (
                    not content[key] if key == "causal" else content[key] + draw.choice([-1, 1])
                )
            path.write_text(json.dumps(content))
            program = model.program
            model = load_program(path)
            model.program = program
    return kind, model


def _lie(model: CompiledProgram, draw: random.Random) -> None:
    """Claim something else about some heads and units."""
    assert model.program is not None
    parts = [node.part for node in graph(model.program)]
    variables = [part for part in parts if isinstance(part, Variable)]
    selectors = [part for part in parts if isinstance(part, Selector)] or [everything]
    copies = [part for part in variables if isinstance(part, Aggregate | Width)]
    copies += [Aggregate(draw.choice(selectors), draw.choice(variables)) for _ in range(2)]
    layers = []
    for layer in model.claims or ():
        heads = [
            HeadClaim(
                draw.choice([claim.selector, *selectors]),
                tuple(draw.choice([write, *copies]) for write in claim.writes),
            )
            for claim in layer.heads
        ]
        lookups = [
            claim._replace(
                variable=draw.choice([claim.variable, claim.variable, *variables]),
                parts=draw.choice(
                    [claim.parts, tuple(draw.choices(variables, k=draw.randrange(1, 3)))]
                ),
                last=claim.last - 2 * draw.choice([0, 0, 1]),
            )
            for claim in layer.lookups
        ]
        layers.append(LayerClaim(tuple(heads), tuple(lookups)))
    if draw.random() < 0.2:
        draw.shuffle(layers)
    model.claims = None if draw.random() < 0.1 else tuple(layers)


def _damage_weights(parameters: list[torch.nn.Parameter], draw: random.Random) -> None:
    with torch.no_grad():
        for _ in range(draw.choice([1, 1, 1, 3])):
            weight = draw.choice(parameters)
            flat = weight.view(-1)
            how = draw.randrange(7)
            place = draw.randrange(len(flat))
            if how <= 1:
                flat[place] += draw.choice([1, -1]) * 10.0 ** draw.randrange(-9, 3)
            elif how == 2:
                flat[place] = draw.choice([0.0, 1.0, -flat[place].item()])
            elif how == 3:
                flat[place] = draw.choice([math.nan, math.inf, -math.inf, 1e30])
            elif how == 4:
                weight.copy_(weight[torch.tensor(draw.sample(range(len(weight)), len(weight)))])
            elif how == 5:
                weight[draw.randrange(len(weight))] = weight[draw.randrange(len(weight))].clone()
            else:
                weight.add_(
                    10.0 ** draw.randrange(-14, -2) * torch.randn(weight.shape, dtype=torch.float64)
                )


class Trial:
    """Result of one model: its origin, its damage, and what is wrong in its certificate."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.draw = random.Random(number)
        self.tags: list[str] = []
        self.faults: list[str] = []

    def run(self) -> None:
        """Make the model, verify it, and compare."""
        started = time.process_time()
        try:
            with limited(MOST_SECONDS):
                self._run()
        except Over:
            self._fault("no end")
        except InputError:
            self.tags.append("refused")
        except Exception:
            self._fault("raw exceptions", traceback.format_exc(limit=-6))
        self.seconds = time.process_time() - started

    def _fault(self, kind: str, more: str = "") -> None:
        self.tags.append(kind)
        self.faults.append(f"{self.number}: {kind} {more}")

    def _run(self) -> None:
        draw = self.draw
        some = Programs(self.number)
        program = some.variable(draw.choice([1, 2, 2, 3, 3, 4]))
        causal = draw.random() < 0.4
        size = len(some.vocabulary)
        long = draw.random() < 0.25
        most = (
            draw.randrange(7, 30) if long else max(2, int(math.log(_FEW) / math.log(max(size, 2))))
        )
        dtype = draw.choice(
            [torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16]
        )
        damaged = self.number % 2 == 1
        self.tags += [some.kind, str(dtype).removeprefix("torch."), "long" if long else "short"]
        torch.manual_seed(self.number)
        model = compile_program(program, some.vocabulary, most, causal=causal, dtype=dtype)
        self.tags.append("damaged" if damaged else "whole")
        if damaged:
            kind, model = damage(model, draw)
            self.tags.append(f"damaged {kind}")
        limit = draw.choice([1, 30, 10**5 if not long else 300])
        certificate = verify_program(model, limit=limit, seconds=MOST_SECONDS / 3)
        if "another form" in certificate.reason and "damaged claims" not in self.tags:
            self._fault("raw exceptions", certificate.reason)
        domains = model.domains

        def read(sequences: list[Sequence[Any]]) -> list[tuple[list[float], list[Any]]]:
            ids = torch.cat([model.encode(sequence) for sequence in sequences])
            with torch.inference_mode():
                numbers = model(ids).double().tolist()
            # What is not finite is read as no value.
            return [
                (
                    row,
                    model.decode(row) if all(map(math.isfinite, row)) else [object()] * len(row),
                )
                for row in numbers
            ]

        numbers = (
            None if model.codes is None else {typed(value): number for number, value in model.codes}
        )
        self._compare(certificate, program, domains, read, numbers)

    def _compare(
        self,
        certificate: ProgramCertificate,
        program: Variable,
        domains: Domains,
        read: Callable[[list[Sequence[Any]]], list[tuple[list[float], list[Any]]]],
        numbers: dict[Any, float] | None,
    ) -> None:
        self.tags += [certificate.verdict, f"{certificate.verdict} by {certificate.rests_on}"]
        vocabulary = domains.vocabulary

        def worst(sequences: list[Sequence[Any]]) -> tuple[float, list[int]]:
            """The largest error, infinite for a wrong value, and sequences' places by error."""
            errors = []
            for sequence, (outputs, values) in zip(sequences, read(sequences), strict=True):
                try:
                    expected_values = program(sequence, causal=domains.causal)
                except InputError:
                    errors.append(0.0)
                    continue
                error = 0.0
                for number, value, right in zip(outputs, values, expected_values, strict=True):
                    if numbers is None:
                        off = (
                            abs(Fraction(number) - Fraction(right))
                            if is_number(right) and math.isfinite(number)
                            else math.inf
                        )
                        error = max(error, float(off) if off < _TOLERANCE else math.inf)
                    else:
                        off = (
                            0.0
                            if math.isnan(number)
                            else abs(number - numbers.get(typed(right), math.inf))
                        )
                        error = max(error, off if typed(value) == typed(right) else math.inf)
                        largest[0] = max(largest[0], off)
                if numbers is None:
                    largest[0] = max(largest[0], error if error < math.inf else 0.0)
                errors.append(error)
            return max(errors), sorted(range(len(errors)), key=lambda place: -errors[place])

        largest = [0.0]
        error = 0.0
        count = sum(len(vocabulary) ** length for length in range(1, domains.max_len + 1))
        if count <= 2 * _FEW:
            for length in range(1, domains.max_len + 1):
                error = max(error, worst(list(itertools.product(vocabulary, repeat=length)))[0])
        else:
            error = self._climb(worst, domains)
        if certificate.verdict == "holds" and error == math.inf:
            self._fault("unsound", str(certificate))
        if largest[0] > certificate.bound:
            self._fault("bounds below errors", f"{largest[0]} {certificate}")
        if error == math.inf and "whole" in self.tags:
            self.tags.append("compiled wrongly")
            if certificate.verdict == "fails":
                self.tags.append("compiled wrongly and said so")
        if certificate.counterexample is not None:
            sequence, position, expected_value, _ = certificate.counterexample
            right = typed(program(list(sequence), causal=domains.causal)[position]) == typed(
                expected_value
            )
            if not right or worst([list(sequence)])[0] < math.inf:
                self._fault("wrong fails", str(certificate))

    def _climb(
        self, worst: Callable[[list[Sequence[Any]]], tuple[float, list[int]]], domains: Domains
    ) -> float:
        """The largest error that changes of random and regular sequences lead to."""
        draw = self.draw
        vocabulary = domains.vocabulary
        most = domains.max_len
        error = 0.0
        for length in {1, most, draw.randrange(1, most + 1)}:
            pool = [[draw.choice(vocabulary) for _ in range(length)] for _ in range(6)]
            pool += [[token] * length for token in vocabulary]
            for _ in range(3):
                errors, order = worst(pool)
                error = max(error, errors)
                best_sequences = [pool[place] for place in order[:3]]
                pool = [
                    [draw.choice(vocabulary) if draw.random() < 2 / length else t for t in k]
                    for k in best_sequences * 3
                ]
        return error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials from where the file stopped; the exit status is 1 if there is a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=100, help="models in all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of this run")
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--out", type=Path, help="where to continue and to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    state: dict[str, Any] = {"next": options.first, "counts": {}, "faults": [], "slowest": [0.0, 0]}
    if options.out and options.out.exists():
        state = json.loads(options.out.read_text())
    counts = Counter(state["counts"])
    ends = time.monotonic() + options.seconds
    while state["next"] < options.first + options.models and time.monotonic() < ends:
        trial = Trial(state["next"])
        trial.run()
        counts.update({"models": 1, **Counter(trial.tags)})
        state["faults"] += trial.faults
        state["slowest"] = max(state["slowest"], [round(trial.seconds, 1), trial.number])
        state["next"], state["counts"] = state["next"] + 1, dict(sorted(counts.items()))
        if options.out and (state["next"] % 50 == 0 or trial.faults):
            options.out.write_text(json.dumps(state, indent=1))
    if options.out:
        options.out.write_text(json.dumps(state, indent=1))
    print(json.dumps({**state, "faults": state["faults"][:5]}, indent=1))
    return int(any(counts[fault] for fault in FAULTS))


if __name__ == "__main__":
    raise SystemExit(main())
