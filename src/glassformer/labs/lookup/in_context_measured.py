"""What is measured of a model that answers from fresh facts: how often it is right, and what it fails by.

An answer has two steps. The cross-attention has to *find* the slot that holds the asked key, and what follows has to
*read* the value from it. Both are measured by themselves: the first by where the weight is largest, the second by
letting the decoder see the right slot alone. Of the scores three numbers are kept, for each head::

    gap    = right slot's score - mean of the others'            does not depend on the number of facts n
    noise  = standard deviation of the others' scores            neither does this
    margin = right slot's score - the largest of the others'     falls as they become more

Two things can fail as n grows. *Dilution*: with scores that are nearly normal the right slot's weight is about
``1 / (1 + (n - 1) exp(noise ** 2 / 2 - gap))``, so that the gap must grow as log n; multiplying all scores by a number
prevents this. *Crowding*: the largest of n - 1 others lies about ``noise * sqrt(2 log n)`` above their mean. Where that
reaches the gap another slot wins, and no factor on the scores helps, since gap and noise grow alike. Directions
drawn at random in d dimensions have ``gap / noise = sqrt(d)``, with d = head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from glassformer.data.in_context_lookup import Encoding, Facts, Source, Split, bag_ceiling, encode, reordered, sample
from glassformer.errors import require_positive
from glassformer.labs.lookup.in_context import MEASURING_SEED, build_model, train_in_context
from glassformer.labs.lookup.recipes import InContextRecipe
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of facts at which models are measured, where their keys and values suffice."""

_PLACES_PER_BATCH = 16_384


@dataclass(frozen=True)
class LengthMeasured:
    """What a model does with this many facts. Shares are in [0, 1]; what is None was not measured.

    Attributes:
        num_facts: Facts in each context, without distractors.
        num_questions: Contexts, with one question each.
        accuracy: The share of questions answered right.
        ceiling: The best share possible: :func:`~glassformer.data.in_context_lookup.bag_ceiling` for bags that are
            asked about any pairing, 1 for slots and positions. None where it is not derived: bags of held-out pairings.
        found: The share of answerable questions whose right slot has the largest weight, averaged over heads.
        read: The share of answerable questions answered right when the decoder sees the right slot alone.
        sharpness: Each head's mean weight on the places that determine the answer (:func:`determining`).
        gap: Each head's mean gap, in units of the scores, which go into the softmax as they are; scores that lie more
            than 69 below the largest (weights below 1e-30) count as if they lay 69 below.
        noise: Each head's noise, its root mean square over questions; needs three places.
        margin: Each head's mean margin.
    """

    num_facts: int
    num_questions: int
    accuracy: float
    ceiling: float | None
    found: float | None
    read: float | None
    sharpness: tuple[float, ...]
    gap: tuple[float, ...] | None
    noise: tuple[float, ...] | None
    margin: tuple[float, ...] | None


@dataclass(frozen=True)
class OrderMeasured:
    """The same contexts in another order.

    Attributes:
        num_facts: Facts in each.
        num_questions: How many.
        accuracy: The share answered right in the first order.
        accuracy_reordered: And in the second.
        answers_changed: Questions with another answer.
        largest_change: Of a logit.
    """

    num_facts: int
    num_questions: int
    accuracy: float
    accuracy_reordered: float
    answers_changed: int
    largest_change: float


@dataclass(frozen=True)
class InContextMeasured:
    """A recipe's model of one seed: what it cost, and what it can do.

    Attributes:
        recipe: What it was trained by.
        seed: Of weights and contexts.
        num_parameters: Numbers in the model.
        seconds: Spent in updates.
        lengths: By number of facts, on pairings never trained on where some are held out.
        sharpness_before: As in :class:`LengthMeasured`, of the untrained model at the most facts trained on.
        order: At the most facts trained on.
    """

    recipe: InContextRecipe
    seed: int
    num_parameters: int
    seconds: float
    lengths: tuple[LengthMeasured, ...]
    sharpness_before: tuple[float, ...]
    order: OrderMeasured

    @property
    def name(self) -> str:
        """Of the recipe."""
        return self.recipe.name

    @property
    def encoding(self) -> Encoding:
        """How its facts are written down."""
        return self.recipe.encoding


