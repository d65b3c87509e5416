"""Campaign: random sweeps of random models against whole runs under plain hooks.

    python benchmarks/edits.py [--count 3000] [--first 0] [--show 10]

A case is a seed (``tests/observe/sweep_cases.py``): a small random model of glassformer or of
``transformers``, some of whose projections are adapters, quantised or no linear maps and some of
whose modules have hooks, texts with or without padding, edits of outer blocks, and a sweep over a
site with a random batch size. Up to four of its places are compared with whole runs, and the lens
and direct logits with the model's logits. Cases end "equal", "refused" by an InputError,
"different" or "raised"; the last two are printed, and are the exit status.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "observe")]


def main() -> int:
    """Run the campaign; 1 if a case is different or raised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="cases")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--show", type=int, default=10, help="cases that are printed at most")
    flags = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    from sweep_cases import check

    outcomes: Counter[str] = Counter()
    for seed in range(flags.first, flags.first + flags.count):
        how, what = check(seed)
        outcomes[how] += 1
        if (
            how in ("different", "raised")
            and outcomes["different"] + outcomes["raised"] <= flags.show
        ):
            print(seed, how, what, flush=True)
    print(", ".join(f"{count} {how}" for how, count in outcomes.most_common()))
    return int(outcomes["different"] + outcomes["raised"] > 0)


if __name__ == "__main__":
    sys.exit(main())
