"""What errors of tokens say, and the rows that a table gives for them. What is refused is tested
with each model.
"""

import torch
from torch import nn

from glassformer.kernels.pattern import unless_all
from glassformer.layers.embedding import check_tokens, look_up
from refusals import refused

GOOD = torch.zeros(2, 3, dtype=torch.long)


def test_errors_name_the_tokens_and_the_limit() -> None:
    for tokens, got, fix in [
        (GOOD[0], r"source of shape \[3\]", r"source\[None\]"),
        (GOOD.float(), "source of dtype torch.float32", r"source\.long"),
        (GOOD, "3 positions of source", "max_source_len"),
    ]:
        with refused(got, fix=fix):
            check_tokens(tokens, 2, name="source", limit="max_source_len")


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    assert unless_all(torch.tensor([[True, True]])) is None
    some = torch.tensor([[True, False]])
    assert unless_all(some) is some


def test_rows_of_a_table_and_numbers_without_one() -> None:
    table = nn.Embedding(5, 4)
    assert torch.equal(look_up(table, "tokens", torch.tensor([[4, 0]]))[0], table.weight[[4, 0]])
    for wrong in (5, -1):
        with refused(
            rf"types from {min(0, wrong)} to {max(0, wrong)}", expected=r"types in \[0, 5\)"
        ):
            look_up(table, "types", torch.tensor([[0, wrong]]))
