"""Measuring trained models: accuracy beside the optimum at every position, and what their continuations are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from glassformer.data.bayes import optimal_accuracy, optimal_predictions
from glassformer.data.recurrence import (
    Generators,
    RecurrenceBatch,
    RecurrenceConfig,
    RecurrenceSplit,
    obeys_recurrence,
    sample_sequences,
)
from glassformer.errors import require, require_positive
from glassformer.generation.decoding import generate
from glassformer.generation.sampling import SamplingRule
from glassformer.labs.gpt_oss.exercises import calc_per_token_acc
from glassformer.labs.gpt_oss.network import Transformer
from glassformer.labs.gpt_oss.plan import DATA, RULES, SHOWN, Experiment, Plan
from glassformer.labs.gpt_oss.results import Behaviour, GenerationResult, ModelResult, NextToken, Results
from glassformer.labs.gpt_oss.training_runs import batches
from glassformer.training import TrainingResult, mix_seed

_NGRAM = 4
_SHOWN_LENGTH = 40
_STREAM = 1
"""Keeps the random numbers of measuring apart from those of the split."""


def new_sequences(data: RecurrenceConfig, split: RecurrenceSplit, count: int, seed: int) -> RecurrenceBatch:
    """``count`` new sequences of the held-out generators, each generator as often as it stands in the test sequences.

    Raises:
        InputError: ``count`` below 1 or a negative seed.
    """
    require_positive(count=count)
    require(seed >= 0, f"seed = {seed}", "a whole number of at least 0", "Pass seed >= 0.")
    rows = torch.arange(count) % len(split.test.generators)
    held_out = split.test.generators
    generators = Generators(held_out.initial[rows], held_out.coefficients[rows])
    rng = np.random.default_rng(mix_seed(seed, _STREAM))
    return RecurrenceBatch(sample_sequences(data, generators, rng), generators)


def measure_model(
    experiment: Experiment, model: nn.Module, training: TrainingResult, measured: RecurrenceBatch
) -> ModelResult:
    """Accuracy of a trained model at every position of the ``measured`` sequences, beside what its training logged."""
    return ModelResult(
        name=experiment.name,
        title=experiment.title,
        fresh=experiment.fresh,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        steps=training.step,
        losses=[[step, loss] for step, loss in training.losses],
        evaluations=[[step, metrics["accuracy"]] for step, metrics in training.evaluations],
        accuracy_by_position=calc_per_token_acc(model, batches(measured.tokens)).tolist(),
    )


def measure_all(
    plan: Plan,
    seed: int,
    split: RecurrenceSplit,
    measured: RecurrenceBatch,
    trained: Sequence[tuple[ModelResult, Transformer]],
) -> Results:
    """All that the report needs: the models' results, the optimum on the same sequences, and how the best generates.

    Args:
        plan: How much to measure.
        seed: Seed of the sampling, and told in the results.
        split: Training and test sequences.
        measured: The sequences on which the models were measured.
        trained: Every model and what was measured of it; the most accurate one generates.
    """
    best, generator = max(trained, key=lambda pair: pair[0].accuracy)
    return Results(
        plan=plan.name,
        seed=seed,
        num_train=len(split.train.tokens),
        num_test=len(split.test.tokens),
        num_measured=len(measured.tokens),
        optimum_test=float(optimal_accuracy(split.test.tokens, DATA).measured.mean()),
        optimum_by_position=optimal_accuracy(measured.tokens, DATA).measured.tolist(),
        models=[result for result, _ in trained],
        generation=_measure_generation(plan, seed, measured, best.name, generator),
    )


def behaviour(
    sequences: Int64[Tensor, "batch length"], coefficients: Int64[Tensor, "batch order"], prompt_length: int
) -> Behaviour:
    """What the steps behind the first ``prompt_length`` tokens are like; see :class:`Behaviour`.

    Args:
        sequences: Prompts with their continuations.
        coefficients: Those of the generators that began the sequences.
        prompt_length: Tokens that were given; at least the order of the recurrence.

    Raises:
        InputError: A prompt shorter than the order, fewer than four new tokens, or tokens outside the vocabulary.
    """
    order, length = coefficients.shape[1], sequences.shape[1]
    require(
        order <= prompt_length <= length - _NGRAM,
        f"prompt_length = {prompt_length} in sequences of {length} tokens",
        f"at least {order} tokens of prompt and {_NGRAM} of continuation",
        "Continue the sequences by some tokens.",
    )
    kinds = obeys_recurrence(sequences[:, prompt_length - order :], coefficients, DATA.vocab_size)
    increment = kinds.increment & ~kinds.rule
    continuation = sequences[:, prompt_length:]
    return Behaviour(
        rule=_share(kinds.rule),
        increment=_share(increment),
        neither=_share(~kinds.rule & ~increment),
        repeated=_repeated_ngrams(continuation),
        cycling=_share(_cycles(continuation[:, continuation.shape[1] // 2 :])),
    )


def _measure_generation(
    plan: Plan, seed: int, measured: RecurrenceBatch, name: str, model: Transformer
) -> GenerationResult:
    sequences = measured.tokens[: plan.num_prompts]
    coefficients = measured.generators.coefficients[: plan.num_prompts]

    def continued(rule: SamplingRule) -> Behaviour:
        prompts = sequences[:, : plan.prompt_length]
        new = torch.tensor(generate(model, prompts, plan.new_tokens, rule=replace(rule, seed=seed)))
        return behaviour(torch.cat([prompts, new], dim=1), coefficients, plan.prompt_length)

    return GenerationResult(
        model=name,
        num_prompts=len(sequences),
        prompt_length=plan.prompt_length,
        new_tokens=plan.new_tokens,
        true=behaviour(sequences[:, : plan.prompt_length + plan.new_tokens], coefficients, plan.prompt_length),
        rules={title: continued(rule) for title, rule in RULES.items()},
        temperatures=list(plan.temperatures),
        top_ps=list(plan.top_ps),
        grid=[
            [continued(SamplingRule(temperature=temperature, top_p=top_p)) for top_p in plan.top_ps]
            for temperature in plan.temperatures
        ],
        next_token=_next_token(model, measured),
    )


@torch.no_grad()
def _next_token(model: Transformer, measured: RecurrenceBatch) -> NextToken:
    """One next token after which rule and increment differ, under the rules of ``SHOWN``."""
    contexts = measured.tokens[:, :_SHOWN_LENGTH]
    by_rule = (contexts[:, -DATA.order :] * measured.generators.coefficients).sum(dim=1) % DATA.vocab_size
    by_increment = (contexts[:, -1] + 1) % DATA.vocab_size
    row = int((by_rule != by_increment).nonzero()[0])
    context = contexts[row : row + 1]
    logits = model(context)[0, -1]
    return NextToken(
        context=context[0].tolist(),
        by_rule=int(by_rule[row]),
        by_increment=int(by_increment[row]),
        optimal=optimal_predictions(context, DATA)[0, -1].tolist(),
        model={title: rule.distribution(logits).tolist() for title, rule in SHOWN.items()},
    )


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _repeated_ngrams(continuation: Int64[Tensor, "batch length"]) -> float:
    """The mean share of runs of ``_NGRAM`` tokens that occurred before in the same row."""
    rows = continuation.unfold(1, _NGRAM, 1).tolist()
    return float(np.mean([1 - len({tuple(run) for run in row}) / len(row) for row in rows]))


def _cycles(ending: Int64[Tensor, "batch length"]) -> Tensor:
    """Which rows are two or more rounds of one cycle."""
    length = ending.shape[1]
    rounds = [(ending[:, period:] == ending[:, :-period]).all(dim=1) for period in range(1, length // 2 + 1)]
    return torch.stack(rounds).any(dim=0)
