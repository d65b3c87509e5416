"""Sampling rules beside transformers' logits processors, on random logits."""

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from glassformer.generation import generate
from glassformer.generation.sampling import Sampler, SamplingRule
from glassformer.models import Decoder, DecoderConfig
from refusals import refused

VOCAB = 500


def processors(rule: SamplingRule) -> LogitsProcessorList:
    """What transformers makes of the same settings, in its order."""
    chain = [
        RepetitionPenaltyLogitsProcessor(rule.repetition_penalty),
        TemperatureLogitsWarper(rule.temperature),
    ]
    chain += [TopKLogitsWarper(rule.top_k)] if rule.top_k is not None else []
    chain += [TopPLogitsWarper(rule.top_p)] if rule.top_p < 1 else []
    chain += [MinPLogitsWarper(rule.min_p)] if rule.min_p > 0 else []
    return LogitsProcessorList(chain)


def random_rule(rng: torch.Generator) -> SamplingRule:
    def draw(*values: float) -> float:
        return values[int(torch.randint(len(values), (), generator=rng))]

    return SamplingRule(
        temperature=draw(0.2, 0.7, 1.0, 1.8),
        top_k=draw(None, 5, 64, VOCAB),
        top_p=draw(0.3, 0.9, 0.95, 1.0),
        min_p=draw(0.0, 0.02, 0.1, 0.5),
        repetition_penalty=draw(0.8, 1.0, 1.1, 2.0),
    )


def held(tokens: Tensor) -> Tensor:
    return torch.zeros(len(tokens), VOCAB, dtype=torch.bool).scatter_(1, tokens, True)


@pytest.mark.parametrize("seed", range(100))
def test_distributions_are_those_of_transformers(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rule = random_rule(rng)
    logits = 3 * torch.randn(4, VOCAB, generator=rng, dtype=torch.float64)
    tokens = torch.randint(VOCAB, (4, 30), generator=rng)
    expected = processors(rule)(tokens, logits.clone()).softmax(-1)
    torch.testing.assert_close(
        rule.distribution(logits, held(tokens)), expected, rtol=1e-6, atol=1e-9
    )


def test_a_sampler_remembers_each_text_and_no_padding() -> None:
    rule = SamplingRule(temperature=0, repetition_penalty=2.0)
    tokens = torch.tensor([[0, 3], [4, 4]])
    real = torch.tensor([[False, True], [True, True]])
    sampler = Sampler(rule, tokens, real=real)
    logits = torch.tensor([[3.0, 2.9, 0.0, 5.0, 0.0], [3.0, 2.9, 0.0, 0.0, -1.0]])
    assert [sampler.choose(logits).tolist() for _ in range(3)] == [[0, 0], [1, 1], [3, 0]]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_padded_batch_is_each_text_alone(penalty: float) -> None:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(50, 2, 32, 64, 4, 8)).double().eval()
    rule = SamplingRule(temperature=0, repetition_penalty=penalty)
    texts = [[3, 1, 4, 1, 5], [2, 7]]
    together = generate(model, texts, 20, rule=rule)
    assert together == [generate(model, [text], 20, rule=rule)[0] for text in texts]


def test_min_p_of_one_takes_the_most_likely() -> None:
    assert SamplingRule(min_p=1.0).distribution(torch.tensor([1.0, 3.0, 2.0])).tolist() == [0, 1, 0]


def test_a_penalty_without_the_text_is_refused() -> None:
    with refused("repetition_penalty = 1.2 without seen"):
        SamplingRule(repetition_penalty=1.2).choose(torch.zeros(3))
    for field in ({"repetition_penalty": 0.0}, {"min_p": 1.5}, {"min_p": float("nan")}):
        with refused(next(iter(field))):
            SamplingRule(**field)
