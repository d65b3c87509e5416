"""Run a model on a text and keep the queries and keys of each layer, never an attention matrix.

Queries and keys grow linearly with the length of the text; a matrix grows with its square. Rows and
tiles of matrices are computed from queries and keys on demand.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
"""Headline of a run whose logits are NaN or infinite. Its attention can still be viewed."""

_LABELS = {
    "self": "self-attention",
    "encoder": "encoder's self-attention",
    "decoder": "decoder's self-attention",
    "cross": "cross-attention",
}


class Routed(NamedTuple):
    """Output of one layer's router."""

    layer: int
    probabilities: Float[Tensor, "token expert"]
    """Probabilities of all experts."""
    choices: Tensor
    """Chosen experts."""
    shares: Float[Tensor, "token choice"]
    """Routing weights of the chosen experts."""


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A model's forward pass on a text.

    Args:
        message: The answer to the call ``run``.
        stacks: The inputs of each layer's attention, by the part of the model; each a batch of one.
        sizes: The lengths of each layer's values after the output projection, by the part; None for
            a layer whose output projection is not linear.
        routed: The output of each router; empty in a model without experts.
        inputs: The arguments of the model; empty for a hand-designed head.
        logits: The logits at ``message.place``, or of the classes; None for a model without either.
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
        """Size of the run in bytes."""
        storage_bytes: dict[int, int] = {}  # by address, since layers share a mask
        for attended in chain.from_iterable(self.stacks.values()):
            for tensor in (attended.q, attended.k, attended.mask, attended.pattern.key_padding):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    storage_bytes[storage.data_ptr()] = storage.nbytes()
        arrays: list[Tensor | np.ndarray | None] = [*self.inputs, self.logits]
        for routed in self.routed:
            arrays += [routed.probabilities, routed.choices, routed.shares]
        arrays += chain.from_iterable(self.sizes.values())
        array_bytes = sum(array.nbytes for array in arrays if array is not None)
        word_bytes = 150 * (len(self.message.tokens) + len(self.message.source or ()))
        ask_bytes = size_of_ask(self.message.ask)
        return sum(storage_bytes.values()) + array_bytes + word_bytes + ask_bytes

    def layers(self, part: m.Part) -> Sequence[Attended]:
        """Return the inputs of each layer's attention in a part."""
        if part not in self.stacks:
            known = ", ".join(self.stacks)
            raise UnknownName(
                f"part = {part!r} of {self.message.ask.model!r}",
                f"one of {known}",
                "Choose among them.",
            )
        return self.stacks[part]


def size_of_ask(ask: m.Ask) -> int:
    """Return the size of a request in bytes, with all of its text and matrices."""
    texts = (ask.text, *(ask.source or ()))
    matrices: tuple[Any, ...] = ()
    if ask.weights is not None:
        matrices = (ask.weights.Km, ask.weights.Qm, ask.weights.Vm, ask.weights.pos or [])
    rows = [row for matrix in matrices for row in matrix]
    # A string also holds its UTF-8 form once it was computed; a list points to number objects.
    text_bytes = sum(sys.getsizeof(text) + 4 * len(text) + 8 for text in texts)
    number_bytes = sum(sys.getsizeof(row) + 24 * len(row) + 8 for row in rows)
    return text_bytes + number_bytes + 8 * len(ask.order or ()) + 1000


def run_name(ask: m.Ask) -> str:
    """Return the name of the run, computed from its request, the same in every process."""
    text = json.dumps(ask.model_dump(), sort_keys=True)
    return "r" + hashlib.sha256(text.encode("ascii")).hexdigest()[:20]


@torch.no_grad()
def read(loaded: LoadedModel, ask: m.Ask) -> KeptRun:
    """Run a model on a text. The caller holds ``loaded.lock``."""
    _check_fields(loaded, ask)
    if isinstance(loaded, LoadedEncoderDecoder):
        with evaluating(loaded.model):
            return _read_both(loaded, ask)
    if isinstance(loaded, LoadedHead):
        return _read_head(loaded, ask)
    if isinstance(loaded, LoadedProgram):
        return _read_program(loaded, ask)
    tokens = _encode(loaded, ask.text)
    row = torch.tensor([tokens], device=next(loaded.model.parameters()).device)
    logits: Tensor | None = None
    with evaluating(loaded.model), _watched(loaded.model) as captured:
        if isinstance(loaded, LoadedDecoder):
            logits = last_logits(loaded, tokens, afresh=True)
        else:
            class_logits = logits_of(loaded, (row,))
            if class_logits is not None:
                logits = class_logits[0]
    place = None
    if isinstance(loaded, LoadedDecoder):
        place = len(tokens) - 1
    summary = _summary(logits, loaded, place)
    run = _run(loaded.model, ask, labels_of(loaded, tokens), None, captured, summary, place)
    return replace(run, inputs=(row,), logits=logits)


