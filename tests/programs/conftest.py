"""What the tests of programs share."""

from __future__ import annotations

import sys
from pathlib import Path

# Random programs are drawn in one test module and used in others.
sys.path.append(str(Path(__file__).resolve().parent))
