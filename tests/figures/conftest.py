"""What the tests of figures share."""

import sys
from pathlib import Path

# How colours look without one of the three cones.
sys.path.append(str(Path(__file__).resolve().parent))