def _check_fields(loaded: LoadedModel, ask: m.Ask) -> None:
    """Refuse fields of a request that the kind of model does not read."""
    if ask.weights is not None and not isinstance(loaded, LoadedHead):
        raise InputError(
            got=f"weights for {loaded.card.name!r}, whose kind is {loaded.card.kind}",
            expected="a text alone",
            fix="Omit weights, or choose a hand-designed head.",
        )
    if isinstance(loaded, LoadedEncoderDecoder):
        return
    if ask.source is not None or ask.order is not None:
        raise InputError(
            got=f"a source for {loaded.card.name!r}",
            expected="a text alone",
            fix="Omit source and order, or choose an encoder-decoder.",
        )


def _encode(loaded: LoadedDecoder | LoadedEncoder, text: str) -> list[int]:
    """Return the tokens of a text, whose number is neither 0 nor too large."""
    tokens = loaded.encode(text)
    if len(tokens) == 0:
        raise InputError(
            got=f"the text {text[:40]!r}, which has no tokens",
            expected="at least one",
            fix="Type something.",
        )
    if len(tokens) > m.MOST_TOKENS:
        raise InputError(
            got=f"{len(tokens):,} tokens",
            expected=f"at most {m.MOST_TOKENS:,}",
            fix="Shorten the text.",
        )
    return tokens


@torch.no_grad()
def read_changed(
    loaded: LoadedModel, ask: m.Ask, before: KeptRun, edits: Sequence[Edit]
) -> KeptRun:
    """Read the tokens of a run again, with edits of the model. The caller holds ``loaded.lock``."""
    assert not isinstance(loaded, LoadedHead | LoadedProgram)
    message = before.message
    last_or_place = -1 if message.place is None else message.place
    with (
        evaluating(loaded.model),
        intervene(loaded.model, *edits),
        _watched(loaded.model) as captured,
    ):
        batch_logits = logits_of(loaded, before.inputs, last_or_place)
    logits = None if batch_logits is None else batch_logits[0]
    summary = _summary(logits, loaded, message.place)
    run = _run(loaded.model, ask, message.tokens, message.source, captured, summary, message.place)
    return replace(run, inputs=before.inputs, logits=logits)


def logits_of(
    loaded: LoadedModel, inputs: Sequence[Tensor], place: int = -1
) -> Float[Tensor, "batch class"] | None:
    """Return the logits of the token after ``place`` or of classes; None for other models."""
    if isinstance(loaded, LoadedEncoderDecoder):
        return cast(Tensor, loaded.model(*inputs))[:, place]
    if isinstance(loaded, LoadedDecoder):
        return final_logits(loaded.model, inputs[0], place)
    assert isinstance(loaded, LoadedEncoder)
    model = loaded.model
    (rows,) = inputs
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
    """Return the function that names a predicted token or a class by its number."""
    assert not isinstance(loaded, LoadedHead | LoadedProgram)
    if isinstance(loaded, LoadedEncoder):
        return loaded.classes.__getitem__
    return loaded.word


