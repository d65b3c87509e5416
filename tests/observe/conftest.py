"""What the tests of observe share."""

import sys
from pathlib import Path

# The models that several tests here describe and draw.
sys.path.append(str(Path(__file__).resolve().parent))
