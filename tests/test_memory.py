"""Memory that a process may take, in trees of files as Linux shows them."""

import json
import resource
from pathlib import Path

import pytest

from glassformer.cli.commands.info import this_machine
from glassformer.memory import process_memory
from processes import printed

GIB = 2**30
MACHINE = "MemTotal:  33554432 kB\nMemAvailable: 16777216 kB\nSwapFree: 1048576 kB\n"
"""A machine of 32 GiB, 16 of them free, with 1 GiB of swap space."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        "os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 32 * GIB // 4096}.__getitem__
    )
    monkeypatch.setattr(
        "resource.getrlimit", lambda name: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    write(tmp_path / "proc" / "meminfo", MACHINE)
    write(
        tmp_path / "proc/self/status", "Name:\tpython\nVmSize:\t 2097152 kB\nVmData:\t 1048576 kB\n"
    )
    return tmp_path


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def sizes(root: Path) -> tuple[float, float, float]:
    """Total, free, and free with swap space, in GiB."""
    memory = process_memory(root)
    assert memory.total is not None
    assert memory.free is not None
    assert memory.with_swap is not None
    return memory.total / GIB, memory.free / GIB, memory.with_swap / GIB


def test_a_machine_without_limits(root: Path) -> None:
    assert sizes(root) == (32, 16, 17)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/memory.max": 8 * GIB, "a/b/memory.current": 3 * GIB}, (8, 5, 6)),
        ({"a/b/memory.max": "max"}, (32, 16, 17)),
        (
            {"a/b/memory.max": "max", "a/memory.max": GIB, "a/memory.current": GIB // 4},
            (1, 0.75, 1.75),
        ),
        (
            {"memory.max": 2 * GIB},
            (2, 2, 3),
        ),  # of a container, which sees its own group as the first
        (
            {"a/b/memory.max": 8 * GIB, "a/b/memory.high": 4 * GIB, "a/b/memory.current": GIB},
            (4, 3, 4),
        ),
        ({"a/b/memory.max": 8 * GIB, "a/b/memory.swap.max": 0}, (8, 8, 8)),
        ({"a/b/memory.max": GIB, "a/b/memory.current": 2 * GIB}, (1, 0, 0)),  # lowered while it ran
        ({"c/memory.max": GIB}, (32, 16, 17)),  # of others
        ({"a/b/memory.max": 99 * GIB}, (32, 16, 17)),
    ],
)
def test_groups_of_version_2(
    root: Path, files: dict[str, object], expected: tuple[float, ...]
) -> None:
    write(root / "proc/self/cgroup", "0::/a/b")
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text)
    assert sizes(root) == expected


def test_the_file_cache_of_a_group_is_free(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/a")
    write(root / "sys/fs/cgroup/a/memory.max", 4 * GIB)
    write(root / "sys/fs/cgroup/a/memory.current", 3 * GIB)
    write(
        root / "sys/fs/cgroup/a/memory.stat", f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}"
    )
    assert sizes(root) == (4, 3, 4)


@pytest.mark.parametrize(
    "group", ["a/b", ""]
)  # "": a container whose own group is mounted as the first
def test_groups_of_version_1(root: Path, group: str) -> None:
    write(root / "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/")
    place = root / "sys/fs/cgroup/memory" / group
    write(place / "memory.limit_in_bytes", 9223372036854771712)
    assert sizes(root) == (32, 16, 17)
    write(place / "memory.limit_in_bytes", 4 * GIB)
    write(place / "memory.usage_in_bytes", 3 * GIB)
    write(place / "memory.memsw.limit_in_bytes", 4 * GIB)
    assert sizes(root) == (4, 1, 1)
    write(place / "memory.stat", f"total_inactive_file {GIB}\nhierarchical_memory_limit {3 * GIB}")
    assert sizes(root)[:2] == (3, 1)


@pytest.mark.parametrize(("name", "used"), [("RLIMIT_AS", 2), ("RLIMIT_DATA", 1)])
def test_limits_of_the_process(
    root: Path, name: str, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    limits = {
        resource.RLIMIT_AS: unlimited,
        resource.RLIMIT_DATA: unlimited,
        getattr(resource, name): (3 * GIB, -1),
    }
    monkeypatch.setattr("resource.getrlimit", limits.__getitem__)
    assert sizes(root) == (3, 3 - used, 3 - used)


def test_a_system_that_tells_nothing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf_names", {})
    memory = process_memory(tmp_path / "nothing")
    assert (memory.total, memory.free, memory.with_swap) == (None, None, None)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine(kernel=False)
    assert machine.memory is not None
    assert machine.free is not None
    assert machine.memory >= machine.free > 0


@pytest.mark.slow
def test_a_limit_of_the_process_is_told_by_the_command(tmp_path: Path) -> None:
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
from glassformer.cli.main import main
from glassformer.models import Decoder, DecoderConfig
Decoder(DecoderConfig(9, 1, 8, 8, 1, 8)).save_pretrained(sys.argv[1])
sys.exit(main(["info", sys.argv[1], "--json"]))
"""
    machine = json.loads(printed(code, arguments=[str(tmp_path / "model")]))["machine"]
    assert 0 < machine["free"] < machine["memory"] <= 2**34
