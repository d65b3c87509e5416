"""A certificate says only what is so: what once was a false one, and what cannot be told apart."""

import copy
import functools
import importlib.util
import itertools
import json
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.cli.main import main
from glassformer.handcraft.bounds import FLOAT64_ROUNDOFF, gamma
from glassformer.handcraft.induction import build_induction, verify_induction
from glassformer.kernels.pattern import Pattern
from glassformer.layers.feedforward import MLP, NoFeedForward
from glassformer.observe.edits import put
from glassformer.observe.intervene import intervene
from glassformer.processor_time import Budget
from glassformer.programs import (
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
from glassformer.programs import certificate as certificates
from glassformer.programs import checker as checkers
from glassformer.programs import library as lib
from glassformer.programs.checker import Affine, Checked, HeadClaim, LayerClaim
from glassformer.programs.domains import Domains
from glassformer.programs.enumeration import Batch
from glassformer.programs.language import typed
from glassformer.programs.model import make_block
from glassformer.programs.plan import Stored
from glassformer.programs.saved import load_program, save_program
from refusals import refused

CAMPAIGN = Path(__file__).resolve().parents[2] / "benchmarks" / "program_proofs.py"
PREVIOUS = select(indices, indices, lambda key, query: key == query - 1)


def same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Equal values of equal types."""
    return list(map(typed, found)) == list(map(typed, wanted))


def verifiers() -> list[tuple[nn.Module, Callable[[], Any]]]:
    """A model of each kind that is proved by following its weights, and what verifies it."""
    induction = build_induction("abc", 8)
    program = compile_program(lib.histogram(), "abc", 4)
    return [
        (induction, lambda: verify_induction(induction, "abc")),
        (program, lambda: verify_program(program)),
    ]


# ---- models that compute something else than their weights say -----------------------------------


def inherited(module: nn.Module) -> None:
    class Other(type(module)):  # type: ignore[misc]
        def forward(self, *inputs: Any, **options: Any) -> Any:
            return super().forward(*inputs, **options) + 1

    module.__class__ = Other


def hooked(module: nn.Module) -> None:
    module.register_forward_hook(lambda _, inputs, output: output + 1)


def replaced(module: nn.Module) -> None:
    module.forward = functools.partial(
        lambda old, *inputs, **options: old(*inputs, **options) + 1, module.forward
    )


def test_a_model_that_computes_something_else_than_its_weights_is_refused_by_every_verifier() -> (
    None
):
    for kind in range(len(verifiers())):
        names = [
            name
            for name, module in verifiers()[kind][0].named_modules()
            if not isinstance(module, nn.ModuleList)
        ]
        for name, spoil in itertools.product(names, (inherited, hooked, replaced)):
            model, verify = verifiers()[kind]
            spoil(model.get_submodule(name))
            with refused("of type Other|hooks"):
                verify()


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("layers.0.attention", "scale", 3.0),
        ("layers.0.attention", "cap", 5.0),
        ("layers.0.attention", "pattern", Pattern(causal=True, window=2)),
        (
            "layers.0.attention",
            "pattern",
            Pattern(causal=True, key_padding=torch.ones(1, 2, dtype=torch.bool)),
        ),
        ("layers.0", "attention_norm", NoFeedForward()),
    ],
)
def test_a_setting_or_module_that_was_changed_is_refused_by_every_verifier(
    part: str, name: str, value: Any
) -> None:
    changed = "attention_norm" if part == "layers.0" else "attention"
    for model, verify in verifiers():
        setattr(model.get_submodule(part), name, value)
        with refused(rf"settings of (layers.0.)?{changed}\b"):
            verify()


def test_other_angles_are_refused() -> None:
    for model, verify in verifiers():
        if hasattr(model, "rotary"):
            vars(model.rotary)["_frequencies"] = 2 * model.rotary._frequencies
            with refused("settings of rotary"):
                verify()


# ---- numbers that are not finite -----------------------------------------------------------------


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_every_verifier(number: float) -> None:
    for model, verify in verifiers():
        for name, weight in list(model.named_parameters()):
            if not weight.numel():
                continue
            with torch.no_grad():
                kept = weight.view(-1)[-1].clone()
                weight.view(-1)[-1] = number
                with refused(f"{name} with numbers that are not finite"):
                    verify()
                weight.view(-1)[-1] = kept
        verify()


def test_a_copied_model_has_the_same_program() -> None:
    for program in (lib.sort(), lib.reverse(), lib.histogram()):
        model = compile_program(program, (1, 2, 3, 4), 5)
        copied = copy.deepcopy(model)
        assert verify_program(model).verdict == "holds"
        assert verify_program(copied) == verify_program(model)
        with torch.no_grad():
            copied.output.weight.neg_()
        assert verify_program(copied).verdict == "fails"
        assert verify_program(model).verdict == "holds"
    for one in (tokens, indices):
        with refused(r"named\('x'\)"):
            one.named("x")


def test_numbers_that_overflow_prove_nothing() -> None:
    for name, _ in build_induction("abc", 8).named_parameters():
        model = build_induction("abc", 8)
        with torch.no_grad():
            model.get_parameter(name).view(-1)[0] = 1e38
        with refused("1e\\+38"):  # even of no use: times 0 it may be NaN
            verify_induction(model, "abc")


def test_scores_that_overflow_prove_nothing() -> None:
    model = compile_program(tokens, "ab", 2, dtype=torch.float32)
    block = make_block(1, 1, 1, 0, causal=False, sinks=False)  # which adds nothing
    with torch.no_grad():
        for weight in block.parameters():
            weight.zero_()
    model.layers.append(block.eval())
    model.claims = (LayerClaim((), ()),)
    assert verify_program(model, limit=1).rests_on == "the bound"
    with torch.no_grad():
        block.attention.query.bias.fill_(1e25)
        block.attention.key.bias.fill_(1e25)
    with refused("not finite"):
        model.run("ab")
    assert verify_program(model, limit=1).bound == math.inf


def test_codes_and_tolerances_that_are_not_finite_are_refused() -> None:
    model = compile_program(lib.histogram(), "abc", 4)
    codes = model.codes
    for broken in (
        [(math.nan, 1), *codes[1:]],
        [(math.inf, 1), *codes[1:]],
        [],
        [(None, 1)],
        [("0", 1)],
        [1.0],
    ):
        model.codes = broken  # type: ignore[assignment]
        with refused("codes"):
            verify_program(model)
        with refused("codes"):
            model.run("ab")
    model.codes = codes
    for tolerance in (math.nan, math.inf, 0.0, -1.0):
        with refused("tolerance"):
            verify_program(model, tolerance=tolerance)


def test_swapped_codes_are_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model file of ``count``, which prints 30 for 29."""
    path = tmp_path / "t.json"
    program = lib.count(tokens, "a")
    save_program(compile_program(program, "ab", 30), path)
    content = json.loads(path.read_text())
    codes = content["codes"]
    codes[29][1], codes[30][1] = codes[30][1], codes[29][1]
    path.write_text(json.dumps(content))
    model = load_program(path)
    model.program = program
    assert model.run("a" * 29)[0] == 30
    for limit in (1, 10_000):
        assert verify_program(model, limit=limit).verdict == "undecided"
    model.domains = Domains("ab", 4)  # whose sequences do not reach these codes
    assert verify_program(model, limit=100).verdict == "holds"
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from glassformer.programs import tokens\nfrom glassformer.programs.library import count\n"
        'program, vocabulary, max_len = count(tokens, "a"), "ab", 30\n'
    )
    command = [
        "program",
        str(mine),
        "--run-python",
        "--verify",
        "--limit",
        "2000",
        "--weights",
        str(path),
    ]
    assert main(command) == 1
    assert "UNDECIDED" in capsys.readouterr().out