def measure_recipe(
    recipe: InContextRecipe,
    seed: int,
    directory: Path | None = None,
    *,
    lengths: Sequence[int] = LENGTHS,
    num_questions: int = 4000,
) -> InContextMeasured:
    """Train the model of ``recipe`` (or go on with what is in ``directory``) and measure it.

    Lengths that the recipe's data has too few keys or values for are left out.

    Raises:
        InputError: What training and the measurements refuse.
        KeyboardInterrupt: The training was interrupted.
    """
    longest = recipe.data.max_facts
    before = measure_length(build_model(recipe, seed).eval(), recipe, longest, num_questions=min(1000, num_questions))
    model, result = train_in_context(recipe, seed, directory)
    return InContextMeasured(
        recipe=recipe,
        seed=seed,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        seconds=result.seconds,
        lengths=tuple(
            measure_length(model, recipe, length, num_questions=num_questions)
            for length in lengths
            if length <= recipe.data.most_facts
        ),
        sharpness_before=before.sharpness,
        order=measure_order(model, recipe, longest, num_questions=min(1000, num_questions)),
    )


@torch.no_grad()
def measure_length(
    model: EncoderDecoder, recipe: InContextRecipe, num_facts: int, *, num_questions: int = 4000, seed: int = 0
) -> LengthMeasured:
    """Ask a model questions about contexts of this many facts, from seeds that training does not use.

    Where training leaves pairings out, each pairing of these contexts is one of those; elsewhere short contexts may be
    the same as some in training. With more than 64 facts fewer
    questions are asked (256 at least), so that the time stays in bounds.

    Args:
        model: In evaluation mode, of ``recipe``.
        recipe: What the model was trained by.
        num_facts: Facts in each context.
        num_questions: How many questions.
        seed: Seed of the contexts, on top of :data:`MEASURING_SEED`.

    Raises:
        InputError: More facts than the data has keys or values for or the model has room for, or no questions.
    """
    require_positive(num_questions=num_questions, num_facts=num_facts)
    asked = min(num_questions, max(256, num_questions * 64 // num_facts))
    slots = recipe.encoding == "slots"
    hits, found, read, answerable, sharp, gaps, variances, margins = 0, 0, 0, 0, [], [], [], []
    for facts, source in _contexts(recipe, num_facts, asked, seed):
        weights, logits, memory = _look(model, facts, source)
        hits += int((logits.argmax(-1) == facts.answer).sum())
        there = facts.place >= 0
        answerable += int(there.sum())
        on_right = (weights * determining(source, facts)[:, None]).sum(-1)
        sharp.append(on_right[there])
        if not slots:
            continue
        place = facts.place.clamp(min=0)
        found += int((weights.mean(1).argmax(-1) == place)[there].sum())
        alone = torch.zeros_like(source.real).scatter_(1, place[:, None], value=True)
        right = model.decode(facts.query[:, None], memory, alone)[:, -1].argmax(-1) == facts.answer
        read += int(right[there].sum())
        if source.real.shape[1] > 1 and bool(there.any()):
            gap, variance, margin = _score_gaps(weights[there], place[there])
            gaps.append(gap)
            if source.real.shape[1] > 2:  # of one other there is no spread
                variances.append(variance)
            margins.append(margin)
    measured = slots and answerable > 0
    noise = _mean(variances)
    return LengthMeasured(
        num_facts=num_facts,
        num_questions=asked,
        accuracy=hits / asked,
        ceiling=_ceiling(recipe, num_facts),
        found=found / answerable if measured else None,
        read=read / answerable if measured else None,
        sharpness=_mean(sharp) or (),
        gap=_mean(gaps),
        noise=None if noise is None else tuple(each**0.5 for each in noise),
        margin=_mean(margins),
    )


@torch.no_grad()
def measure_order(
    model: EncoderDecoder, recipe: InContextRecipe, num_facts: int, *, num_questions: int = 1000, seed: int = 0
) -> OrderMeasured:
    """Ask the same questions about contexts and about the same contexts in another random order (bags: shuffled anew).

    Raises:
        InputError: As for :func:`measure_length`.
    """
    require_positive(num_questions=num_questions, num_facts=num_facts)
    hits, again, changed, largest = 0, 0, 0, 0.0
    for facts, source in _contexts(recipe, num_facts, num_questions, seed):
        moved = encode(reordered(facts, seed=seed + 1), recipe.encoding, seed=seed + 1)
        first = model(source.tokens, facts.query[:, None], source.real)[:, -1]
        second = model(moved.tokens, facts.query[:, None], moved.real)[:, -1]
        hits += int((first.argmax(-1) == facts.answer).sum())
        again += int((second.argmax(-1) == facts.answer).sum())
        changed += int((first.argmax(-1) != second.argmax(-1)).sum())
        largest = max(largest, float((first - second).abs().max()))
    return OrderMeasured(num_facts, num_questions, hits / num_questions, again / num_questions, changed, largest)


def determining(source: Source, facts: Facts) -> Bool[Tensor, "batch position"]:
    """The places that determine the answer: the slot of the asked key, or every token that is the key or its value."""
    if source.tokens.ndim == 3:
        return source.real & (source.tokens[..., 0] == facts.query[:, None])
    either = (source.tokens == facts.query[:, None]) | (source.tokens == facts.answer[:, None])
    return source.real & either


def _contexts(recipe: InContextRecipe, num_facts: int, count: int, seed: int) -> Iterator[tuple[Facts, Source]]:
    split: Split = "unseen" if recipe.asks_unseen else "all"
    size = max(1, min(500, _PLACES_PER_BATCH // num_facts))
    for step, start in enumerate(range(0, count, size)):
        now = min(size, count - start)
        facts = sample(recipe.data, now, MEASURING_SEED + 1 + seed, split=split, step=step, num_facts=num_facts)
        yield facts, encode(facts, recipe.encoding, seed=MEASURING_SEED + 1 + seed, step=step)


def _ceiling(recipe: InContextRecipe, num_facts: int) -> float | None:
    if recipe.encoding != "bag":
        return 1.0
    return None if recipe.asks_unseen else bag_ceiling(recipe.data, num_facts)


def _look(model: EncoderDecoder, facts: Facts, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """The last cross-attention's weights [batch, head, place], the logits [batch, token], and the memory."""
    name = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention"
    with capture(model, [name]) as seen:
        memory = model.encode(source.tokens, source.real)
        logits = model.decode(facts.query[:, None], memory, source.real)[:, -1]
    return seen.weights[name][:, :, -1], logits, memory


def _score_gaps(
    weights: Float[Tensor, "batch head place"], right: Int64[Tensor, " batch"]
) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head"], Float[Tensor, "batch head"]]:
    """The gap, the variance of the others' scores, and the margin."""
    # Differences of scores are those of the weights' logarithms; the smallest weights are held above underflow.
    scores = weights.clamp(min=1e-30).log()
    heads, places = scores.shape[1:]
    is_right = torch.nn.functional.one_hot(right, places).bool()[:, None].expand(-1, heads, -1)
    best = scores[is_right].view(-1, heads)
    others = scores[~is_right].view(-1, heads, places - 1)
    spread = (others - others.mean(-1, keepdim=True)).square().sum(-1) / max(1, places - 2)
    return best - others.mean(-1), spread, best - others.amax(-1)


def _mean(parts: Sequence[Tensor]) -> tuple[float, ...] | None:
    whole = torch.cat(list(parts)) if parts else torch.empty(0)
    return tuple(whole.double().mean(0).tolist()) if len(whole) else None
