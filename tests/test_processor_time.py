"""Limits of processor time: what counts, what does not, and what ends."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer import processor_time
from glassformer.processor_time import Budget, ProcessorLimit, TooLong, allowed, slowness
from processes import printed

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signals of timers")


def use_processor(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def wait_for_ever() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def loop_for_ever() -> None:
    while True:
        with contextlib.suppress(Exception):
            use_processor(0.01)


def start_threads_and_wait() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    threading.Event().wait()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_time, "WAITING", 5)


@pytest.mark.parametrize(
    "block", [loop_for_ever, wait_for_ever, start_threads_and_wait, lambda: time.sleep(600)]
)
def test_a_block_without_end_ends(block: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLong), ProcessorLimit(0.1):
        block()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_error_that_the_block_catches_is_raised_after_it() -> None:
    with pytest.raises(TooLong), ProcessorLimit(0.1), contextlib.suppress(BaseException):
        loop_for_ever()


def test_blocks_share_a_limit_and_what_lies_between_is_free() -> None:
    limit = ProcessorLimit(0.2)
    for _ in range(3):
        with limit:
            use_processor(0.01)
        use_processor(0.3)
    with pytest.raises(TooLong), limit:
        loop_for_ever()


def test_the_work_of_other_threads_does_not_count() -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with ProcessorLimit(0.3):
            time.sleep(1)
    finally:
        ended.set()
        thread.join()


def test_a_limit_in_another_thread_does_nothing() -> None:
    results: list[str] = []

    def work() -> None:
        with ProcessorLimit(0.01):
            use_processor(0.3)
            results.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == ["done"]


@pytest.mark.parametrize(
    "statement", ["import slow_module", "import importlib; importlib.import_module('slow_module')"]
)
def test_imports_neither_count_nor_are_interrupted(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import time\nwhile time.thread_time() < END: pass\nwhole = True\n"
    )
    text = (tmp_path / "slow_module.py").read_text().replace("END", f"{time.thread_time() + 1.5}")
    (tmp_path / "slow_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_module", raising=False)
    with ProcessorLimit(0.4):
        exec(statement)
    assert sys.modules.pop("slow_module").whole


def test_a_block_in_a_module_that_is_being_imported_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limited_module.py").write_text(
        "from glassformer.processor_time import ProcessorLimit\nwith ProcessorLimit(0.1):\n    "
        "while True: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TooLong):
        __import__("limited_module")


def test_a_timer_of_the_caller_goes_on() -> None:
    rings: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with ProcessorLimit(10):
            use_processor(0.05)
        while not rings:
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


STOPPED = """
import os, signal, subprocess, sys, time
from glassformer import processor_time
processor_time.WAITING = 4
wake = f"import os, signal, time; time.sleep(4); os.kill({os.getpid()}, signal.SIGCONT)"
with processor_time.ProcessorLimit(0.5):
    subprocess.Popen([sys.executable, "-c", wake])
    os.kill(os.getpid(), signal.SIGSTOP)
print("done")
"""


def test_the_time_in_which_the_process_is_stopped_does_not_count() -> None:
    """It is stopped for twice as long as it may wait."""
    assert printed(STOPPED) == "done\n"


def test_a_slow_machine_has_more_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slowness() >= 1
    # of a machine that is a hundred times faster
    monkeypatch.setattr(processor_time, "REFERENCE", 1e-5)
    assert slowness() > 10
    assert allowed(0.1) > 1
    budget = Budget(0.01)
    with ProcessorLimit(0.01):
        use_processor(0.1)
    assert not budget.is_over()


def test_a_budget_is_of_the_thread_that_makes_it() -> None:
    budget = Budget(0.05)
    time.sleep(0.2)
    assert not budget.is_over()
    use_processor(allowed(0.05) + 0.5)
    assert budget.is_over()
    assert Budget(-1).is_over()
    assert not Budget(float("inf")).is_over()
