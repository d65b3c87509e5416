"""The next-token distribution of a decoder before and after a sampling rule, and continuations of
texts.
"""

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


def next_token(loaded: LoadedModel, ask: m.AskNext) -> m.Next:
    """The distribution of the token after ``ask.text``, before and after temperature, top-k and
    top-p.
    """
    loaded = of_kind(LoadedDecoder, loaded, "next", "a decoder, which continues texts")
    tokens = loaded.encode(ask.text)
    logits = _logits_after(loaded, tokens)
    plain = logits.softmax(-1)
    tempered = SamplingRule(ask.temperature).distribution(logits)
    final = SamplingRule(ask.temperature, ask.top_k, ask.top_p).distribution(logits)
    # A stable sort ranks ties as the sampling rule does.
    likeliest = logits.sort(descending=True, stable=True).indices[:MOST_CANDIDATES].tolist()
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
        rest_plain=max(0.0, 1.0 - float(plain[likeliest].sum()))
        if len(likeliest) < len(logits)
        else 0.0,
        kept=int((final > 0).sum()),
        entropy=float(torch.special.entr(final).sum()) / math.log(2) + 0.0,
        rule=loaded.rule(tokens),
    )


def find(loaded: LoadedModel, ask: m.AskFind) -> m.Found:
    """The token with which ``ask.text`` begins after other text: without the tokens that begin
    every text.
    """
    loaded = of_kind(LoadedDecoder, loaded, "find", "a decoder, which has a vocabulary")
    tokens = list(loaded.encode(ask.text))
    typed = ask.text.strip().casefold()
    pieces = [loaded.join([token]) for token in tokens]
    fitting: tuple[Callable[[str], bool], ...] = (
        ask.text.startswith,
        lambda piece: piece.strip() != "" and typed.startswith(piece.strip().casefold()),
        lambda piece: (
            piece.strip("\ufffd") == "" or len(tokens) == 1
        ),  # a part of a character, or the only one
    )
    # Tokens that begin every text, such as BOS, are no part of it.
    places = [
        place for fits in fitting for place, piece in enumerate(pieces) if piece and fits(piece)
    ]
    if len(places) <= 0:
        raise InputError(
            got=f"the text {ask.text[:40]!r}",
            expected="a text that begins with a token's",
            fix="Type another one.",
        )
    begin = places[0]
    return m.Found(
        id=tokens[begin], name=loaded.word(tokens[begin]), whole=len(tokens) == begin + 1
    )


def steps(loaded: LoadedModel, ask: m.AskSteps) -> m.Steps:
    """``ask.text`` continued by up to ``ask.steps`` tokens.

    The random draw at a position depends on ``ask.seed`` and the position alone. So one step and
    another one give the same as two steps, up to the rounding of a cache that reads on, if the text
    determines its tokens (a text of bytes that ends within a character does not).

    Generation ends early, for the reason in ``ended``: the model can read no more; 65,536 tokens in
    all have been read, such as 16 steps after a text of 4,096; the text would be too long for a
    message; or the token has no text, such as padding, so that the next step would not read it.
    """
    loaded = of_kind(LoadedDecoder, loaded, "steps", "a decoder, which continues texts")
    rule = SamplingRule(ask.temperature, ask.top_k, ask.top_p)
    tokens = list(loaded.encode(ask.text))
    begun = len(tokens)
    if not begun < loaded.longest:
        raise InputError(
            got=f"a text of {begun:,} tokens",
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
        longer = _continued(loaded, ask.text, tokens[:begun], [*tokens, token])
        if len(longer) > m.MOST_CHARACTERS:
            ended = "text"
            break
        # A byte may leave the text unchanged until its character is complete; alone it has a
        # visible name.
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
    """The generator for the token at ``position``."""
    (state,) = (
        np.random.SeedSequence(seed, spawn_key=(position,)).generate_state(1, np.uint64).tolist()
    )
    return torch.Generator().manual_seed(state >> 1)


def _continued(
    loaded: LoadedDecoder, text: str, begun: Sequence[int], tokens: Sequence[int]
) -> str:
    """``text``, whose tokens are ``begun``, after they have been continued to ``tokens``."""
    before = loaded.join(begun)
    after = loaded.join(tokens)
    if after.startswith(before):
        return text + after[len(before) :]
    return after


def _logits_after(loaded: LoadedDecoder, tokens: Sequence[int]) -> Float[Tensor, " vocab"]:
    """The logits after ``tokens`` in float64; a slider that asks for one text repeatedly has it
    read once.
    """
    with loaded.lock:
        logits = last_logits(loaded, tokens)
    if logits is None:
        got = f"{loaded.card.name!r}, a {type(loaded.model).__name__} without logits"
        raise InputError(
            got, "a model that predicts tokens", "Pass the one with a language-modelling head."
        )
    finite = bool(logits.isfinite().all())
    if not finite:
        raise InputError(
            got="logits that are not finite",
            expected="finite ones",
            fix="Look for the first NaN in the forward pass.",
        )
    return logits.double()
