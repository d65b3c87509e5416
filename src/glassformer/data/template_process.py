"""Renders one chat template in a separate process: ``python -I -S template_process.py``.

A template is a program from an untrusted file. Jinja2's sandbox keeps it from the interpreter's
objects. Limits on time, memory and files stop endless loops and endless texts. Standard input is
JSON with the template, its variables, the time limit, and the directories of Jinja2. The answer,
JSON with the text or the error, is the last line of standard output.

Only the standard library and Jinja2 are imported, so that the process starts fast. ``-I -S`` skip
the environment's start-up code.
"""

import json
import os
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

SECONDS = 2
MEMORY = 2**29
LONGEST = 2**23
"""Limits: seconds of processor time, bytes of memory, characters of the text."""
TIME_IS_UP = 75
"""Exit status of a process that has used its time, if the system has no signal for that."""


def limit(seconds: float) -> None:
    """Limit the time, memory and files that this process uses from now on."""
    end = time.process_time() + seconds
    try:
        import resource
        import signal
    except ImportError:  # Windows
        threading.Thread(target=_exit_at, args=(end,), daemon=True).start()
        return
    # Children inherit the parent's settings, which may ignore or block the signal.
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGXCPU])
    last_second = int(end) + 1
    limits = {
        resource.RLIMIT_CPU: (last_second, last_second + 1),
        resource.RLIMIT_AS: (_address_space() + MEMORY,) * 2,
        resource.RLIMIT_FSIZE: (0, 0),
    }
    for kind, most in limits.items():
        try:
            resource.setrlimit(kind, most)
        except (ValueError, OSError):  # macOS has no limit of memory
            continue


def _exit_at(end: float) -> None:
    while time.process_time() < end:
        time.sleep(0.05)
    os._exit(TIME_IS_UP)


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 if the system does not report them."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def render(template: str, variables: dict[str, Any]) -> str:
    """Return the text of ``template``, rendered with the environment of transformers.

    Source: transformers, utils/chat_template_utils.py.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's text for training; here it only groups."""

        tags = {"generation"}  # noqa: RUF012 - Jinja2's interface

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template).render(**variables)


def main() -> None:
    """Answer the request on standard input."""
    channel = os.dup(1)
    os.dup2(2, 1)  # later output goes to standard error, not to the channel
    request = json.loads(sys.stdin.buffer.read())
    sys.path += request["directories"]
    render("", {})  # imports Jinja2, which the limits do not count
    limit(request["seconds"])
    try:
        text = render(request["template"], request["variables"])
        if len(text) <= LONGEST:
            answer = {"text": text}
        else:
            answer = {"error": f"a text of more than {LONGEST:,} characters"}
    except MemoryError:
        answer = {"error": f"more than {MEMORY // 10**6} MB of memory"}
    except Exception as error:  # a template may do anything
        answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    with open(channel, "w", encoding="ascii") as file:
        file.write(f"\n{json.dumps(answer)}")


if __name__ == "__main__":
    main()
