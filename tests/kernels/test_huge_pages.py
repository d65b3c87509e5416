from __future__ import annotations

import pytest
import torch

from glassformer.kernels import huge_pages
from glassformer.kernels.huge_pages import empty_in_huge_pages


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2**20, 3), (2**22 + 1,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_the_advice_stays_inside_the_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda start, length, _: advice.append((start, length)))
    tensor = empty_in_huge_pages(shape, dtype)
    assert (tensor.shape, tensor.dtype, tensor.device.type) == (shape, dtype, "cpu")
    assert len(advice) == (tensor.nbytes >= 2**22)
    for start, length in advice:
        assert start % 2**21 == length % 2**21 == 0
        assert tensor.data_ptr() <= start
        assert start + length <= tensor.data_ptr() + tensor.nbytes
        assert length >= tensor.nbytes - 2**22


def test_it_can_be_written_and_read() -> None:
    tensor = empty_in_huge_pages((3, 2**20), torch.float32)
    assert tensor.fill_(2.0).sum() == 6 * 2**20
    assert empty_in_huge_pages((2**24,), torch.float32, "meta").is_meta
