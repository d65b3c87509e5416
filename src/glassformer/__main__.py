"""``python -m glassformer``: the command line for launchers that start modules, as ``accelerate
launch -m`` does.
"""

import sys

from glassformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
