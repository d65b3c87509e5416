import base64
import json
import re
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.explorer import messages as m
from glassformer.explorer.backend import Backend
from glassformer.explorer.loading.loaded_model import LoadedModel
from glassformer.explorer.saving.recorded_weights import coarse_enough, matrix, pack
from glassformer.explorer.saving.saved_page import page
from glassformer.explorer.state import from_words
from glassformer.observe.capture import capture


def unpacked(text: str) -> np.ndarray:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.frombuffer(planes.T.tobytes(), "<f4")


def data_in(text: str) -> Any:
    found = re.search(r'id="glassformer-saved">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def held(backend: Backend, **state: str) -> Any:
    return data_in(page(backend, from_words(state)))


@given(st.integers(1, 4096), st.integers(1, 512))
def test_the_finest_level_of_at_most_so_many_cells(tokens: int, side: int) -> None:
    level = coarse_enough(tokens, side)
    assert -(-tokens // 2**level) <= side
    assert level == 0 or -(-tokens // 2 ** (level - 1)) > side


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_numbers_come_back_bit_for_bit(numbers: list[float]) -> None:
    given = np.array(numbers, np.float32)
    assert unpacked(pack(given)).tobytes() == given.tobytes()


def test_every_weight_of_every_head_is_in_the_file(small_backend: Backend, by_name: dict[str, LoadedModel]) -> None:
    saved = held(small_backend, model="decoder", text="1 2 3 4 5 6 7")
    loaded = by_name["decoder"]
    with capture(loaded.model, what="weights") as seen:
        loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    layers = list(seen.weights.values())
    assert saved["left_out"] == []
    assert len(saved["matrices"]) == 2 * 2
    for each in saved["matrices"]:
        expected = layers[each["layer"]][0, each["head"]].numpy()
        found = unpacked(each["numbers"]).reshape(each["rows"], each["columns"])
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("less", [1_000, 20_000, 40_000, 50_000, 60_000, 80_000])
def test_the_file_keeps_to_its_size_and_says_what_is_missing(small_backend: Backend, less: int) -> None:
    ask = from_words({"model": "decoder", "text": " ".join(["1 2 3"] * 30), "layer": "1", "head": "1"})
    whole = page(small_backend, ask)
    most = len(whole) - less
    some = page(small_backend, ask, most_bytes=most)
    saved = data_in(some)
    everything_else = len(whole) - sum(len(json.dumps(each)) for each in data_in(whole)["matrices"])
    assert len(some.encode()) <= max(most, everything_else + 1000)
    levels = [each["level"] for each in saved["matrices"]]
    missing, overview = 4 - len(levels), sum(level > 0 for level in levels)
    assert missing + overview > 0
    reports = []
    if overview:
        reports.append(f"{overview} of 4 heads are held as an overview, without single weights.")
    if missing:
        reports.append(f"There was no room for {missing} of 4 heads.")
    assert saved["left_out"] == reports
    # The head that is shown is there first, and no other is held finer.
    if levels:
        assert (saved["matrices"][0]["layer"], saved["matrices"][0]["head"]) == (1, 1)
        assert levels[0] == min(levels)


def test_long_texts_are_held_in_overview(monkeypatch: pytest.MonkeyPatch, small_backend: Backend) -> None:
    monkeypatch.setattr("glassformer.explorer.saving.recorded_weights.EXACT_TOKENS", 16)
    saved = held(small_backend, model="decoder", text=" ".join(["1 2 3 4 5"] * 10), pin="20")
    levels = {(each["layer"], each["head"]): each["level"] for each in saved["matrices"]}
    assert levels == {(0, 0): 0, (0, 1): 2, (1, 0): 2, (1, 1): 2}
    assert saved["left_out"] == ["3 of 4 heads are held as an overview, without single weights."]
    (rows,) = saved["rows"]
    assert rows["asked"]["query"] == 20
    exact = unpacked(saved["matrices"][0]["numbers"]).reshape(50, 50)
    np.testing.assert_allclose(unpacked(rows["numbers"])[:50], exact[20], atol=1e-6)


def test_a_matrix_is_put_together_from_its_tiles(small_backend: Backend) -> None:
    run = small_backend.answer("run", m.Ask(model="decoder", text=" ".join(["1"] * 10)))
    whole = matrix(small_backend, run, run.attentions[0], 0, 0)
    assert whole.shape == (10, 10)
    halved = matrix(small_backend, run, run.attentions[0], 0, 0, level=2)
    expected = [[whole[r : r + 4, c : c + 4].max() for c in range(0, 10, 4)] for r in range(0, 10, 4)]
    assert halved.tolist() == expected
