import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data import bayes
from glassformer.data.bayes import optimal_accuracy, optimal_predictions
from glassformer.data.recurrence import RecurrenceConfig, fresh_batch
from refusals import refused


def step_probability(
    token: int, state: list[int], coefficients: tuple[int, ...], config: RecurrenceConfig
) -> float:
    by_rule = sum(
        value * coefficient for value, coefficient in zip(state, coefficients, strict=True)
    )
    probability = 0.0
    if token == by_rule % config.vocab_size:
        probability += 1 - config.next_prob
    if token == (state[-1] + 1) % config.vocab_size:
        probability += config.next_prob
    return probability


def likelihood(
    tokens: list[int],
    initial: tuple[int, ...],
    coefficients: tuple[int, ...],
    config: RecurrenceConfig,
) -> float:
    state = list(initial)
    product = 1.0
    for token in tokens:
        product *= step_probability(token, state, coefficients, config)
        state = [*state, token][1:]
    return product


def brute_force(tokens: list[int], config: RecurrenceConfig) -> list[list[float]]:
    """P(next | tokens so far) as a ratio of sums of likelihoods over every generator, position by
    position.
    """
    vectors = list(itertools.product(range(config.vocab_size), repeat=config.order))

    def evidence(beginning: list[int]) -> float:
        return sum(
            likelihood(beginning, *pair, config) for pair in itertools.product(vectors, vectors)
        )

    return [
        [
            evidence([*tokens[: end + 1], token]) / evidence(tokens[: end + 1])
            for token in range(config.vocab_size)
        ]
        for end in range(len(tokens))
    ]


@given(
    size=st.sampled_from([(1, 1), (1, 2), (1, 5), (2, 2), (2, 3), (3, 2)]),
    next_prob=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    length=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_predictions_are_sums_over_generators(
    size: tuple[int, int], next_prob: float, length: int, seed: int
) -> None:
    order, vocab_size = size
    config = RecurrenceConfig(
        order=order, vocab_size=vocab_size, next_prob=next_prob, seq_len=length
    )
    inputs = fresh_batch(config, 3, seed=seed, step=0).inputs
    predictions = optimal_predictions(inputs, config)
    assert predictions.dtype == torch.float64
    for row, predicted in zip(inputs.tolist(), predictions, strict=True):
        expected = brute_force(row, config)
        torch.testing.assert_close(
            predicted, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
        )


def test_predictions_equal_the_sum_over_the_full_sized_family() -> None:
    config = RecurrenceConfig(seq_len=7)
    inputs = fresh_batch(config, 1, seed=3, step=0).inputs
    expected = torch.tensor(
        [brute_force(row, config) for row in inputs.tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(optimal_predictions(inputs, config), expected, atol=1e-12, rtol=0)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RecurrenceConfig(seq_len=10)
    inputs = fresh_batch(config, 25, seed=0, step=0).inputs
    whole = optimal_predictions(inputs, config)
    monkeypatch.setattr(bayes, "_CHUNK_ELEMENTS", 4 * 7 * 49)
    torch.testing.assert_close(optimal_predictions(inputs, config), whole, atol=1e-15, rtol=0)


def test_long_sequences_stay_normalised() -> None:
    config = RecurrenceConfig(seq_len=3_000)
    predictions = optimal_predictions(fresh_batch(config, 4, seed=0, step=0).inputs, config)
    torch.testing.assert_close(predictions.sum(dim=-1), torch.ones(4, 3_000, dtype=torch.float64))


def test_ceiling_of_the_usual_recurrence() -> None:
    config = RecurrenceConfig()
    accuracy = optimal_accuracy(fresh_batch(config, 4_000, seed=0, step=0).tokens, config)
    assert accuracy.expected.mean().item() == pytest.approx(0.884, abs=0.002)
    assert accuracy.measured.mean().item() == pytest.approx(0.884, abs=0.004)
    early = torch.tensor([0.24, 0.28, 0.39, 0.80, 0.86, 0.89], dtype=torch.float64)
    torch.testing.assert_close(accuracy.expected[:6], early, atol=0.015, rtol=0)
    assert accuracy.expected[-10:].mean().item() == pytest.approx(0.919, abs=0.004)
    # Four standard errors of a mean of 4,000 hits.
    assert (accuracy.measured - accuracy.expected).abs().max().item() < 4 * 0.5 / 4_000**0.5


def test_certain_when_the_generator_is() -> None:
    # Without increments a period of 0s and 1s pins the only rule that emits it: coefficients (1,
    # 0).
    config = RecurrenceConfig(vocab_size=2, next_prob=0.0)
    predictions = optimal_predictions(torch.tensor([[0, 1, 0, 1, 0]]), config)
    assert predictions[0, -1].tolist() == [0.0, 1.0]


def test_sequences_no_generator_emits_are_refused() -> None:
    config = RecurrenceConfig(next_prob=0.0, vocab_size=3)
    possible = torch.tensor([[1, 2, 1, 2]])
    assert optimal_predictions(possible, config).shape == (1, 4, 3)
    # A state of zeros stays zero without increments.
    impossible = torch.tensor([[1, 2, 1, 2], [0, 0, 1, 0]])
    with refused(r"tokens \[0, 0, 1\] in row 1"):
        optimal_predictions(impossible, config)


def test_bad_input_is_refused() -> None:
    config = RecurrenceConfig(vocab_size=3)
    with refused("tokens between 0 and 3"):
        optimal_predictions(torch.tensor([[0, 3]]), config)
    with refused(r"shape \(1, 0\)"):
        optimal_accuracy(torch.tensor([[0]]), config)
    with refused(expected="enumerated"):
        optimal_predictions(torch.tensor([[0, 3]]), RecurrenceConfig(vocab_size=50))
