import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.generation.sampling import SamplingRule, _draw
from refusals import refused

NAN = float("nan")
INF = float("inf")


def reference(
    logits: list[float], temperature: float, top_k: int | None, top_p: float
) -> list[float]:
    """Greedy accumulation, one token at a time from the most likely down; lists, math.exp and
    math.fsum only.
    """
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    highest = logits[ranking[0]]
    if temperature == 0:
        kept = {ranking[0]: 1.0}
    else:
        kept = {
            token: math.exp((logits[token] - highest) / temperature) for token in ranking[:top_k]
        }
    total = math.fsum(kept.values())
    if top_p < 1:
        nucleus: dict[int, float] = {}
        for token, weight in kept.items():
            nucleus[token] = weight
            if math.fsum(nucleus.values()) / total >= top_p - 1e-11:
                break
        kept = nucleus
    total = math.fsum(kept.values())
    return [kept.get(token, 0.0) / total for token in range(len(logits))]


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Few distinct values make ties common.
tokens_logits = st.lists(
    st.one_of(st.sampled_from([-1.0, 0.0, 2.5, -INF]), st.floats(-30, 30)), min_size=1, max_size=12
)


@given(
    logits=tokens_logits.filter(lambda row: max(row) > -INF),
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 4.0]),
    top_k=st.one_of(st.none(), st.integers(1, 15)),
    top_p=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1)),
)
@settings(max_examples=400, deadline=None)
def test_it_is_the_definition(
    logits: list[float], temperature: float, top_k: int | None, top_p: float
) -> None:
    result = SamplingRule(temperature=temperature, top_k=top_k, top_p=top_p).distribution(
        doubles(logits)
    )
    expected = doubles(reference(logits, temperature, top_k, top_p))
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-9)
    # Below the normal float64 numbers, exp may round to zero or not.
    assert torch.equal(result > 1e-300, expected > 1e-300)


@given(weights=st.lists(st.integers(1, 6), min_size=1, max_size=12), data=st.data())
@settings(max_examples=200, deadline=None)
def test_nucleus_is_the_smallest_that_reaches_top_p_also_at_its_border(
    weights: list[int], data: st.DataObject
) -> None:
    # Whole weights make every border a fraction, so which sets reach it is decided in whole
    # numbers.
    total = sum(weights)
    share = data.draw(st.integers(1, total))
    result = SamplingRule(top_p=share / total).distribution(doubles(weights).log())
    kept = int((result > 0).sum())
    ranked = sorted(weights, reverse=True)
    assert sum(ranked[:kept]) >= share
    assert kept == 1 or sum(ranked[: kept - 1]) < share or share == total
    assert sorted(torch.tensor(weights)[result > 0].tolist(), reverse=True) == ranked[:kept]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_ten_equal_tokens_split_at_every_tenth(dtype: torch.dtype) -> None:
    for tenths in range(1, 11):
        result = SamplingRule(top_p=tenths / 10).distribution(torch.ones(10, dtype=dtype))
        assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        expected = torch.tensor([1 / tenths] * tenths + [0.0] * (10 - tenths), dtype=result.dtype)
        torch.testing.assert_close(result, expected)


def test_ties_go_to_the_lowest_tokens() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0])
    assert SamplingRule(temperature=0.0).distribution(logits).tolist() == [0, 1, 0, 0]
    assert SamplingRule(top_p=0.0).distribution(logits).tolist() == [0, 1, 0, 0]
    assert SamplingRule(top_k=2).distribution(logits).tolist() == [0, 0.5, 0.5, 0]
    assert SamplingRule(top_k=100).distribution(torch.zeros(5000)).nonzero().squeeze(
        -1
    ).tolist() == list(range(100))


def test_rows_are_independent() -> None:
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(1))
    together = SamplingRule(temperature=0.7, top_k=6, top_p=0.8).distribution(logits)
    for index in [(row, column) for row in range(2) for column in range(3)]:
        alone = SamplingRule(temperature=0.7, top_k=6, top_p=0.8).distribution(logits[index])
        assert torch.equal(together[index], alone)


@pytest.mark.parametrize("temperature", [1e-310, 1e-45, 1e-8])
def test_tiny_temperatures_approach_greedy(temperature: float) -> None:
    logits = torch.tensor([[1e30, 3.0, -INF], [1.0, 2.0, 0.0]])
    assert SamplingRule(temperature=temperature).distribution(logits).tolist() == [
        [1, 0, 0],
        [0, 1, 0],
    ]


