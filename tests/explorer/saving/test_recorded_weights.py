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


def test_every_weight_of_the_heads_that_are_shown_is_in_the_file(
    small_backend: Backend, by_name: dict[str, LoadedModel]
) -> None:
    state = {
        "model": "decoder",
        "view": "attention",
        "layer": "1",
        "head": "0",
        "versus": '{"layer":0,"head":1}',
    }
    saved = held(small_backend, text="1 2 3 4 5 6 7", **state)
    loaded = by_name["decoder"]
    with capture(loaded.model, what="weights") as seen:
        loaded.model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    layers = list(seen.weights.values())
    assert saved["left_out"] == []
    assert [(each["layer"], each["head"]) for each in saved["matrices"]] == [(1, 0), (0, 1)]
    for each in saved["matrices"]:
        expected = layers[each["layer"]][0, each["head"]].numpy()
        found = unpacked(each["numbers"]).reshape(each["rows"], each["columns"])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_long_texts_are_held_in_overview(
    monkeypatch: pytest.MonkeyPatch, small_backend: Backend
) -> None:
    state = {"model": "decoder", "view": "attention", "text": " ".join(["1 2 3 4 5"] * 10)}
    whole = held(small_backend, **state)
    assert (whole["matrices"][0]["level"], whole["left_out"]) == (0, [])
    monkeypatch.setattr("glassformer.explorer.saving.recorded_weights.MOST_WEIGHTS", 2 * 25 * 25)
    saved = held(small_backend, **state, versus='{"layer":1,"head":1}')
    assert [each["level"] for each in saved["matrices"]] == [1, 1]
    assert saved["left_out"] == [
        "The text is long: its attention is held as an overview, without single weights."
    ]
    exact = unpacked(whole["matrices"][0]["numbers"]).reshape(25, 2, 25, 2)
    found = unpacked(saved["matrices"][0]["numbers"]).reshape(25, 25)
    assert found.tolist() == exact.max(axis=(1, 3)).tolist()


def test_a_matrix_is_put_together_from_its_tiles(small_backend: Backend) -> None:
    run = small_backend.answer("run", m.Ask(model="decoder", text=" ".join(["1"] * 10)))
    whole = matrix(small_backend, run, run.attentions[0], 0, 0)
    assert whole.shape == (10, 10)
    halved = matrix(small_backend, run, run.attentions[0], 0, 0, level=2)
    expected = [
        [whole[r : r + 4, c : c + 4].max() for c in range(0, 10, 4)] for r in range(0, 10, 4)
    ]
    assert halved.tolist() == expected
