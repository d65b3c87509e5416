from dataclasses import replace

import pytest

from glassformer.kernels.native import LEVELS, Library


@pytest.fixture(params=[*range(len(LEVELS)), "64 bytes of plain C++", "64 bytes"], ids=str)
def at_level(request: pytest.FixtureRequest, library: Library) -> Library:
    """The library with each instruction set that this processor has, and with vectors wider than its registers."""
    if isinstance(request.param, str):
        wide: Library = request.getfixturevalue("wider")
        return replace(wide, level=min(wide.level, int(request.param == "64 bytes")))
    if request.param > library.level:
        pytest.skip(f"this processor has no {LEVELS[request.param]}")
    return replace(library, level=request.param)
