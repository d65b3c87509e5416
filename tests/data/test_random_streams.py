from typing import Any

import pytest

from glassformer.data.random_streams import generator, require_fractions
from refusals import refused


def test_streams_of_a_seed_differ_and_repeat() -> None:
    streams: list[tuple[int, ...]] = [(0,), (0, 0), (0, 0, 0), (0, 1), (1,), (1, 0)]
    drawn = [generator(*stream).integers(2**60) for stream in streams]
    assert len(set(drawn)) == len(streams)
    assert drawn == [generator(*stream).integers(2**60) for stream in streams]


@pytest.mark.parametrize(
    ("stream", "got"), [((-1,), "seed = -1"), ((0, -2), "step = -2"), ((0.5,), "seed = 0.5")]
)
def test_numbers_that_are_refused(stream: Any, got: str) -> None:
    with refused(got):
        generator(*stream)


@pytest.mark.parametrize("fractions", [(), (0.5, 0.4), (1.5, -0.5), (1.0, 0.0)])
def test_fractions_that_are_refused(fractions: tuple[float, ...]) -> None:
    with refused("fractions = "):
        require_fractions(fractions)
