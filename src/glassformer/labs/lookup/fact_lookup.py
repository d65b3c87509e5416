"""How an encoder-decoder looks facts up in its context, and which of two steps fails.

The cross-attention has to *find* the slot that holds the queried key, and what follows has to *read* the value from it.
Finding is measured by where the weight is largest, reading by letting the decoder see the right slot alone. Of the
scores three numbers are kept, averaged over heads: the *gap* is the right slot's score minus the mean of the others',
the *noise* their standard deviation, and the *margin* the right slot's score minus the largest of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.data.in_context_lookup import Facts, Source
from glassformer.errors import require
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe.capture import capture


@dataclass(frozen=True)
class Lookup:
    """What a model does with contexts of so many facts; see :func:`measure_lookup`.

    Shares are in [0, 1], of all questions; None is what the encoding or one fact lacks.
    """

    num_facts: int
    num_questions: int
    accuracy: float
    found: float | None  # the right slot has the largest weight, averaged over heads
    read: float | None  # right when the decoder sees the right slot alone
    sharpness: list[float]  # each head's weight on the positions that determine the answer
    gap: float | None
    noise: float | None
    margin: float | None


@torch.no_grad()
def measure_lookup(model: EncoderDecoder, batches: Iterable[tuple[Facts, Source]]) -> Lookup:
    """Ask ``model`` the questions of ``batches``, whose contexts have equally many facts in one encoding.

    Weights are those of the last cross-attention, and a weight's logarithm stands for its score.
    """
    parts: dict[str, list[Tensor]] = defaultdict(list)
    name, num_facts = f"decoder_layers.{len(model.decoder_layers) - 1}.cross_attention", 0
    for facts, source in batches:
        query, answer, tokens = facts.query[:, None], facts.answer[:, None], source.tokens
        num_facts = facts.keys.shape[1]
        with capture(model, [name]) as seen:
            memory = model.encode(tokens, source.real)
            logits = model.decode(query, memory, source.real)[:, -1]
        weights = seen.weights[name][:, :, -1]
        parts["accuracy"].append(logits.argmax(-1) == facts.answer)
        if tokens.dim() == 2:  # not slots
            on = (tokens == query) | (tokens == answer)
            parts["sharpness"].append((weights * on[:, None]).sum(-1))
            continue
        right = tokens[..., 0] == query
        parts["sharpness"].append(weights[right[:, None].expand_as(weights)].view(weights.shape[:2]))
        parts["found"].append(weights.mean(1).argmax(-1) == facts.place)
        parts["read"].append(model.decode(query, memory, right)[:, -1].argmax(-1) == facts.answer)
        if num_facts > 1:
            # Differences of scores are those of the weights' logarithms; the smallest are held above underflow.
            scores, is_right = weights.clamp(min=1e-30).log(), right[:, None].expand_as(weights)
            best = scores[is_right].view(weights.shape[:2])
            others = scores[~is_right].view(*weights.shape[:2], num_facts - 1)
            parts["gap"].append(best - others.mean(-1))
            parts["margin"].append(best - others.amax(-1))
            parts["variance"].append(others.var(-1, correction=min(1, num_facts - 2)))
    require(num_facts > 0, "no batch of questions", "at least one", "Draw them with data.in_context_lookup.sample.")
    mean = {name: torch.cat(values).double().mean(0) for name, values in parts.items()}
    shares = {name: float(mean[name].mean()) if name in mean else None for name in ("found", "read", "gap", "margin")}
    noise = float(mean["variance"].sqrt().mean()) if num_facts > 2 and "variance" in mean else None
    asked, sharpness = sum(map(len, parts["accuracy"])), mean["sharpness"].tolist()
    return Lookup(num_facts, asked, float(mean["accuracy"]), sharpness=sharpness, noise=noise, **shares)
