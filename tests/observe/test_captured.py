from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.observe.captured import Captured, Record, as_texts
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


def test_labels_name_what_stands_on_the_axes() -> None:
    words = (("a", "b", "c", "d", "e"), ("f", "g", "h"))
    seen = Captured([record()], words, (("s",),))
    (only,) = seen.records
    assert only.axes == ("batch", "head", "query", "key")
    assert seen.query_names(only) == ["b", "c", "e"]
    assert seen.key_names(only) == ["b", "c", "d", "e"]
    assert seen.query_names(only, 1) == ["g", "h", "4"]  # where a text is longer than its words
    assert seen.key_names(record(cross=True, keys=range(4))) == ["s", "1", "2", "3"]
    assert seen.query_names(record(source=True)) == ["1", "2", "4"]
    assert Captured([only]).key_names(only) == ["1", "2", "3", "4"]


def test_the_last_of_each_module_and_all_of_them() -> None:
    one, other, again = record(), record(name="layers.1.attention"), record(call=1)
    seen = Captured([one, other, again, record(what="q", values=torch.rand(2, 2, 3, 8), keys=None)])
    assert seen.of("weights") == {"layers.0.attention": [one, again], "layers.1.attention": [other]}
    assert seen.weights["layers.0.attention"] is again.values
    assert list(seen.calls) == ["layers.0.attention", "layers.1.attention"]
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
    for words in ("abc", [1, 2], [["a"], "b"], [["a"], [1]]):
        with refused("tokens of", expected="a list of words"):
            as_texts("tokens", words)
    with refused("row 1 of 1 texts"):
        Captured(seen.records, (("a",),)).query_names(seen.records[0], 1)
    with refused("without such an axis"):
        seen.key_names(record(what="residual", values=torch.rand(2, 3, 4), heads=None, keys=None))
