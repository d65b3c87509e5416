"""The forward pass of a model on a text. The queries and keys of each layer are kept, never an
attention matrix.

The size of queries and keys grows with the length of the text, that of a matrix with its square.
Rows and tiles of matrices are computed from them on demand.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.explorer import messages as m
from glassformer.explorer.answers.hand_designed import chosen_weights, reading
from glassformer.explorer.answers.words import json_text
from glassformer.explorer.api import UnknownName
from glassformer.explorer.loading.loaded_model import (
    LoadedDecoder,
    LoadedEncoder,
    LoadedEncoderDecoder,
    LoadedHead,
    LoadedModel,
    LoadedProgram,
    final_logits,
    labels_of,
    last_logits,
    require_order,
)
from glassformer.handcraft.single_head import NumpyHead, SingleHead
from glassformer.layers.attention import Attended
from glassformer.models.encoder import Encoder
from glassformer.modes import evaluating
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.captured import Captured
from glassformer.observe.edits import Edit
from glassformer.observe.hook_points import AttentionPoint, MixturePoint, of_kind
from glassformer.observe.intervene import intervene
from glassformer.observe.linear_maps import linear_map, value_sizes
from glassformer.programs.graph import value_in_words
from glassformer.programs.library import tokens_in

SHOWN_CLASSES = 8
"""Largest number of classes, or next tokens, whose probabilities a run reports."""

NOT_FINITE = "logits that are not finite"
"""The output of a model whose weights are NaN or infinite. Its attention can be viewed all the
same.
"""

_LABELS = {
    "self": "self-attention",
    "encoder": "encoder's self-attention",
    "decoder": "decoder's self-attention",
    "cross": "cross-attention",
}


class Routed(NamedTuple):
    """The output of one layer's router: the probabilities of all experts, the chosen experts, and
    their weights.
    """

    layer: int
    probabilities: Float[Tensor, "token expert"]
    choices: Tensor
    shares: Float[Tensor, "token choice"]


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A model's forward pass on a text.

    Args:
        message: The answer to the call ``run``.
        stacks: The inputs of each layer's attention, by the part of the model; each a batch of one.
        sizes: Of each layer of a part, the lengths of the values after the output projection; None
            where that is no linear map.
        routed: The output of each router; empty in a model without experts.
        inputs: The arguments of the model; empty for a hand-designed head.
        logits: Those at ``message.place``, or of the classes; None for a model without either.
        stamp: Identifies the weights; see
            :func:`~glassformer.explorer.loading.loaded_model.weights_stamp`.
    """

    message: m.Run
    stacks: Mapping[m.Part, Sequence[Attended]]
    sizes: Mapping[m.Part, Sequence[Float[np.ndarray, "head key"] | None]]
    routed: Sequence[Routed] = ()
    inputs: tuple[Tensor, ...] = ()
    logits: Float[Tensor, " outcome"] | None = None
    stamp: tuple[Hashable, ...] = ()

    @property
    def size(self) -> int:
        """In bytes."""
        held: dict[int, int] = {}  # a mask is shared by the layers
        for given in (each for stack in self.stacks.values() for each in stack):
            for tensor in (given.q, given.k, given.mask, given.pattern.key_padding):
                if tensor is not None:
                    held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        routed = (tensor for each in self.routed for tensor in each[1:])
        more = sum(
            tensor.nbytes
            for tensor in (*routed, *self.inputs, *([] if self.logits is None else [self.logits]))
        )
        more += sum(
            size.nbytes for stack in self.sizes.values() for size in stack if size is not None
        )
        words = 150 * (len(self.message.tokens) + len(self.message.source or ()))
        return sum(held.values()) + more + words + size_of_ask(self.message.ask)

    def layers(self, part: m.Part) -> Sequence[Attended]:
        """The inputs of each layer's attention in a part."""
        if part not in self.stacks:
            known = ", ".join(self.stacks)
            raise UnknownName(
                f"part = {part!r} of {self.message.ask.model!r}",
                f"one of {known}",
                "Choose among them.",
            )
        return self.stacks[part]


