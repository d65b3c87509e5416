"""Compute a decoder's next-token distribution under a sampling rule, and continue texts."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.api import require_waiting
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedModel,
    labels_of,
    last_logits,
    of_kind,
)
from glassformer.generation.sampling import SamplingRule

MOST_CANDIDATES = 64
"""Number of listed candidates."""

_MOST_READ = 1 << 16
"""Largest number of tokens that the steps of one call read in all."""


def next_token(loaded: LoadedModel, ask: m.AskNext) -> m.Next:
    """Return the distribution of the token after ``ask.text``.

    It is given before and after temperature, top-k and top-p.
    """
    loaded = of_kind(LoadedDecoder, loaded, "next", "a decoder, which continues texts")
    tokens = loaded.encode(ask.text)
    logits = _logits_after(loaded, tokens)
    plain = logits.softmax(-1)
    tempered = SamplingRule(ask.temperature).distribution(logits)
    final = SamplingRule(ask.temperature, ask.top_k, ask.top_p).distribution(logits)
    # A stable sort ranks ties as the sampling rule does.
    likeliest = logits.sort(descending=True, stable=True).indices[:MOST_CANDIDATES].tolist()
    rest_plain = 0.0
    if len(likeliest) < len(logits):
        rest_plain = max(0.0, 1.0 - float(plain[likeliest].sum()))
    return m.Next(
        tokens=labels_of(loaded, tokens),
        candidates=[
            m.Candidate(
                id=token,
                token=loaded.word(token),
                logit=float(logits[token]),
                plain=float(plain[token]),
                tempered=float(tempered[token]),
                final=float(final[token]),
                kept=bool(final[token] > 0),
                obeys=loaded.obeys(tokens, token),
            )
            for token in likeliest
        ],
        rest=len(logits) - len(likeliest),
        rest_plain=rest_plain,
        kept=int((final > 0).sum()),
        entropy=float(torch.special.entr(final).sum()) / math.log(2) + 0.0,
        rule=loaded.rule(tokens),
    )


def find(loaded: LoadedModel, ask: m.AskFind) -> m.Found:
    """Return the first token of ``ask.text`` as it would continue another text.

    Tokens that begin every text, such as BOS, are skipped.
    """
    loaded = of_kind(LoadedDecoder, loaded, "find", "a decoder, which has a vocabulary")
    tokens = list(loaded.encode(ask.text))
    typed = ask.text.strip().casefold()
    pieces = [loaded.join([token]) for token in tokens]

    def begins_alike(piece: str) -> bool:
        return piece.strip() != "" and typed.startswith(piece.strip().casefold())

    def is_partial_or_only(piece: str) -> bool:
        return piece.strip("\ufffd") == "" or len(tokens) == 1

    tests: tuple[Callable[[str], bool], ...] = (
        ask.text.startswith,
        begins_alike,
        is_partial_or_only,
    )
    first = None
    for test in tests:
        matches = [place for place, piece in enumerate(pieces) if piece and test(piece)]
        if matches:
            first = matches[0]
            break
    if first is None:
        raise InputError(
            got=f"the text {ask.text[:40]!r}",
            expected="a text that begins with a token's",
            fix="Type another one.",
        )
    return m.Found(
        id=tokens[first], name=loaded.word(tokens[first]), whole=len(tokens) == first + 1
    )


def steps(loaded: LoadedModel, ask: m.AskSteps) -> m.Steps:
    """Continue ``ask.text`` by up to ``ask.steps`` tokens.

    The random draw at a position depends on ``ask.seed`` and the position alone. Two calls of one
    step therefore give the same as one call of two steps, up to the rounding of a cache, if the
    text determines its tokens. A text of bytes that ends within a character does not.

    Generation ends early for one of four reasons, which ``ended`` names:

    - the model can read no more tokens;
    - 65,536 tokens have been read in all, such as 16 steps after a text of 4,096;
    - the text would be too long for a message;
    - the token has no text, such as padding, so that the next step would not read it.
    """
    loaded = of_kind(LoadedDecoder, loaded, "steps", "a decoder, which continues texts")
    rule = SamplingRule(ask.temperature, ask.top_k, ask.top_p)
    tokens = list(loaded.encode(ask.text))
    num_prompt_tokens = len(tokens)
    if num_prompt_tokens >= loaded.longest:
        raise InputError(
            got=f"a text of {num_prompt_tokens:,} tokens",
            expected=f"at most {loaded.longest - 1:,}, so that one more can be read",
            fix="Shorten the text.",
        )
    written: list[m.Step] = []
    text = ask.text
    read = 0
    ended: m.Ended = "asked"
    while len(written) < ask.steps:
        require_waiting()
        if len(tokens) >= loaded.longest:
            ended = "model"
            break
        if read > 0 and read + len(tokens) > _MOST_READ:
            ended = "read"
            break
        read += len(tokens)
        logits = _logits_after(loaded, tokens)
        if written == [] and ask.first is not None:
            token = ask.first
            if token >= len(logits):
                raise InputError(
                    got=f"first = {token}",
                    expected=f"a token below {len(logits)}",
                    fix="Choose one of the candidates of the call 'next'.",
                )
        else:
            token = int(rule.choose(logits, draw_at(ask.seed, len(tokens))))
        longer = _continued(loaded, ask.text, tokens[:num_prompt_tokens], [*tokens, token])
        if len(longer) > m.MOST_CHARACTERS:
            ended = "text"
            break
        # A byte may leave the text unchanged until its character is complete, but the byte alone
        # has a visible name.
        if longer == text and loaded.join([token]) == "":
            ended = "wordless"
            break
        probability = float(rule.distribution(logits)[token])
        written.append(
            m.Step(
                token=loaded.word(token), probability=probability, obeys=loaded.obeys(tokens, token)
            )
        )
        tokens.append(token)
        text = longer
    return m.Steps(text=text, steps=written, ended=ended)


def draw_at(seed: int, position: int) -> torch.Generator:
    """Return the random generator for the token at ``position``."""
    sequence = np.random.SeedSequence(seed, spawn_key=(position,))
    (state,) = sequence.generate_state(1, np.uint64).tolist()
    return torch.Generator().manual_seed(state >> 1)


def _continued(
    loaded: LoadedDecoder, text: str, prompt: Sequence[int], tokens: Sequence[int]
) -> str:
    """Return ``text``, whose tokens are ``prompt``, as continued to ``tokens``."""
    before = loaded.join(prompt)
    after = loaded.join(tokens)
    if after.startswith(before):
        return text + after[len(before) :]
    return after


def _logits_after(loaded: LoadedDecoder, tokens: Sequence[int]) -> Float[Tensor, " vocab"]:
    """Return the logits after ``tokens`` in float64.

    A slider that asks for the same text repeatedly has it read once.
    """
    with loaded.lock:
        logits = last_logits(loaded, tokens)
    if logits is None:
        raise InputError(
            got=f"{loaded.card.name!r}, a {type(loaded.model).__name__} without logits",
            expected="a model that predicts tokens",
            fix="Pass the one with a language-modelling head.",
        )
    if not logits.isfinite().all():
        raise InputError(
            got="logits that are not finite",
            expected="finite ones",
            fix="Look for the first NaN in the forward pass.",
        )
    return logits.double()
