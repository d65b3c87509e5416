"""What the tests of heads by hand share."""

from __future__ import annotations

import sys
from pathlib import Path

# The tests of weight files import their common checks from here.
sys.path.append(str(Path(__file__).resolve().parent))
