"""Speculative decoding gives the tokens of plain decoding, and their distribution, in fewer forward passes."""

import random
from functools import partial
from itertools import islice, pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gpt_oss import GPT_OSS_20B
from scipy.stats import chisquare

from glassformer.generation import SamplingRule, generate, speculative, stream
from glassformer.generation.decoding import Continuation, decode
from glassformer.generation.native_step import DecodingStep
from glassformer.generation.speculative import Drafts, Lookup, verification_costs
from glassformer.models import Decoder, DecoderConfig
from glassformer.observe.edits import scale
from glassformer.observe.intervene import intervene

SIZES = {"vocab_size": 5, "num_layers": 2, "hidden_dim": 16, "ff_dim": 16, "num_heads": 4, "head_dim": 4}
VARIANTS = {
    "dense": {},
    "grouped": {"num_kv_heads": 2, "key_weights": True},
    "windowed": {"window": 4, "windowed_layers": "all", "sinks": True},
    "some windowed": {"window": 7, "windowed_layers": "odd"},
    "sees itself only": {"window": 1},
    "experts": {"num_experts": 4, "window": 12},
}


def model(variant: str = "dense", **changes: object) -> Decoder:
    torch.manual_seed(3)
    return Decoder(DecoderConfig(**SIZES, **VARIANTS[variant], **changes)).double()  # type: ignore[arg-type]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Propose wherever there is a match: a longer proposal costs nothing."""
    monkeypatch.setattr(speculative, "verification_costs", lambda config, longest: [1.0] * (longest + 1))


@settings(max_examples=60)
@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    prompt=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    new=st.integers(1, 40),
    longest=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    stop=st.lists(st.integers(0, 4), max_size=1),
    costly=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_tokens_are_those_of_plain_decoding(
    variant: str,
    prompt: list[int],
    new: int,
    longest: int,
    temperature: float,
    stop: list[int],
    costly: bool,
    seed: int,
) -> None:
    decoder = model(variant, max_seq_len=len(prompt) + new - 1)  # the last position is used too
    rule = SamplingRule(temperature=temperature, seed=seed)
    expected = generate(decoder, [prompt], new, rule=rule, stop_tokens=stop)
    with pytest.MonkeyPatch.context() as patch:
        if not costly:
            patch.setattr(speculative, "verification_costs", lambda config, longest: [1.0] * (longest + 1))
        assert generate(decoder, [prompt], new, rule=rule, stop_tokens=stop, speculate=longest) == expected


