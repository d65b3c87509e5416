from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from glassformer import kernels
from glassformer.kernels import mxfp4, mxfp4_native
from glassformer.kernels.mxfp4_native import Kernel


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip where there is no C++ compiler at all."""
    if not os.environ.get("CXX") and not any(map(shutil.which, mxfp4_native._COMPILERS)):
        pytest.skip(f"none of {', '.join(mxfp4_native._COMPILERS)}, and none named in CXX")


@pytest.fixture
def kernel(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The kernel. If there is a compiler it has to build it: a fault of the source must not look like a missing one."""
    monkeypatch.delenv(mxfp4_native.SWITCH, raising=False)
    found, problem = mxfp4_native.look()
    assert found is not None, problem
    return found


@pytest.fixture(params=["kernel", "torch", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the C++ kernel for every size, without it, and with definitions only."""
    monkeypatch.setattr(mxfp4, "_LEAST_GROUPS", 0)
    if request.param == "kernel":
        request.getfixturevalue("kernel")
        yield request.param
    elif request.param == "torch":
        monkeypatch.setenv(mxfp4_native.SWITCH, "1")
        monkeypatch.setattr(mxfp4_native, "_warn_once", lambda _: None)
        yield request.param
    else:
        with kernels.plain():
            yield request.param
