"""What the explorer can look into: a model, with what is needed to get from what a person types to what it reads.

There are four kinds without a common base class: a caller that has a :data:`LoadedModel` checks which kind it is.
Several threads may use one model, so every caller holds its ``lock`` while the model runs, switching it to evaluation
mode for that time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.explorer.messages import MOST_TOKENS, ModelCard
from glassformer.handcraft.single_head import HeadWeights
from glassformer.handcraft.tasks import Task
from glassformer.models.decoder import Decoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating


def _lock() -> threading.RLock:
    return threading.RLock()


@dataclass(frozen=True, eq=False)
class LoadedHead:
    """A head whose weights a person chose.

    Args:
        card: What is told of it.
        task: What it is asked to do.
        weights: Its matrices, to begin with.
        why: For each matrix by its name, in a sentence, why it is as it is.
    """

    card: ModelCard
    task: Task
    weights: HeadWeights
    why: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    lock: Any = field(default_factory=_lock, repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """An encoder, which reads a text whole, and with a classification head names its class.

    Args:
        card: What is told of it.
        model: Ours, or a BERT of transformers.
        encode: The tokens of a text, cut to what the model reads.
        words: What each token is called.
        classes: The names of its classes; none without a head.
    """

    card: ModelCard
    model: nn.Module
    encode: Callable[[str], list[int]]
    words: Callable[[Sequence[int]], list[str]]
    classes: tuple[str, ...] = ()
    lock: Any = field(default_factory=_lock, repr=False)


@dataclass(frozen=True, eq=False)
class LoadedEncoderDecoder:
    """An encoder-decoder.

    Args:
        card: What is told of it.
        model: The model.
        source_tokens: The things that its encoder reads, in the given order, as one row: ``[1, place]``, or
            ``[1, place, field]``.
        target: What the decoder begins with for a text, possibly an empty one, as one row ``[1, position]``: at least
            one token.
        word: What a token of the target is called.
        max_new_tokens: How many tokens it writes behind a target at most.
        end: The token after which it writes no more; None: it writes ``max_new_tokens``.
    """

    card: ModelCard
    model: EncoderDecoder
    source_tokens: Callable[[Sequence[str]], Int[Tensor, "one place *field"]]
    target: Callable[[str], Int[Tensor, "one position"]]
    word: Callable[[int], str]
    max_new_tokens: int = 1
    end: int | None = None
    lock: Any = field(default_factory=_lock, repr=False)


@dataclass(frozen=True, eq=False)
class LoadedDecoder:
    """A decoder, which continues a text.

    Args:
        card: What is told of it.
        model: Ours, or a GPT-2, Llama or Mixtral of transformers.
        encode: The tokens of a text: at least one, and no more than the model reads.
        word: What a token is called where it stands alone.
        join: The text of some tokens.
        obeys: Whether a token may follow some tokens by the rule that made them; None where no rule is known.
        rule: The rule that some tokens follow, in words; None where none is known.
        longest: The most tokens that the model reads.
    """

    card: ModelCard
    model: nn.Module
    encode: Callable[[str], list[int]]
    word: Callable[[int], str]
    join: Callable[[Sequence[int]], str]
    obeys: Callable[[Sequence[int], int], bool | None] = lambda tokens, candidate: None
    rule: Callable[[Sequence[int]], str | None] = lambda tokens: None
    longest: int = MOST_TOKENS
    lock: Any = field(default_factory=_lock, repr=False)


LoadedModel = LoadedHead | LoadedEncoder | LoadedEncoderDecoder | LoadedDecoder


@dataclass(frozen=True, eq=False)
class ModelEntry:
    """An loaded that is opened when somebody asks for it.

    Args:
        card: What is told of it before.
        open: Reads its weights; raises :class:`~glassformer.errors.InputError` where they are damaged.
        stamp: Changes when the stored weights do, as those of a run that trains on: then it is opened anew.
    """

    card: ModelCard
    open: Callable[[], LoadedModel]
    stamp: Callable[[], Hashable] = lambda: None


def entry_of(loaded: LoadedModel) -> ModelEntry:
    """The entry of an loaded that is open already."""
    return ModelEntry(loaded.card, lambda: loaded)


def wrong_kind(loaded: LoadedModel, call: str, expected: str) -> InputError:
    """What to raise when a call is asked of a model of another kind."""
    return InputError(
        f"{call} of {loaded.card.name!r}, whose kind is {loaded.card.kind}",
        expected,
        "Choose another model, or one of the views that its card names.",
    )


def require_order(order: Sequence[int], count: int) -> None:
    """Check that ``order`` is one of so many things.

    Raises:
        InputError: It is not each number from 0 to ``count - 1`` once.
    """
    require(
        sorted(order) == list(range(count)),
        f"order = {list(order)[:20]} of {count} things",
        f"every number from 0 to {count - 1} once",
        "Name every place once: place i is read from the thing order[i].",
    )


def weights_stamp(loaded: LoadedModel) -> Hashable:
    """What changes when somebody trains or overwrites the weights of a model that was handed over.

    It tells where each tensor lies and how often it was written to. Writing through ``.data`` goes unseen. The lock
    stands for the loaded, whose memory another model may get once it is gone.
    """
    if isinstance(loaded, LoadedHead):
        return loaded.lock  # its matrices cannot be written to
    # Buffers that are no weights may be written to by reading alone, such as a count of what experts got.
    tensors = loaded.model.state_dict(keep_vars=True).values()
    # A tensor of inference mode counts no writes.
    versions = tuple(
        (each.data_ptr(), 0 if each.is_inference() else each._version) for each in tensors if isinstance(each, Tensor)
    )
    return loaded.lock, hash(versions)


@torch.no_grad()
def last_logits(loaded: LoadedDecoder, tokens: Sequence[int]) -> Float[Tensor, " vocab"]:
    """The logits of the token after some tokens, in float32 or wider, on the CPU. Hold ``loaded.lock`` around a call.

    Raises:
        InputError: A model without an output projection, or tokens that it cannot read.
    """
    row = torch.tensor([list(tokens)], device=next(loaded.model.parameters()).device)
    with evaluating(loaded.model):
        logits = final_logits(loaded.model, row)
    if logits is None:
        raise InputError(
            f"{loaded.card.name!r}, a {type(loaded.model).__name__} without logits",
            "a model that predicts tokens",
            "Pass the one with a language-modelling head.",
        )
    return logits


def final_logits(model: nn.Module, row: Int[Tensor, "one position"]) -> Float[Tensor, " vocab"] | None:
    """The logits behind the last position of a decoder; None for one without an output projection.

    Those of the other positions, which for a large vocabulary would be most of the memory, are left out where the
    model allows it.
    """
    if isinstance(model, Decoder):
        logits = model.output(model.hidden(row)[0, -1])
    else:
        known = signature(model.forward).parameters
        options: dict[str, Any] = {"logits_to_keep": 1, "use_cache": False}
        output = model(row, **{name: value for name, value in options.items() if name in known})
        output = getattr(output, "logits", output)
        if not isinstance(output, Tensor) or output.dim() != 3:
            return None
        logits = output[0, -1]
    return logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).cpu()
