"""Chat templates: from the messages of a conversation to the text and the tokens that a model continues.

A template is a Jinja2 program that comes with the model, and renders as in transformers. It runs in a process of its
own with limits, see :mod:`~glassformer.data.template_process`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from glassformer.errors import InputError, require
from glassformer.text import one_line
from glassformer.untrusted import read_bytes

LARGEST_TEMPLATE = 2**16
"""Most bytes of a template; published ones have up to 17,000."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
_SECONDS = 30
"""Until an answer; the process has less time of the processor, but a machine may be busy."""


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
        most = f"at most {LARGEST_TEMPLATE:,}"
        require(size <= LARGEST_TEMPLATE, f"{self.source} of {size:,} bytes", most, "Use the model's own template.")

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation.

        Args:
            messages: Each with ``"role"`` and usually ``"content"``; a key that holds None is left out.
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
            request = json.dumps({"template": self.text, "variables": given})
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"messages that are not JSON: {error}", "strings, numbers, lists and dicts", "Convert them."
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
        """The tokens of a conversation, ``tokenizer.begin`` once at their beginning, as with llama.cpp.

        With transformers it is there only where the template writes it. What the template writes is read with the
        names of special tokens. In messages of others than the assistant these names stay text: writing
        ``<|im_end|>`` does not end a message.
        """
        written = json.dumps(list(messages), ensure_ascii=False, default=str)
        mark = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in written)
        names = sorted(filter(None, tokenizer.specials), key=len, reverse=True)
        pattern = "|".join(map(re.escape, names)) or "(?!)"
        kept = [each if each.get("role") == "assistant" else _marked(each, pattern, mark) for each in messages]
        text = whole_text(self.render(kept, add_generation_prompt, **variables))
        tokens, ids = tokenizer.prompt(text, mark if mark in text else ""), {*tokenizer.specials.values()}
        found, names = [each for each in tokens if each in ids], re.findall(pattern, text)
        escaped, fix = f"\\u{ord(mark):04x}" in text, "Pass no special token's name."
        require(not escaped, "a template that writes letters as numbers", "text as it is", fix)
        right = mark not in text or found == list(map(tokenizer.special, names))
        require(right, "a tokenizer that looks for special tokens in some places only", "one that finds all", fix)
        return tokenizer.begun(tokens)

    def _answer(self, request: str) -> dict[str, Any]:
        try:
            # -P: the modules beside the script must not hide those of the standard library.
            done = subprocess.run(
                [sys.executable, "-P", template_process.__file__],
                input=request.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
            answer = json.loads(done.stdout)
        except OSError as error:
            return {"error": f"no process: {error}"}
        except subprocess.TimeoutExpired:
            return {"error": f"no text after {_SECONDS} s, for which a busy machine suffices: try again"}
        except ValueError:
            return {"error": f"no text within {template_process.SECONDS} s and {template_process.MEMORY >> 20} MB"}
        return answer if isinstance(answer, dict) else {"error": "no text"}


def template_from_gguf(metadata: Mapping[str, Any], source: str) -> ChatTemplate | None:
    """The chat template in a GGUF file's metadata, of several the default one; None if there is none."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())

    def token(kind: str) -> str | None:
        found = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return str(tokens[found]) if isinstance(found, int) and 0 <= found < len(tokens) else None

    return _template(metadata.get("tokenizer.chat_template"), token("bos"), token("eos"), source)


def template_from_directory(directory: Path) -> ChatTemplate | None:
    """The template of a directory, of several the default one: ``chat_template.jinja`` or in
    ``tokenizer_config.json``; None without."""
    for place in tokenizer_places(directory):
        config = read_tokenizer_config(place)
        text, file = config.get("chat_template"), place / "chat_template.jinja"
        if isinstance(text, list):
            named = (each for each in text if isinstance(each, dict) and each.get("name") == "default")
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
    require(isinstance(text, str), f"{source} with a chat template that is no text", "a text", "Download it again.")
    return ChatTemplate(text, bos, eos, f"the chat template of {source}")


def _as_read(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without keys that hold None, and its reasoning under the names that templates read, as in
    transformers."""
    if not isinstance(message, Mapping):
        return message
    given = {name: value for name, value in message.items() if value is not None}
    said = next((given[name] for name in _REASONING if name in given), None)
    return given if said is None else {"thinking": said, **given, "reasoning_content": said}


def _marked(value: Any, pattern: str, mark: str) -> Any:
    """``value`` with marks within and after the names of special tokens, so that they are none."""
    if isinstance(value, str):
        return re.sub(pattern, lambda name: mark.join([*name[0], ""]), value)
    if isinstance(value, Mapping):  # keys too: a template may write a tool's answer out as JSON
        return {_marked(key, pattern, mark): _marked(each, pattern, mark) for key, each in value.items()}
    return [_marked(each, pattern, mark) for each in value] if isinstance(value, list | tuple) else value