# ---- bounds --------------------------------------------------------------------------------------


def test_a_large_constant_hides_no_difference() -> None:
    x = elementwise(lambda n: 10**8 + (Fraction(1, 100) if n >= 30 else 0), lib.count(tokens, "a"))
    p = aggregate(everything, x) > 10**8 + Fraction(1, 200)
    model = compile_program(p, "ab", 30)
    certificate = verify_program(model, limit=1000)
    right = all(
        same(model.run(text), p(text)) for text in ("a" * 30, "a" * 29, "a" * 29 + "b", "b" * 30)
    )
    assert certificate.verdict == "undecided" or (certificate.verdict == "holds" and right)
    assert right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rounding_is_left_out(dtype: torch.dtype) -> None:
    model = compile_program(lib.histogram(), "ab", 3, dtype=dtype)
    network = certificates.network_of(model)
    checker = checkers._Checker(network, model.domains, lib.histogram(), Budget(math.inf))
    for count in (1, 64, 2**20, 2**30):
        assert checkers._float64_rounding(1.0, count) >= gamma(count, FLOAT64_ROUNDOFF)
        assert checker.rounding(count) >= gamma(count, network.roundoff)
    # two roundings of each number
    affine = Affine(np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]]), np.array([0.0, 1.0]))
    assert (
        checker.rounded(affine, np.ones(3)) >= gamma(2, network.roundoff) * np.array([3, 4])
    ).all()