def _read_both(loaded: LoadedEncoderDecoder, ask: m.Ask) -> KeptRun:
    if ask.source is None:
        units = list(loaded.card.source or ())
    else:
        units = list(ask.source)
    if len(units) == 0:
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
    # Tokens are generated first. One pass over all of them then gives the attention of every step.
    memory = model.encode(source, source_real)
    written: list[int] = []
    first_logits: Tensor | None = None
    finite = True
    place = target.shape[1] - 1
    most_written = model.config.max_target_len - target.shape[1] + 1
    while len(written) < min(most_written, loaded.max_new_tokens) and (
        not written or written[-1] != loaded.end
    ):
        step_logits = model.decode(target, memory, source_real)[0, -1]
        finite = _is_distribution(step_logits)
        if not finite:
            break
        written.append(int(step_logits.argmax()))
        if first_logits is None:
            first_logits = step_logits
        target = torch.cat([target, target.new_tensor([[written[-1]]])], dim=1)
    read_target = target[:, :-1] if finite else target
    with _watched(model) as captured:
        logits = model(source, read_target, source_real)[0, place].cpu()  # as those of other models
    words = [loaded.word(token) for token in written]
    shown = [word for token, word in zip(written, words, strict=True) if token != loaded.end]
    if first_logits is None:
        summary = m.Said(headline=NOT_FINITE)
    else:
        if finite:
            share = _percent(float(first_logits.softmax(-1).max()))
        else:
            share = f"then {NOT_FINITE}"
        headline = f"{' '.join(shown) or words[0]}, {share}"
        summary = m.Said(
            headline=headline, classes=_likeliest(first_logits, loaded.word), words=words
        )
    tokens = [loaded.word(token) for token in read_target[0].tolist()]
    run = _run(model, ask, tokens, units, captured, summary, place)
    return replace(run, inputs=(source, read_target, source_real), logits=logits)


def _read_head(loaded: LoadedHead, ask: m.Ask) -> KeptRun:
    space = loaded.task.space
    task = loaded.task
    cases = task.cases(space.block([space.encode(ask.text)]))
    if ask.weights is None:
        weights = loaded.weights
    else:
        weights = chosen_weights(ask.weights, task)
    head = SingleHead.from_weights(weights)
    with _watched(head) as captured:
        outputs = head(torch.from_numpy(cases.inputs))[0].numpy()
    finite = bool(np.isfinite(outputs).all())
    if not finite:
        raise InputError(
            got="scores or outputs beyond what float64 can hold",
            expected="finite ones",
            fix="Scale the weights down.",
        )
    # Ties are reported as the call 'check' reports them for the same weights.
    exact_outputs = NumpyHead(weights).trace(cases.inputs[0]).output
    readings = [reading(row, task) for row in exact_outputs[cases.counted[0]]]
    words = [space.token_names[token] for token in cases.block.tokens[0]]
    summary = m.Said(headline=" ".join(readings), words=readings)
    return _run(head, ask, words, None, captured, summary, None)


def _read_program(loaded: LoadedProgram, ask: m.Ask) -> KeptRun:
    # There is no stack of attention: layers may have different numbers of heads. The call 'program'
    # shows them.
    vocabulary = loaded.model.domains.vocabulary
    tokens = tokens_in(ask.text, vocabulary)
    ids = loaded.model.encode(tokens)
    with evaluating(loaded.model):
        numbers = loaded.model(ids)[0]
    if bool(numbers.isfinite().all()):
        words = [value_in_words(value) for value in loaded.model.decode(numbers.double().tolist())]
        dashed = ["\N{EN DASH}" if word == "None" else word for word in words]
        summary = m.Said(headline=" ".join(dashed), words=words)
    else:
        summary = m.Said(headline="outputs that are not finite")
    token_words = [json_text(str(token)) for token in tokens]
    message = m.Run(
        run=run_name(ask), ask=ask, tokens=token_words, source=None, attentions=[], said=summary
    )
    return KeptRun(message, {}, {}, inputs=(ids,))


def _watched(model: nn.Module) -> Any:
    """Capture the inputs of attention, the values and, in a mixture of experts, the routers."""
    kinds = ["inputs", "v"]
    if of_kind(find_hook_points(model), MixturePoint):
        kinds += ["router", "choices", "shares"]
    return capture(model, what=kinds)


