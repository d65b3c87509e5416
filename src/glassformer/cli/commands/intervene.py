"""``glassformer intervene``: what a language model says next, as it is and with parts of it changed."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.cli.flags import InterveneFlags
from glassformer.cli.terminal import say
from glassformer.errors import require
from glassformer.generation.language_model import LanguageModel, load
from glassformer.observe.capture import capture
from glassformer.observe.edits import Edit, add, zero
from glassformer.observe.intervene import intervene
from glassformer.text import short

_PART = re.compile(r"(\d{1,6})\.(\d{1,6}|attention|ffn)")


@torch.no_grad()
def main(flags: InterveneFlags) -> int:
    """Print a table of the likely next tokens before and after, and with ``generate`` both continuations."""
    parts = [_without(part) for part in flags.without]  # refused before the model is loaded
    lm = load(flags.model, device=flags.device, tokenizer=flags.tokenizer)
    if flags.steer is not None:
        assert flags.layer is not None
        parts.append(add("residual", flags.strength * _direction(lm, flags.steer, flags.layer), layers=flags.layer))
    tokens = lm.tokens(flags.text)
    before = _next(lm, tokens)
    with intervene(lm.model, *parts):
        after = _next(lm, tokens)
        changed = _continued(lm, flags)
    for line in (*_table(lm, before, after, flags.top), *_continued(lm, flags, "before"), *changed):
        say(line)
    return 0


def _without(part: str) -> Edit:
    found = _PART.fullmatch(part)
    expected = "LAYER.HEAD, LAYER.attention or LAYER.ffn"
    require(found is not None, f"--without {short(part)}", expected, "Write 23.3 for head 3 of layer 23.")
    assert found is not None
    layer, which = int(found[1]), found[2]
    return zero("heads", layers=layer, heads=int(which)) if which.isdecimal() else zero(which, layers=layer)


def _direction(lm: LanguageModel, texts: Sequence[str], layer: int) -> Float[Tensor, " dim"]:
    """The residual stream after ``layer`` at the last token of the first text, minus that of the second.

    Source: Turner et al. 2023, arXiv 2308.10248.
    """
    streams = []
    for text in texts:
        with capture(lm.model, what="residual", layers=layer, queries=-1) as seen:
            lm(text)
        streams.append(seen.records[-1].values[0, 0])
    got = f"--steer {' '.join(map(short, texts))}, whose streams after layer {layer} are equal"
    require(not torch.equal(*streams), got, "a direction between two texts", "Pass texts that differ at their end.")
    return streams[0] - streams[1]


def _next(lm: LanguageModel, tokens: Tensor) -> Float[Tensor, " vocab"]:
    """Logits of the next token."""
    return lm.model(tokens)[0, -1].float().cpu()


def _table(lm: LanguageModel, before: Tensor, after: Tensor, top: int) -> list[str]:
    """The most likely tokens of both, the likeliest before first."""
    count = min(top, len(before))
    chosen = list(dict.fromkeys([*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()]))
    shares = [each.softmax(-1)[chosen].tolist() for each in (before, after)]
    moved = (after - before)[chosen].tolist()
    lines = [f"  {'before':>8}  {'after':>8}  {'logit':>8}  next token"]
    for token, was, now, by in zip(chosen, *shares, moved, strict=True):
        lines.append(f"  {was:>8.2%}  {now:>8.2%}  {by:>+8.3f}  {lm.strings([token])[0]!r}")
    return lines


def _continued(lm: LanguageModel, flags: InterveneFlags, label: str = "after") -> list[str]:
    return [f"{label}: {flags.text}{lm.generate(flags.text, flags.generate)}"] if flags.generate else []
