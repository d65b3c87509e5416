import pytest
import torch
from torch import Tensor

from glassformer.kernels import mxfp4
from glassformer.kernels.mxfp4 import FEW, expand_definition, expand_natively, multiply_natively
from glassformer.kernels.native import LEVELS, Library
from torch_settings import threads


def random_rows(rows: int, groups: int) -> tuple[Tensor, Tensor]:
    blocks = torch.randint(256, (rows, groups, 16), dtype=torch.uint8)
    return blocks, torch.randint(110, 130, (rows, groups), dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_level_expands_to_the_same_bits(at_level: Library, dtype: torch.dtype) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(255, 1, 1)
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1).repeat(1, 16)
    got = torch.empty(255, 512, dtype=dtype)
    expand_natively(at_level, blocks, scales, got)
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    torch.testing.assert_close(
        got.view(bits), expand_definition(blocks, scales).to(dtype).view(bits), rtol=0, atol=0
    )
    expand_natively(at_level, blocks, torch.full_like(scales, 255), got)
    assert bool(got.isnan().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 16, 17, 35])
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 2), (4, 3), (37, 5)])
def test_every_level_multiplies(
    at_level: Library, dtype: torch.dtype, tokens: int, rows: int, groups: int
) -> None:
    """Within the bound of adding n numbers in float32 in any order: n * 2^-24 times the sum of
    their magnitudes.

    In fixed point each number of a token is off by 2^-16 of its group's greatest.
    """
    blocks, scales = random_rows(rows, groups)
    x = torch.randn(tokens, 32 * groups).to(dtype)
    out = torch.full((tokens, rows), float("nan"))
    multiply_natively(at_level, x, blocks, scales, out)
    weights = expand_definition(blocks, scales)
    error = (out.double() - x.double() @ weights.T).abs()
    bound = 32 * groups * 2.0**-24 * (x.double().abs() @ weights.abs().T)
    if dtype == torch.bfloat16:
        greatest = x.double().abs().unflatten(1, (-1, 32)).amax(2)
        bound += 2.0**-16 * greatest @ weights.abs().unflatten(1, (-1, 32)).sum(2).T
    assert bool((error <= bound).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_batch_and_threads_do_not_count(
    at_level: Library, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, scales = random_rows(70, 6)
    x = torch.randn(40, 192).to(dtype)

    def product(x: Tensor, threads: int) -> Tensor:
        monkeypatch.setattr(mxfp4, "_threads", lambda _: threads)
        out = torch.empty(len(x), 70)
        multiply_natively(at_level, x, blocks, scales, out)
        return out

    together = product(x, 1)
    torch.testing.assert_close(product(x, 3), together, rtol=0, atol=0)
    for some in (9, 16, 35):
        torch.testing.assert_close(product(x[:some], 2), together[:some], rtol=0, atol=0)
    few = product(x[:FEW], 1)
    for some in (1, 2, 3, 4, 7, 8):
        torch.testing.assert_close(product(x[:some], 2), few[:some], rtol=0, atol=0)
    if dtype == torch.float32 or at_level.level < LEVELS.index("AVX-512 with bfloat16 products"):
        torch.testing.assert_close(few, together[:FEW], rtol=0, atol=0)


def test_threads_are_used_where_there_is_work() -> None:
    with threads(3):
        assert [mxfp4._threads(groups) for groups in (1, 2**14, 2**20)] == [1, 2, 3]
