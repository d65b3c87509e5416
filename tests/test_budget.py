"""Each package keeps to its budget of lines, so that what a feature adds is taken away elsewhere."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "glassformer"
BUDGET = ROOT / "tools" / "budget.txt"
AIR = 1.05


def lines(path: Path) -> int:
    """The lines of a file."""
    return len(path.read_bytes().splitlines())


def counted() -> Counter[str]:
    """The lines of Python in each package, of modules beside them, of the tests, and of C++."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        first, *more = path.relative_to(PACKAGE).parts
        found[first if more else "modules"] += lines(path)
    found["tests"] = sum(map(lines, (ROOT / "tests").rglob("*.py")))
    found["C++"] = sum(lines(path) for path in PACKAGE.rglob("*") if path.suffix in (".cpp", ".h"))
    return found


def test_each_package_keeps_to_its_budget() -> None:
    listed = [line.split() for line in BUDGET.read_text(encoding="utf-8").splitlines() if line[:1] not in ("#", "")]
    budget = {name: int(count) for name, count in listed}
    found = counted()
    assert budget.keys() == found.keys()
    over = {name: f"{found[name]} of {budget[name]}" for name in budget if found[name] > AIR * budget[name]}
    assert over == {}, "Take as much away, or move lines from a budget that has some to spare."
