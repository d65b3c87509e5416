"""Replies to prompts that grow are those of reading each prompt from its start."""

import copy
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.generation import SamplingRule, decoding, generate
from glassformer.generation.decoding import Continuation
from glassformer.models import Decoder
from small_models import decoder

VOCAB = 11


def make_model(window: int | None = 3, max_seq_len: int = 64) -> Decoder:
    torch.manual_seed(1)
    sizes = {
        "num_layers": 2,
        "hidden_dim": 16,
        "ff_dim": 16,
        "head_dim": 4,
        "num_kv_heads": 2,
        "sinks": True,
    }
    return decoder(vocab_size=VOCAB, window=window, max_seq_len=max_seq_len, **sizes).double()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    window=st.sampled_from([None, 1, 3, 5, 50]),
    prefill=st.integers(1, 9),
    turns=st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_replies_to_whole_prompts(
    window: int | None, prefill: int, turns: list[tuple[bool, list[int], int]]
) -> None:
    model = make_model(window, 128)
    continuation = Continuation(model, 100)
    prompt: list[int] = []
    for anew, more, count in turns:
        prompt = more if anew else prompt + more
        expected = generate(model, [prompt], count)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "PREFILL", prefill)
            assert list(continuation.reply(prompt, count)) == expected


def test_only_what_is_new_is_read(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PREFILL", 4)
    continuation = Continuation(make_model())
    first = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    second = [*first, 10, 0, 1]
    for prompt, count, unread, lengths in (
        (first, 3, 9, [4, 4, 1, 1, 1]),
        (second, 2, 3, [3, 1]),
        (second, 2, 0, [1]),
    ):
        del passes[:]
        assert continuation.unread(prompt) == unread
        list(continuation.reply(prompt, count))
        assert passes == lengths
    assert continuation.unread(first) == 9


def replaced_in_place(linear: torch.nn.Linear) -> None:
    """By another weight, after the first is freed, whose address the second may get."""
    bigger = 3 * linear.weight.detach()
    del linear.weight
    linear.weight = torch.nn.Parameter(bigger)


def test_a_text_is_read_again_under_other_weights() -> None:
    model = make_model()
    continuation = Continuation(model)
    prompt = [1, 2, 3, 4, 5]
    list(continuation.reply(prompt, 4))
    for change in (
        lambda: model.layers[0].attention.value.weight.mul_(3.0),
        lambda: model.load_state_dict(
            {name: weight.flip(0) for name, weight in model.state_dict().items()}
        ),
        lambda: setattr(model.layers[1].ffn, "down", copy.deepcopy(model.layers[0].ffn.down)),
        lambda: replaced_in_place(model.layers[1].ffn.down),
    ):
        assert continuation.unread(prompt) == 0
        with torch.no_grad():
            change()
        assert continuation.unread(prompt) == 5
        assert list(continuation.reply(prompt, 4)) == generate(model, [prompt], 4)[0]


def test_a_reply_that_breaks_off_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(decoding, "PREFILL", 2)
    continuation = Continuation(model)
    begin = [1, 2, 3, 4]
    left: Iterator[int] = continuation.reply(begin)
    assert [next(left) for _ in range(7)] == generate(model, [begin], 7)[0]
    prompt = [*begin, 5, 6, 7, 8, 9]

    def interrupted(self: Decoder, tokens: torch.Tensor, **more: object) -> torch.Tensor:
        # Some layers have read the tokens, others have not.
        more["cache"].layers[0].append(
            torch.ones(1, 2, 2, 4).double(), torch.ones(1, 2, 2, 4).double()
        )
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Decoder, "hidden", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(continuation.reply(prompt))
    assert continuation.unread(prompt) == 5
    assert list(continuation.reply(prompt, 9)) == generate(model, [prompt], 9)[0]


def test_it_ends_with_a_stop_token_the_count_or_a_full_cache() -> None:
    model = make_model()
    prompt = [1, 2, 3]
    whole = generate(model, [prompt], 20)[0]
    continuation = Continuation(model, 12)
    assert list(continuation.reply(prompt, 4)) == whole[:4]
    assert list(continuation.reply(prompt)) == whole[:10]
    assert list(continuation.reply(prompt, 50)) == whole[:10]
    stop = whole[3]
    assert list(continuation.reply(prompt, stop_tokens=[stop])) == whole[: whole.index(stop) + 1]
    assert len(list(continuation.reply([0] * 12))) == 1


def test_one_seed_serves_all_replies() -> None:
    model = make_model()
    rule = SamplingRule(temperature=2.0, seed=3)
    replies = []
    for _ in range(2):
        continuation = Continuation(model, rule=rule)
        replies.append([list(continuation.reply([1, 2], 12)) for _ in range(2)])
    assert replies[0] == replies[1]
    assert replies[0][0] != replies[0][1]
