"""What the lab measured, as data: the report and the figures are made from this alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glassformer.errors import InputError
from glassformer.files import write_text
from glassformer.labs.kept import read_part, to_json
from glassformer.labs.lookup.in_context_measured import InContextMeasured, LengthMeasured


@dataclass(frozen=True)
class HeadShares:
    """Where one cross-attention head looks when the value is to be written, averaged over contexts.

    Attributes:
        key: The weight on the key, in [0, 1].
        value: The weight on the value.
        alone: The weight on those of the two that stand in no other fact, so that they name this one by themselves.
    """

    key: float
    value: float
    alone: float

    @property
    def fact(self) -> float:
        """The weight on the two tokens that name the fact."""
        return self.key + self.value


@dataclass(frozen=True)
class HeatMap:
    """Cross-attention of one context: weights [head][target][source], and the words that it was computed for."""

    source: list[str]
    target: list[str]
    weights: list[list[list[float]]]


@dataclass(frozen=True)
class OrdersMeasured:
    """The scrambling test over all contexts of the course, each put into all orders of its five tokens.

    Attributes:
        contexts: How many contexts.
        orders: How many orders in all.
        exhaustive: Whether these are all there are.
        largest_changes: For each context, the largest change of a logit.
        changed_tokens: Most likely tokens that changed, over all orders.
        decided_tokens: Of how many.
        tolerance: The largest change of a logit that counts as none.
    """

    contexts: int
    orders: int
    exhaustive: bool
    largest_changes: list[float]
    changed_tokens: int
    decided_tokens: int
    tolerance: float

    @property
    def largest_change(self) -> float:
        """Of a logit, in any context."""
        return max(self.largest_changes)

    @property
    def holds(self) -> bool:
        """No token changed, and no logit by more than the tolerance."""
        return self.changed_tokens == 0 and self.largest_change <= self.tolerance


@dataclass(frozen=True)
class CourseMeasured:
    """A model of the course: how it was trained, and what it does.

    Attributes:
        seed: Of examples, weights and dropout.
        source_positions: "none", or the positions that its encoder was given.
        num_parameters: Numbers in the model.
        seconds: Spent in updates.
        epochs: Epochs trained.
        epochs_needed: The first epoch after which all validation examples are right; None if there is none.
        best_epoch: The epoch whose weights were kept: that with the lowest validation loss.
        num_test: Test examples.
        test_seen: The share of them whose context was also trained on.
        test_accuracy: The share of them answered exactly right.
        contexts_accuracy: The same share of all 72 different contexts.
        losses: [step, training loss] pairs.
        evaluations: [epoch, validation loss, validation accuracy] triples.
        before: Where each head of the cross-attention looks before training.
        after: And with the best weights.
        map_before: The attention of one test context before training.
        map_after: And with the best weights.
        scrambling: With the best weights.
        side_by_side: Lines with what is read and written, as it stands and scrambled.
    """

    seed: int
    source_positions: str
    num_parameters: int
    seconds: float
    epochs: int
    epochs_needed: int | None
    best_epoch: int
    num_test: int
    test_seen: float
    test_accuracy: float
    contexts_accuracy: float
    losses: list[tuple[int, float]]
    evaluations: list[tuple[int, float, float]]
    before: list[HeadShares]
    after: list[HeadShares]
    map_before: HeatMap
    map_after: HeatMap
    scrambling: OrdersMeasured
    side_by_side: list[str]

    @property
    def sharpest(self) -> int:
        """The head with the largest weight on the fact's tokens after training."""
        return max(range(len(self.after)), key=lambda head: self.after[head].fact)


@dataclass(frozen=True)
class Results:
    """All that one run of the lab measured.

    Attributes:
        plan: "full" or "quick".
        seed: The run's seed.
        trained_facts: Fewest and most facts of the contexts that the models below were trained on.
        course: The course's model, one for each seed.
        control: The first of them again, with positions in its encoder.
        encodings: Models that answer from fresh facts: each way of writing them down, slots with several seeds.
        changes: What limits slots: a plain model with words enough for many facts, then that with one thing changed at
            a time. May be empty.
        combined: The plain model with several things changed together. May be empty.
    """

    plan: str
    seed: int
    trained_facts: tuple[int, int]
    course: list[CourseMeasured]
    control: CourseMeasured
    encodings: list[InContextMeasured]
    changes: list[InContextMeasured]
    combined: list[InContextMeasured]

    def of_encoding(self, encoding: str) -> list[InContextMeasured]:
        """The models of one way of writing facts down, one for each seed."""
        return [model for model in self.encodings if model.encoding == encoding]

    @property
    def plain_slots(self) -> InContextMeasured:
        """The slots that were measured with the most facts, with nothing about them changed."""
        return self.changes[0] if self.changes else self.of_encoding("slots")[0]

    def write(self, path: Path) -> None:
        """Write all of it to the file ``path`` as JSON."""
        write_text(path, to_json(self, Results))

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote.

        Raises:
            InputError: The file is missing or damaged.
        """
        return read_part(path, cls)


def at(model: InContextMeasured, num_facts: int) -> LengthMeasured | None:
    """What ``model`` does with so many facts; None if that was not measured."""
    return next((length for length in model.lengths if length.num_facts == num_facts), None)


def median(values: list[float]) -> float:
    """The middle value; of an even number the mean of the two in the middle.

    Raises:
        InputError: No values.
    """
    if not values:
        raise InputError("no values", "at least one", "Measure one model or more.")
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
