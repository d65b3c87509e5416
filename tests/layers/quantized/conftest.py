from collections.abc import Iterator
from pathlib import Path

import pytest
from random_gpt_oss import GPT_OSS_TINY, write_random_gpt_oss

from glassformer import kernels
from glassformer.kernels import mxfp4, native


@pytest.fixture(params=["kernel", "torch", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the C++ kernel for every size, without it, and with definitions only."""
    monkeypatch.setattr(mxfp4, "_LEAST_GROUPS", 0)
    if request.param == "kernel":
        request.getfixturevalue("library")
        yield request.param
    elif request.param == "torch":
        monkeypatch.setattr(native, "look", lambda: (None, ""))
        yield request.param
    else:
        with kernels.plain():
            yield request.param


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random gpt-oss, stored."""
    folder = tmp_path_factory.mktemp("gpt_oss") / "model"
    write_random_gpt_oss(folder, GPT_OSS_TINY)
    return folder
