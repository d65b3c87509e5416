"""Tokens: what every model refuses, and the rows that a table gives for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from glassformer.models.tokens import look_up, require_numbers, require_real, require_tokens
from refusals import refused

GOOD = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize("tokens", [GOOD, GOOD.int(), GOOD[:1, :1]])
def test_tokens_that_fit_pass(tokens: Tensor) -> None:
    require_tokens(tokens, 3)
    require_tokens(tokens, 8, start=5)


@pytest.mark.parametrize(
    ("tokens", "start", "match"),
    [
        (GOOD[0], 0, r"tokens of shape \[3\]"),
        (GOOD[:0], 0, "at least one of each"),
        (GOOD[:, :0], 0, "start an empty text with a token"),
        (GOOD.float(), 0, "torch.float32"),
        (GOOD, 1, "4 positions.*at most max_seq_len = 3"),
    ],
)
def test_others_are_refused(tokens: Tensor, start: int, match: str) -> None:
    with refused(match):
        require_tokens(tokens, 3, start)


def test_messages_tell_which_tokens_and_which_limit() -> None:
    names = {"name": "source", "limit": "max_source_len"}
    for tokens, match in [
        (GOOD[0], r"source of shape \[3\].*source\[None\]"),
        (GOOD.float(), r"source of dtype torch.float32.*source\.long"),
        (GOOD, "3 positions of source; expected at most max_source_len = 2.*larger max_source_len"),
    ]:
        with refused(match):
            require_tokens(tokens, 2, **names)


def test_a_mask_is_boolean_and_of_the_tokens_shape() -> None:
    require_real("real", None, GOOD)
    require_real("real", GOOD == 0, GOOD)
    with refused(r"key_padding of shape \[2, 3\] and dtype torch.int64"):
        require_real("key_padding", GOOD, GOOD)
    with refused(r"real of shape \[2, 2\]"):
        require_real("real", (GOOD == 0)[:, :2], GOOD)


def test_numbers_are_whole_and_one_for_each_token() -> None:
    require_numbers("types", GOOD.int(), GOOD, "Mend.")
    for wrong in (GOOD.float(), GOOD[:, :2]):
        with refused(r"types of shape.*Mend"):
            require_numbers("types", wrong, GOOD, "Mend.")


def test_rows_of_a_table_and_numbers_without_one() -> None:
    table = nn.Embedding(5, 4)
    assert torch.equal(look_up(table, "tokens", torch.tensor([[4, 0]]))[0], table.weight[[4, 0]])
    for wrong in (5, -1):
        with refused(rf"types from {min(0, wrong)} to {max(0, wrong)}.*types in \[0, 5\)"):
            look_up(table, "types", torch.tensor([[0, wrong]]))
