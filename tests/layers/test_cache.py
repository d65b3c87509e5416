import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.generation import generate
from glassformer.generation.native_step import DecodingStep
from glassformer.layers.cache import Cache, LayerCache
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

CHUNKS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def numbered(length: int) -> tuple[Tensor, Tensor]:
    """Keys that are their position, and values that are its negative."""
    k = torch.arange(1.0, length + 1).view(1, 1, length, 1).expand(2, 3, -1, 4)
    return k, -k


@given(CHUNKS, st.none() | st.integers(1, 12))
@settings(deadline=None)
def test_it_returns_what_the_new_queries_can_see(chunks: list[int], window: int | None) -> None:
    total = sum(chunks)
    k, v = numbered(total)
    cache = LayerCache(2, 3, 4, total, window)
    start = 0
    for new in chunks:
        stop = start + new
        seen_k, seen_v = cache.append(k[:, :, start:stop], v[:, :, start:stop])
        positions = cache.positions(new)
        assert cache.length == stop
        assert torch.equal(seen_v, -seen_k)
        assert torch.equal(seen_k, (positions + 1.0).view(1, 1, -1, 1).expand_as(seen_k))
        first = 0 if window is None else max(0, start - window + 1)
        assert sorted(positions.tolist()) == list(range(first, stop))
        if new > 1:
            assert positions.tolist() == sorted(positions.tolist())
        start = stop


def test_a_windowed_layer_takes_no_more_memory_than_its_window() -> None:
    assert LayerCache(2, 3, 4, 1000, 16).keys.shape == (2, 3, 16, 4)
    assert LayerCache(2, 3, 4, 10, 16).keys.shape == (2, 3, 10, 4)
    assert LayerCache(2, 3, 4, 1000).keys.shape == (2, 3, 1000, 4)


@pytest.mark.parametrize("window", [None, 3])
def test_overflow_is_refused_and_changes_nothing_and_reset_forgets(window: int | None) -> None:
    k, v = numbered(8)
    cache = LayerCache(2, 3, 4, 7, window)
    memory = cache.keys.data_ptr()
    cache.append(k[:, :, :5], v[:, :, :5])
    with refused(r"3 new positions on top of 5", expected="at most 7"):
        cache.append(k[:, :, 5:], v[:, :, 5:])
    assert cache.length == 5
    cache.append(k[:, :, 5:7], v[:, :, 5:7])
    assert cache.length == 7
    cache.reset()
    assert cache.length == 0
    seen, _ = cache.append(k[:, :, 5:7], v[:, :, 5:7])
    assert torch.equal(seen, k[:, :, 5:7])
    assert cache.positions(2).tolist() == [0, 1]
    assert cache.keys.data_ptr() == memory


@pytest.mark.parametrize("shape", [(3, 3, 1, 4), (2, 2, 1, 4), (2, 3, 1, 5)])
def test_keys_of_another_model_or_batch_are_refused(shape: tuple[int, ...]) -> None:
    with refused(expected=r"\[2, 3, positions, 4\]"):
        LayerCache(2, 3, 4, 7).append(torch.zeros(shape), torch.zeros(shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"num_kv_heads": 0}, "num_kv_heads = 0"),
        ({"head_dim": 0}, "head_dim = 0"),
        ({"max_seq_len": 0}, "max_seq_len = 0"),
        ({"window": 0}, "window = 0"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        LayerCache(**{"batch": 2, "num_kv_heads": 3, "head_dim": 4, "max_seq_len": 7} | arguments)


def test_a_cache_of_layers() -> None:
    cache = Cache([LayerCache(2, 3, 4, 8), LayerCache(2, 3, 4, 8, 2)])
    assert (cache.length, cache.max_seq_len) == (0, 8)
    for layer in cache.layers:
        layer.append(*numbered(5))
    assert cache.length == 5
    cache.reset()
    assert [layer.length for layer in cache.layers] == [0, 0]
    with refused("a cache of no layers"):
        Cache([])


def test_padding_is_remembered_and_what_has_none_is_real() -> None:
    cache = Cache([LayerCache(2, 3, 4, 8)])
    assert cache.begin(2, 3, None) is None
    cache.layers[0].append(*numbered(3))
    new = torch.tensor([[False, True], [True, True]])
    assert cache.begin(2, 2, new).tolist() == [[True, True, True, False, True], [True] * 5]
    cache.layers[0].append(*numbered(2))
    assert cache.begin(2, 1, None)[:, -1].tolist() == [True, True]
    cache.reset()
    assert cache.begin(2, 1, None) is None


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("native", [False, True])
def test_a_pass_that_breaks_off_leaves_no_trace_or_the_cache_is_refused(
    layer: int, native: bool
) -> None:
    model = Decoder(DecoderConfig(16, 2, 8, 16, 2, 4)).eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    real = torch.tensor([[False, True, True], [True, True, True]])
    cache = model.new_cache(2)
    expected = model.new_cache(2)
    with torch.no_grad():
        for each in (cache, expected):
            model(tokens[:, :2], cache=each, key_padding=real[:, :2])
        handle = model.layers[layer].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(tokens[:, 2:3], cache=cache, key_padding=~real[:, 2:])
        handle.remove()
        step = DecodingStep(model, cache) if native else lambda new: model(new, cache=cache)[:, -1]
        if layer > 0:
            for _ in range(2):
                with refused("broke off"):
                    step(tokens[:, 2:3])
            cache.reset()
            model(tokens[:, :2], cache=cache, key_padding=real[:, :2])
            torch.testing.assert_close(
                step(tokens[:, 2:3]), model(tokens[:, 2:3], cache=expected)[:, -1]
            )
        else:
            for new in tokens[:, 2:].split(1, dim=1):
                torch.testing.assert_close(step(new), model(new, cache=expected)[:, -1])


def test_a_layer_that_is_skipped_adds_nothing_to_its_cache() -> None:
    class Skipped(nn.Module):
        def forward(self, x: Tensor, **_others: Any) -> Tensor:
            return x

    model = Decoder(DecoderConfig(16, 3, 8, 16, 2, 4)).eval()
    model.layers[1] = Skipped()
    found = generate(model, [[1, 2, 3], [4, 5]], 5)
    del model.layers[1]
    assert found == generate(model, [[1, 2, 3], [4, 5]], 5)


@pytest.mark.parametrize("order", [[1, 2, 3], [1, 0, 3, 2], [0, 1, 1]])
def test_windows_and_rotations_are_those_of_the_layers_that_are_there(
    order: list[int], tmp_path: Path
) -> None:
    model = Decoder(
        DecoderConfig(16, 4, 8, 16, 2, 4, window=3, local_rope_base=50.0, unrotated_layers=(0,))
    ).eval()
    model.layers = nn.ModuleList(copy.deepcopy(model.layers[layer]) for layer in order)
    with refused("layers were moved"):  # of which a file, with the configuration, would say nothing
        model.save_pretrained(tmp_path / "x")
    windowed = tuple(place for place, layer in enumerate(order) if layer % 2)
    unrotated = tuple(place for place, layer in enumerate(order) if layer == 0)
    config = replace(
        model.config, num_layers=len(order), windowed_layers=windowed, unrotated_layers=unrotated
    )
    made = Decoder(config).eval()
    made.load_state_dict(model.state_dict())
    tokens = torch.arange(12)[None]
    cache = model.new_cache(1)
    step = DecodingStep(model, model.new_cache(1))
    with torch.no_grad():
        whole = made(tokens)
        torch.testing.assert_close(model(tokens), whole)
        for read in (lambda new: model(new, cache=cache)[:, -1], step):
            found = torch.stack([read(each) for each in tokens.split(1, dim=1)], dim=1)
            torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)


