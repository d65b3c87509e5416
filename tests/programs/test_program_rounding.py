"""Weights that were changed so that rounding, overflow or underflow decide: no certificate leaves
them out.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.programs import (
    CompiledProgram,
    compile_program,
    elementwise,
    pick,
    select,
    tokens,
    verify_program,
)
from glassformer.programs import library as lib
from glassformer.programs.checker import HeadClaim, LayerClaim
from glassformer.programs.domains import Domains
from glassformer.programs.model import make_block
from refusals import refused


def widened(
    more: int,
    vocabulary: tuple[int, ...] = (0, 1),
    length: int = 30,
    dtype: torch.dtype = torch.float32,
) -> CompiledProgram:
    """The program of the tokens, with coordinates that are 0."""
    model = compile_program(tokens, vocabulary, length, dtype=dtype)
    output = nn.Linear(1 + more, 1, dtype=dtype)
    output.weight.data = nn.functional.pad(model.output.weight.data, (0, more))
    output.bias.data = model.output.bias.data
    model.output = output
    for name in ("embedding", "positions"):
        weight = nn.functional.pad(getattr(model, name).weight.data, (0, more))
        setattr(model, name, nn.Embedding.from_pretrained(weight, freeze=False))
    return model.eval()


def with_block(
    model: CompiledProgram, units: int, *, sinks: bool = False, claims: tuple[HeadClaim, ...] = ()
) -> Any:
    """One more block, all of whose weights are 0."""
    width = model.embedding.embedding_dim
    block = (
        make_block(width, 1, 1, units, causal=False, sinks=sinks)
        .to(model.embedding.weight.dtype)
        .eval()
    )
    for weight in block.parameters():
        nn.init.zeros_(weight)
    model.layers.append(block)
    model.claims = (LayerClaim(claims, ()),)
    return block


def outputs(model: CompiledProgram, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).double()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_products_of_the_output_may_overflow(dtype: torch.dtype) -> None:
    model = widened(2, dtype=dtype)
    large = 0.9 * torch.finfo(dtype).max
    with torch.no_grad():
        model.positions.weight[29, 1:] = 2.0
        model.output.weight.copy_(torch.tensor([[large / 10, large, -large]], dtype=dtype))
    model.codes = [(0.0, 0), (float(model.output.weight[0, 0].double()), 1)]
    assert outputs(model, [0, 1] * 15)[-1].isnan()
    assert verify_program(model, limit=100).verdict == "undecided"


def test_sums_of_units_that_cancel_are_rounded_here_too() -> None:
    pairs = 5000
    model = widened(2, (0, 1000), dtype=torch.float64)
    ffn = with_block(model, 2 * (pairs + 2)).ffn
    large = torch.full((1,), 1e16)
    one = torch.ones(pairs)
    first = torch.cat([large, one, large])
    second = torch.cat([large, 0 * one, large])
    down = torch.ones(pairs + 2)
    down[-1] = -1
    signs = torch.tensor([1.0, -1.0]).repeat(pairs + 2)
    with torch.no_grad():
        model.positions.weight[29, 1:] = torch.tensor([1.0, -1.0])
        ffn.up.weight[:, 1], ffn.up.weight[:, 2] = (
            each.repeat_interleave(2) * signs for each in (first, second)
        )
        ffn.down.weight[0] = down.repeat_interleave(2) * signs
    assert outputs(model, [0] * 30)[-1] == pairs
    certificate = verify_program(model, limit=100)
    assert certificate.bound >= pairs
    assert certificate.verdict == "undecided"


def test_of_two_dtypes_the_smaller_range_counts() -> None:
    model = widened(1, dtype=torch.float16)
    block = with_block(model, 2, sinks=True)
    with torch.no_grad():
        model.positions.weight[29, 1] = 300.0
        block.ffn.up.weight[:, 1] = torch.tensor([300.0, -300.0])
        block.ffn.down.weight[1] = torch.tensor([1.0, -1.0])
    block.attention.sinks.data = block.attention.sinks.data.bfloat16()
    assert outputs(model, [0, 1] * 15)[-1].isnan()
    assert verify_program(model, limit=100).verdict == "undecided"


@pytest.mark.parametrize("claimed", [False, True])
def test_a_mean_of_n_keys_is_rounded_2n_times(claimed: bool) -> None:
    # where the sum of exponentials and the weighted sum are both rounded up
    length, above = (
        1969,
        2.0**-18,
    )
    model = widened(1, length=length)
    nothing = select(tokens, tokens, lambda _key, _query: False)
    program = pick(nothing, elementwise(lambda _: 0, tokens), 0)
    claims = (HeadClaim(nothing, (program,)),) if claimed else ()
    attention = with_block(model, 0, sinks=claimed, claims=claims).attention
    with torch.no_grad():
        for each in (model.embedding.weight, model.positions.weight, model.output.weight):
            each.zero_()
        if claimed:
            attention.sinks.fill_(-1e4)
        model.positions.weight[0, 0] = attention.query.bias[0] = 1.0
        attention.key.weight[0, 0] = 24 * math.log(2) + 1e-6
        attention.value.bias[0] = 1 + above
        attention.output.weight[1, 0] = model.output.weight[0, 1] = 1.0
    model.program = program if claimed else elementwise(lambda _: 0, tokens)
    model.codes = None
    error = float(outputs(model, [0] * length).max())
    assert error / (1 + above) - 1 > length * 2.0**-24
    assert error <= verify_program(model, limit=5, tolerance=10.0).bound


def test_numbers_below_the_normal_ones_may_be_read_as_zero() -> None:
    length = 128
    wide = 16
    back = 2.0**77
    model = widened(wide + 1, (0, 8), length, torch.bfloat16)
    ffn = with_block(model, 2).ffn
    with torch.no_grad():
        model.positions.weight[100:, 2:] = 2.0**52
        model.positions.weight[100:, 1] = -(2.0**-130) * 2.0**52 * wide * back
        ffn.up.weight[:, 2:] = torch.tensor([[2.0**-130], [-(2.0**-130)]])
        ffn.down.weight[1] = torch.tensor([back, -back])
        model.output.weight[0, 1] = 1.0
    lost = 2.0**-130 * 2.0**52 * wide * back
    certificate = verify_program(model, limit=100)
    assert certificate.bound >= lost  # that of processors which take such weights as 0
    assert certificate.verdict == "undecided"


def test_outputs_that_rounding_does_not_explain_are_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = compile_program(lib.histogram(), "ab", 3)
    model.claims = ()
    assert verify_program(model).verdict == "holds"
    forward = CompiledProgram.forward
    monkeypatch.setattr(CompiledProgram, "forward", lambda self, ids: forward(self, ids) + 1e-6)
    with pytest.raises(RuntimeError, match="than rounding allows"):
        verify_program(model)


def test_outputs_that_rest_on_a_sum_that_cancels_are_undecided() -> None:
    """Exactly they are right; floats lose the token beside 1e16, in some orders of the sum."""
    model = widened(2, (0, 1), 3, torch.float64)
    with torch.no_grad():
        model.positions.weight[:, 1] = 1e16
        model.positions.weight[:, 2] = -1e16
        model.output.weight[0, 1:] = 1.0
    model.claims = ()
    certificate = verify_program(model)
    assert certificate.verdict == "undecided"
    assert certificate.num_undecided == 2 * 1 + 4 * 2 + 8 * 3
    assert certificate.rounding > 1
    assert "rounding        decides 34 outputs" in str(certificate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_at_the_border_of_two_values_are_undecided(dtype: torch.dtype) -> None:
    model = compile_program(lib.histogram(), "ab", 3, dtype=dtype)
    model.claims = ()
    assert verify_program(model).verdict == "holds"
    for moved, verdict in ((0.5, "undecided"), (0.25, "holds"), (0.75, "fails")):
        with torch.no_grad():
            model.output.bias += moved
        certificate = verify_program(model)
        assert certificate.verdict == verdict
        assert (certificate.undecided is not None) == (verdict == "undecided")
        with torch.no_grad():
            model.output.bias -= moved


def test_domains_stay_what_they_were_verified_with() -> None:
    domains = Domains("ab", 10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        domains.max_len = 30  # type: ignore[misc]


@pytest.mark.parametrize(
    "value", [frozenset({True}), complex(0, -0.0), b"a", range(2), np.float32(1)]
)
def test_values_of_other_types_are_refused(value: object) -> None:
    program = elementwise(lambda token: value if token == "b" else 0, tokens)
    with refused("f\\(tokens\\)", expected="a finite number, a string, None or a tuple"):
        program("b")
