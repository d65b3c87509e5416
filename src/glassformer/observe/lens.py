"""What the residual stream already says about the output, and what each part of a model adds to a
logit.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError
from glassformer.layers.attention import is_edited
from glassformer.layers.feedforward import NoFeedForward
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.modes import evaluating
from glassformer.observe import hugging_face
from glassformer.observe.capture import capture, find_hook_points, network_of
from glassformer.observe.hook_points import (
    AttentionPoint,
    BlockPoint,
    FeedForwardPoint,
    HookPoint,
    LogitsPoint,
    MixturePoint,
    Selection,
    has_post_norm,
    of_kind,
    select,
)
from glassformer.observe.linear_maps import added_by_heads, require_linear
from glassformer.observe.module_hooks import is_changed, other_hooks
from glassformer.observe.norm_maps import norm_map
from glassformer.observe.partial_runs import (
    logits_at,
    require_every_layer,
    require_positions,
    require_real,
)
from glassformer.observe.results import Places, Result, Table

_NORMS = (
    *("final_norm", "decoder_norm", "transformer.ln_f", "model.norm", "ln_f", "norm"),
    *("gpt_neox.final_layer_norm", "model.final_layernorm", "model.final_layer_norm"),
)
"""Names of final norms; of a model of transformers that is not known, a run shows whether it is the
one.
"""


@dataclass(frozen=True, eq=False, repr=False)
class TargetLens(Result):
    """What a lens says of one token of each text.

    Args:
        logits: Its logit.
        probabilities: Its probability, in [0, 1].
        ranks: How many tokens have a higher logit: 0 for the most likely one.
        real: True where a query is a real token of its text; None where none is padding.
    """

    logits: Float[Tensor, "stage batch query"]
    probabilities: Float[Tensor, "stage batch query"]
    ranks: Int[Tensor, "stage batch query"]
    real: Bool[Tensor, "batch query"] | None = None

    def table(self) -> Table:
        """Columns ``probability``, ``logit`` and ``rank``; queries are counted from the first one
        asked for.

        Padding has NaN.
        """
        axes = dict(zip(("stage", "text", "query"), map(range, self.logits.shape), strict=True))
        columns = {"probability": self.probabilities, "logit": self.logits, "rank": self.ranks}
        if self.real is not None:
            padding = ~self.real
            columns = {
                name: values.double().masked_fill(padding, torch.nan)
                for name, values in columns.items()
            }
        return Table(axes, columns, ("probability",))

    def to_pandas(self) -> Any:
        """As :meth:`Result.to_pandas`, without rows of padding."""
        return (
            super()
            .to_pandas()
            .dropna(subset="rank")
            .reset_index(drop=True)
            .astype({"rank": "int64"})
        )

    def about(self) -> str:
        """The numbers of stages, texts and queries."""
        return f"{super().about()}\nprobability of the target:"


@overload
def logit_lens(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    *,
    queries: Selection | None = None,
    targets: None = None,
) -> Float[Tensor, "stage batch query vocab"]: ...
@overload
def logit_lens(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    *,
    queries: Selection | None = None,
    targets: Int[Tensor, " batch"] | int,
) -> TargetLens: ...
@torch.no_grad()
def logit_lens(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    *,
    queries: Selection | None = None,
    targets: Int[Tensor, " batch"] | int | None = None,
) -> Tensor | TargetLens:
    """The logits that the output projection would give after each layer::

        lens[l] = output(final_norm(residual stream after l layers)),   l = 0 ... num_layers

    The first stage is the embedding, the last one the model's logits. Those of a classifier are of
    the pooled text, at one position; those of an encoder-decoder of its decoder. The model runs in
    evaluation mode.

    Args:
        model: A decoder, an encoder-decoder, or an encoder with a classifier and mean or CLS
            pooling of glassformer; or a decoder of ``transformers`` whose logits are
            ``output(final_norm(stream))``, which is checked; or a ``LanguageModel`` of such a
            decoder.
        tokens: Token ids, or the arguments of the model by name.
        queries: Positions; all when None.
        targets: The token of each text, or one for all, of which alone logit, probability and rank
            are kept: logits of all tokens at all stages and positions take ``stage * batch * query
                * vocab`` numbers.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    model = network_of(model)
    readout = readout_of(model)
    shares = readout.shares(tokens)
    if queries is not None and shares is not None:
        raise InputError(
            got="queries of a classifier",
            expected="the whole text",
            fix="Omit queries.",
        )
    if queries is not None and isinstance(tokens, Mapping):
        require_real(readout.points, tokens, "queries", queries)
    # Hooks and edits of the readout may mean rows of the batch: then each stage runs alone; or
    # positions.
    hooked = any(other_hooks(each) for each in (readout.norm, readout.output) if each is not None)
    edited = any(
        is_changed(each, "output") for each in (readout.output, getattr(model, "logit_cap", None))
    )
    alone = is_edited() or hooked
    some_of = queries is not None and (hooked or edited)
    read = None if some_of else queries
    kinds = ("embedding", "residual")
    with (
        evaluating(model),
        capture(model, readout.names("block"), what=kinds, queries=read) as seen,
    ):
        readout.run(tokens, -1)
    require_every_layer(
        model, [record.layer for record in seen.records if record.what == "residual"]
    )
    streams = [record.values for record in seen.records]
    count, length = streams[0].shape[:2]
    if alone or shares is not None:
        at_once = 1
    else:
        at_once = max(1, _LOGITS_AT_ONCE // (count * length * readout.width()))
    if targets is None and not alone and shares is None:
        at_once = len(streams)
    else:
        at_once = at_once
    found: list[tuple[Tensor, ...]] = []
    with evaluating(model):
        for start in range(0, len(streams), at_once):
            some = torch.cat(streams[start : start + at_once])
            logits = readout.logits(some, shares).unflatten(0, (-1, count))
            if some_of:
                logits = logits[:, :, list(select("queries", queries, length))]
            else:
                logits = logits
            if targets is None:
                found.append((logits,))
                continue
            chosen = _classes("targets", targets, count, logits.shape[-1]).to(logits.device)
            own = logits.gather(3, chosen.view(1, -1, 1, 1).expand(*logits.shape[:3], 1))
            wide = torch.promote_types(logits.dtype, torch.float32)
            shares_of = (own.to(wide) - logits.to(wide).logsumexp(3, keepdim=True)).exp()
            found.append((own[..., 0], shares_of[..., 0], (logits > own).sum(3)))
    whole = [torch.cat(each) for each in zip(*found, strict=True)]
    if targets is None:
        return whole[0]
    real = None if shares is not None else seen.records[-1].real
    if real is not None and some_of:
        real = real[:, list(select("queries", queries, length))]
    logits, probabilities, ranks = whole
    return TargetLens(logits, probabilities, ranks, real)


_LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class DirectLogits(Result):
    """A logit, or a difference of two, as a sum over the parts of a model.

    Args:
        names: Of the parts: "embedding", "layer 2 head 5", "layer 2 attention bias", "layer 2 ffn",
            "layer 2 expert 7", "norm bias", "output bias"; and "interventions", what edits and
            hooks add to the stream or take from it.
        values: What each part adds, with the final norm's scale as it is; the sum over parts is
            ``total``.
        total: The logit, or the difference, as the model computes it.
        difference: Whether it is a difference of two logits.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "part batch"]
    total: Float[Tensor, " batch"]
    difference: bool = False

    def table(self) -> Table:
        """What each part adds in each text."""
        texts = range(self.values.shape[1])
        return Table({"part": self.names, "text": texts}, {"added": self.values}, ("added",))

    def about(self) -> str:
        """The number of parts and the logits, or differences of logits, of the first texts."""
        few = ", ".join(f"{logit:.4g}" for logit in self.total[:4].tolist())
        more = ", ..." if len(self.total) > 4 else ""
        name = "logit difference" if self.difference else "logit"
        return f"{super().about()}\n{name} {few}{more}; parts that add or take away most:"

    def top(self, count: int = 10, row: int = 0) -> Places:  # type: ignore[override]  # of one text
        """The parts that add or take away most in text ``row``: part, value."""
        return Table({"part": self.names}, {"added": self.values[:, row]}, ("added",)).top(
            "added", count
        )


@torch.no_grad()
def direct_logits(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    targets: Int[Tensor, " batch"] | int,
    others: Int[Tensor, " batch"] | int | None = None,
    *,
    query: int = -1,
) -> DirectLogits:
    """Split the logit of ``targets`` at one position into what embedding, heads, and ffn or experts
    add to it::

        logit_t = sum over parts p of  scale * (centred(p) * norm_weight) . output_t   (+ biases of
        norm and output)

    where ``scale`` is the final norm's for the whole stream, and only a LayerNorm centres. A
    classifier's logit is the mean of this over the pooled positions. What a part adds is what its
    module does, adapters included. The model runs in evaluation mode.

    Args:
        model: As for :func:`logit_lens`, with blocks that normalise their input (pre-norm).
        targets: The class of each text, or one for all.
        others: Split the difference from the logit of these instead.
        query: The position, of all texts; ignored for a classifier.

    Raises:
        InputError: Post-norm blocks; a position or a class that does not exist; a projection that
            is no linear map; edits of logits; parts that do not sum to the stream, or to the logit.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Logit
    attribution".
    """
    model = network_of(model)
    readout = readout_of(model)
    norm = readout.norm
    output = readout.output
    shares = readout.shares(tokens)
    if isinstance(tokens, Tensor):
        decoded = tokens
    else:
        decoded = tokens.get("target", next(iter(tokens.values())))
    count, length = decoded.shape
    (place,) = select("query", query, length) if shares is None else (None,)
    if place is not None and isinstance(tokens, Mapping):
        require_real(readout.points, tokens, "query", query)
    if (
        not readout.known
    ):  # refuses what logit_lens() refuses too, before the reasons that it has not
        with evaluating(model):
            readout.run(tokens, place)
    _require_sum(model, readout)
    changed = is_changed(output, "output")
    if changed:
        raise InputError(
            got="direct_logits() within an edit of the logits",
            expected="logits as they are",
            fix="Edit other sites.",
        )
    routed = {point.layer for point in readout.of("experts")}
    kinds = ("embedding", "heads", "attention", "ffn", "residual")
    more = ("choices", "shares", "experts") if routed else ()
    with (
        evaluating(model),
        capture(model, readout.names(), what=(*kinds, *more), queries=place) as seen,
    ):
        total = readout.run(tokens, place)
    rows = torch.arange(count, device=total.device)
    stream = [record.values for record in seen.records if record.what == "residual"][-1]
    if others is None:
        named = {"targets": targets}
    else:
        named = {"targets": targets, "others": others}
    classes = torch.stack(
        [_classes(name, each, count, total.shape[-1]) for name, each in named.items()]
    )
    wanted = classes.flatten().tolist()
    made = require_linear(
        output, "the output projection", stream.shape[-1], rows=wanted, like=stream
    )

    def difference(values: Tensor) -> Tensor:
        return values[0] if others is None else values[0] - values[1]

    direction = difference(made.matrix.unflatten(0, classes.shape))
    expected = difference(total[rows, classes])
    if made.bias is None:
        bias = None
    else:
        bias = difference(made.bias.unflatten(0, classes.shape))
    parts: dict[str, Tensor] = {"embedding": next(iter(seen.last("embedding").values()))}
    for point in readout.points:
        if isinstance(point, AttentionPoint):
            heads = seen.last("heads")[point.name]
            merged = heads.transpose(1, 2).flatten(2)
            projection = require_linear(
                point.out_proj, f"the projection of {point.name}", merged.shape[-1], like=merged
            )
            added = added_by_heads(projection, heads)
            if point.cross:
                layer = f"layer {point.layer} cross-attention"
            else:
                layer = f"layer {point.layer}"
            for head in range(point.heads):
                parts[f"{layer} head {head}"] = added[:, head]
            if projection.bias is not None and bool(projection.bias.any()):
                if point.cross:
                    name = f"{layer} bias"
                else:
                    name = f"{layer} attention bias"
                parts[name] = projection.bias.expand(stream.shape)
        elif isinstance(point, MixturePoint):
            choices, weights, outputs = (seen.last(kind)[point.name] for kind in more)
            for expert in range(point.experts):
                mixed = (weights * (choices == expert))[..., None] * outputs
                parts[f"layer {point.layer} expert {expert}"] = mixed.sum(2)
        elif isinstance(point, FeedForwardPoint) and point.layer not in routed:
            if isinstance(point.module, NoFeedForward):
                continue
            parts[f"layer {point.layer} ffn"] = seen.last("ffn")[point.name]
    wide = torch.promote_types(stream.dtype, torch.float32)
    values = torch.stack([part.to(wide) for part in parts.values()])
    stream = stream.to(wide)
    names = list(parts)
    rest = stream - values.sum(0)
    if is_edited() or other_hooks(model):
        names = [*names, "interventions"]
        values = torch.cat([values, rest[None]])
    else:
        _check_sum(model, "the residual stream", rest, values)
    norm_bias: Tensor | None = None
    scaled = values
    if norm is not None:
        formula = norm_map(norm, stream.to(total.dtype))
        scaled = formula.centre(values) * formula.scale(stream) * formula.weight
        norm_bias = formula.bias
    if shares is None:
        pooled = scaled.sum(2)
    else:
        pooled = torch.einsum("nbqh,bq->nbh", scaled, shares.to(wide))
    found = (pooled * direction).sum(-1)
    if norm_bias is not None:
        if shares is None:
            norm_bias = norm_bias.expand(count, -1)
        else:
            norm_bias = shares.sum(1, keepdim=True) * norm_bias
    for name, extra in (
        ("norm bias", None if norm_bias is None else (direction * norm_bias).sum(-1)),
        ("output bias", bias),
    ):
        if extra is not None and (bool(extra.any()) or name == "output bias"):
            names.append(name)
            found = torch.cat([found, extra[None]])
    _check_sum(
        model,
        "the logit",
        expected - found.sum(0),
        torch.cat([found, total.max().expand(1, count)]),
    )
    return DirectLogits(tuple(names), found, expected, others is not None)


def _require_sum(model: nn.Module, readout: "Readout") -> None:
    """Refuse a model whose logits are not a sum over its parts."""
    got = f"{type(model).__name__} with post-norm blocks"
    fix = _USE_LENS
    pre_norm = all(block.pre_norm for block in of_kind(readout.points, BlockPoint))
    if not pre_norm:
        raise InputError(
            got=got,
            expected="blocks that normalise their input",
            fix=fix,
        )
    capped = getattr(model, "logit_cap", None) is not None
    got = f"{type(model).__name__} with norms after its parts, or with capped logits"
    fits = not capped and not has_post_norm(readout.points)
    if not fits:
        raise InputError(
            got=got,
            expected="logits that are a sum over the parts",
            fix=fix,
        )


@dataclass(frozen=True, eq=False)
class FfnLogits:
    """What one feed-forward network adds to the logits at one position.

    Args:
        logits: To the logit of every token, with the final norm's scale as it is.
        activations: Of its neurons: the input of its last projection. None for a mixture of
            experts.
        effects: What each neuron adds to the target's logit. With what the projection's bias adds,
            they sum to it.
    """

    logits: Float[Tensor, "batch vocab"]
    activations: Float[Tensor, "batch neuron"] | None
    effects: Float[Tensor, "batch neuron"] | None


@torch.no_grad()
def ffn_logits(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    layer: int,
    targets: Int[Tensor, " batch"] | int,
    *,
    query: int = -1,
) -> FfnLogits:
    """What the feed-forward network of one layer adds to all logits, and each of its neurons to
    that of ``targets``::

        logits    = output(scale * (centred(ffn) * norm_weight))
        effect_n  = activation_n * (down_n . gradient),    gradient = centred(scale * norm_weight *
        output_target)

    where ``scale`` is the final norm's for the whole stream. The model runs in evaluation mode.

    Args:
        model: A decoder or an encoder-decoder as for :func:`direct_logits`.
        layer: The index of the block; of an encoder-decoder in its decoder.
        targets: The token of each text, or one for all.
        query: The position, of all texts.

    Raises:
        InputError: What :func:`direct_logits` refuses; a classifier; a layer without a feed-forward
            network.

    Source: Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting
    Concepts in the Vocabulary Space".
    """
    model = network_of(model)
    readout = readout_of(model)
    if readout.shares(tokens) is not None:
        raise InputError(
            got="a classifier",
            expected="a model that predicts tokens",
            fix="Use direct_logits().",
        )
    _require_sum(model, readout)
    feed_forwards = of_kind(readout.points, FeedForwardPoint)
    networks = {
        point.layer: point for point in feed_forwards if not isinstance(point.module, NoFeedForward)
    }
    if layer not in networks:
        raise InputError(
            got=f"the feed-forward network of layer {layer}",
            expected=f"one of layers {sorted(networks)}"
            if networks
            else "a model with feed-forward networks",
            fix="Choose another layer.",
        )
    point = networks[layer]
    if isinstance(tokens, Tensor):
        decoded = tokens
    else:
        decoded = tokens.get("target", next(iter(tokens.values())))
    count, length = decoded.shape
    (place,) = select("query", query, length)
    names = [point.name, readout.of("block")[-1].name]
    dense = point.down_proj is not None
    kinds: tuple[str, ...]
    if dense:
        kinds = ("ffn", "residual", "neurons")
    else:
        kinds = ("ffn", "residual")
    with evaluating(model), capture(model, names, what=kinds, queries=place) as seen:
        total = readout.run(tokens, place)
    stream = seen.last("residual")[names[-1]]
    wide = torch.promote_types(stream.dtype, torch.float32)
    added = seen.last("ffn")[point.name].to(wide)
    stream = stream.to(wide)
    output = readout.output
    norm = readout.norm
    if norm is None:
        formula = None
    else:
        formula = norm_map(norm, stream.to(total.dtype))
    scaled = added
    if formula is not None:
        scaled = formula.centre(added) * formula.scale(stream) * formula.weight
    scaled = scaled.to(total.dtype)
    with evaluating(model):
        logits = (output(scaled) - output(torch.zeros_like(scaled)))[:, 0]
    if not dense:
        return FfnLogits(logits, None, None)
    classes = _classes("targets", targets, count, total.shape[-1])
    direction = require_linear(
        output, "the output projection", stream.shape[-1], rows=classes.tolist(), like=stream
    ).matrix.to(wide)
    if formula is not None:
        direction = formula.centre(direction * formula.weight) * formula.scale(stream)[:, 0]
    activations = seen.last("neurons")[point.name][:, 0].to(wide)
    down = require_linear(
        point.down_proj, f"the projection of {point.name}", activations.shape[-1], like=activations
    )
    return FfnLogits(logits, activations, activations * (direction @ down.matrix.to(wide)))


def _check_sum(model: nn.Module, what: str, rest: Tensor, parts: Tensor) -> None:
    """Refuse parts whose sum misses by more than rounding: the model has others, or does more with
    them.
    """
    error = float(rest.abs().max())
    near = _NEAR.get(next(model.parameters(), rest).dtype, 0.05)
    if not error <= near * float(parts.abs().max()):
        raise InputError(
            got=f"{type(model).__name__}, in which the parts miss {what} by {error:.2g}",
            expected="a sum over embedding, heads and ffn or experts",
            fix="Use logit_lens() (on the command line: --what lens), or patch_sweep().",
        )


_USE_LENS = "Use logit_lens() (on the command line: --what lens)."
_EQUAL = {torch.float64: 1e-6, torch.float32: 1e-5}
"""Of the largest logit: the same logits twice."""
_NEAR = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Of the largest part. transformers computes norms of models in float64 in float32."""


@dataclass(frozen=True, eq=False)
class Readout:
    """What turns the last residual stream into logits: ``output(pool(norm(stream)))``.

    Args:
        norm: The final norm, if there is one.
        points: Those of the stack whose stream is read.
    """

    model: Any
    norm: nn.Module | None
    output: Any
    points: tuple[HookPoint, ...]
    known: bool = True
    """Whether nothing changes the logits after the projection; of other models the first run finds
    out.
    """

    def of(self, role: str) -> list[HookPoint]:
        """The hook points of a role."""
        return [point for point in self.points if point.role == role]

    def names(self, role: str | None = None) -> list[str]:
        """The names of the hook points, or of those of a role."""
        return list(
            dict.fromkeys(point.name for point in self.points if role in (None, point.role))
        )

    def shares(
        self, tokens: Tensor | Mapping[str, Tensor]
    ) -> Float[Tensor, "batch position"] | None:
        """The weight of each position in the pooled text; None where each position has logits of
        its own.
        """
        if isinstance(tokens, Tensor):
            fits = tokens.dim() > 1
        else:
            fits = isinstance(tokens, Mapping)
        if not fits:
            raise InputError(
                got=f"tokens of {list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__}",
                expected="token ids [batch, position], or the model's arguments by name",
                fix="Add a batch axis with tokens[None], or pass lm.tokens(text).",
            )
        if not isinstance(self.model, Encoder):
            return None
        given: Mapping[str, Tensor]
        if isinstance(tokens, Tensor):
            given = {"tokens": tokens}
        else:
            given = tokens
        real = given.get("real", given["tokens"] != self.model.config.pad_id)
        if self.model.config.pooling == "cls":
            real = torch.zeros_like(real).index_fill(1, torch.tensor(0, device=real.device), True)
        return (real / real.sum(1, keepdim=True).clamp(min=1)).to(self.output.weight.dtype)

    def logits(
        self, stream: Tensor, shares: Tensor | None
    ) -> Float[Tensor, "batch position vocab"]:
        """The logits that a residual stream would give."""
        normed = stream if self.norm is None else self.norm(stream)
        if shares is None:
            pooled = normed
        else:
            pooled = torch.einsum("bp,bph->bh", shares, normed)[:, None]
        logits: Tensor = self.output(pooled)
        if getattr(self.model, "logit_cap", None) is not None:
            return self.model.logit_cap(logits)
        return logits

    def width(self) -> int:
        """The number of classes."""
        return int(getattr(self.output, "out_features", 0)) or 1 << 16

    def run(
        self, tokens: Tensor | Mapping[str, Tensor], place: int | None
    ) -> Float[Tensor, "batch vocab"]:
        """Run the model. The logits at one position, which alone are computed, or of the classes."""

        if isinstance(tokens, Mapping):
            require_positions(self.model, tokens)

        def run() -> Any:
            if isinstance(tokens, Tensor):
                return self.model(tokens)
            return self.model(**tokens)

        def at(length: int) -> list[int]:
            return list(range(length)) if place is None else [place]

        whole = bool(other_hooks(self.output))
        last = [] if self.known else [self.of("block")[-1].name]
        with (
            capture(self.model, last, what="residual", queries=place)
            if last
            else nullcontext() as seen
        ):
            logits = logits_at(self.output, at, run, whole=whole, ends=self.known)
        if seen is not None:
            read = self.logits(seen.records[-1].values, None)
            near = _EQUAL.get(logits.dtype, 0.02) * float(logits.abs().max())
            got = f"{type(self.model).__name__}, whose logits are not output(norm(stream))"
            same = logits.shape == read.shape and float((logits - read).abs().max()) <= near
            if not same:
                raise InputError(
                    got=got,
                    expected=_READ,
                    fix="Use patch_sweep(), capture() and intervene(), which take this model.",
                )
        return logits if logits.dim() == 2 else logits[:, 0]


def readout_of(model: nn.Module) -> Readout:
    """The readout of a model that :func:`logit_lens` can read."""
    points = find_hook_points(model)
    blocks = of_kind(points, BlockPoint)
    output = next((point.module for point in of_kind(points, LogitsPoint)), None)
    output = model.output if isinstance(model, Decoder) else output
    modules = dict(model.named_modules())
    norm = next((modules[name] for name in _NORMS if name in modules), None)
    own = isinstance(model, EncoderDecoder) or (
        isinstance(model, Encoder) and model.config.pooling != "max"
    )
    if (
        output is None
        or isinstance(model, Encoder) > own
        or not (own or (norm and not hasattr(model, "classifier")))
    ):
        if output is None:
            lacks = "projection to logits"
        else:
            lacks = "readout that can be found, of its norm and projection"
        got = f"{type(model).__name__}, which has no {lacks}"
        raise InputError(got, _READ, "Pass the language model or the classifier with its head.")
    mine = tuple(
        point for point in points if not point.source and not isinstance(point, LogitsPoint)
    )
    return Readout(model, norm, output, mine, hugging_face.unknown_block(model, blocks) is None)


_READ = (
    "a Decoder, an EncoderDecoder, an Encoder with a classifier and mean or CLS pooling, or a "
    "decoder of transformers "
    "with its language model head, whose logits are output(norm(stream))"
)


def _classes(name: str, classes: Tensor | int, count: int, highest: int) -> Tensor:
    real = isinstance(classes, Tensor | int)
    if not real:
        raise InputError(
            got=f"{name} = {classes!r}",
            expected="token ids",
            fix="Pass a number, or a tensor with one for each text.",
        )
    given = torch.as_tensor(classes)
    fits = given.dim() == 0 or given.shape == (count,)
    got = f"{name} = {given.tolist()}"
    fix = "Pass token ids."
    fits = fits and bool(((given >= 0) & (given < highest)).all())
    if not fits:
        raise InputError(
            got=got,
            expected=f"one class for all texts or one for each of {count}, from 0 to {highest - 1}",
            fix=fix,
        )
    return given.expand(count).long()
