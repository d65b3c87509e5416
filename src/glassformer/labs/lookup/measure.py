"""Measuring the course's model: all contexts in all orders, and where its cross-attention looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data.lookup import FACTS, ID_TO_TOKEN, VOCAB, LookupExample, all_contexts, lookup_batch, share_seen
from glassformer.labs.lookup.course import (
    NUM_SAMPLES,
    build_course_model,
    share_right,
    side_by_side,
    train_course,
    written_logits,
)
from glassformer.labs.lookup.results import CourseMeasured, HeadShares, HeatMap, OrdersMeasured
from glassformer.models.encoder_config import Positions
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture
from glassformer.observe.scrambling import scrambling_test

_SHOWN = 6
"""Test examples that are shown scrambled beside original."""


def measure_course(
    seed: int,
    directory: Path,
    *,
    epochs: int,
    num_samples: int = NUM_SAMPLES,
    source_positions: Positions = "none",
    max_orders: int = 5040,
) -> CourseMeasured:
    """Train the course's model in the run ``directory``, going on with what is there, and measure it.

    Args:
        seed: Of examples, weights and dropout.
        directory: The run directory.
        epochs: Passes over the training examples.
        num_samples: Examples in all.
        source_positions: Positions of the encoder, for the control.
        max_orders: As for :func:`~glassformer.observe.scrambling.scrambling_test`.

    Raises:
        InputError: ``directory`` holds the run of another configuration.
        KeyboardInterrupt: The training was interrupted. What it did is saved.
    """
    untrained = build_course_model(seed, source_positions).eval()
    run = train_course(seed, directory, epochs=epochs, num_samples=num_samples, source_positions=source_positions)
    model, contexts, test = run.model, all_contexts(), run.split.test
    assert run.result.best is not None  # every epoch is evaluated
    per_epoch = run.steps_per_epoch
    return CourseMeasured(
        seed=seed,
        source_positions=source_positions,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        seconds=run.result.seconds,
        epochs=run.epochs,
        epochs_needed=run.epochs_needed,
        best_epoch=run.result.best.step // per_epoch,
        num_test=len(test),
        test_seen=share_seen(run.split.train, test),
        test_accuracy=share_right(model, test),
        contexts_accuracy=share_right(model, contexts),
        losses=run.result.losses,
        evaluations=[
            (step // per_epoch, metrics["loss"], metrics["accuracy"]) for step, metrics in run.result.evaluations
        ],
        before=head_shares(untrained, contexts),
        after=head_shares(model, contexts),
        map_before=heat_map(untrained, test[0]),
        map_after=heat_map(model, test[0]),
        scrambling=measure_orders(model, contexts, max_orders),
        side_by_side=side_by_side(model, test[:_SHOWN], seed),
    )


def head_shares(model: EncoderDecoder, examples: Sequence[LookupExample]) -> list[HeadShares]:
    """For each head of the last cross-attention, its mean weight on the key and on the value at ``[SOS]``.

    There the value has to be written. Either token names the fact, but for RED, which is the value of one fact and the
    key of another: a model has to look at the other token of the fact, or at both.

    Args:
        model: In evaluation mode.
        examples: Contexts of the course.
    """
    source = lookup_batch(examples).source
    keys = torch.tensor([VOCAB[example.key] for example in examples])[:, None]
    values = torch.tensor([VOCAB[example.value] for example in examples])[:, None]
    ambiguous = torch.tensor([VOCAB[word] for word in FACTS.keys() & FACTS.values()])
    on_key, on_value = source == keys, source == values
    alone = (on_key | on_value) & ~torch.isin(source, ambiguous)
    at_start = cross_attention(model, examples)[:, :, 0]
    shares = [(at_start * chosen[:, None]).sum(-1).mean(0).tolist() for chosen in (on_key, on_value, alone)]
    return [HeadShares(*of_head) for of_head in zip(*shares, strict=True)]


def heat_map(model: EncoderDecoder, example: LookupExample) -> HeatMap:
    """The cross-attention of one context, with the words that stand on its axes."""
    batch = lookup_batch([example])
    source, target = (
        [ID_TO_TOKEN[token] for token in row] for row in (batch.source[0].tolist(), batch.inputs[0].tolist())
    )
    return HeatMap(source, target, cross_attention(model, [example])[0].tolist())


@torch.no_grad()
def cross_attention(
    model: EncoderDecoder, examples: Sequence[LookupExample]
) -> Float[Tensor, "batch head target source"]:
    """The weights of the last cross-attention while the model reads contexts and writes their targets."""
    batch = lookup_batch(examples)
    name = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention"
    with capture(model, [name]) as seen:
        model(batch.source, batch.inputs)
    return seen.weights[name]


def measure_orders(model: EncoderDecoder, examples: Sequence[LookupExample], max_orders: int = 5040) -> OrdersMeasured:
    """Put each context into all orders of its tokens (``NAME`` included), and compare what the model writes."""
    found = scrambling_test(
        lambda source: written_logits(model, source), lookup_batch(examples).source, max_orders=max_orders
    )
    return OrdersMeasured(
        contexts=len(found.contexts),
        orders=found.orders,
        exhaustive=found.exhaustive,
        largest_changes=[context.largest_change for context in found.contexts],
        changed_tokens=found.changed_tokens,
        decided_tokens=sum(context.decided_tokens for context in found.contexts),
        tolerance=found.tolerance,
    )
