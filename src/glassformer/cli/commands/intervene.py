"""``glassformer intervene``: what a language model says next, as it is and with parts of it
changed.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.cli.flags import InterveneFlags
from glassformer.cli.terminal import say, text_or_input
from glassformer.errors import InputError
from glassformer.generation.language_model import LanguageModel, load
from glassformer.models import DecoderConfig
from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, add, zero
from glassformer.observe.hook_points import select
from glassformer.observe.intervene import intervene
from glassformer.text import short

_PART = re.compile(r"(\d{1,6})\.(\d{1,6}|attention|ffn)")


@torch.no_grad()
def main(flags: InterveneFlags) -> int:
    """Print a table of the likely next tokens before and after, and with ``generate`` both
    continuations.
    """
    parts = [_without(part) for part in flags.without]  # refused before the model is loaded
    flags = replace(flags, text=text_or_input(flags.text))
    lm = load(flags.model, device=flags.device, tokenizer=flags.tokenizer)
    _check_places(flags, lm.model.config)
    if flags.steer is not None:
        assert flags.layer is not None
        strength = 0.5 if flags.strength is None else flags.strength
        norm, change = _steering(lm, flags.text, flags.steer, flags.layer, strength)
        parts.append(add("residual", change, layers=flags.layer))
        if abs(strength) >= 1:
            broken = " From 1 on the change is as large as the stream, and texts often break."
        else:
            broken = ""
        say(
            f"  steered after layer {flags.layer} by {strength:g} of the stream's norm, "
            f"{norm:.4g}.{broken}"
        )
    tokens = lm.tokens(flags.text)
    before = _next(lm, tokens)
    with intervene(lm.model, *parts):
        after = _next(lm, tokens)
        changed = _continued(lm, flags)
    for line in (*_table(lm, before, after, flags.top), *_continued(lm, flags, "before"), *changed):
        say(line)
    return 0


def _without(part: str) -> Edit:
    """The edit of one --without."""
    layer, which = _parsed(part)
    if which.isdecimal():
        return zero("heads", layers=layer, heads=int(which))
    return zero(which, layers=layer)


def _parsed(part: str) -> tuple[int, str]:
    """The layer of a part, and its head, "attention" or "ffn"."""
    match = _PART.fullmatch(part)
    if match is None:
        expected = "LAYER.HEAD, LAYER.attention or LAYER.ffn"
        raise InputError(f"--without {short(part)}", expected, "Write 23.3 for head 3 of layer 23.")
    return int(match[1]), match[2]


def _check_places(flags: InterveneFlags, config: DecoderConfig) -> None:
    """Refuse layers and heads that the model does not have, by their flags."""
    if flags.layer is not None:
        select("--layer", flags.layer, config.num_layers)
    for part in flags.without:
        layer, which = _parsed(part)
        select(f"--without {part}: layer", layer, config.num_layers)
        if which.isdecimal():
            select(f"--without {part}: head", int(which), config.num_heads)


def _steering(
    lm: LanguageModel, text: str, words: Sequence[str], layer: int, strength: float
) -> tuple[float, Float[Tensor, " dim"]]:
    """The norm of the residual stream after ``layer`` at the last token of ``text``, and what
    steering adds to it.

    Its direction is the stream's difference between the two words, each read after the text: at a
    text's first token many models have a stream a hundred times as large, which says nothing of the
    word.

    Source: after Turner et al. 2023, arXiv 2308.10248, who read the words alone and scale by a
    factor.
    """

    def stream(read: str) -> Tensor:
        with capture(lm.model, what="residual", layers=layer, queries=-1) as seen:
            lm(read)
        return seen.records[-1].values[0, 0]

    towards, away = (stream(text + word) for word in words)
    if torch.equal(towards, away):
        raise InputError(
            got=(
                f"--steer {' '.join(map(short, words))}, whose streams after layer {layer} are "
                "equal"
            ),
            expected="a direction between two words",
            fix="Pass words that differ at their end.",
        )
    norm = float(stream(text).norm())
    direction = towards - away
    return norm, strength * norm * direction / direction.norm()


def _next(lm: LanguageModel, tokens: Tensor) -> Float[Tensor, " vocab"]:
    """Logits of the next token."""
    return lm.model(tokens)[0, -1].float().cpu()


def _table(lm: LanguageModel, before: Tensor, after: Tensor, top: int) -> list[str]:
    """The most likely tokens of both, the likeliest before first."""
    count = min(top, len(before))
    chosen = list(
        dict.fromkeys([*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()])
    )
    shares = [each.softmax(-1)[chosen].tolist() for each in (before, after)]
    moved = (after - before)[chosen].tolist()
    lines = [f"  {'before':>8}  {'after':>8}  {'change of logit':>15}  next token"]
    for token, was, now, by in zip(chosen, *shares, moved, strict=True):
        lines.append(f"  {was:>8.2%}  {now:>8.2%}  {by:>+15.3f}  {lm.strings([token])[0]!r}")
    return lines


def _continued(lm: LanguageModel, flags: InterveneFlags, label: str = "after") -> list[str]:
    if flags.generate:
        return [f"{label}: {flags.text}{lm.generate(flags.text, flags.generate)}"]
    return []
