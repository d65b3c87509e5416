import sys

import pytest
import torch

from glassformer.generation import SamplingRule, generate, stream
from glassformer.generation.decoding import Continuation
from glassformer.models import Decoder, DecoderConfig, EncoderDecoder, EncoderDecoderConfig
from glassformer.observe.capture import capture
from refusals import refused

SIZES = {
    "vocab_size": 61,
    "num_layers": 3,
    "hidden_dim": 32,
    "ff_dim": 48,
    "num_heads": 4,
    "head_dim": 8,
}
VARIANTS = {
    "dense": {},
    "grouped": {"num_kv_heads": 2, "key_weights": True},
    "windowed": {"window": 4, "windowed_layers": "all", "sinks": True},
    "experts": {"num_experts": 4, "window": 5},
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11]]


def model(**changes) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(**SIZES, **changes))
    with torch.no_grad():  # far from each other's logits, so that rounding decides no argmax
        decoder.output.weight.mul_(4)
    return decoder


@torch.no_grad()
def uncached(decoder: Decoder, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy texts, one by one, of which every step reads the whole text again."""
    found = [list(prompt) for prompt in prompts]
    for text in found:
        for _ in range(count):
            text.append(int(decoder.eval()(torch.tensor([text]))[0, -1].argmax()))
    return [text[-count:] for text in found]


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_texts_equal_uncached_ones_and_each_text_is_what_it_would_be_alone(variant):
    decoder = model(**VARIANTS[variant])
    cached = generate(decoder, PROMPTS, 20)
    assert cached == uncached(decoder, PROMPTS, 20)
    assert cached == [generate(decoder, [prompt], 20)[0] for prompt in PROMPTS]
    assert [len(text) for text in cached] == [20, 20, 20]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("prompts", [PROMPTS, [[1, 2, 3, 4, 5, 6, 7]], [[1, 2, 3, 4, 5, 6]]])
def test_prompts_are_read_in_pieces_and_the_texts_stay_the_same(
    variant, prompts, monkeypatch, passes
):
    decoder = model(**VARIANTS[variant])
    expected = uncached(decoder, prompts, 12)
    monkeypatch.setattr(sys.modules["glassformer.generation.decoding"], "PREFILL", 3)
    del passes[:]
    assert generate(decoder, prompts, 12) == expected
    assert passes == [3, 3, *([1] if max(map(len, prompts)) == 7 else []), *[1] * 11]
    with capture(decoder, what="residual", layers=0, queries=-1) as seen:
        generate(decoder, prompts, 2)
    length = max(map(len, prompts))
    # of the whole prompt
    assert [record.queries for record in seen.records] == [
        (length - 1,),
        (length,),
    ]


class Contrary(Decoder):
    def forward(self, tokens, **more):
        return -super().forward(tokens, **more)


CHANGES = {
    "hook of a layer": lambda decoder: decoder.layers[1].register_forward_hook(
        lambda module, args, output: -output
    ),
    "hook of the model": lambda decoder: decoder.register_forward_hook(
        lambda module, args, output: -output
    ),
    "hook before": lambda decoder: decoder.register_forward_pre_hook(
        lambda module, args: (args[0] // 2,)
    ),
    "another class": lambda decoder: setattr(decoder, "__class__", Contrary),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_model_changes_every_token(change):
    decoder = model()
    plain = generate(decoder, PROMPTS, 6)
    CHANGES[change](decoder)
    expected = uncached(decoder, PROMPTS, 6)
    assert expected != plain
    assert generate(decoder, PROMPTS, 6) == expected
    assert list(Continuation(decoder).reply(PROMPTS[0], 6)) == expected[0]


def test_a_text_ends_with_its_stop_token_and_the_others_go_on():
    decoder = model()
    free = generate(decoder, PROMPTS, 15)
    stop = free[1][4]
    first = {text: text.index(stop) if stop in text else 14 for text in map(tuple, free)}
    stopped = generate(decoder, PROMPTS, 15, stop_tokens=[stop])
    assert stopped == [text[: first[tuple(text)] + 1] for text in free]
    assert len(stopped[1]) <= 5


def test_streaming_yields_the_same_tokens_step_by_step_until_every_text_has_ended():
    decoder = model(dropout=0.5).train()  # which stays out
    steps = list(stream(decoder, PROMPTS, 6))
    assert [list(text) for text in zip(*steps, strict=True)] == generate(decoder, PROMPTS, 6)
    stop = steps[0][0]
    assert list(stream(decoder, PROMPTS, 6, stop_tokens=[stop]))[1][0] is None
    assert list(stream(decoder, PROMPTS[:1], 6, stop_tokens=[stop])) == [[stop]]


def test_a_seed_means_the_texts_of_a_batch_and_its_documentation_says_so():
    decoder = model()
    rule = SamplingRule(temperature=1.5, seed=7)
    together = generate(decoder, PROMPTS[:1] * 2, 12, rule=rule)
    assert together[0] != together[1]  # numbers of their own, and both are what the seed says
    assert together == generate(decoder, PROMPTS[:1] * 2, 12, rule=rule)
    assert generate(decoder, PROMPTS[:1], 12, rule=rule)[0] not in together
    said = " ".join(stream.__doc__.split())
    assert "a sampled text differs from the same text alone" in said
    assert "logits alone and in a batch differ" in said


WAYS = {
    "cached": lambda decoder, prompt: stream(decoder, [prompt, [8]], 3),
    "a reply": lambda decoder, prompt: Continuation(decoder).reply(prompt, 3),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_block_keeps_its_mode(way):
    decoder = model(dropout=0.5).train()
    decoder.layers[1].eval()
    modes = [each.training for each in decoder.modules()]
    for _ in WAYS[way](decoder, [1, 2, 1, 2]):
        assert [each.training for each in decoder.modules()] == modes
    with refused("tokens from"):
        list(WAYS[way](decoder, [99]))
    assert [each.training for each in decoder.modules()] == modes


@pytest.mark.parametrize(
    ("prompts", "new", "options", "message"),
    [
        ([[]], 3, {}, "at least one prompt"),
        ([], 3, {}, "at least one prompt"),
        ([[1], []], 3, {}, "lengths"),
        ([[1, 2, 99]], 3, {}, r"\[0, 61\)"),
        ([[1, -1]], 3, {}, r"\[0, 61\)"),
        ([[1]], 0, {}, "max_new_tokens"),
        ([[1] * 2000], 100, {}, "max_seq_len"),
        ([[1.5]], 2, {}, "token ids"),
        (torch.zeros(1, 0, dtype=torch.long), 2, {}, "at least one"),
        (torch.zeros(1, 2), 2, {}, "whole numbers"),
        ([1, 2, 3], 2, {}, r"\[prompt\]"),
        ("abc", 2, {}, r"\[prompt\]"),
        (5, 2, {}, "of type int"),
        (None, 2, {}, "of type NoneType"),
        (torch.tensor([1, 2]), 2, {}, r"\[prompt\]"),
        (torch.ones(1, 3, dtype=torch.bool), 2, {}, r"\[prompt\]"),
        ([[1, 2]], 3, {"stop_tokens": 5}, "stop_tokens that hold no whole numbers"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_input_is_named(prompts, new, options, message):
    with refused(anywhere=message):
        generate(model(), prompts, new, **options)


@pytest.mark.parametrize(
    "other", [torch.nn.Linear(2, 2), EncoderDecoder(EncoderDecoderConfig(9, 8, 8, 1, 1, 1, 4, 4))]
)
@pytest.mark.parametrize("call", [lambda other: generate(other, [[1]], 2), Continuation])
@pytest.mark.usefixtures("without_type_checks")
def test_only_decoders_generate(call, other):
    with refused(got=f"of type {type(other).__name__}", expected="a Decoder"):
        call(other)


@pytest.mark.parametrize(
    ("room", "prompt", "message"),
    [
        (8, [], "an empty prompt"),
        (8, [1] * 9, "a prompt of 9 tokens"),
        (8, [61], "tokens from 61 to 61"),
        (8, [1.5, 2.5], "no whole numbers"),
        (8, "ab", "no whole numbers"),
        (65, [1], "at most the model's 64"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_continued_is_refused(room, prompt, message):
    with refused(anywhere=message):
        next(Continuation(model(max_seq_len=64), room).reply(prompt))


def test_the_longest_text_that_fits_is_generated():
    decoder = model(max_seq_len=10)
    assert len(generate(decoder, [[1, 2, 3]], 8)[0]) == 8
    with refused(expected="max_seq_len"):
        generate(decoder, [[1, 2, 3]], 9)