def size_of_ask(ask: m.Ask) -> int:
    """The size of a request in bytes; its text and matrices may be larger than the tokens that are
    read of them.
    """
    texts = (ask.text, *(ask.source or ()))
    given: tuple[Any, ...]
    if ask.weights is None:
        given = ()
    else:
        given = (ask.weights.Km, ask.weights.Qm, ask.weights.Vm, ask.weights.pos or [])
    rows = [row for matrix in given for row in matrix]
    # A string also holds its UTF-8 form once that was computed; a number is an object that a list
    # points to.
    in_texts = sum(sys.getsizeof(text) + 4 * len(text) + 8 for text in texts)
    in_numbers = sum(sys.getsizeof(row) + 24 * len(row) + 8 for row in rows)
    return in_texts + in_numbers + 8 * len(ask.order or ()) + 1000


def run_name(ask: m.Ask) -> str:
    """A name computed from the request, which stays the same when the explorer is started again."""
    text = json.dumps(ask.model_dump(), sort_keys=True)
    return "r" + hashlib.sha256(text.encode("ascii")).hexdigest()[:20]


@torch.no_grad()
def read(loaded: LoadedModel, ask: m.Ask) -> KeptRun:
    """Run a model on a text. Hold ``loaded.lock``."""
    if ask.weights is not None and not isinstance(loaded, LoadedHead):
        raise InputError(
            got=f"weights for {loaded.card.name!r}, whose kind is {loaded.card.kind}",
            expected="a text alone",
            fix="Omit weights, or choose a hand-designed head.",
        )
    if isinstance(loaded, LoadedEncoderDecoder):
        with evaluating(loaded.model):
            return _read_both(loaded, ask)
    if ask.source is not None or ask.order is not None:
        raise InputError(
            got=f"a source for {loaded.card.name!r}",
            expected="a text alone",
            fix="Omit source and order, or choose an encoder-decoder.",
        )
    if isinstance(loaded, LoadedHead):
        return _read_head(loaded, ask)
    if isinstance(loaded, LoadedProgram):
        return _read_program(loaded, ask)
    tokens = loaded.encode(ask.text)
    if len(tokens) <= 0:
        raise InputError(
            got=f"the text {ask.text[:40]!r}, which has no tokens",
            expected="at least one",
            fix="Type something.",
        )
    if len(tokens) > m.MOST_TOKENS:
        raise InputError(
            got=f"{len(tokens):,} tokens",
            expected=f"at most {m.MOST_TOKENS:,}",
            fix="Shorten the text.",
        )
    row = torch.tensor([tokens], device=next(loaded.model.parameters()).device)
    decodes = isinstance(loaded, LoadedDecoder)
    with evaluating(loaded.model), _watched(loaded.model) as seen:
        if isinstance(loaded, LoadedDecoder):
            logits = last_logits(loaded, tokens, afresh=True)
        else:
            found = logits_of(loaded, (row,))
            logits = None if found is None else found[0]
    said = _said("next: " if decodes else "", logits, outcome_name(loaded))
    words = labels_of(loaded, tokens)
    kept = _kept(loaded.model, ask, words, None, seen, said, len(tokens) - 1 if decodes else None)
    return replace(kept, inputs=(row,), logits=logits)


@torch.no_grad()
def read_changed(
    loaded: LoadedModel, ask: m.Ask, before: KeptRun, edits: Sequence[Edit]
) -> KeptRun:
    """Read the tokens of a run again, with edits of the model. Hold ``loaded.lock``."""
    assert not isinstance(loaded, LoadedHead | LoadedProgram)
    message = before.message
    with evaluating(loaded.model), intervene(loaded.model, *edits), _watched(loaded.model) as seen:
        found = logits_of(loaded, before.inputs, -1 if message.place is None else message.place)
    logits = None if found is None else found[0]
    said = _said("" if message.place is None else "next: ", logits, outcome_name(loaded))
    kept = _kept(loaded.model, ask, message.tokens, message.source, seen, said, message.place)
    return replace(kept, inputs=before.inputs, logits=logits)


def logits_of(
    loaded: LoadedModel, inputs: Sequence[Tensor], place: int = -1
) -> Float[Tensor, "batch class"] | None:
    """The logits of the next token after ``place``, or of classes; None for a model without either."""
    if isinstance(loaded, LoadedEncoderDecoder):
        return cast(Tensor, loaded.model(*inputs))[:, place]
    if isinstance(loaded, LoadedDecoder):
        return final_logits(loaded.model, inputs[0], place)
    assert isinstance(loaded, LoadedEncoder)
    model, (rows,) = loaded.model, inputs
    if isinstance(model, Encoder):
        if model.config.num_classes is None:
            model.hidden(rows)
            return None
        return cast(Tensor, model(rows))
    logits = getattr(model(rows), "logits", None)
    if isinstance(logits, Tensor) and loaded.classes and logits.dim() == 2:
        return logits
    return None