def _run(
    model: nn.Module,
    ask: m.Ask,
    tokens: Sequence[str],
    source: Sequence[str] | None,
    captured: Captured,
    summary: m.Said,
    place: int | None,
) -> KeptRun:
    """Return the run of what was captured, without inputs and logits."""
    points = {point.name: point for point in of_kind(find_hook_points(model), AttentionPoint)}
    values = {record.name: record.values for record in captured.records if record.what == "v"}
    stacks: dict[m.Part, list[Attended]] = {}
    sizes: dict[m.Part, list[Float[np.ndarray, "head key"] | None]] = {}
    for entry in captured.inputs:
        part: m.Part
        if entry.cross:
            part = "cross"
        elif source is None:
            part = "self"
        else:
            part = "encoder" if entry.source else "decoder"
        stacks.setdefault(part, []).append(entry.inputs)
        sizes.setdefault(part, []).append(_sizes(points[entry.name], values[entry.name]))
    attentions = []
    for part, layers in stacks.items():
        # Masks of transformers do not show that they are causal; the model does.
        causal = part == "decoder" or (part == "self" and place is not None)
        attentions.append(_attention_message(part, layers, causal))
    words = [json_text(word) for word in tokens]
    if source is None:
        units = None
    else:
        units = [json_text(word) for word in source]
    message = m.Run(
        run=run_name(ask),
        ask=ask,
        tokens=words,
        source=units,
        attentions=attentions,
        said=summary,
        place=place,
    )
    return KeptRun(message, stacks, sizes, _routed(captured))


def _routed(captured: Captured) -> list[Routed]:
    """Return what each router gave."""
    routers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for record in captured.records:
        if record.what != "v":
            router = routers.setdefault((record.name, record.layer), {})
            router[record.what] = record.values[0].cpu()
    return [
        Routed(layer, router["router"].float(), router["choices"], router["shares"].float())
        for (_, layer), router in routers.items()
    ]


def _attention_message(part: m.Part, layers: Sequence[Attended], causal: bool) -> m.Attention:
    """Describe a stack of attention, whose layers must have equally many heads."""
    heads = {layer.q.shape[1] for layer in layers}
    if len(heads) != 1:
        raise InputError(
            got=f"layers of {sorted(heads)} heads",
            expected="equally many in each",
            fix="Choose another model.",
        )
    return m.Attention(
        part=part,
        label=_LABELS[part],
        layers=len(layers),
        heads=layers[0].q.shape[1],
        queries=layers[0].q.shape[2],
        keys=layers[0].k.shape[2],
        queries_are="source" if part == "encoder" else "tokens",
        keys_are="source" if part in ("encoder", "cross") else "tokens",
        causal=causal,
        windows=[layer.pattern.window for layer in layers],
        sinks=any(layer.sinks is not None for layer in layers),
    )


def _sizes(
    point: AttentionPoint, v: Float[Tensor, "one kv_head key dim"]
) -> Float[np.ndarray, "head key"] | None:
    """Return the lengths of the values after the output projection, if it is linear."""
    if isinstance(point.module, SingleHead):
        projection = None
    else:
        if point.out_proj is None:
            return None
        projection = linear_map(point.out_proj, point.heads * v.shape[3])
        if projection is None:
            return None
    return value_sizes(projection, v, point.heads)[0].cpu().numpy()


def _summary(logits: Tensor | None, loaded: LoadedModel, place: int | None) -> m.Said:
    """Summarize the logits of the token after ``place`` or, if ``place`` is None, of classes."""
    if logits is None:
        return m.Said(headline="a vector for each token")
    if not _is_distribution(logits):
        return m.Said(headline=NOT_FINITE)
    ranked = _likeliest(logits, outcome_name(loaded))
    likeliest, probability = ranked[0]
    if not any(map(str.isalnum, likeliest)):
        likeliest = f"\u201c{likeliest}\u201d"
    begin = "" if place is None else "next: "
    return m.Said(headline=f"{begin}{likeliest}, {_percent(probability)}", classes=ranked)


def _is_distribution(logits: Tensor) -> bool:
    """Check that the softmax of the logits is finite.

    Logits of tokens that are never generated may be -inf.
    """
    return bool(logits.double().softmax(-1).isfinite().all())


def _likeliest(logits: Tensor, name: Callable[[int], str]) -> list[tuple[str, float]]:
    probabilities = logits.double().softmax(-1)
    best = probabilities.topk(min(SHOWN_CLASSES, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(json_text(name(number)), probability) for number, probability in pairs]


def _percent(share: float) -> str:
    """Write a share as the page does."""
    text = f"{100 * share:.1f}"
    if text in ("0.0", "100.0"):
        text = text.removesuffix(".0")
    return f"{text} %"
