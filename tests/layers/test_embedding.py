"""Tokens: what every model refuses, and the rows that a table gives for them."""

import pytest
import torch
from torch import Tensor, nn

from glassformer.kernels.pattern import unless_all
from glassformer.layers.embedding import check_real, check_tokens, look_up
from refusals import refused

GOOD = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize("tokens", [GOOD, GOOD.int(), GOOD[:1, :1]])
def test_tokens_that_fit_pass(tokens: Tensor) -> None:
    check_tokens(tokens, 3)
    check_tokens(tokens, 8, start=5, real=tokens == 0)


@pytest.mark.parametrize(
    ("tokens", "start", "got", "expected"),
    [
        (GOOD[0], 0, r"tokens of shape \[3\]", r"\[batch, position\]"),
        (GOOD[:0], 0, r"tokens of shape \[0, 3\]", "at least one of each"),
        (GOOD[:, :0], 0, r"tokens of shape \[2, 0\]", "at least one of each"),
        (GOOD[None], 0, r"tokens of shape \[1, 2, 3\]", r"\[batch, position\]"),
        (GOOD.float(), 0, "torch.float32", "int64"),
        (GOOD.bool(), 0, "torch.bool", "int64"),
        (GOOD.to(torch.uint8), 0, "torch.uint8", "int64"),
        (GOOD, 1, "4 positions", "max_seq_len = 3"),
    ],
)
def test_others_are_refused(tokens: Tensor, start: int, got: str, expected: str) -> None:
    with refused(got, expected=expected):
        check_tokens(tokens, 3, start)


def test_errors_name_the_tokens_and_the_limit() -> None:
    for tokens, got, fix in [
        (GOOD[0], r"source of shape \[3\]", r"source\[None\]"),
        (GOOD.float(), "source of dtype torch.float32", r"source\.long"),
        (GOOD, "3 positions of source", "max_source_len"),
    ]:
        with refused(got, fix=fix):
            check_tokens(tokens, 2, name="source", limit="max_source_len")


def test_a_mask_is_boolean_and_of_the_tokens_shape() -> None:
    check_real("real", GOOD == 0, GOOD)
    with refused(r"key_padding of shape \[2, 3\] and dtype torch.int64"):
        check_real("key_padding", GOOD, GOOD)
    with refused(r"real of shape \[2, 2\]"):
        check_tokens(GOOD, 3, real=(GOOD == 0)[:, :2], real_name="real")


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    assert unless_all(torch.tensor([[True, True]])) is None
    some = torch.tensor([[True, False]])
    assert unless_all(some) is some


def test_rows_of_a_table_and_numbers_without_one() -> None:
    table = nn.Embedding(5, 4)
    assert torch.equal(look_up(table, "tokens", torch.tensor([[4, 0]]))[0], table.weight[[4, 0]])
    for wrong in (5, -1):
        with refused(rf"types from {min(0, wrong)} to {max(0, wrong)}", expected=r"types in \[0, 5\)"):
            look_up(table, "types", torch.tensor([[0, wrong]]))