def outcome_name(loaded: LoadedModel) -> Callable[[int], str]:
    """The name of a token that a model predicts, or of a class."""
    assert not isinstance(loaded, LoadedHead | LoadedProgram)
    if isinstance(loaded, LoadedEncoder):
        return loaded.classes.__getitem__
    return loaded.word


def _read_both(loaded: LoadedEncoderDecoder, ask: m.Ask) -> KeptRun:
    if ask.source is None:
        units = list(loaded.card.source or ())
    else:
        units = list(ask.source)
    if len(units) <= 0:
        raise InputError(
            got="an empty source",
            expected="at least one unit",
            fix="Add one.",
        )
    if ask.order is not None:
        require_order(ask.order, len(units))
        units = [units[place] for place in ask.order]
    model = loaded.model
    source, target = loaded.inputs(units, ask.text)
    source_real = model.real_source(source)
    # The tokens are generated first; then one pass over all of them gives the attention at every
    # step.
    memory = model.encode(source, source_real)
    written: list[int] = []
    first: Tensor | None = None
    finite = True
    place = target.shape[1] - 1
    room = model.config.max_target_len - target.shape[1] + 1
    while len(written) < min(room, loaded.max_new_tokens) and (
        not written or written[-1] != loaded.end
    ):
        scores = model.decode(target, memory, source_real)[0, -1]
        finite = _is_distribution(scores)
        if not finite:
            break
        written.append(int(scores.argmax()))
        first = scores if first is None else first
        target = torch.cat([target, target.new_tensor([[written[-1]]])], dim=1)
    read = target[:, :-1] if finite else target
    with _watched(model) as seen:
        logits = model(source, read, source_real)[0, place].cpu()  # as those of other models
    words = [loaded.word(token) for token in written]
    shown = [word for token, word in zip(written, words, strict=True) if token != loaded.end]
    if first is None:
        said = m.Said(headline=NOT_FINITE)
    else:
        if finite:
            share = _percent(float(first.softmax(-1).max()))
        else:
            share = f"then {NOT_FINITE}"
        headline = f"{' '.join(shown) or words[0]}, {share}"
        said = m.Said(headline=headline, classes=_likeliest(first, loaded.word), words=words)
    tokens = [loaded.word(token) for token in read[0].tolist()]
    kept = _kept(model, ask, tokens, units, seen, said, place)
    return replace(kept, inputs=(source, read, source_real), logits=logits)


def _read_head(loaded: LoadedHead, ask: m.Ask) -> KeptRun:
    space = loaded.task.space
    task = loaded.task
    cases = task.cases(space.block([space.encode(ask.text)]))
    if ask.weights is None:
        weights = loaded.weights
    else:
        weights = chosen_weights(ask.weights, task)
    head = SingleHead.from_weights(weights)
    with _watched(head) as seen:
        given = head(torch.from_numpy(cases.inputs))[0].numpy()
    finite = bool(np.isfinite(given).all())
    if not finite:
        raise InputError(
            got="scores or outputs beyond what float64 can hold",
            expected="finite ones",
            fix="Scale the weights down.",
        )
    # Ties are reported as the call 'check' reports them for the same weights.
    outputs = NumpyHead(weights).trace(cases.inputs[0]).output
    says = [reading(row, task) for row in outputs[cases.counted[0]]]
    words = [space.token_names[token] for token in cases.block.tokens[0]]
    return _kept(head, ask, words, None, seen, m.Said(headline=" ".join(says), words=says), None)


def _read_program(loaded: LoadedProgram, ask: m.Ask) -> KeptRun:
    # Layers may have different numbers of heads, so the call 'program' shows them, and there is no
    # stack of attention.
    vocabulary = loaded.model.domains.vocabulary
    given = tokens_in(ask.text, vocabulary)
    ids = loaded.model.encode(given)
    with evaluating(loaded.model):
        numbers = loaded.model(ids)[0]
    if bool(numbers.isfinite().all()):
        words = [value_in_words(value) for value in loaded.model.decode(numbers.double().tolist())]
        said = m.Said(
            headline=" ".join("\N{EN DASH}" if each == "None" else each for each in words),
            words=words,
        )
    else:
        said = m.Said(headline="outputs that are not finite")
    tokens = [json_text(str(token)) for token in given]
    message = m.Run(
        run=run_name(ask), ask=ask, tokens=tokens, source=None, attentions=[], said=said
    )
    return KeptRun(message, {}, {}, inputs=(ids,))


