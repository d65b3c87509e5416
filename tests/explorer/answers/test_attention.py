"""Tiles, overviews and measures are those of the whole attention matrix."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float

from glassformer.explorer import messages as m
from glassformer.explorer.answers import attention
from glassformer.explorer.answers.attention import measures
from glassformer.explorer.answers.forward import KeptRun
from glassformer.explorer.answers.runs import Runs, SizedCache
from glassformer.explorer.api import UnknownName
from glassformer.explorer.loading.loaded_model import LoadedModel, weights_stamp
from glassformer.explorer.loading.wrapping import wrap_model
from glassformer.kernels.pattern import Pattern
from glassformer.layers.attention import Attended
from glassformer.observe.attention_measures import distances, entropy
from glassformer.observe.capture import capture
from glassformer.observe.exact_attention import attention_weights
from refusals import refused
from small_models import decoder

ANY = wrap_model(decoder())
Matrix = Float[np.ndarray, "query key"]


def _pooled(matrix: Matrix, level: int) -> Matrix:
    """Cell by cell, the largest of 2**level x 2**level neighbours."""
    rows, columns = (range(0, size, 2**level) for size in matrix.shape)
    return np.maximum.reduceat(np.maximum.reduceat(matrix, rows, 0), columns, 1)


def _kept(given: Attended, causal: bool = True) -> tuple[Runs, str]:
    """Runs of a single one, whose attention was given this."""
    part: m.Part = "self" if given.q.shape[2] == given.k.shape[2] else "cross"
    ask = m.Ask(model="x", text="x")
    message = m.Run(
        run="r1", ask=ask, tokens=[], source=None, attentions=[], said=m.Said(headline="")
    )
    runs = Runs(lambda name: ANY)
    sizes = given.v[0].norm(dim=-1).repeat_interleave(given.group, 0).numpy()
    runs._runs.put(
        "r1", KeptRun(message, {part: (given,)}, {part: (sizes,)}, stamp=weights_stamp(ANY)), 1
    )
    return runs, part


def _given(queries: int, keys: int, window: int | None, sinks: bool) -> Attended:
    generator = torch.Generator().manual_seed(queries + 1000 * keys)
    q = 3 * torch.randn(1, 2, queries, 4, generator=generator)
    k = torch.randn(1, 1, keys, 4, generator=generator)
    pattern = Pattern(causal=queries == keys, window=window if queries == keys else None)
    return Attended(q, k, k, 0.5, pattern, sinks=torch.tensor([0.5, 1.5]) if sinks else None)


def _reference(given: Attended, head: int) -> Matrix:
    weights = attention_weights(
        given.q, given.k, given.pattern, scale=given.scale, sinks=given.sinks
    )
    return weights[0, head].numpy()


@settings(max_examples=30, deadline=None)
@given(
    queries=st.integers(1, 600),
    keys=st.integers(1, 600),
    square=st.booleans(),
    window=st.none() | st.integers(1, 700),
    sinks=st.booleans(),
    level=st.integers(0, 10),
    head=st.integers(0, 1),
    data=st.data(),
)
def test_every_tile_is_cut_from_the_matrix(
    queries: int,
    keys: int,
    square: bool,
    window: int | None,
    sinks: bool,
    level: int,
    head: int,
    data: st.DataObject,
) -> None:
    given_ = _given(queries, queries if square else keys, window, sinks)
    runs, part = _kept(given_)
    matrix = _reference(given_, head)
    level = min(level, (max(*matrix.shape, 2) - 1).bit_length())
    whole = _pooled(matrix, level)
    row = data.draw(st.integers(0, (whole.shape[0] - 1) // m.TILE))
    column = data.draw(st.integers(0, (whole.shape[1] - 1) // m.TILE))
    ask: Any = {
        "run": "r1",
        "part": part,
        "layer": 0,
        "head": head,
        "level": level,
        "row": row,
        "column": column,
    }
    wanted = whole[row * m.TILE : (row + 1) * m.TILE, column * m.TILE : (column + 1) * m.TILE]
    told = attention.weights(runs, m.AskTile(**ask))
    np.testing.assert_allclose(told, wanted, atol=2e-6)


@pytest.mark.parametrize(("window", "sinks"), [(None, False), (7, True)])
def test_rows_are_those_of_the_matrix(window: int | None, sinks: bool) -> None:
    given_ = _given(50, 50, window, sinks)
    runs, _ = _kept(given_)
    for query in (0, 3, 49):
        told = attention.rows(runs, m.AskRows(run="r1", part="self", query=query))
        assert told.shape == (1, 2, 50)
        for head in range(2):
            np.testing.assert_allclose(told[0, head], _reference(given_, head)[query], atol=1e-6)
        one = attention.rows(runs, m.AskRows(run="r1", part="self", query=query, layer=0, head=1))
        np.testing.assert_allclose(one, told[:, 1:], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": 2}, "head = 2"),
        ({"layer": 1}, "layer = 1"),
        ({"part": "cross"}, "part"),
        ({"run": "r2"}, "'r2'"),
    ],
)
def test_a_head_that_there_is_not_is_unknown(change: dict[str, Any], message: str) -> None:
    runs, part = _kept(_given(5, 5, None, False))
    values: dict[str, Any] = {"run": "r1", "part": part, "layer": 0, "head": 0, **change}
    with refused(message, error=UnknownName):
        attention.weights(runs, m.AskTile(**values))
    with refused(message, error=UnknownName):
        attention.rows(runs, m.AskRows(**values, query=0))
    with refused("query = 5", error=UnknownName):
        attention.rows(runs, m.AskRows(run="r1", part="self", query=5))


@pytest.mark.parametrize(
    "change", [{"level": 4}, {"row": 1}, {"column": 1}, {"level": 3, "row": 1}]
)
def test_a_tile_outside_of_the_matrix_is_refused(change: dict[str, int]) -> None:
    runs, _ = _kept(_given(5, 5, None, False))
    with refused(r"level|tile"):
        attention.weights(runs, m.AskTile(run="r1", part="self", layer=0, head=0, **change))


@pytest.mark.parametrize("level", [0, 3])
def test_what_is_passed_on_is_weight_times_size_of_the_value(level: int) -> None:
    given_ = _given(40, 40, 9, True)
    runs, _ = _kept(given_)
    for head in range(2):
        products = _reference(given_, head) * given_.v[0, 0].norm(dim=-1).numpy()
        shares = products / products.sum(1, keepdims=True)
        tile = m.AskTile(run="r1", part="self", layer=0, head=head, level=level, passed=True)
        np.testing.assert_allclose(attention.weights(runs, tile), _pooled(shares, level), atol=1e-6)
        row = attention.rows(
            runs, m.AskRows(run="r1", part="self", query=20, layer=0, head=head, passed=True)
        )
        np.testing.assert_allclose(row[0, 0], shares[20], atol=1e-6)


def test_values_are_measured_after_the_output_projection(by_name: dict[str, LoadedModel]) -> None:
    loaded = by_name["decoder"]
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="decoder", text="1 2 3 5 8 1 2 3")).message.run
    tokens = torch.tensor([[1, 2, 3, 5, 8, 1, 2, 3]])
    with torch.no_grad(), capture(loaded.model, what=("weights", "v")) as seen:
        loaded.model(tokens)
    for layer, (weights, v) in enumerate(
        zip(seen.weights.values(), seen.last("v").values(), strict=True)
    ):
        output = loaded.model.layers[layer].attention.output.weight.detach()
        for head in range(2):
            added = v[0, head] @ output[:, 8 * head : 8 * (head + 1)].T
            products = weights[0, head] * added.norm(dim=-1)
            found = attention.rows(
                runs, m.AskRows(run=run, part="self", query=7, layer=layer, head=head, passed=True)
            )
            np.testing.assert_allclose(found[0, 0], products[7] / products[7].sum(), atol=1e-6)


def test_neighbours_share_a_band_and_an_overview_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, _ = _kept(_given(700, 700, None, False))
    computed: list[range] = []
    exact = attention.exact_rows

    def counted(given: Attended, heads: Any, queries: Any, what: Any) -> Any:
        computed.append(queries)
        return exact(given, heads, queries, what)

    monkeypatch.setattr(attention, "exact_rows", counted)
    for column in range(3):
        attention.weights(
            runs, m.AskTile(run="r1", part="self", layer=0, head=0, row=1, column=column)
        )
    assert sum(map(len, computed)) == m.TILE
    computed.clear()
    for level in (2, 3, 4, 2):
        attention.weights(runs, m.AskTile(run="r1", part="self", layer=0, head=0, level=level))
    assert sum(map(len, computed)) == 700
    runs.derived = SizedCache(10**6)
    for level in range(3):
        attention.weights(runs, m.AskTile(run="r1", part="self", layer=0, head=0, level=level))
    assert runs.derived._entries.currsize <= 10**6


@pytest.mark.parametrize("length", [1, 7, 32, 77])
def test_measures_of_a_decoder(by_name: dict[str, LoadedModel], length: int) -> None:
    loaded = by_name["decoder"]
    runs = Runs(by_name.__getitem__)
    tokens = [(3 * number) % 11 for number in range(length)]
    run = runs.run(m.Ask(model="decoder", text=" ".join(map(str, tokens)))).message.run
    found = measures(runs, m.AskMeasures(run=run, part="self"))
    with torch.no_grad(), capture(loaded.model) as seen:
        loaded.model(torch.tensor([tokens]))
    weights = np.stack([each[0].numpy() for each in seen.weights.values()])
    np.testing.assert_allclose(
        found.entropy, entropy(weights).mean(-1) / math.log(2), rtol=1e-5, atol=1e-6
    )
    assert found.distance is not None
    np.testing.assert_allclose(found.distance, distances(weights).mean(-1), rtol=1e-5, atol=1e-6)
    assert found.sink is not None
    np.testing.assert_allclose(
        found.sink, np.maximum(0, 1 - weights.sum(-1)).mean(-1), rtol=1e-5, atol=1e-6
    )
    counted = weights[:, :, 1:].mean(2) if length > 1 else np.zeros((2, 2, 1))
    # of those about as large the first
    most = (counted >= counted.max(-1, keepdims=True) - 1e-4).argmax(-1)
    np.testing.assert_array_equal(found.most_read, most)
    np.testing.assert_allclose(found.on_one, counted.max(-1), atol=1e-6)
    shares = np.stack(
        [
            attention.rows(runs, m.AskRows(run=run, part="self", query=at, passed=True))
            for at in range(length)
        ],
        2,
    )
    passed = shares[:, :, 1:].mean(2) if length > 1 else np.zeros((2, 2, 1))
    np.testing.assert_allclose(
        found.passed, np.take_along_axis(passed, most[..., None], -1)[..., 0], atol=1e-6
    )
    parts = min(length, m.THUMBNAIL)
    edges = [length * part // parts for part in range(parts + 1)]
    small = [
        [weights[:, :, a:b, c:d].max((2, 3)) for c, d in pairwise(edges)]
        for a, b in pairwise(edges)
    ]
    np.testing.assert_allclose(found.thumbnails, np.moveaxis(small, (0, 1), (2, 3)), atol=6e-5)


def test_cross_attention_has_no_distance(by_name: dict[str, LoadedModel]) -> None:
    runs = Runs(by_name.__getitem__)
    run = runs.run(m.Ask(model="lookup", text="4 5", source=list("6789"))).message.run
    found = measures(runs, m.AskMeasures(run=run, part="cross"))
    assert found.distance is None
    assert found.sink is None
    assert np.shape(found.thumbnails) == (1, 2, 2, 4)
    assert measures(runs, m.AskMeasures(run=run, part="encoder")).distance is not None
    with refused("part", error=UnknownName):
        measures(runs, m.AskMeasures(run=run, part="self"))
