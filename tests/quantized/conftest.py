from __future__ import annotations

import os
import shutil

import pytest

from glassformer.quantized import mxfp4, mxfp4_native, packed_experts
from glassformer.quantized.mxfp4_native import Kernel


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip where there is no C++ compiler at all."""
    if not os.environ.get("CXX") and not any(map(shutil.which, mxfp4_native._COMPILERS)):
        pytest.skip(f"none of {', '.join(mxfp4_native._COMPILERS)}, and none named in CXX")


@pytest.fixture
def kernel(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The kernel. A compiler that is there has to build it: a fault of the source must not look like a missing one."""
    monkeypatch.delenv(mxfp4_native.SWITCH, raising=False)
    found = mxfp4_native.look()
    assert found.kernel is not None, found.remark
    return found.kernel


@pytest.fixture(params=["kernel", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Once with the kernel for every size, and once without it."""
    for module in (mxfp4, packed_experts):
        monkeypatch.setattr(module, "_LEAST_GROUPS", 0)
    if request.param == "torch":
        monkeypatch.setenv(mxfp4_native.SWITCH, "1")
        monkeypatch.setattr(mxfp4_native, "_say_once", lambda *_: None)
    else:
        request.getfixturevalue("kernel")
    return request.param
