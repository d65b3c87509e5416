"""``glassformer intervene``: print a language model's next tokens, as it is and changed."""

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
    """Print the likely next tokens before and after; with ``generate``, both continuations."""
    parts = [_without(part) for part in flags.without]  # refused before the model is loaded
    flags = replace(flags, text=text_or_input(flags.text))
    lm = load(flags.model, device=flags.device, tokenizer=flags.tokenizer)
    _check_places(flags, lm.model.config)
    if flags.steer is not None:
        assert flags.layer is not None
        strength = flags.strength
        if strength is None:
            strength = 0.5
        norm, change = _steering(lm, flags.text, flags.steer, flags.layer, strength)
        parts.append(add("residual", change, layers=flags.layer))
        line = (
            f"  steered after layer {flags.layer} by {strength:g} of the stream's norm, {norm:.4g}."
        )
        if abs(strength) >= 1:
            line += " From 1 on the change is as large as the stream, and texts often break."
        say(line)
    tokens = lm.tokens(flags.text)
    before = _next(lm, tokens)
    with intervene(lm.model, *parts):
        after = _next(lm, tokens)
        changed = _continued(lm, flags)
    for line in (*_table(lm, before, after, flags.top), *_continued(lm, flags, "before"), *changed):
        say(line)
    return 0


def _without(part: str) -> Edit:
    """Return the edit for one value of --without."""
    layer, which = _parsed(part)
    if which.isdecimal():
        return zero("heads", layers=layer, heads=int(which))
    return zero(which, layers=layer)


def _parsed(part: str) -> tuple[int, str]:
    """Return the layer of a part, and its head, "attention" or "ffn"."""
    match = _PART.fullmatch(part)
    if match is None:
        raise InputError(
            got=f"--without {short(part)}",
            expected="LAYER.HEAD, LAYER.attention or LAYER.ffn",
            fix="Write 23.3 for head 3 of layer 23.",
        )
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
    """Return the norm of the residual stream after ``layer``, and what steering adds to it.

    The norm is at the last token of ``text``. The direction is the stream's difference between the
    two words, each read after the text. Words alone would not do: at a text's first token, many
    models have a stream a hundred times as large, independent of the word.

    Source: after Turner et al. 2023, arXiv 2308.10248, who read the words alone and scale by a
    factor.
    """

    def stream(prompt: str) -> Tensor:
        with capture(lm.model, what="residual", layers=layer, queries=-1) as seen:
            lm(prompt)
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
    """Return lines for the most likely tokens of both runs, the likeliest before first."""
    count = min(top, len(before))
    likely_before = before.topk(count).indices.tolist()
    likely_after = after.topk(count).indices.tolist()
    tokens = list(dict.fromkeys([*likely_before, *likely_after]))
    columns = (before.softmax(-1), after.softmax(-1), after - before)
    rows = zip(tokens, *(column[tokens].tolist() for column in columns), strict=True)
    lines = [f"  {'before':>8}  {'after':>8}  {'change of logit':>15}  next token"]
    for token, first, second, change in rows:
        lines.append(
            f"  {first:>8.2%}  {second:>8.2%}  {change:>+15.3f}  {lm.strings([token])[0]!r}"
        )
    return lines


def _continued(lm: LanguageModel, flags: InterveneFlags, label: str = "after") -> list[str]:
    if flags.generate:
        return [f"{label}: {flags.text}{lm.generate(flags.text, flags.generate)}"]
    return []
