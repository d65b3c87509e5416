from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.observe.captured import Captured, Record
from refusals import refused


def record(**changes: object) -> Record:
    fields = {
        "what": "weights",
        "name": "layers.0.attention",
        "layer": 0,
        "call": 0,
        "values": torch.rand(2, 2, 3, 4),
        "heads": (0, 3),
        "queries": (1, 2, 4),
        "keys": range(1, 5),
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_last_of_each_module_and_all_of_them() -> None:
    one, other, again = record(), record(name="layers.1.attention"), record(call=1)
    seen = Captured([one, other, again, record(what="q", values=torch.rand(2, 2, 3, 8), keys=None)])
    assert seen.of("weights") == {"layers.0.attention": [one, again], "layers.1.attention": [other]}
    assert seen.weights["layers.0.attention"] is again.values
    assert one.axes == ("batch", "head", "query", "key")
    assert np.array_equal(seen.numpy("weights")["layers.1.attention"], other.values.numpy())
    assert list(seen.last("q")) == ["layers.0.attention"]
    assert seen.last("scores") == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_values_become_arrays_of_the_same_numbers(dtype: torch.dtype) -> None:
    values = torch.arange(24).view(2, 3, 4).to(dtype)
    array = record(what="residual", values=values, heads=None, keys=None).numpy()
    assert array.tolist() == values.tolist()


@pytest.mark.usefixtures("without_type_checks")
def test_what_a_record_or_capture_lacks_is_refused() -> None:
    seen = Captured([record()])
    with refused("keeps no gradient"):
        _ = seen.records[0].grad
    with refused("nothing", expected="one of weights"):
        seen.of("nothing")
