"""The highest expected accuracy on the recurrence, by exact Bayesian prediction.

A sequence does not determine its generator (initial, coefficients), nor which of the next steps are
increments. Bayes' rule over all ``vocab_size ** (2 * order)`` generators is optimal:

    P(token t+1 | tokens 0..t)
        ∝  Σ over generators g of  prior(g) · P(tokens 0..t | g) · P(token t+1 | tokens 0..t, g)

No model, of any size or training, can expect to be right more often than the most likely token of
this distribution.

After ``order`` tokens, these are the state, and only the ``vocab_size ** order`` coefficients
remain uncertain. The initial state matters only to the first ``order`` tokens; it is summed out
beforehand, for each possible prefix.

Source: Bayes' rule. The filter that sums out the initial state is the forward recursion of hidden
Markov models (Rabiner, "A tutorial on hidden Markov models and selected applications in speech
recognition", 1989, section III.A).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from glassformer.data.recurrence import RecurrenceConfig, require_tokens
from glassformer.errors import InputError

_LARGEST_TABLE = 2**24
_CHUNK_ELEMENTS = 2**20


class OptimalAccuracy(NamedTuple):
    """Accuracy of the most likely token at each position, in [0, 1].

    ``measured`` counts hits on the actual targets: compare it with a model's accuracy on the same
    sequences. ``expected`` averages the probability that the most likely token is right, which has
    less variance.
    """

    measured: Float64[Tensor, " position"]
    expected: Float64[Tensor, " position"]


def optimal_predictions(
    inputs: Int64[Tensor, "batch length"], config: RecurrenceConfig
) -> Float64[Tensor, "batch length vocab"]:
    """Return the exact distribution of the token after each input, given all inputs up to it.

    Inputs are sequences from their first emitted token on, as a model reads them. The prior is
    uniform over all generators, as for held-out sequences.
    """
    require_tokens(inputs, config.vocab_size)
    emission = _emission_table(config)
    weights = _weights_by_beginning(emission, config.order)
    rows = max(1, _CHUNK_ELEMENTS // emission[0].numel())
    predictions = torch.cat(
        [_predict(chunk, emission, weights) for chunk in inputs.cpu().split(rows)]
    )
    if predictions.isnan().any():
        row, position = predictions.isnan().any(dim=-1).nonzero()[0].tolist()
        raise InputError(
            f"tokens {inputs[row, : position + 1].tolist()} in row {row}",
            "a sequence that some generator of this recurrence emits",
            "Pass sequences of sample_sequences with the same config; a model's continuations may "
            "be impossible.",
        )
    return predictions


def optimal_accuracy(
    tokens: Int64[Tensor, "batch emitted"], config: RecurrenceConfig
) -> OptimalAccuracy:
    """Return the accuracy of the optimal prediction at each position.

    No model can expect more, though one may be lucky.

    Sequences include their last target: position t predicts ``tokens[:, t + 1]``.
    """
    certainty, best = optimal_predictions(tokens[:, :-1], config).max(dim=-1)
    hits = (best == tokens[:, 1:].cpu()).double()
    return OptimalAccuracy(measured=hits.mean(dim=0), expected=certainty.mean(dim=0))


def _emission_table(config: RecurrenceConfig) -> Float64[Tensor, "state vocab coefficients"]:
    """Return P(token | state, coefficients) for all of them.

    State and coefficients are numbers in base vocab_size.
    """
    vocab_size = config.vocab_size
    order = config.order
    if vocab_size ** (2 * order + 1) > _LARGEST_TABLE:
        raise InputError(
            got=f"vocab_size = {vocab_size} with order = {order}",
            expected=(
                f"vocab_size ** (2 * order + 1) <= {_LARGEST_TABLE}, as every generator is "
                "enumerated"
            ),
            fix="Use a smaller vocab_size or order.",
        )
    vectors = torch.cartesian_prod(*[torch.arange(vocab_size)] * order).view(-1, order)
    by_rule = (vectors @ vectors.T)[:, None] % vocab_size
    by_increment = (vectors[:, None, -1:] + 1) % vocab_size
    token = torch.arange(vocab_size)[None, :, None]
    increments = config.next_prob * (token == by_increment).double()
    return increments + (1 - config.next_prob) * (token == by_rule).double()


def _weights_by_beginning(
    emission: Float64[Tensor, "state vocab coefficients"], order: int
) -> list[Tensor]:
    """Return P(first k tokens, coefficients), [beginning, coefficients], for k = 0 ... order."""
    num_states, vocab_size, num_coefficients = emission.shape
    by_oldest = emission.view(vocab_size, -1, vocab_size, num_coefficients)
    joint = torch.full(
        (num_states, num_coefficients), 1 / (num_states * num_coefficients), dtype=torch.float64
    )
    weights = [joint.sum(dim=0, keepdim=True)]
    for _ in range(order):
        # A step appends a token and drops the oldest value; other initial values stay in front.
        joint = torch.einsum(
            "orc,ortc->rtc", joint.reshape(vocab_size, -1, num_coefficients), by_oldest
        )
        weights.append(
            joint.reshape(-1, len(weights[-1]) * vocab_size, num_coefficients).sum(dim=0)
        )
    return weights


def _predict(
    inputs: Int64[Tensor, "batch length"],
    emission: Float64[Tensor, "state vocab coefficients"],
    weights: list[Tensor],
) -> Float64[Tensor, "batch length vocab"]:
    """Return predictions for one chunk; NaN from a row's first impossible token on."""
    vocab_size = emission.shape[1]
    length = inputs.shape[1]
    order = len(weights) - 1
    states = _state_numbers(inputs, vocab_size, order)
    predictions = torch.empty(*inputs.shape, vocab_size, dtype=torch.float64)

    for position in range(min(order - 1, length)):
        continued = weights[position + 2].sum(dim=-1).view(-1, vocab_size)
        by_state = continued / continued.sum(dim=-1, keepdim=True)
        predictions[:, position] = by_state[states[:, position]]
    if length < order:
        return predictions

    belief = weights[order][states[:, order - 1]]
    for position in range(order - 1, length):
        if position >= order:
            belief = belief * emission[states[:, position - 1], inputs[:, position]]
        belief = belief / belief.sum(dim=-1, keepdim=True)
        predictions[:, position] = torch.einsum("btc,bc->bt", emission[states[:, position]], belief)
    return predictions


def _state_numbers(
    inputs: Int64[Tensor, "batch length"], vocab_size: int, order: int
) -> Int64[Tensor, "batch length"]:
    """Return the last ``order`` tokens at each position as one number in base vocab_size.

    There are fewer tokens at the beginning.
    """
    numbers = torch.zeros_like(inputs)
    for age in range(min(order, inputs.shape[1])):
        numbers[:, age:] += inputs[:, : inputs.shape[1] - age] * vocab_size**age
    return numbers
