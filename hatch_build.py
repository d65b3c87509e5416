"""The wheel with the C++ library inside: ``GLASSFORMER_PREBUILT=FILE python -m build --wheel``, see
``make dist``.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Prebuilt(BuildHookInterface):
    """Puts the library into the wheel, which then suits one platform and every Python: C++ receives
    addresses only.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written."""
        if library := os.environ.get("GLASSFORMER_PREBUILT"):
            build_data["force_include"][library] = "glassformer/kernels/native/prebuilt.so"
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
