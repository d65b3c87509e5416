"""Chat templates: from a conversation's messages to the prompt that a model continues.

A template is a Jinja2 program in a model's files, and renders as in transformers. It runs in a
separate process with limits, see :mod:`~glassformer.data.template_process`.
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
"""Maximum bytes of a template; published ones have up to 17,000."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
_HANGS = 600
"""Seconds by the clock after which an idle process is ended: its own limit is processor time."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template.

    Args:
        bos: Name of the token that begins a text; the template's ``bos_token``.
        eos: Name of the token that ends a text; ``eos_token``.
        source: Origin of the template, for messages.
    """

    text: str
    bos: str | None = None
    eos: str | None = None
    source: str = "a chat template"

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="replace"))
        if size > LARGEST_TEMPLATE:
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
        """Return the text of a conversation.

        Args:
            messages: Messages with ``"role"`` and usually ``"content"``. Keys whose value is None
                are left out.
            add_generation_prompt: Add the beginning of the assistant's next message.
            variables: Further variables of the template, such as ``tools`` or ``enable_thinking``.
        """
        tokens = {"bos_token": self.bos, "eos_token": self.eos}
        all_variables = {
            **{name: token for name, token in tokens.items() if token is not None},
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
                    "variables": all_variables,
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
        """Return the tokens of a conversation, with ``tokenizer.begin`` once at the beginning.

        ``begin`` is added as in llama.cpp; transformers has it only where the template writes it.
        Names of special tokens in the template's own text become these tokens. In messages, except
        the assistant's, they stay text: writing ``<|im_end|>`` does not end a message.
        """
        content = json.dumps(list(messages), ensure_ascii=False, default=str)
        mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in content)
        names = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        pattern = "|".join(map(re.escape, names)) or "(?!)"
        marked_messages = []
        for message in messages:
            if message.get("role") != "assistant":
                message = _marked(message, pattern, mark)
            marked_messages.append(message)
        text = whole_text(self.render(marked_messages, add_generation_prompt, **variables))
        has_mark = mark in text
        tokens = tokenizer.prompt(text, mark if has_mark else "")
        if f"\\u{ord(mark):04x}" in text:
            raise InputError(
                got="a template that writes letters as numbers",
                expected="text as it is",
                fix="Pass no special token's name.",
            )
        special_ids = {*tokenizer.specials.values()}
        special_tokens = [token for token in tokens if token in special_ids]
        names = re.findall(pattern, text)
        if has_mark and special_tokens != [tokenizer.special(name) for name in names]:
            raise InputError(
                got="a tokenizer that looks for special tokens in some places only",
                expected="one that finds all",
                fix="Pass no special token's name.",
            )
        return tokenizer.begun(tokens)

    def _answer(self, request: str) -> dict[str, Any]:
        # -I -S: without modules beside the script, and without the environment's start-up code.
        command = [sys.executable, "-I", "-S", template_process.__file__]
        try:
            done = subprocess.run(
                command, input=request.encode(), capture_output=True, timeout=_HANGS, check=False
            )
        except OSError as error:
            return {"error": f"no process: {error}"}
        except subprocess.TimeoutExpired:
            return {
                "error": (
                    f"no text after {_HANGS} s by the clock, most of which its process was waiting"
                )
            }
        if done.returncode != 0:
            return {"error": _ending(done.returncode, done.stderr.decode(errors="replace"))}
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            return {"error": "a process that ended without an answer"}
        return answer


def _directories_of_jinja() -> list[str]:
    """Return the directories from which Jinja2 and its dependency are imported."""
    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return sorted({str(Path(origin).parents[1]) for origin in origins})


def _ending(status: int, complaints: str) -> str:
    """Return the reason why a process ended without an answer."""
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
    """Return the (default) chat template in a GGUF file's metadata; None without."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())

    def token(kind: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            return str(tokens[index])
        return None

    return _template(metadata.get("tokenizer.chat_template"), token("bos"), token("eos"), source)


def template_from_directory(directory: Path | str) -> ChatTemplate | None:
    """Return the (default) chat template of a directory; None without.

    It is in ``chat_template.jinja``, or else in ``tokenizer_config.json``.
    """
    for place in tokenizer_places(local_path(directory)):
        config = read_tokenizer_config(place)
        text = _default_template(config.get("chat_template"))
        file = place / "chat_template.jinja"
        if file.is_file():
            text = read_bytes(file, LARGEST_TEMPLATE, inside=True).decode("utf-8", errors="replace")
        if text is not None:
            bos, eos = (named_token(config.get(f"{kind}_token")) for kind in ("bos", "eos"))
            return _template(text, bos, eos, str(place))
    return None


def _default_template(templates: Any) -> Any:
    """Return the one called "default" of several templates, or the only one."""
    if isinstance(templates, dict):
        return templates.get("default")
    if isinstance(templates, list):
        for template in templates:
            if isinstance(template, dict) and template.get("name") == "default":
                return template.get("template")
        return None
    return templates


def _template(text: Any, bos: str | None, eos: str | None, source: str) -> ChatTemplate | None:
    if text is None or (isinstance(text, str) and not text):  # some GGUF files have an empty one
        return None
    if not isinstance(text, str):
        raise InputError(
            got=f"{source} with a chat template that is no text",
            expected="a text",
            fix="Download it again.",
        )
    return ChatTemplate(text, bos, eos, f"the chat template of {source}")


def _as_read(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as templates read it: without None, and with the names of its reasoning."""
    if not isinstance(message, Mapping):
        return message
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    if reasoning is None:
        return fields
    return {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def _marked(value: Any, pattern: str, mark: str) -> Any:
    """Return ``value`` with marks in the names of special tokens, so that they stay text."""
    if isinstance(value, str):
        return re.sub(pattern, lambda name: mark.join([*name[0], ""]), value)
    if isinstance(value, Mapping):  # keys too: a template may write a tool's answer out as JSON
        return {
            _marked(key, pattern, mark): _marked(item, pattern, mark) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(item, pattern, mark) for item in value]
    return value
