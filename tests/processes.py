"""Code that has to run in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"


def printed(
    code: str,
    *flags: str,
    arguments: Sequence[str] = (),
    env: dict[str, str] | None = None,
    **options: Any,
) -> str:
    """What ``code`` prints in a process that finds this source and has no fault; ``flags`` of
    Python.
    """
    env = {**(os.environ if env is None else env), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, *flags, "-c", code, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
