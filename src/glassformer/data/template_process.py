"""Renders one chat template, in a process of its own: ``python template_process.py``.

A template is a program from an untrusted file. Jinja2's sandbox keeps it from the interpreter's objects; the limits of
this process on time, memory and files end loops and texts that grow without end. From standard input comes JSON with
the template and its variables; to standard output goes JSON with the text or the error.

Only the standard library and Jinja2 are imported, so that it starts fast.
"""

import json
import sys
from datetime import datetime
from typing import Any

SECONDS, MEMORY, LONGEST = 2, 2**29, 2**23
"""Limits: seconds of the processor, bytes of memory, characters of the text."""


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: only the caller's time limit
        return
    limits = {resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0}
    for kind, most in limits.items():
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS has no limit of memory
            continue


def render(template: str, variables: dict[str, Any]) -> str:
    """The text of ``template``, in an environment as that of transformers.

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
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template).render(**variables)


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.buffer.read())
    _limit()
    try:
        text = render(request["template"], request["variables"])
        answer = {"text": text} if len(text) <= LONGEST else {"error": f"a text of more than {LONGEST:,} characters"}
    except MemoryError:
        answer = {"error": f"more than {MEMORY >> 20} MB of memory"}
    except Exception as error:  # a template may do anything
        answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
