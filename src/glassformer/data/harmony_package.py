"""Conversations rendered by OpenAI's own package ``openai-harmony``, where it is installed and has its vocabulary."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from glassformer.data.harmony import FORMAT_TOKENS, Message, Setting, render
from glassformer.data.released_tokenizer import HARMONY_SPECIALS, ReleasedTokenizer

Renderer = Callable[[Setting, Sequence[Message]], list[int]]
"""From a setting and the messages after it to the tokens of a prompt, ``<|start|>assistant`` at its end."""

# Letters of several scripts, digits and spaces: vocabularies that agree on it are taken to be the same.
_PROBE = "The naïve café's 12345 plans —\n\n  你好, مرحبا, привет!"


def renderer(tokenizer: ReleasedTokenizer) -> tuple[Renderer, str]:
    """A function that renders prompts for ``tokenizer``, and its name: openai-harmony or "glassformer".

    The package has one vocabulary, o200k_harmony, from the directory in ``TIKTOKEN_ENCODINGS_BASE``, from its cache, or
    by a download of 3.6 MB. Without the package or its vocabulary, or for a tokenizer with other tokens,
    :func:`~glassformer.data.harmony.render` is used. Both give the same tokens.
    """

    def ours(setting: Setting, messages: Sequence[Message]) -> list[int]:
        return render([*setting.messages(), *messages], tokenizer)

    if any(tokenizer.specials.get(name) != HARMONY_SPECIALS[name] for name in FORMAT_TOKENS):
        return ours, "glassformer"
    try:
        package = importlib.import_module("openai_harmony")
        encoding = package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)
        agrees = encoding.encode(_PROBE) == tokenizer.encode(_PROBE)
    except Exception:  # no package or no vocabulary: the package raises what its network library does
        agrees = False
    if not agrees:
        return ours, "glassformer"
    return lambda setting, messages: _rendered(package, encoding, setting, messages), "openai-harmony"


def _rendered(package: Any, encoding: Any, setting: Setting, messages: Sequence[Message]) -> list[int]:
    make, role = package.Message.from_role_and_content, package.Role
    system = package.SystemContent.new().with_reasoning_effort(package.ReasoningEffort(setting.effort.capitalize()))
    if setting.date is not None:
        system = system.with_conversation_start_date(setting.date)
    converted = [make(role.SYSTEM, system)]
    if setting.instructions:
        converted.append(make(role.DEVELOPER, package.DeveloperContent.new().with_instructions(setting.instructions)))
    converted += [_converted(package, message) for message in messages]
    # The caller has dropped what the model must not read.
    keep_all = package.RenderConversationConfig(auto_drop_analysis=False)
    conversation = package.Conversation.from_messages(converted)
    return list(encoding.render_conversation_for_completion(conversation, role.ASSISTANT, config=keep_all))


def _converted(package: Any, message: Message) -> Any:
    author = package.Author(role=package.Role(message.role), name=message.name)
    converted = package.Message.from_author_and_content(author, message.content)
    if message.channel is not None:
        converted = converted.with_channel(message.channel)
    if message.recipient is not None:
        converted = converted.with_recipient(message.recipient)
    if message.content_type is not None:
        converted = converted.with_content_type(message.content_type)
    return converted
