"""Lookup of a fixed fact in a shuffled context: the course's vocabulary, facts and examples.

A context is five tokens: ``NAME``, then ``COLOR``, a key, ``ITEM`` and the key's value in any
order. The answer is the value and ``[EOS]``. There is no query, since the context holds one fact.
As the facts are fixed, the *set* of a context's tokens determines the fact; in
:mod:`glassformer.data.in_context_lookup` it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from glassformer.data.batches import pad
from glassformer.data.random_streams import generator, require_fractions
from glassformer.errors import InputError, require_positive

_SPECIAL = ("[PAD]", "[SOS]", "[EOS]")
_LABELS = ("COLOR", "NAME", "ITEM")
_WORDS = (*_SPECIAL, *_LABELS, "RED", "BLUE", "GREEN", "ALICE", "BOB", "CHAIR", "QUERY", "FIND")
ID_TO_TOKEN = MappingProxyType(dict(enumerate(_WORDS)))
VOCAB = MappingProxyType({word: token for token, word in enumerate(_WORDS)})
"""Token of each word. BOB, QUERY and FIND occur in no example."""

FACTS = MappingProxyType({"RED": "BLUE", "ALICE": "GREEN", "CHAIR": "RED"})
"""Value of each key, as words."""

PAD = VOCAB["[PAD]"]
SOS = VOCAB["[SOS]"]
EOS = VOCAB["[EOS]"]

Role = Literal["COLOR", "key", "ITEM", "value"]
_ORDERS: tuple[tuple[Role, ...], ...] = tuple(permutations(get_args(Role)))


@dataclass(frozen=True)
class LookupExample:
    """A key of :data:`FACTS`, and the order of the tokens after ``NAME`` in its context."""

    key: str
    order: tuple[Role, ...]

    @property
    def value(self) -> str:
        """Return the word to look up."""
        return FACTS[self.key]

    @property
    def context(self) -> tuple[int, ...]:
        """Return the five tokens that the encoder reads."""
        words = {"COLOR": "COLOR", "key": self.key, "ITEM": "ITEM", "value": self.value}
        return (VOCAB["NAME"], *(VOCAB[words[role]] for role in self.order))

    @property
    def target(self) -> tuple[int, ...]:
        """Return the tokens that the decoder generates: the value, then the end."""
        return (VOCAB[self.value], EOS)


class LookupBatch(NamedTuple):
    """Examples as tensors.

    The decoder reads ``inputs``: ``[SOS]`` and the targets shifted right.
    """

    source: Int64[Tensor, "batch position"]
    source_real: Bool[Tensor, "batch position"]
    inputs: Int64[Tensor, "batch target"]
    targets: Int64[Tensor, "batch target"]
    targets_real: Bool[Tensor, "batch target"]


def lookup_examples(num_samples: int, seed: int = 0) -> tuple[LookupExample, ...]:
    """Draw examples as in the course: a fact and one of the 24 orders, each uniformly."""
    require_positive(num_samples=num_samples)
    rng = generator(seed)
    facts = rng.integers(len(FACTS), size=num_samples)
    orders = rng.integers(len(_ORDERS), size=num_samples)
    keys = tuple(FACTS)
    return tuple(
        LookupExample(keys[fact], _ORDERS[order]) for fact, order in zip(facts, orders, strict=True)
    )


def all_contexts() -> tuple[LookupExample, ...]:
    """Return all 72 examples: 3 facts in 4! = 24 orders."""
    return tuple(LookupExample(key, order) for key, order in product(FACTS, _ORDERS))


def split_lookup(
    examples: Sequence[LookupExample], fractions: Sequence[float] = (0.8, 0.1, 0.1)
) -> tuple[tuple[LookupExample, ...], ...]:
    """Cut examples, in their order, into parts of about these fractions, as in the course.

    Fractions sum to 1. There are only 72 contexts: with thousands of examples, every held-out one
    is also in the training part.
    """
    require_fractions(fractions)
    ends = np.rint(np.cumsum(fractions) * len(examples)).astype(int).tolist()
    parts = tuple(tuple(examples[start:end]) for start, end in pairwise([0, *ends]))
    if not all(parts):
        raise InputError(
            got=f"{len(examples)} examples for {len(fractions)} parts, one of which is empty",
            expected="at least one in each part",
            fix="Pass more examples or larger fractions.",
        )
    return parts


def share_seen(train: Sequence[LookupExample], held_out: Sequence[LookupExample]) -> float:
    """Return the share of held-out examples whose context is in ``train`` too, in [0, 1]."""
    if len(held_out) == 0:
        raise InputError(
            got="no held-out examples",
            expected="at least one",
            fix="Split with split_lookup.",
        )
    known = set(train)
    return sum(example in known for example in held_out) / len(held_out)


def lookup_batch(examples: Sequence[LookupExample]) -> LookupBatch:
    """Return the examples as tensors, padded with ``[PAD]``."""
    source, source_real = pad([example.context for example in examples], PAD)
    targets, targets_real = pad([example.target for example in examples], PAD)
    inputs = torch.cat([targets.new_full((len(targets), 1), SOS), targets[:, :-1]], dim=1)
    return LookupBatch(source, source_real, inputs, targets, targets_real)
