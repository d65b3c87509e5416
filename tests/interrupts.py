"""KeyboardInterrupt at each step of some Python code in turn, as Ctrl-C may come anywhere."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any


def interrupted(act: Callable[[], Any], files: set[str]) -> Iterator[None]:
    """Call ``act`` again and again, interrupted one step later in ``files`` each time, and yield
    after each time.
    """
    act()  # what is imported at its first call is not interrupted
    earlier = sys.gettrace()
    for last in count(1):
        steps = count(1)

        def trace(
            frame: FrameType, event: str, _: Any, last: int = last, steps: "count[int]" = steps
        ) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event != "return" and next(steps) == last:
                raise KeyboardInterrupt
            return trace

        try:
            sys.settrace(trace)
            act()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(earlier)
        if next(steps) <= last:
            return
        yield
