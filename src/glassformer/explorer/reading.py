"""Letting a model read: one forward pass, of which is kept what every attention matrix follows from.

Kept are the queries and keys of each layer, whose size grows with the length of the text, and never a matrix, whose
size grows with its square. Rows and tiles are computed from them when somebody looks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import require
from glassformer.explorer import messages as m
from glassformer.explorer.exhibit import (
    DecoderExhibit,
    EncoderDecoderExhibit,
    EncoderExhibit,
    Exhibit,
    HeadExhibit,
    final_logits,
)
from glassformer.explorer.unknown import UnknownName
from glassformer.models.encoder import Encoder
from glassformer.models.single_head import SingleHead
from glassformer.observe.capture import capture, watchable
from glassformer.observe.captured import Captured
from glassformer.observe.exact_attention import Given

SHOWN_CLASSES = 8
"""Most classes, or next tokens, whose probabilities are told with a run."""

_LABELS = {
    "self": "self-attention",
    "encoder": "encoder's self-attention",
    "decoder": "decoder's self-attention",
    "cross": "cross-attention",
}


@dataclass(frozen=True, eq=False)
class Routed:
    """What one layer's router said: probabilities of all experts, the chosen ones, and what each counts."""

    layer: int
    probabilities: Float[Tensor, "token expert"]
    choices: Tensor
    shares: Float[Tensor, "token choice"]


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A text that has been read.

    Args:
        message: What is told of it.
        stacks: What each layer's attention was given, by the part of the model; each a batch of one.
        routed: What the routers said; none in a model without experts.
    """

    message: m.Run
    stacks: dict[m.Part, tuple[Given, ...]]
    routed: tuple[Routed, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        held: dict[int, int] = {}  # a mask is shared by the layers
        for given in (each for stack in self.stacks.values() for each in stack):
            for tensor in (given.q, given.k, given.mask, given.pattern.key_padding):
                if tensor is not None:
                    held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        routed = (tensor for each in self.routed for tensor in (each.probabilities, each.choices, each.shares))
        return sum(held.values()) + sum(tensor.nbytes for tensor in routed) + 100 * len(self.message.tokens)

    def layers(self, part: m.Part) -> tuple[Given, ...]:
        """What each layer of a part was given.

        Raises:
            UnknownName: The model has no such part.
        """
        if part not in self.stacks:
            known = ", ".join(self.stacks)
            raise UnknownName(f"part = {part!r} of {self.message.ask.model!r}", f"one of {known}", "Choose among them.")
        return self.stacks[part]


def run_name(ask: m.Ask) -> str:
    """A name that follows from the question, and so stays the same from one start of the explorer to the next."""
    told = json.dumps(ask.model_dump(), sort_keys=True)
    return "r" + hashlib.sha256(told.encode("ascii")).hexdigest()[:20]


@torch.no_grad()
def read(exhibit: Exhibit, ask: m.Ask) -> KeptRun:
    """Let a model read a text. Hold ``exhibit.lock``.

    Raises:
        InputError: A text or a source that the model cannot read.
    """
    if isinstance(exhibit, EncoderDecoderExhibit):
        return _read_both(exhibit, ask)
    require(
        ask.source is None and ask.order is None,
        f"a source for {exhibit.card.name!r}",
        "a text alone",
        "Leave source and order out, or choose an encoder-decoder.",
    )
    if isinstance(exhibit, HeadExhibit):
        return _read_head(exhibit, ask)
    tokens = exhibit.encode(ask.text)
    require(len(tokens) > 0, f"the text {ask.text[:40]!r}, which has no tokens", "at least one", "Type something.")
    require(
        len(tokens) <= m.MOST_TOKENS,
        f"a text of {len(tokens):,} tokens",
        f"at most {m.MOST_TOKENS:,}",
        "Shorten the text.",
    )
    row = torch.tensor([tokens], device=next(exhibit.model.parameters()).device)
    if isinstance(exhibit, EncoderExhibit):
        with _watched(exhibit.model) as seen:
            logits = _classify(exhibit, row)
        said = _said_of_classes(exhibit.classes, logits)
        words = exhibit.words(tokens)
    else:
        with _watched(exhibit.model) as seen:
            logits = final_logits(exhibit.model, row)
        said = _said_of_next(exhibit, logits)
        words = [exhibit.word(token) for token in tokens]
    stacks: dict[m.Part, tuple[Given, ...]] = {"self": tuple(each.given for each in seen.given)}
    return _kept(ask, words, None, stacks, said, _routed(seen), isinstance(exhibit, DecoderExhibit))


def _read_both(exhibit: EncoderDecoderExhibit, ask: m.Ask) -> KeptRun:
    units = list(exhibit.card.source or ()) if ask.source is None else list(ask.source)
    require(len(units) > 0, "a source of nothing", "at least one thing", "Add one.")
    if ask.order is not None:
        require(
            sorted(ask.order) == list(range(len(units))),
            f"order = {ask.order[:20]} of {len(units)} things",
            f"each number from 0 to {len(units) - 1} once",
            "Leave order out, or name every place once.",
        )
        units = [units[place] for place in ask.order]
    model = exhibit.model
    source, target = exhibit.source_tokens(units), exhibit.target(ask.text)
    source_real = model.real_source(source)
    # What it writes is what one wants to see it read for, so it writes first, and then reads that at once.
    memory = model.encode(source, source_real)
    written: list[int] = []
    room = model.config.max_target_len - target.shape[1] + 1
    while len(written) < min(room, exhibit.max_new_tokens) and (not written or written[-1] != exhibit.end):
        logits = model.decode(target, memory, source_real)[0, -1]
        written.append(int(logits.argmax()))
        if len(written) == 1:
            first = logits
        target = torch.cat([target, target.new_tensor([[written[-1]]])], dim=1)
    read = target[:, :-1]
    with _watched(model) as seen:
        model(source, read, source_real)
    stacks: dict[m.Part, tuple[Given, ...]] = {
        "encoder": tuple(each.given for each in seen.given if each.source),
        "decoder": tuple(each.given for each in seen.given if not each.source and not each.cross),
        "cross": tuple(each.given for each in seen.given if each.cross),
    }
    words = [exhibit.word(token) for token in written]
    shown = [word for token, word in zip(written, words, strict=True) if token != exhibit.end]
    headline = f"{' '.join(shown) or words[0]}, {_percent(float(first.softmax(-1).max()))}"
    classes = _likeliest(first, exhibit.word)
    said = m.Said(headline=headline, classes=classes, words=words)
    tokens = [exhibit.word(token) for token in read[0].tolist()]
    return _kept(ask, tokens, units, stacks, said, _routed(seen), True)


def _read_head(exhibit: HeadExhibit, ask: m.Ask) -> KeptRun:
    space, task = exhibit.task.space, exhibit.task
    cases = task.cases(space.block([space.encode(ask.text)]))
    head = SingleHead.from_weights(exhibit.weights)
    with _watched(head) as seen:
        outputs = head(torch.from_numpy(cases.inputs))[0].numpy()[cases.counted[0]]
    if task.readout == "sign":
        says = [f"{value:+.2g}" for value in outputs[:, 0]]
    else:
        says = [space.letters[number] for number in outputs.argmax(-1)]
    words = [space.token_names[token] for token in cases.block.tokens[0]]
    stacks: dict[m.Part, tuple[Given, ...]] = {"self": tuple(each.given for each in seen.given)}
    return _kept(ask, words, None, stacks, m.Said(headline=" ".join(says), words=says), (), False)


def _watched(model: nn.Module) -> Any:
    routes = any(point.role == "experts" for point in watchable(model))
    return capture(model, what=("given", "router", "choices", "shares") if routes else "given")


def _routed(seen: Captured) -> tuple[Routed, ...]:
    found: dict[tuple[str, int], dict[str, Tensor]] = {}
    for record in seen.records:
        found.setdefault((record.name, record.layer), {})[record.what] = record.values[0].cpu()
    return tuple(
        Routed(layer, each["router"].float(), each["choices"], each["shares"].float())
        for (_, layer), each in found.items()
    )


def _kept(
    ask: m.Ask,
    tokens: Sequence[str],
    source: Sequence[str] | None,
    stacks: dict[m.Part, tuple[Given, ...]],
    said: m.Said,
    routed: tuple[Routed, ...],
    causal: bool,
) -> KeptRun:
    attentions = []
    stacks = {part: layers for part, layers in stacks.items() if layers}
    for part, layers in stacks.items():
        heads = {given.q.shape[1] for given in layers}
        require(len(heads) == 1, f"layers of {sorted(heads)} heads", "equally many in each", "Look at another model.")
        attentions.append(
            m.Attention(
                part=part,
                label=_LABELS[part],
                layers=len(layers),
                heads=layers[0].q.shape[1],
                queries=layers[0].q.shape[2],
                keys=layers[0].k.shape[2],
                queries_are="source" if part == "encoder" else "tokens",
                keys_are="source" if part in ("encoder", "cross") else "tokens",
                # A mask of transformers does not tell that it is causal, but its model does.
                causal=causal if part == "self" else part == "decoder",
                windows=[given.pattern.window for given in layers],
                sinks=any(given.sinks is not None for given in layers),
            )
        )
    words = [_visible(word) for word in tokens]
    units = None if source is None else [_visible(word) for word in source]
    message = m.Run(run=run_name(ask), ask=ask, tokens=words, source=units, attentions=attentions, said=said)
    return KeptRun(message, stacks, routed)


def _classify(exhibit: EncoderExhibit, row: Tensor) -> Tensor | None:
    model = exhibit.model
    if isinstance(model, Encoder):
        if model.config.num_classes is None:
            model.hidden(row)
            return None
        return cast(Tensor, model(row))[0]
    output = model(row)
    logits = getattr(output, "logits", None)
    return logits[0] if isinstance(logits, Tensor) and exhibit.classes and logits.dim() == 2 else None


def _said_of_classes(classes: Sequence[str], logits: Tensor | None) -> m.Said:
    if logits is None:
        return m.Said(headline="a vector for each token")
    ranked = _likeliest(logits, lambda number: classes[number])
    return m.Said(headline=f"{ranked[0][0]}, {_percent(ranked[0][1])}", classes=ranked)


def _said_of_next(exhibit: DecoderExhibit, logits: Tensor | None) -> m.Said:
    if logits is None:
        return m.Said(headline="a vector for each token")
    ranked = _likeliest(logits, exhibit.word)
    return m.Said(headline=f"next: {ranked[0][0]}, {_percent(ranked[0][1])}", classes=ranked)


def _likeliest(logits: Tensor, name: Callable[[int], str]) -> list[tuple[str, float]]:
    probabilities = logits.double().softmax(-1)
    best = probabilities.topk(min(SHOWN_CLASSES, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(_visible(name(number)), probability) for number, probability in pairs]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 0.9995 else "100 %"


def _visible(word: str) -> str:
    """A word that JSON can carry: half a surrogate pair, as of bytes that are no UTF-8, is replaced."""
    return word.encode("utf-8", "replace").decode("utf-8")
