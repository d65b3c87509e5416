"""The format beside OpenAI's package, where the vocabulary is on this machine."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.harmony import Message, ReplyReader, Setting, render
from glassformer.data.released_tokenizer import ReleasedTokenizer
from harmony_vocabulary import HARMONY_SPECIALS

VOCABULARY = Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE", "nowhere")) / "o200k_base.tiktoken"


@pytest.fixture(scope="module")
def real() -> ReleasedTokenizer:
    """The package's vocabulary, read by tiktoken."""
    pytest.importorskip("openai_harmony")
    tiktoken = pytest.importorskip("tiktoken")
    if not VOCABULARY.is_file():
        pytest.skip("no o200k_base.tiktoken in $TIKTOKEN_ENCODINGS_BASE")
    plain = tiktoken.get_encoding("o200k_base")
    pattern = plain._pat_str
    ranks = plain._mergeable_ranks
    engine = tiktoken.Encoding(
        "harmony", pat_str=pattern, mergeable_ranks=ranks, special_tokens=HARMONY_SPECIALS
    )

    def encode(text: str, *, named: bool) -> list[int]:
        return engine.encode(text, allowed_special="all") if named else engine.encode_ordinary(text)

    return ReleasedTokenizer(
        "o200k", 200019, HARMONY_SPECIALS, encode, engine.decode_single_token_bytes
    )


def rendered_by(
    package: Any, encoding: Any, setting: Setting, messages: list[Message]
) -> list[int]:
    make = package.Message.from_role_and_content
    role = package.Role
    system = package.SystemContent.new().with_reasoning_effort(
        package.ReasoningEffort(setting.effort.capitalize())
    )
    if setting.date is not None:
        system = system.with_conversation_start_date(setting.date)
    converted = [make(role.SYSTEM, system)]
    if setting.instructions:
        converted.append(
            make(
                role.DEVELOPER,
                package.DeveloperContent.new().with_instructions(setting.instructions),
            )
        )
    for message in messages:
        author = package.Author(role=package.Role(message.role), name=message.name)
        theirs = package.Message.from_author_and_content(author, message.content)
        for name in ("channel", "recipient", "content_type"):
            if (value := getattr(message, name)) is not None:
                theirs = getattr(theirs, f"with_{name}")(value)
        converted.append(theirs)
    keep_all = package.RenderConversationConfig(auto_drop_analysis=False)
    conversation = package.Conversation.from_messages(converted)
    return list(
        encoding.render_conversation_for_completion(conversation, role.ASSISTANT, config=keep_all)
    )


@pytest.fixture(scope="module")
def encoding(real: ReleasedTokenizer) -> Any:
    """The package's own."""
    package = pytest.importorskip("openai_harmony")
    return package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)


TEXT = st.text(max_size=30)
MESSAGE = st.one_of(
    st.builds(Message, st.just("user"), TEXT),
    st.builds(
        Message, st.just("assistant"), TEXT, st.sampled_from(["analysis", "commentary", "final"])
    ),
    st.builds(
        Message,
        st.just("assistant"),
        TEXT,
        st.just("commentary"),
        st.just("functions.weather"),
        st.sampled_from([None, "code", "<|constrain|>json"]),
    ),
    st.builds(
        Message,
        st.just("tool"),
        TEXT,
        st.just("commentary"),
        st.just("assistant"),
        name=st.just("functions.x"),
    ),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    setting=st.builds(
        Setting,
        st.sampled_from(["low", "medium", "high"]),
        st.sampled_from([None, "2025-06-28"]),
        TEXT,
    ),
    messages=st.lists(MESSAGE, max_size=5),
)
def test_ours_is_the_package(
    setting: Setting, messages: list[Message], real: ReleasedTokenizer, encoding: Any
) -> None:
    package = pytest.importorskip("openai_harmony")
    assert rendered_by(package, encoding, setting, messages) == render(
        [*setting.messages(), *messages], real
    )


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    messages=st.lists(MESSAGE.filter(lambda each: each.role == "assistant"), min_size=1, max_size=4)
)
def test_both_read_the_same_reply(
    messages: list[Message], real: ReleasedTokenizer, encoding: Any
) -> None:
    package = pytest.importorskip("openai_harmony")
    tokens = render(messages, real, reply=False)[2:]
    reader = ReplyReader(real)
    theirs = package.StreamableParser(encoding, role=package.Role.ASSISTANT)
    for token in tokens:
        piece = reader.read(token)
        theirs.process(token)
        if piece is not None and not piece.ended:
            assert piece.text == theirs.last_content_delta
            assert piece.message.channel == theirs.current_channel
    assert [
        (each.role, each.content, each.channel, each.recipient, each.content_type)
        for each in reader.messages
    ] == [
        (
            each.author.role.value,
            each.content[0].text,
            each.channel,
            each.recipient,
            each.content_type,
        )
        for each in theirs.messages
    ]
    assert {
        token for name, token in HARMONY_SPECIALS.items() if name in ("<|return|>", "<|call|>")
    } == set(encoding.stop_tokens_for_assistant_actions())