def _watched(model: nn.Module) -> Any:
    routes = bool(of_kind(find_hook_points(model), MixturePoint))
    return capture(
        model, what=("inputs", "v", *(("router", "choices", "shares") if routes else ()))
    )


def _kept(
    model: nn.Module,
    ask: m.Ask,
    tokens: Sequence[str],
    source: Sequence[str] | None,
    seen: Captured,
    said: m.Said,
    place: int | None,
) -> KeptRun:
    points = {point.name: point for point in of_kind(find_hook_points(model), AttentionPoint)}
    values = {record.name: record.values for record in seen.records if record.what == "v"}
    stacks: dict[m.Part, list[Attended]] = {}
    sizes: dict[m.Part, list[Float[np.ndarray, "head key"] | None]] = {}
    for each in seen.inputs:
        own: m.Part = "self" if source is None else "encoder" if each.source else "decoder"
        part: m.Part = "cross" if each.cross else own
        stacks.setdefault(part, []).append(each.inputs)
        sizes.setdefault(part, []).append(_sizes(points[each.name], values[each.name]))
    routers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for record in (each for each in seen.records if each.what != "v"):
        routers.setdefault((record.name, record.layer), {})[record.what] = record.values[0].cpu()
    routed = [
        Routed(layer, each["router"].float(), each["choices"], each["shares"].float())
        for (_, layer), each in routers.items()
    ]
    attentions = []
    for part, layers in stacks.items():
        heads = {given.q.shape[1] for given in layers}
        if len(heads) != 1:
            raise InputError(
                got=f"layers of {sorted(heads)} heads",
                expected="equally many in each",
                fix="Choose another model.",
            )
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
                # Masks of transformers do not show that they are causal; the model does.
                causal=place is not None if part == "self" else part == "decoder",
                windows=[given.pattern.window for given in layers],
                sinks=any(given.sinks is not None for given in layers),
            )
        )
    words = [json_text(word) for word in tokens]
    if source is None:
        units = None
    else:
        units = [json_text(word) for word in source]
    name = run_name(ask)
    message = m.Run(
        run=name, ask=ask, tokens=words, source=units, attentions=attentions, said=said, place=place
    )
    return KeptRun(message, stacks, sizes, routed)


def _sizes(
    point: AttentionPoint, v: Float[Tensor, "one kv_head key dim"]
) -> Float[np.ndarray, "head key"] | None:
    projection = None
    if not isinstance(point.module, SingleHead):
        if point.out_proj is None:
            projection = None
        else:
            projection = linear_map(point.out_proj, point.heads * v.shape[3])
        if projection is None:
            return None
    return value_sizes(projection, v, point.heads)[0].cpu().numpy()


def _said(begin: str, logits: Tensor | None, name: Callable[[int], str]) -> m.Said:
    if logits is None:
        return m.Said(headline="a vector for each token")
    if not _is_distribution(logits):
        return m.Said(headline=NOT_FINITE)
    ranked = _likeliest(logits, name)
    if any(map(str.isalnum, ranked[0][0])):
        best = ranked[0][0]
    else:
        best = f"\u201c{ranked[0][0]}\u201d"
    return m.Said(headline=f"{begin}{best}, {_percent(ranked[0][1])}", classes=ranked)


def _is_distribution(logits: Tensor) -> bool:
    """Whether the softmax of the logits is finite; some logits may be -inf, of tokens that are
    never generated.
    """
    return bool(logits.double().softmax(-1).isfinite().all())


def _likeliest(logits: Tensor, name: Callable[[int], str]) -> list[tuple[str, float]]:
    probabilities = logits.double().softmax(-1)
    best = probabilities.topk(min(SHOWN_CLASSES, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(json_text(name(number)), probability) for number, probability in pairs]


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}"  # as the page writes shares
    return f"{text.removesuffix('.0') if text in ('0.0', '100.0') else text} %"
