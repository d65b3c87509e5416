"""``python -m glassformer``: the command line, also for ``accelerate launch -m``."""

import sys

from glassformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