@given(
    st.integers(0, 12),
    st.integers(0, 9),
    st.lists(st.none() | st.integers(1, 10), min_size=1, max_size=3),
    st.booleans(),
    st.randoms(),
)
def test_what_is_taken_back_leaves_no_trace(
    before: int, new: int, windows: list[int | None], padded: bool, draw: random.Random
) -> None:
    k, v = (torch.randn(2, 3, 25, 4) for _ in range(2))
    real = torch.rand(2, 25) < 0.5 if padded else None

    def read(cache: Cache, start: int, stop: int) -> list[list[Tensor]]:
        """In pieces; what each layer returns, in order of position."""
        seen: list[list[Tensor]] = []
        while start < stop:
            end = draw.randint(start + 1, stop)
            mask = cache.begin(2, end - start, None if real is None else real[:, start:end])
            for layer in cache.layers:
                keys, values = layer.append(k[:, :, start:end], v[:, :, start:end])
                order = layer.positions(end - start).argsort()
                padding = [] if mask is None else [mask[:, layer.positions(end - start)][:, order]]
                seen.append([keys[:, :, order], values[:, :, order], *padding])
            start = end
        return seen

    taken, plain = (
        Cache([LayerCache(2, 3, 4, 25, window) for window in windows]) for _ in range(2)
    )
    read(taken, 0, before)
    kept = taken.snapshot()
    read(taken, before, before + new)
    taken.restore(kept)
    assert [layer.length for layer in taken.layers] == [before] * len(windows)
    read(plain, 0, before)
    state = draw.getstate()
    expected = read(plain, before, 25)
    draw.setstate(state)
    torch.testing.assert_close(read(taken, before, 25), expected, rtol=0, atol=0)


def test_copies_are_of_what_can_be_written_over() -> None:
    cache = Cache([LayerCache(2, 3, 4, 30), LayerCache(2, 3, 4, 30, 8)])
    for length in (0, 6, 8):
        for layer in cache.layers:
            layer.append(*numbered(length - layer.length))
        full, windowed = cache.snapshot().layers
        assert full is None
        assert windowed[0].shape == windowed[1].shape == (2, 3, length, 4)
    for layer in cache.layers:
        layer.append(*numbered(20))
    assert cache.snapshot().layers[1][0].shape == (2, 3, 8, 4)


def test_a_cache_that_was_reset_has_no_way_back() -> None:
    cache = Cache([LayerCache(2, 3, 4, 30), LayerCache(2, 3, 4, 30, 8)])
    for layer in cache.layers:
        layer.append(*numbered(5))
    kept = cache.snapshot()
    cache.reset()
    with refused("a cache of 0 positions", expected="the 5 of the snapshot"):
        cache.restore(kept)
