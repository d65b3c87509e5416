"""The tables of benchmarks/README.md, in Markdown, from what the benchmarks wrote.

    python benchmarks/table.py [results.json dense.json ...]

The ratio is the fastest peer's time divided by ours. The floor is 1 in every row; a ratio below it
is set in bold.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLOOR = 1.0
LIMITS = {
    "training step": "products; in bfloat16 also elementwise work and memory",
    "prefill": "products and attention",
    "decode": "reading weights, and calls of operators in small models",
}


def table(results: dict[str, Any]) -> str:
    """Rows of one benchmark, the processor above them."""
    versions = results["versions"]
    peers = list(dict.fromkeys(name for row in results["rows"] for name in row["times_as_fast"]))
    head = [
        "",
        "dtype",
        "ours, ms",
        *(f"{peer}, ms" for peer in peers),
        "ratio",
        "floor",
        "aim",
        "limit",
    ]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 3), "---"]]
    for row in results["rows"]:
        times = row["milliseconds"]
        ratio = min(row["times_as_fast"].values())
        mine = min(time for name, time in times.items() if name.startswith("glassformer"))
        shown = [f"{times[peer]:.2f}" if peer in times else "" for peer in peers]
        ratio_shown = f"{ratio:.2f}" if ratio >= FLOOR else f"**{ratio:.2f}**"
        limit = next((limit for kind, limit in LIMITS.items() if row["what"].startswith(kind)), "")
        floors = [f"{FLOOR:g}", f"{row['aim']:g}"]
        lines.append(
            [row["what"], row["dtype"], f"{mine:.2f}", *shown, ratio_shown, *floors, limit]
        )
    return (
        f"{versions['processor']}, {versions['threads']} threads, torch {versions['torch']}\n\n"
        + "\n".join(f"| {' | '.join(line)} |" for line in lines)
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["results.json", "dense.json"]:
        print(table(json.loads((HERE / name).read_text(encoding="utf-8"))), end="\n\n")
