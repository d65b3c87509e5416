"""Definitions only: on request, and what that covers."""

import re
import threading
from pathlib import Path

import pytest
import torch

from glassformer import kernels
from glassformer.kernels import dispatch, rms_norm, rotation, swiglu
from processes import printed

PACKAGE = Path(kernels.__file__).parent.parent


def test_it_lasts_for_the_block_and_its_thread() -> None:
    before = dispatch.use_definition()
    seen: list[bool] = []
    with kernels.plain():
        assert dispatch.use_definition()
        thread = threading.Thread(target=lambda: seen.append(dispatch.use_definition()))
        thread.start()
        thread.join()
    assert seen == [before]
    assert dispatch.use_definition() == before


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False"), ("", "False")])
def test_the_environment_variable(value: str, expected: str) -> None:
    code = "from glassformer.kernels import PLAIN; print(PLAIN.get())"
    assert printed(code, env={"GLASSFORMER_PLAIN": value}).strip() == expected


def test_no_fast_form_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (rms_norm, "native_library"),
        (swiglu, "native_library"),
        (rotation, "_rotated"),
    ):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a fast form ran"))
    x = torch.randn(2, 3, 4, 8, requires_grad=True)
    angles = torch.rand(2, 4, 4)
    with kernels.plain():
        for part in (x, x.detach()):
            rms_norm.rms_norm(part, torch.ones(8), 1e-5)
            swiglu.swiglu(part, part)
            rotation.rotate(part, (angles[0], angles[1]))


@pytest.mark.parametrize("package", ["layers", "models"])
def test_layers_and_models_leave_devices_and_dtypes_to_kernels(package: str) -> None:
    forbidden = re.compile(
        r"autograd\.Function|device\.type ==|\.is_cuda|is_autocast_enabled|\.dtype == torch\.(b?float|half)"
    )
    paths = (PACKAGE / package).glob("*.py")
    assert [path.name for path in paths if forbidden.search(path.read_text(encoding="utf-8"))] == []