@pytest.mark.usefixtures("always", "library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["grouped", "some windowed", "experts"])
def test_the_native_step_rounds_nothing_differently(variant: str, dtype: torch.dtype) -> None:
    decoder = model(variant).to(dtype)
    for seed in range(8):
        rule = SamplingRule(temperature=seed % 3 / 2, seed=seed)
        prompt = torch.randint(5, (1, 12)).repeat(1, 2)
        assert generate(decoder, prompt, 40, rule=rule, speculate=7) == generate(decoder, prompt, 40, rule=rule)


@pytest.mark.usefixtures("always")
def test_a_text_that_repeats_takes_few_passes(passes: list[int]) -> None:
    decoder = model()
    text = generate(decoder, [[1, 2]], 60)[0]
    del passes[:]
    assert generate(decoder, [[1, 2]], 60, speculate=7)[0] == text
    assert len(passes) < 30
    assert max(passes) == 8
    assert generate(decoder, [[1, 2, 1, 2]], 3, speculate=999_999_999) == generate(decoder, [[1, 2, 1, 2]], 3)
    with intervene(decoder, scale("heads", -1.0, queries=-1)):  # of the newest position in each step
        assert generate(decoder, [[1, 2]], 60, speculate=7) == generate(decoder, [[1, 2]], 60)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_end_with_a_stop_token_and_with_the_last_token_asked_for(variant: str, passes: list[int]) -> None:
    decoder = model(variant)
    prompt = [0, 1, 2, 3] * 5
    text = generate(decoder, [prompt], 40)[0]
    for stop in sorted(set(text)):
        expected = text[: text.index(stop) + 1]
        assert generate(decoder, [prompt], 40, stop_tokens=[stop], speculate=7) == [expected]
    for new in range(1, 20):
        del passes[:]
        assert list(stream(decoder, [prompt], new, speculate=7)) == [[token] for token in text[:new]]
        assert sum(passes) - len(prompt) <= 8 * new


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("variant", ["some windowed", "experts"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_conversations_go_on_after_replies_that_were_left_within_a_run(variant: str, temperature: float) -> None:
    decoder, draw = model(variant), random.Random(0)
    rule = SamplingRule(temperature=temperature, seed=5)
    plain, speculating = Continuation(decoder, 300, rule=rule), Continuation(decoder, 300, rule=rule, speculate=6)
    prompt = [0, 1, 2] * 4
    for _ in range(8):
        left = draw.randint(1, 20)
        replies = [list(islice(each.reply(prompt), left)) for each in (plain, speculating)]
        assert replies[0] == replies[1]
        prompt = [*prompt, *replies[0][: draw.randint(0, left)], draw.randrange(5)]


def probabilities(decoder: Decoder, prompt: list[int], new: int) -> dict[tuple[int, ...], float]:
    """Of each continuation, from the logits of the whole text."""
    found = {}
    for text in product(range(5), repeat=new):
        with torch.no_grad():
            logs = decoder.eval()(torch.tensor([[*prompt, *text]]))[0].log_softmax(-1)
        found[text] = float(sum(logs[len(prompt) - 1 + place, token] for place, token in enumerate(text)).exp())
    return found


def p_value(drawn: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    counts = [drawn.count(text) for text in expected]
    return float(chisquare(counts, [len(drawn) * share for share in expected.values()]).pvalue)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_sampled_texts_have_the_distribution_of_the_model(passes: list[int]) -> None:
    decoder, prompt = model(), [token for pair in product(range(5), repeat=2) for token in pair]
    expected = probabilities(decoder, prompt, 2)
    with torch.inference_mode():
        cache = decoder.eval().new_cache(1, 52)
        logits = decoder(torch.tensor([prompt]), cache=cache)[:, -1]
    kept, generator, drawn = cache.snapshot(), torch.Generator().manual_seed(0), []
    del passes[:]
    for _ in range(1500):
        cache.restore(kept)
        drafts, step = Drafts(decoder, cache, prompt, longest=1, most=3), DecodingStep(decoder, cache)
        steps = decode(lambda: logits, step, partial(SamplingRule().choose, generator=generator), 3, drafts=drafts)
        drawn.append(tuple(token for (token,) in islice(steps, 2)))
    assert p_value(drawn, expected) > 0.01
    assert passes == [2] * 1500  # every first token was followed by a proposal


def test_it_proposes_what_followed_the_newest_tokens() -> None:
    free = [1.0] * 10
    assert Lookup([1, 2, 3, 4, 5, 1, 2], free).propose(3) == [3, 4, 5]
    assert Lookup([1, 2, 3, 1, 2, 4, 1, 2], free).propose(2) == [4, 1]  # the last occurrence
    assert Lookup([6, 7, 1, 2, 3, 8, 1, 2, 4, 6, 7, 1, 2], free).propose(1) == [3]  # the longer match
    assert Lookup([1, 2, 1, 2], free).propose(9) == [1, 2] * 4 + [1]  # a repetition goes on
    assert Lookup([1, 2, 3], free).propose(9) == []
    assert Lookup([1, 2, 3, 1, 2], free).propose(0) == []
    assert Lookup([], free).propose(9) == []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9))
def test_a_proposal_continues_an_earlier_occurrence(text: list[int], most: int) -> None:
    proposal = Lookup(text, [1.0] * 10).propose(most)
    pairs = list(pairwise(text))
    found = len(text) >= 2 and pairs[-1] in pairs[:-1]
    assert len(proposal) == (most if found else 0)
    whole = [*text, *proposal]
    if proposal:
        assert any(whole[place : place + len(proposal) + 2] == whole[len(text) - 2 :] for place in range(len(text) - 2))


def test_few_tokens_are_proposed_where_matches_do_not_go_on() -> None:
    draw = random.Random(0)
    costs = [1 + 0.25 * more for more in range(9)]
    chance = Lookup([draw.randrange(4) for _ in range(2000)], costs)
    assert chance.propose(8) == []
    copied = Lookup([draw.randrange(100) for _ in range(50)] * 8, costs)
    assert len(copied.propose(8)) == 8


def test_costs_of_a_pass_are_those_of_the_weights_that_it_reads() -> None:
    dense = verification_costs(DecoderConfig(**SIZES), 7)
    assert dense == pytest.approx([1 + 0.25 * more for more in range(8)])
    released = verification_costs(GPT_OSS_20B, 7)
    assert released[0] == 1
    assert 1.45 < released[1] < 1.65
    assert 3.7 < released[7] < 4.7