@pytest.mark.parametrize("count", [60, pytest.param(1672, marks=pytest.mark.slow)])
def test_no_error_is_above_the_printed_bound(count: int) -> None:
    """Of random tables of selected pairs."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(2, 6))
        table = rng.random((size, size)) < 0.5
        scale = 10.0 ** int(rng.integers(-3, 6))
        numbers = [float(each) for each in rng.normal(0, scale, size)]
        choose = select(tokens, tokens, lambda key, query, table=table: bool(table[key, query]))
        values = elementwise(lambda token, numbers=numbers: numbers[token], tokens)
        certificate = verify_program(compile_program(aggregate(choose, values, 0), range(size), 3))
        assert certificate.largest_error <= certificate.bound


@pytest.mark.parametrize("value", [1.9, 0.7, -3.3])
def test_the_mean_of_keys_that_are_not_selected_is_rounded(value: float) -> None:
    length = 1000
    p = pick(
        select(tokens, tokens, lambda key, _: key == 0),
        elementwise(lambda t: value if t else 0, tokens),
        0,
    )
    model = compile_program(p, (0, 1), length, dtype=torch.float32)
    with torch.no_grad():
        model.blocks[0].attention.sinks.fill_(-1e4)  # all keys share what is to be the sink's
    model.codes = None  # read as numbers
    with torch.inference_mode():
        error = float(model(torch.ones(1, length, dtype=torch.long)).abs().max())
    certificate = verify_program(model, tolerance=abs(value) * (1 + 3e-6), limit=10)
    assert error <= certificate.bound
    assert certificate.verdict == "undecided"


def test_an_error_above_the_bound_is_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compile_program(lib.histogram(), "abc", 3)
    with torch.no_grad():
        model.output.bias += 1e-3
    monkeypatch.setattr(certificates, "check", lambda *_: Checked(1e-6))
    with pytest.raises(RuntimeError, match="above the bound"):
        verify_program(model)


# ---- values are typed ----------------------------------------------------------------------------


def test_true_and_one_are_different_values() -> None:
    p = elementwise(str, aggregate(PREVIOUS, tokens == "a", 0))
    assert p("ab") == ["0", "True"]
    model = compile_program(p, "ab", 3)
    assert model.run("ab") == ["0", "True"]
    assert verify_program(model).verdict == "holds"
    model.codes = [
        (number, "False" if value == "0" else value) for number, value in model.codes or []
    ]
    assert verify_program(model).verdict == "fails"


KINDS: tuple[Any, ...] = (True, 1, 1.0, Fraction(1), False, 0, 0.0, -0.0, (1, "a"), (True, "a"))


def test_equal_values_of_other_types_stay_apart() -> None:
    programs: list[Variable] = [
        tokens,
        elementwise(lambda token: token, tokens),
        elementwise(repr, tokens),
        aggregate(PREVIOUS, tokens),
        pick(select(indices, indices, operator.eq), tokens),
        selector_width(select(tokens, tokens, lambda key, query: repr(key) == repr(query))),
        elementwise(lambda token, index: (token, index), tokens, indices),
    ]
    for program in programs:
        model = compile_program(program, KINDS, 2)
        assert verify_program(model).verdict == "holds"
        sequences = np.array(
            [[first, second] for first in range(len(KINDS)) for second in range(len(KINDS))]
        )
        column, values = Batch(sequences, KINDS).column(program)
        for row, places in zip(column.tolist(), sequences.tolist(), strict=True):
            wanted = program([KINDS[place] for place in places])
            assert same([values[each] for each in row], wanted)
            assert same(model.run([KINDS[place] for place in places]), wanted)


@pytest.mark.parametrize("zeros", [(0, False), (0.0, -0.0), (False, 0.0, 0)])
def test_zeros_alone_stay_apart(zeros: tuple[Any, ...]) -> None:
    for program in (tokens, aggregate(PREVIOUS, tokens), elementwise(repr, tokens)):
        model = compile_program(program, zeros, 3)
        assert verify_program(model).verdict == "holds"
        assert same(model.run(zeros), program(zeros))
    never = aggregate(PREVIOUS, tokens == "z", 0)
    assert same(compile_program(never, "ab", 3).run("abb"), [0, False, False])


def test_numbers_of_numpy_become_those_of_python(tmp_path: Path) -> None:
    small = elementwise(lambda token: np.int8(token), tokens)
    assert (small + small)([100, 1]) == [200, 2]
    assert aggregate(everything, small)([100, 101, 102]) == [101, 101, 101]
    for program in (small, elementwise(lambda token: np.sqrt(token), tokens)):
        assert {type(value) for value in program([1, 4])} <= {int, float}
        save_program(compile_program(program, (1, 2, 3), 2), tmp_path / "t.json")
        model = load_program(tmp_path / "t.json")
        model.program = program
        assert verify_program(model).verdict == "holds"
    with refused("np.int8"):
        (tokens + tokens)([np.int8(100)])
    with refused("np.int8"):
        compile_program(tokens, [np.int8(100), np.int8(1)], 2)


def test_tokens_of_another_type_are_none_of_the_vocabulary() -> None:
    model = compile_program(elementwise(str, tokens), (1.0, "a"), 2)
    with refused("[1]"):
        model.run([1])
    assert model.run([1.0, "a"]) == ["1.0", "a"]


def test_a_mean_and_a_token_that_are_the_same_number_are_refused() -> None:
    mean = aggregate(everything, tokens)  # of 0.25 and 0.75: a fraction; of 0.5 alone: 0.5
    for program in (mean, elementwise(str, mean)):
        with refused("Fraction\\(1, 2\\) and 0.5"):
            compile_program(program, (0.25, 0.5, 0.75), 2)
    assert verify_program(compile_program(2 * mean > 1, (0.25, 0.5, 0.75), 2)).verdict == "holds"


# ---- what cannot be told apart -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "vocabulary"),
    [
        (lib.histogram(), (17, 1003, 990000)),
        (lib.histogram(), (17, 1003, 50256)),
        (lib.histogram(), (-(10**12), 10**12, 10**12 + 1)),
        (lib.reverse(), (1700000000, 1700000001)),
        (lib.sort(), (1700000000, 1700000001, 3)),
        (lib.reverse(), (1e-9, 2e-9, 1e9)),
        (lib.histogram(), tuple(range(0, 4000, 50))),
        (lib.shift(tokens, 1), tuple(range(150))),
        (
            selector_width(select(tokens, tokens, lambda key, query: key == query != 1.01)),
            (0, 1, 1.01),
        ),
        (
            selector_width(
                select(tokens, elementwise(lambda n: max(-1, min(n, 1)), tokens), operator.eq)
            ),
            (-1, 1, 5),
        ),
    ],
)
def test_numbers_of_any_size_are_compared_and_copied(
    program: Variable, vocabulary: tuple[Any, ...]
) -> None:
    for dtype in (torch.float64, torch.float32):
        model = compile_program(program, vocabulary, 3 if len(vocabulary) < 9 else 2, dtype=dtype)
        certificate = verify_program(model)
        assert certificate.verdict == "holds", certificate


def test_a_cost_takes_no_feature_of_rounding_errors() -> None:
    table = ["1110111", "1111001", "0101011", "0100101", "1101101", "0111101", "1111111"]
    program = selector_width(select(tokens, tokens, lambda key, query: table[query][key] == "1"))
    model = compile_program(program, range(7), 2)
    assert model.blocks[0].attention.head_dim == 5
    assert verify_program(model).verdict == "holds"


def test_numbers_far_from_0_are_functions_of_one_another() -> None:
    values = tuple(range(10**9, 10**9 + 3))
    stored = Stored(tokens, "tokens", 0, values, True, [np.array(values, dtype=np.float64)])
    # Which rounding it has depends on the LAPACK that NumPy brings.
    factors, constant = stored.solve(np.array([0.0, 2.0, 4.0]))
    assert [*factors, constant] == pytest.approx([2.0, -2e9], rel=1e-15)


@pytest.mark.parametrize(
    ("program", "vocabulary", "dtype", "named"),
    [
        (
            aggregate(everything, tokens),
            (1700000000, 1700000001),
            torch.float32,
            "Fraction\\(3400000001, 2\\) and 1700000001",
        ),
        (
            aggregate(everything, tokens) > 10**8,
            (10**8, 10**8 + Fraction(1, 10**9)),
            torch.float64,
            "100000000",
        ),
        (tokens + indices, (1e16, 1e16 + 2), torch.float32, "1"),
        (indices, "ab", torch.bfloat16, "298 and 299"),
        (
            lib.histogram(),
            tuple(10**power for power in range(16)),
            torch.bfloat16,
            r"\[10\] gives 2 for 1",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_refused_by_two_values_and_the_dtype(
    program: Variable, vocabulary: tuple[Any, ...], dtype: torch.dtype, named: str
) -> None:
    with refused(named):
        compile_program(program, vocabulary, 300 if program is indices else 2, dtype=dtype)


def test_numbers_one_step_of_the_largest_apart_are_too_near() -> None:
    with refused("16777214 and 16777216"):
        compile_program(
            aggregate(everything, tokens), (0, 2**24 - 2, 2**24), 1, dtype=torch.float32
        )
    model = compile_program(
        aggregate(everything, tokens), (0, 2**24 - 3, 2**24), 1, dtype=torch.float32
    )
    assert verify_program(model).verdict == "holds"


# ---- any size: exact values, and an end ----------------------------------------------------------


@pytest.mark.parametrize(
    ("vocabulary", "length"),
    [
        ((0.001, 0.9), 10),
        ((0.0001, 100.5), 6),
        ((1e308, -1e308, 3), 3),
        ((10**300, 1), 3),
        ((Fraction(1, 3**80), 2), 4),
    ],
)
def test_means_are_exact_at_any_size(vocabulary: tuple[Any, ...], length: int) -> None:
    program = aggregate(everything, tokens)
    sequences = np.random.default_rng(0).integers(0, len(vocabulary), (50, length))
    column, values = Batch(sequences, vocabulary).column(program)
    for row, places in zip(column.tolist(), sequences.tolist(), strict=True):
        assert same(
            [values[each] for each in row], program([vocabulary[place] for place in places])
        )


def test_a_mean_of_dense_numbers_is_not_said_to_fail() -> None:
    certificate = verify_program(compile_program(aggregate(everything, tokens), (0.001, 0.9), 10))
    assert certificate.verdict == "holds", certificate


def test_codes_that_are_missing_are_found() -> None:
    model = compile_program(lib.reverse(), "ab", 3)
    model.codes = None
    certificate = verify_program(model)
    assert certificate.verdict == "fails"
    for more in (tokens % 2, tokens // 2):
        assert verify_program(compile_program(more, (1, 2, 3), 2)).verdict == "holds"


def test_large_vocabularies_long_sequences_and_shared_selectors_end() -> None:
    certificate = verify_program(compile_program(lib.histogram(), range(1000), 2), limit=2000)
    assert certificate.verdict == "holds"
    certificate = verify_program(compile_program(lib.shift(tokens, 1), "ab", 1024), limit=50)
    assert (certificate.verdict, certificate.rests_on) == ("holds", "the bound")
    assert "of 3.60e+308" in str(certificate)
    one = select(tokens, tokens, operator.eq)
    both = one
    for _ in range(40):
        both = both & both
    model = compile_program(selector_width(both), "ab", 3)
    assert model.num_parameters == compile_program(selector_width(one), "ab", 3).num_parameters
    assert verify_program(model).verdict == "holds"
    assert selector_width(both)("aba") == [2, 1, 2]
    other = one
    for _ in range(40):
        other = other | ~other | one
    assert verify_program(compile_program(selector_width(other), "ab", 3)).verdict == "holds"


def test_a_function_that_changes_nothing_costs_nothing() -> None:
    unchanged = elementwise(lambda value: value, tokens)
    equal = selector_width(select(tokens, tokens, operator.eq))
    through = selector_width(select(unchanged, unchanged, operator.eq))
    sizes = [compile_program(equal + other, "abc", 4).num_parameters for other in (equal, through)]
    assert sizes[0] == sizes[1]


def test_functions_of_too_many_values_are_the_same_only_as_sums() -> None:
    domains = Domains(range(100), 100)
    least, most = (elementwise(choose, tokens, indices) for choose in (min, max))
    assert (
        domains.key(tokens + indices)
        == domains.key(tokens + indices)
        != domains.key(tokens - indices)
    )
    assert domains.key(least) != domains.key(most)


def test_after_its_seconds_a_verdict_is_undecided() -> None:
    model = compile_program(lib.machine(6), range(6), 6)
    certificate = verify_program(model, seconds=1e-6)
    assert (certificate.verdict, certificate.num_run) == ("undecided", 0)
    assert "the time" in certificate.reason
    assert "why             the time" in str(certificate)


# ---- what a certificate covers -------------------------------------------------------------------


def test_a_certificate_says_what_it_covers() -> None:
    model = compile_program(aggregate(everything, tokens), "abc", 4, causal=True)
    certificate = verify_program(model, limit=2000)
    text = str(certificate)
    assert "HOLDS wherever the definition has a value (float64; based on every sequence)" in text
    assert "1 to 4 tokens of a, b, c; queries see only keys up to the query" in text
    assert "not covered     names of heads and coordinates" in text
    assert f"{certificate.num_undefined} without a value" in text
    assert "120 of 120" in text
    assert 0 < certificate.num_undefined < certificate.num_run
    space = certificate.max_len, certificate.causal, certificate.vocabulary, certificate.limit
    assert space == (4, True, ("a", "b", "c"), 2000)
    assert certificate.may_lack_values
    assert not verify_program(compile_program(lib.histogram(), "ab", 3)).may_lack_values
    assert "wherever" not in str(verify_program(compile_program(lib.histogram(), "ab", 3)))


@pytest.mark.parametrize("vocabulary", [(1, 7, 3), (3, 2, 1)])
def test_a_certificate_names_the_tokens_that_there_are(vocabulary: tuple[int, ...]) -> None:
    text = str(verify_program(compile_program(tokens, vocabulary, 2)))
    assert f"tokens of {', '.join(map(str, vocabulary))};" in text


def test_a_file_for_other_sequences_is_covered_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    save_program(compile_program(lib.length, "ab", 4), path)
    content = json.loads(path.read_text())
    content["causal"] = True
    path.write_text(json.dumps(content))
    model = load_program(path)
    model.program = lib.length
    certificate = verify_program(model)
    assert certificate.causal == model.domains.causal
    assert "only keys up to the query" in str(certificate)
    model.domains = Domains("ab", 4, False)
    with refused("settings of attention"):
        verify_program(model)
    model.domains = Domains("ab", 5, True)
    with refused("4 positions"):
        verify_program(model)


# ---- claims are not believed ---------------------------------------------------------------------


def test_without_claims_or_with_wrong_ones_nothing_is_proved() -> None:
    model = compile_program(lib.sort(), range(4), 6)
    claims = model.claims
    assert verify_program(model, limit=1).verdict == "holds"
    layer, *others = claims
    lies: list[tuple[LayerClaim, ...]] = [
        (),
        claims[::-1],
        (layer._replace(lookups=()), *others),
        (layer._replace(heads=()), *others),
        (layer._replace(heads=layer.heads[::-1]), *others),
        (
            layer._replace(heads=tuple(HeadClaim(everything, each.writes) for each in layer.heads)),
            *others,
        ),
        (
            layer._replace(lookups=tuple(each._replace(parts=(tokens,)) for each in layer.lookups)),
            *others,
        ),
        (
            layer._replace(lookups=tuple(each._replace(first=0, last=2) for each in layer.lookups)),
            *others,
        ),
    ]
    for lie in lies:
        model.claims = lie
        certificate = verify_program(model, limit=1)
        assert (certificate.verdict, certificate.bound < certificate.allowed) == (
            "undecided",
            False,
        ), lie


def test_models_within_edits_are_refused() -> None:
    model = compile_program(lib.histogram(), "ab", 4)
    with intervene(model, put("weights", 0.0)):
        with refused("within edits"):
            verify_program(model)
        model(torch.zeros(1, 2, dtype=torch.long))  # the edit reaches something
    assert verify_program(model).verdict == "holds"


def test_units_that_nothing_is_claimed_of_are_all_counted() -> None:
    model = compile_program(lib.histogram(), "ab", 4)
    (block,) = model.blocks
    before = block.ffn
    units = before.up.out_features
    wide = MLP(before.up.in_features, units + 3).double()
    with torch.no_grad():
        for each in wide.parameters():
            each.zero_()
        wide.up.weight[:units], wide.up.bias[:units] = before.up.weight, before.up.bias
        wide.down.weight[:, :units], wide.down.bias[:] = before.down.weight, before.down.bias
        wide.up.bias[units:] = 1.0
        wide.down.weight[:, units:] = 0.2  # three alike
    block.ffn = wide.eval()
    exact = verify_program(model)
    assert exact.verdict == "fails"
    assert exact.largest_error <= exact.bound


def test_aggregates_that_are_none_of_the_program_are_not_believed() -> None:
    model = compile_program(lib.count(tokens, "a"), "ab", 4)
    assert model.claims is not None
    (layer,) = model.claims
    (head,) = layer.heads
    other = aggregate(
        head.selector, elementwise(lambda token: 1 if token == "a" else None, tokens), 0
    )
    model.claims = (layer._replace(heads=(head._replace(writes=(other,)),)),)
    certificate = verify_program(model, limit=1)
    assert (certificate.verdict, certificate.bound) == ("undecided", math.inf)
    assert "no part of the program" in certificate.reason


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_broken_weight_has_a_bound_that_covers_it(each: bool) -> None:
    changes = (1e-6, -1.0, 30.0)
    model = compile_program(lib.detect(tokens, "ab"), "ab", 4)
    texts = [
        torch.tensor(list(itertools.product(range(2), repeat=length))) for length in range(1, 5)
    ]
    codes = torch.tensor([number for number, _ in model.codes or ()])

    def read() -> list[int]:
        """The place of the nearest code, at every position of every text."""
        return (
            (torch.cat([model(each).ravel() for each in texts])[:, None] - codes)
            .abs()
            .argmin(1)
            .tolist()
        )

    right = read()
    entries = [entry for weight in model.parameters() for entry in weight.view(-1).split(1)]
    verdicts = set()
    for place, entry in enumerate(entries):
        for change in changes if each else (changes[place % 3],):
            with torch.no_grad():
                kept = entry.clone()
                entry += change
                exact = verify_program(model)
                bounded = verify_program(model, limit=1)
                wrong = read() != right
                entry.copy_(kept)
            assert exact.largest_error <= exact.bound == bounded.bound
            assert (exact.verdict == "fails") == wrong
            verdicts.add((exact.verdict, bounded.verdict))
    assert ("fails", "holds") not in verdicts
    assert ("holds", "fails") not in verdicts
    assert {("holds", "holds"), ("fails", "undecided")} <= verdicts


def test_all_library_programs_are_proved_by_the_bound() -> None:
    for example in lib.PROGRAMS.values():
        model = compile_program(
            example.program, example.vocabulary, example.max_len, causal=example.causal
        )
        certificate = verify_program(model, limit=1)
        assert (certificate.verdict, certificate.rests_on) == ("holds", "the bound"), certificate
        assert certificate.bound < min(1e-6, certificate.allowed / 100)


# ---- random models, and how near bounds are ------------------------------------------------------


def _campaign() -> Any:
    spec: Any = importlib.util.spec_from_file_location("program_proofs", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_solution_is_not_lost_to_more_features() -> None:
    # features of 49 bits: solved with some of them, not with all 131
    trial = _campaign().Trial(822711)
    trial.run()
    assert trial.faults == []


@pytest.mark.parametrize(
    ("program", "causal"),
    [
        (aggregate(everything, tokens), False),
        (aggregate(select(indices, indices, operator.lt), tokens, 1), True),
        (aggregate(select(tokens, tokens, operator.lt), tokens, 7) * 2 + 1, False),
    ],
    ids=["of all", "with a default", "scaled"],
)
def test_bounds_on_means_of_many_values_are_near_their_errors(
    program: Variable, causal: bool
) -> None:
    model = compile_program(program, tuple(range(30)), 30, causal=causal)
    assert model.codes is None
    certificate = verify_program(model, limit=1000)
    assert (certificate.verdict, certificate.rests_on) == ("holds", "the bound")
    assert certificate.largest_error <= certificate.bound < 1e-6
    with torch.no_grad():
        model.output.weight.mul_(1.001)
    certificate = verify_program(model, limit=1000)
    assert certificate.verdict == "fails"
    assert 0.025 < certificate.largest_error <= certificate.bound < 1.2 * certificate.largest_error


@pytest.mark.parametrize("seed", range(20))
def test_what_units_add_is_within_its_range(seed: int) -> None:
    """Of points that are known up to an error of any size."""
    program = lib.histogram()
    rng = np.random.default_rng(seed)
    domains = Domains("ab", 3)
    network = certificates.network_of(compile_program(program, domains.vocabulary, domains.max_len))
    checker = checkers._Checker(network, domains, program, Budget(math.inf))
    error = float(10.0 ** rng.integers(-6, 1))
    points = rng.normal(size=4)
    factor = rng.normal(size=7)
    bias = rng.normal(size=7)
    down = rng.normal(size=(3, 7))
    low, high, slack = checker.bends(points, error, factor, bias, down)
    near = points[:, None] + error * np.linspace(-1, 1, 2001)
    found = np.maximum(near[..., None] * factor + bias, 0) @ down.T
    assert (low - slack <= found.min(1)).all()
    assert (found.max(1) <= high + slack).all()
    np.testing.assert_allclose(low, found.min(1), rtol=0, atol=0.02 * error)
    np.testing.assert_allclose(high, found.max(1), rtol=0, atol=0.02 * error)


@pytest.mark.parametrize("vocabulary", ["ab", (0, 1, 2)], ids=["letters", "numbers"])
@pytest.mark.parametrize("nothing", [None, 0.2, 7.0])
def test_what_a_head_copies_is_within_its_errors(
    vocabulary: Sequence[Any], nothing: float | None
) -> None:
    """0.5 + table[value] + 2 value, within 0.3 and the 0.1 of what is copied; or within ``nothing``
    of 0.
    """
    copied = pick(PREVIOUS, tokens)
    model = compile_program(copied, vocabulary, 3)
    domains = Domains(vocabulary, 3)
    checker = checkers._Checker(certificates.network_of(model), domains, copied, Budget(math.inf))
    table = np.arange(1.0, len(vocabulary) + 1)[:, None] ** 2
    with np.errstate(all="ignore"):  # as check() does
        form = checker.copied(
            copied, checkers.Form({}, np.array([0.5]), np.array([0.1])), table, 2.0, 0.3, nothing
        )
    radius = float(form.radius[0])
    (rows,) = form.tables.values()
    wanted = {
        value: (at - 0.4, at + 0.4)
        for value, each in zip(vocabulary, table[:, 0], strict=True)
        for at in [0.5 + each + (0 if isinstance(value, str) else 2 * value)]
    }
    if nothing is not None:
        wanted[None] = -nothing, nothing
    listed = domains.listed(copied)
    assert set(wanted) == (set(listed) if nothing is not None else set(vocabulary))
    for value, middle in zip(listed, (rows[:, 0] + form.constant[0]).tolist(), strict=True):
        if value in wanted:
            low, high = wanted[value]
            assert middle - radius <= low < high <= middle + radius
    assert radius == pytest.approx(max(0.4, nothing or 0.0), rel=1e-8)


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_random_models_and_damaged_ones_have_no_false_certificate(
    count: int, tmp_path: Path
) -> None:
    made = _campaign()
    out = tmp_path / "found.json"
    for part in (count // 2, count):  # the second continues the first
        assert made.main(["--first", "100000", "--models", str(part), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["next"] == 100_000 + count
    assert found["faults"] == []
    assert found["counts"]["models"] == count


def test_an_output_without_a_bias_is_named(tmp_path: Path) -> None:
    model = compile_program(selector_width(select(tokens, tokens, operator.eq)), "ab", 4)
    model.output.bias = None
    with refused("without a bias"):
        verify_program(model)
    with refused("without a bias"):
        save_program(model, tmp_path / "program.json")
    assert not list(tmp_path.iterdir())
