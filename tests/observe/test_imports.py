"""What an import of each part loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer import observe

MODULES = sorted(f"glassformer.observe.{path.stem}" for path in Path(observe.__path__[0]).glob("[!_]*.py"))


def in_a_new_process(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


@pytest.mark.slow
def test_only_figures_load_matplotlib_and_no_import_sets_up_the_profiler() -> None:
    imports = "\n".join(f"import {module}" for module in MODULES)
    code = f"import os, sys\n{imports}\nprint('matplotlib' in sys.modules, 'KINETO_LOG_LEVEL' in os.environ)"
    assert in_a_new_process(code) == "False False"
