"""Chat templates: from the messages of a conversation to the text and the tokens that a model
continues.

A template is a Jinja2 program that comes with the model, and renders as in transformers. It runs in
a process of its own with limits, see :mod:`~glassformer.data.template_process`.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.data import template_process
from glassformer.data.released_tokenizer import (
    ReleasedTokenizer,
    named_token,
    read_tokenizer_config,
    tokenizer_places,
)
from glassformer.data.tokenizer import whole_text
from glassformer.errors import InputError
from glassformer.files import local_path
from glassformer.processor_time import allowed
from glassformer.text import one_line
from glassformer.untrusted import read_bytes

LARGEST_TEMPLATE = 2**16
"""Most bytes of a template; published ones have up to 17,000."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
_HANGS = 600
"""Seconds by the clock after which a process that does not compute is given up: its limit is
processor time.
"""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template.

    Args:
        bos: Name of the token that begins a text; the template's ``bos_token``.
        eos: Name of the token that ends it; ``eos_token``.
        source: Its origin, for messages.
    """

    text: str
    bos: str | None = None
    eos: str | None = None
    source: str = "a chat template"

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="replace"))
        if not size <= LARGEST_TEMPLATE:
            raise InputError(
                got=f"{self.source} of {size:,} bytes",
                expected=f"at most {LARGEST_TEMPLATE:,}",
                fix="Use the model's own template.",
            )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: Each with ``"role"`` and usually ``"content"``; a key that holds None is left
                out.
            add_generation_prompt: Whether the beginning of the assistant's next message follows.
            variables: Others that the template reads, such as ``tools`` or ``enable_thinking``.
        """
        named = {"bos_token": self.bos, "eos_token": self.eos}
        given = {name: value for name, value in named.items() if value is not None} | {
            "messages": list(map(_as_read, messages)),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            request = json.dumps(
                {
                    "template": self.text,
                    "variables": given,
                    "seconds": allowed(template_process.SECONDS),
                    "directories": _directories_of_jinja(),
                }
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"messages that are not JSON: {error}",
                "strings, numbers, lists and dicts",
                "Convert them.",
            ) from error
        answer = self._answer(request)
        if "text" not in answer:
            raise InputError(
                f"{self.source}, which ended with: {one_line(answer['error'], 300)}",
                "a text of these messages",
                "Change the messages, or use another template.",
            )
        return str(answer["text"])

    def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenizer: ReleasedTokenizer,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The tokens of a conversation, ``tokenizer.begin`` once at their beginning, as with
        llama.cpp.

        With transformers it is there only where the template writes it. What the template writes is
        read with the names of special tokens. In messages of others than the assistant these names
        stay text: writing ``<|im_end|>`` does not end a message.
        """
        written = json.dumps(list(messages), ensure_ascii=False, default=str)
        mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in written)
        names = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        pattern = "|".join(map(re.escape, names)) or "(?!)"
        kept = [
            each if each.get("role") == "assistant" else _marked(each, pattern, mark)
            for each in messages
        ]
        text = whole_text(self.render(kept, add_generation_prompt, **variables))
        tokens = tokenizer.prompt(text, mark if mark in text else "")
        ids = {*tokenizer.specials.values()}
        found = [each for each in tokens if each in ids]
        names = re.findall(pattern, text)
        escaped = f"\\u{ord(mark):04x}" in text
        fix = "Pass no special token's name."
        if escaped:
            raise InputError(
                got="a template that writes letters as numbers",
                expected="text as it is",
                fix=fix,
            )
        right = mark not in text or found == list(map(tokenizer.special, names))
        if not right:
            raise InputError(
                got="a tokenizer that looks for special tokens in some places only",
                expected="one that finds all",
                fix=fix,
            )
        return tokenizer.begun(tokens)

    def _answer(self, request: str) -> dict[str, Any]:
        # -I -S: neither modules beside the script nor what the environment runs at the start of an
        # interpreter.
        command = [sys.executable, "-I", "-S", template_process.__file__]
        try:
            done = subprocess.run(
                command, input=request.encode(), capture_output=True, timeout=_HANGS, check=False
            )
        except OSError as error:
            return {"error": f"no process: {error}"}
        except subprocess.TimeoutExpired:
            return {
                "error": f"no text after {_HANGS} s by the clock, most of which its process was waiting"
            }
        if done.returncode != 0:
            return {"error": _ending(done.returncode, done.stderr.decode(errors="replace"))}
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return {"error": "a process that ended without an answer"}
        if isinstance(answer, dict):
            return answer
        return {"error": "a process that ended without an answer"}


def _directories_of_jinja() -> list[str]:
    """The directories from which Jinja2 and what it needs are imported."""
    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return sorted({str(Path(origin).parents[1]) for origin in origins})


def _ending(status: int, complaints: str) -> str:
    """Why a process ended without an answer."""
    if status in (template_process.TIME_IS_UP, -getattr(signal, "SIGXCPU", 0)):
        return f"no text within {template_process.SECONDS} s of processor time"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"a process that {name} ended, as where the machine has no memory left"
    last_line = next(iter(complaints.strip().splitlines()[-1:]), "no message")
    return f"a process that ended with status {status}: {last_line}"


def template_from_gguf(metadata: Mapping[str, Any], source: str) -> ChatTemplate | None:
    """The chat template in a GGUF file's metadata, of several the default one; None if there is
    none.
    """
    tokens = metadata.get("tokenizer.ggml.tokens", ())

    def token(kind: str) -> str | None:
        found = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(found, int) and 0 <= found < len(tokens):
            return str(tokens[found])
        return None

    return _template(metadata.get("tokenizer.chat_template"), token("bos"), token("eos"), source)


def template_from_directory(directory: Path | str) -> ChatTemplate | None:
    """The template of a directory, of several the default one: ``chat_template.jinja`` or in
    ``tokenizer_config.json``; None without."""
    for place in tokenizer_places(local_path(directory)):
        config = read_tokenizer_config(place)
        text = config.get("chat_template")
        file = place / "chat_template.jinja"
        if isinstance(text, list):
            named = (
                each for each in text if isinstance(each, dict) and each.get("name") == "default"
            )
            text = next(named, {}).get("template")
        elif isinstance(text, dict):
            text = text.get("default")
        if file.is_file():
            text = read_bytes(file, LARGEST_TEMPLATE, inside=True).decode("utf-8", errors="replace")
        if text is not None:
            bos, eos = (named_token(config.get(f"{kind}_token")) for kind in ("bos", "eos"))
            return _template(text, bos, eos, str(place))
    return None


def _template(text: Any, bos: str | None, eos: str | None, source: str) -> ChatTemplate | None:
    if text is None or (isinstance(text, str) and not text):  # some files of GGUF have an empty one
        return None
    if not isinstance(text, str):
        raise InputError(
            got=f"{source} with a chat template that is no text",
            expected="a text",
            fix="Download it again.",
        )
    return ChatTemplate(text, bos, eos, f"the chat template of {source}")


def _as_read(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without keys that hold None, and its reasoning under the names that templates read,
    as in transformers.
    """
    if not isinstance(message, Mapping):
        return message
    given = {name: value for name, value in message.items() if value is not None}
    said = next((given[name] for name in _REASONING if name in given), None)
    if said is None:
        return given
    return {"thinking": said, **given, "reasoning_content": said}


def _marked(value: Any, pattern: str, mark: str) -> Any:
    """``value`` with marks within and after the names of special tokens, so that they are none."""
    if isinstance(value, str):
        return re.sub(pattern, lambda name: mark.join([*name[0], ""]), value)
    if isinstance(value, Mapping):  # keys too: a template may write a tool's answer out as JSON
        return {
            _marked(key, pattern, mark): _marked(each, pattern, mark) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(each, pattern, mark) for each in value]
    return value
