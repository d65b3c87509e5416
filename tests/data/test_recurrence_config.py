from __future__ import annotations

import subprocess
import sys


def test_the_configuration_is_read_without_torch() -> None:
    program = "import sys; import glassformer.data.recurrence_config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