def test_tokens_are_drawn_with_their_probabilities() -> None:
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    drawn = SamplingRule().choose(
        probabilities.log().expand(50_000, 6), torch.Generator().manual_seed(0)
    )
    counts = torch.bincount(drawn, minlength=6).double()
    assert counts[probabilities == 0].tolist() == [0, 0, 0]
    expected = 50_000 * probabilities[probabilities > 0].double()
    # 2 degrees of freedom: the 99.9 % point of chi-square is 13.8.
    assert float(((counts[probabilities > 0] - expected) ** 2 / expected).sum()) < 13.8


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.25, 3), (math.nextafter(1, 0), 3)])
def test_extreme_draws_hit_no_impossible_token(
    uniform: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch, "rand", lambda shape, **options: torch.full(shape, uniform, dtype=torch.float64)
    )
    assert _draw(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]), None).item() == token
    assert _draw(torch.tensor([0.0, 0.75, 0.0, 2.25, 0.0]), None).item() == token


def test_a_choice_has_the_leading_shape() -> None:
    logits = torch.full((2, 3, 5), -INF)
    logits[..., 4] = 17.0
    assert SamplingRule().choose(logits).tolist() == [[4, 4, 4], [4, 4, 4]]
    assert SamplingRule().choose(logits[0, 0]).shape == ()
    assert SamplingRule().choose(logits[:0]).shape == (0, 3)


def test_sample_repeats_with_the_seed() -> None:
    rule = SamplingRule(temperature=1.5, top_p=0.9, seed=11)
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    first, again = (rule.choose(logits, rule.generator()) for _ in range(2))
    other = rule.choose(logits, SamplingRule(seed=12).generator())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert SamplingRule().generator().initial_seed() != SamplingRule().generator().initial_seed()


@pytest.mark.parametrize(
    "rule", [SamplingRule(temperature=0.0), SamplingRule(top_p=0.0), SamplingRule(top_k=1)]
)
def test_greedy_rules_take_the_argmax_and_draw_nothing(rule: SamplingRule) -> None:
    logits = torch.randn(8, 30, generator=torch.Generator().manual_seed(0)).round()
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert rule.greedy
    assert torch.equal(rule.choose(logits, generator), logits.argmax(-1))
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(rule.distribution(logits).argmax(-1), logits.argmax(-1))


def test_choose_draws_from_the_distribution() -> None:
    rule = SamplingRule(temperature=0.8, top_k=5, top_p=0.9, seed=3)
    logits = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
    distribution = SamplingRule(temperature=0.8, top_k=5, top_p=0.9).distribution(logits)
    chosen = rule.choose(logits, rule.generator())
    assert torch.equal(chosen, _draw(distribution, rule.generator()))
    assert (distribution.gather(-1, chosen[:, None]) > 0).all()
    assert len(chosen.unique()) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"temperature": NAN}, "temperature = nan"),
        ({"temperature": INF}, "temperature = inf"),
        ({"temperature": "hot"}, "temperature = 'hot'"),
        ({"top_p": 1.01}, "top_p = 1.01"),
        ({"top_p": -0.5}, "top_p = -0.5"),
        ({"top_p": NAN}, "top_p = nan"),
        ({"top_k": 0}, "top_k = 0"),
        ({"top_k": 2.5}, "top_k = 2.5"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "seed = 9223372036854775808"),
    ],
)
def test_impossible_rules_are_refused(arguments: dict[str, object], message: str) -> None:
    with refused(message):
        SamplingRule(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule", [SamplingRule(), SamplingRule(temperature=0.0), SamplingRule(top_k=2, top_p=0.5)]
)
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.0, NAN, 1.0], "NaN in 1 of 6 logits"),
        ([0.0, NAN, INF], "NaN in 1 of 6 logits"),
        ([0.0, INF, 1.0], r"\+inf in 1 of 6 logits"),
        ([-INF, -INF, -INF], "1 rows in which every logit is -inf"),
    ],
)
def test_unusable_logits_are_refused(rule: SamplingRule, row: list[float], message: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], row])
    with refused(message):
        rule.choose(logits)
    with refused(message):
        rule.distribution(logits)


@pytest.mark.usefixtures("without_type_checks")
def test_rows_without_tokens_and_wrong_dtypes_are_refused() -> None:
    with refused(r"shape \(2, 0\)"):
        SamplingRule().distribution(torch.zeros(2, 0))
    with refused("int64"):
        SamplingRule().choose(torch.ones(3, dtype=torch.int64))
    with refused(r"shape \(\)"):
        SamplingRule().choose(torch.tensor(1.0))


def test_generator_of_another_device_is_refused() -> None:
    with refused("a generator on cpu with logits on meta"):
        SamplingRule().choose(torch.zeros(2, device="meta"), torch.Generator())
