"""Read logits from the residual stream, and split a logit into what each part of a model adds."""

from collections.abc import Mapping
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
from glassformer.observe.captured import Captured
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
from glassformer.observe.norm_maps import NormMap, norm_map
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
"""Names of final norms. For an unknown model of transformers, a run checks the norm."""


@dataclass(frozen=True, eq=False, repr=False)
class TargetLens(Result):
    """The lens's prediction of one token of each text.

    Args:
        logits: Logits of the token.
        probabilities: Probabilities of the token, in [0, 1].
        ranks: Number of tokens with a higher logit: 0 for the most likely one.
        real: True where a query is a real token of its text; None if no query is padding.
    """

    logits: Float[Tensor, "stage batch query"]
    probabilities: Float[Tensor, "stage batch query"]
    ranks: Int[Tensor, "stage batch query"]
    real: Bool[Tensor, "batch query"] | None = None

    def table(self) -> Table:
        """Return columns ``probability``, ``logit`` and ``rank``, NaN for padding.

        Queries are counted from the first one that was chosen.
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
        """Return the data frame of :meth:`Result.to_pandas` without rows of padding."""
        frame = super().to_pandas().dropna(subset="rank").reset_index(drop=True)
        return frame.astype({"rank": "int64"})

    def about(self) -> str:
        """Return the numbers of stages, texts and queries."""
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
    """Return the logits that the output projection would give after each layer::

        lens[l] = output(final_norm(residual stream after l layers)),   l = 0 ... num_layers

    The first stage is the embedding, the last one the model's logits. A classifier has logits of
    the pooled text, at one position; an encoder-decoder has logits of its decoder. The model runs
    in evaluation mode.

    Args:
        model: A decoder, an encoder-decoder, or an encoder with a classifier and mean or CLS
            pooling of glassformer; or a decoder of ``transformers`` whose logits are
            ``output(final_norm(stream))``, which is checked; or a ``LanguageModel`` of such a
            decoder.
        tokens: Token ids, or the arguments of the model by name.
        queries: Positions; all when None.
        targets: The token of each text, or one for all. Only the token's logit, probability and
            rank are then stored: logits of all tokens take ``stage * batch * query * vocab``
            numbers.

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
    # Hooks and edits of the readout may select rows of the batch, and then each stage runs alone;
    # or positions, and then the readout reads all of them.
    readers = [module for module in (readout.norm, readout.output) if module is not None]
    is_hooked = any(other_hooks(module) for module in readers)
    last_modules = (readout.output, getattr(model, "logit_cap", None))
    is_output_changed = any(is_changed(module, "output") for module in last_modules)
    alone = is_edited() or is_hooked
    reads_all = queries is not None and (is_hooked or is_output_changed)
    with (
        evaluating(model),
        capture(
            model,
            readout.names("block"),
            what=("embedding", "residual"),
            queries=None if reads_all else queries,
        ) as seen,
    ):
        readout.run(tokens, -1)
    require_every_layer(
        model, [record.layer for record in seen.records if record.what == "residual"]
    )
    streams = [record.values for record in seen.records]
    count, length = streams[0].shape[:2]
    if alone or shares is not None:
        stages_at_once = 1
    elif targets is None:
        stages_at_once = len(streams)
    else:
        stages_at_once = max(1, _LOGITS_AT_ONCE // (count * length * readout.width()))
    positions = list(select("queries", queries, length)) if reads_all else None
    parts: list[tuple[Tensor, ...]] = []
    with evaluating(model):
        for start in range(0, len(streams), stages_at_once):
            stream = torch.cat(streams[start : start + stages_at_once])
            logits = readout.logits(stream, shares).unflatten(0, (-1, count))
            if positions is not None:
                logits = logits[:, :, positions]
            if targets is None:
                parts.append((logits,))
            else:
                classes = _classes("targets", targets, count, logits.shape[-1])
                parts.append(_of_targets(logits, classes.to(logits.device)))
    whole = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    if targets is None:
        return whole[0]
    real = None if shares is not None else seen.records[-1].real
    if real is not None and positions is not None:
        real = real[:, positions]
    logits, probabilities, ranks = whole
    return TargetLens(logits, probabilities, ranks, real)


def _of_targets(
    logits: Float[Tensor, "stage batch query vocab"], targets: Int[Tensor, " batch"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logit, probability and rank of one token of each text."""
    index = targets.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    of_target = logits.gather(3, index)
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probability = of_target.to(wide) - logits.to(wide).logsumexp(3, keepdim=True)
    ranks = (logits > of_target).sum(3)
    return of_target[..., 0], log_probability.exp()[..., 0], ranks


_LOGITS_AT_ONCE = 1 << 24
"""Most logits that a lens of targets holds at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class DirectLogits(Result):
    """A logit, or a difference of two, as a sum over the parts of a model.

    Args:
        names: Names of the parts: "embedding", "layer 2 head 5", "layer 2 attention bias",
            "layer 2 ffn", "layer 2 expert 7", "norm bias", "output bias"; and "interventions" for
            the sum of all that edits and hooks add to the stream.
        values: Contribution of each part, at the final norm's scale; the sum over parts is
            ``total``.
        total: The logit, or the difference, as the model computes it.
        difference: Whether it is a difference of two logits.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "part batch"]
    total: Float[Tensor, " batch"]
    difference: bool = False

    def table(self) -> Table:
        """Return the contribution of each part in each text."""
        texts = range(self.values.shape[1])
        return Table({"part": self.names, "text": texts}, {"added": self.values}, ("added",))

    def about(self) -> str:
        """Return the number of parts, and the logits or their differences of the first texts."""
        few = ", ".join(f"{logit:.4g}" for logit in self.total[:4].tolist())
        more = ", ..." if len(self.total) > 4 else ""
        name = "logit difference" if self.difference else "logit"
        return f"{super().about()}\n{name} {few}{more}; parts that add or take away most:"

    def top(self, count: int = 10, row: int = 0) -> Places:  # type: ignore[override]  # of one text
        """Return the parts that add or take away most in text ``row``: part, value."""
        table = Table({"part": self.names}, {"added": self.values[:, row]}, ("added",))
        return table.top("added", count)


@torch.no_grad()
def direct_logits(
    model: Any,
    tokens: Tensor | Mapping[str, Tensor],
    targets: Int[Tensor, " batch"] | int,
    others: Int[Tensor, " batch"] | int | None = None,
    *,
    query: int = -1,
) -> DirectLogits:
    """Split the logit of ``targets`` at one position into contributions of the model's parts::

        logit_t = sum over parts p of  scale * (centred(p) * norm_weight) . output_t
                  + biases of norm and output

    The parts are embedding, heads, and feed-forward networks or experts. ``scale`` is the final
    norm's scale of the whole stream, and only a LayerNorm centres. A classifier's logit is the mean
    of this over the pooled positions. Contributions include adapters of a part's module. The model
    runs in evaluation mode.

    Args:
        model: As for :func:`logit_lens`, with blocks that normalise their input (pre-norm).
        tokens: Token ids, or the arguments of the model by name.
        targets: The class of each text, or one for all.
        others: Classes whose logit is subtracted, to split the difference.
        query: The position, of all texts; ignored for a classifier.

    Raises:
        InputError: Post-norm blocks; a position or a class that does not exist; a projection that
            is no linear map; edits of logits; parts that do not sum to the stream, or to the logit.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Logit
    attribution".
    """
    model = network_of(model)
    readout = readout_of(model)
    shares = readout.shares(tokens)
    count, length = _decoded_tokens(tokens).shape
    place: int | None = None
    if shares is None:
        (place,) = select("query", query, length)
        if isinstance(tokens, Mapping):
            require_real(readout.points, tokens, "query", query)
    if not readout.known:  # a model that logit_lens() refuses too gets the same error
        with evaluating(model):
            readout.run(tokens, place)
    _require_sum(model, readout)
    _check_logits_unchanged(readout)
    kinds = ["embedding", "heads", "attention", "ffn", "residual"]
    if readout.of("experts"):
        kinds += _EXPERT_KINDS
    with evaluating(model), capture(model, readout.names(), what=kinds, queries=place) as seen:
        total = readout.run(tokens, place)
    stream = [record.values for record in seen.records if record.what == "residual"][-1]
    classes = _classes("targets", targets, count, total.shape[-1])[None]
    if others is not None:
        classes = torch.cat([classes, _classes("others", others, count, total.shape[-1])[None]])
    projection = require_linear(
        readout.output,
        "the output projection",
        stream.shape[-1],
        rows=classes.flatten().tolist(),
        like=stream,
    )

    def difference(values: Tensor) -> Tensor:
        return values[0] if others is None else values[0] - values[1]

    direction = difference(projection.matrix.unflatten(0, classes.shape))
    logit = difference(total[torch.arange(count, device=total.device), classes])
    wide = torch.promote_types(stream.dtype, torch.float32)
    stream = stream.to(wide)
    names, values = _summands(model, _stream_parts(readout, seen, stream.shape), stream)
    norm_bias: Tensor | None = None
    scaled = values
    if readout.norm is not None:
        formula = norm_map(readout.norm, stream.to(total.dtype))
        scaled = formula.centre(values) * formula.scale(stream) * formula.weight
        norm_bias = formula.bias
    if shares is None:
        pooled = scaled.sum(2)
    else:
        pooled = torch.einsum("nbqh,bq->nbh", scaled, shares.to(wide))
    added = (pooled * direction).sum(-1)
    if norm_bias is not None:
        if shares is None:
            pooled_bias = norm_bias.expand(count, -1)
        else:
            pooled_bias = shares.sum(1, keepdim=True) * norm_bias
        by_norm_bias = (direction * pooled_bias).sum(-1)
        if bool(by_norm_bias.any()):
            names.append("norm bias")
            added = torch.cat([added, by_norm_bias[None]])
    if projection.bias is not None:
        by_output_bias = difference(projection.bias.unflatten(0, classes.shape))
        names.append("output bias")
        added = torch.cat([added, by_output_bias[None]])
    sizes = torch.cat([added, total.max().expand(1, count)])
    _check_sum(model, "the logit", logit - added.sum(0), sizes)
    return DirectLogits(tuple(names), added, logit, others is not None)


def _summands(
    model: nn.Module, parts: Mapping[str, Tensor], stream: Float[Tensor, "batch query hidden"]
) -> tuple[list[str], Float[Tensor, "part batch query hidden"]]:
    """Return the names and values of parts whose sum is the residual stream.

    Within interventions, and with hooks, their sum is a part of its own.
    """
    names = list(parts)
    values = torch.stack([part.to(stream.dtype) for part in parts.values()])
    rest = stream - values.sum(0)
    if is_edited() or other_hooks(model):
        return [*names, "interventions"], torch.cat([values, rest[None]])
    _check_sum(model, "the residual stream", rest, values)
    return names, values


_EXPERT_KINDS = ("choices", "shares", "experts")


def _decoded_tokens(tokens: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Return the tokens of the stack that has the logits."""
    if isinstance(tokens, Tensor):
        return tokens
    return tokens.get("target", next(iter(tokens.values())))


def _stream_parts(readout: "Readout", seen: Captured, shape: torch.Size) -> dict[str, Tensor]:
    """Return what each part of a model adds to the residual stream, by the part's name."""
    mixture_layers = {point.layer for point in readout.of("experts")}
    parts: dict[str, Tensor] = {"embedding": next(iter(seen.last("embedding").values()))}
    for point in readout.points:
        if isinstance(point, AttentionPoint):
            parts |= _attention_parts(point, seen.last("heads")[point.name], shape)
        elif isinstance(point, MixturePoint):
            choices, weights, outputs = (seen.last(kind)[point.name] for kind in _EXPERT_KINDS)
            for expert in range(point.experts):
                mixed = (weights * (choices == expert))[..., None] * outputs
                parts[f"layer {point.layer} expert {expert}"] = mixed.sum(2)
        elif isinstance(point, FeedForwardPoint):
            is_empty = isinstance(point.module, NoFeedForward)
            if not is_empty and point.layer not in mixture_layers:
                parts[f"layer {point.layer} ffn"] = seen.last("ffn")[point.name]
    return parts


def _attention_parts(
    point: AttentionPoint, heads: Float[Tensor, "batch head query dim"], shape: torch.Size
) -> dict[str, Tensor]:
    """Return what each head of an attention, and its bias, adds to the residual stream."""
    merged = heads.transpose(1, 2).flatten(2)
    projection = require_linear(
        point.out_proj, f"the projection of {point.name}", merged.shape[-1], like=merged
    )
    added = added_by_heads(projection, heads)
    layer = f"layer {point.layer}"
    bias_name = f"{layer} attention bias"
    if point.cross:
        layer = f"{layer} cross-attention"
        bias_name = f"{layer} bias"
    parts = {f"{layer} head {head}": added[:, head] for head in range(point.heads)}
    if projection.bias is not None and bool(projection.bias.any()):
        parts[bias_name] = projection.bias.expand(shape)
    return parts


def _require_sum(model: nn.Module, readout: "Readout") -> None:
    """Refuse a model whose logits are not a sum over its parts."""
    name = type(model).__name__
    if not all(block.pre_norm for block in of_kind(readout.points, BlockPoint)):
        raise InputError(
            got=f"{name} with post-norm blocks",
            expected="blocks that normalise their input",
            fix=_USE_LENS,
        )
    if getattr(model, "logit_cap", None) is not None or has_post_norm(readout.points):
        raise InputError(
            got=f"{name} with norms after its parts, or with capped logits",
            expected="logits that are a sum over the parts",
            fix=_USE_LENS,
        )


def _check_logits_unchanged(readout: "Readout") -> None:
    """Refuse edits of the logits."""
    if is_changed(readout.output, "output"):
        raise InputError(
            got="direct_logits() within an edit of the logits",
            expected="logits as they are",
            fix="Edit other sites.",
        )


@dataclass(frozen=True, eq=False)
class FfnLogits:
    """Contribution of one feed-forward network to the logits at one position.

    Args:
        logits: Contribution to the logit of every token, at the final norm's scale.
        activations: Activations of its neurons: the input of its last projection. None for a
            mixture of experts.
        effects: Contribution of each neuron to the target's logit. Together with the contribution
            of the projection's bias, they sum to that of the network.
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
    """Return the contribution of one layer's feed-forward network, and of its neurons, to logits::

        logits    = output(scale * (centred(ffn) * norm_weight))
        effect_n  = activation_n * (down_n . gradient)
        gradient  = centred(scale * norm_weight * output_target)

    where ``scale`` is the final norm's scale of the whole stream. Effects are those of neurons on
    the logit of ``targets``. The model runs in evaluation mode.

    Args:
        model: A decoder or an encoder-decoder as for :func:`direct_logits`.
        tokens: Token ids, or the arguments of the model by name.
        layer: The index of the block, in the decoder of an encoder-decoder.
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
    point = _feed_forward(readout, layer)
    count, length = _decoded_tokens(tokens).shape
    (place,) = select("query", query, length)
    names = [point.name, readout.of("block")[-1].name]
    kinds = ["ffn", "residual"]
    if point.down_proj is not None:
        kinds.append("neurons")
    with evaluating(model), capture(model, names, what=kinds, queries=place) as seen:
        total = readout.run(tokens, place)
    stream = seen.last("residual")[names[-1]]
    wide = torch.promote_types(stream.dtype, torch.float32)
    scaled = seen.last("ffn")[point.name].to(wide)
    stream = stream.to(wide)
    output = readout.output
    formula: NormMap | None = None
    if readout.norm is not None:
        formula = norm_map(readout.norm, stream.to(total.dtype))
        scaled = formula.centre(scaled) * formula.scale(stream) * formula.weight
    scaled = scaled.to(total.dtype)
    with evaluating(model):
        logits = (output(scaled) - output(torch.zeros_like(scaled)))[:, 0]
    if point.down_proj is None:
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


def _feed_forward(readout: "Readout", layer: int) -> FeedForwardPoint:
    """Return the feed-forward network of a layer."""
    networks = {
        point.layer: point
        for point in of_kind(readout.points, FeedForwardPoint)
        if not isinstance(point.module, NoFeedForward)
    }
    if layer not in networks:
        expected = "a model with feed-forward networks"
        if networks:
            expected = f"one of layers {sorted(networks)}"
        raise InputError(
            got=f"the feed-forward network of layer {layer}",
            expected=expected,
            fix="Choose another layer.",
        )
    return networks[layer]


def _check_sum(model: nn.Module, what: str, rest: Tensor, parts: Tensor) -> None:
    """Refuse parts whose sum misses by more than rounding: the model does more than add them."""
    error = float(rest.abs().max())
    tolerance = _SUM_TOLERANCE.get(next(model.parameters(), rest).dtype, 0.05)
    if not error <= tolerance * float(parts.abs().max()):  # refuses NaN too
        raise InputError(
            got=f"{type(model).__name__}, in which the parts miss {what} by {error:.2g}",
            expected="a sum over embedding, heads and ffn or experts",
            fix="Use logit_lens() (on the command line: --what lens), or patch_sweep().",
        )


_USE_LENS = "Use logit_lens() (on the command line: --what lens)."
_LOGITS_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}
"""Largest difference of logits that were computed twice, in units of the largest logit."""
_SUM_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest error of a sum, in units of its largest part.

transformers computes norms in float32, also of models in float64.
"""


@dataclass(frozen=True, eq=False)
class Readout:
    """The modules that turn the last residual stream into logits: ``output(pool(norm(stream)))``.

    Args:
        model: The whole model.
        norm: The final norm, if there is one.
        output: The projection to logits.
        points: Hook points of the stack whose stream is read.
        known: True if nothing changes the logits after the projection. For other models the first
            run checks it.
    """

    model: Any
    norm: nn.Module | None
    output: Any
    points: tuple[HookPoint, ...]
    known: bool = True

    def of(self, role: str) -> list[HookPoint]:
        """Return the hook points of a role."""
        return [point for point in self.points if point.role == role]

    def names(self, role: str | None = None) -> list[str]:
        """Return the names of all hook points, or of those of a role."""
        points = self.points if role is None else self.of(role)
        return list(dict.fromkeys(point.name for point in points))

    def shares(
        self, tokens: Tensor | Mapping[str, Tensor]
    ) -> Float[Tensor, "batch position"] | None:
        """Return the weight of each position in the pooled text, or None without pooling."""
        _check_tokens(tokens)
        if not isinstance(self.model, Encoder):
            return None
        arguments = {"tokens": tokens} if isinstance(tokens, Tensor) else tokens
        real = arguments.get("real", arguments["tokens"] != self.model.config.pad_id)
        if self.model.config.pooling == "cls":
            real = torch.zeros_like(real).index_fill(1, torch.tensor(0, device=real.device), True)
        return (real / real.sum(1, keepdim=True).clamp(min=1)).to(self.output.weight.dtype)

    def logits(
        self, stream: Tensor, shares: Tensor | None
    ) -> Float[Tensor, "batch position vocab"]:
        """Return the logits that a residual stream would give."""
        pooled = stream if self.norm is None else self.norm(stream)
        if shares is not None:
            pooled = torch.einsum("bp,bph->bh", shares, pooled)[:, None]
        logits: Tensor = self.output(pooled)
        if getattr(self.model, "logit_cap", None) is not None:
            return self.model.logit_cap(logits)
        return logits

    def width(self) -> int:
        """Return the number of classes, or an estimate of it."""
        return int(getattr(self.output, "out_features", 0)) or 1 << 16

    def run(
        self, tokens: Tensor | Mapping[str, Tensor], place: int | None
    ) -> Float[Tensor, "batch vocab"]:
        """Run the model and return its logits at one position, or those of a classifier."""
        if isinstance(tokens, Mapping):
            require_positions(self.model, tokens)

        def run() -> Any:
            if isinstance(tokens, Tensor):
                return self.model(tokens)
            return self.model(**tokens)

        def positions(length: int) -> list[int]:
            return list(range(length)) if place is None else [place]

        whole = bool(other_hooks(self.output))
        if self.known:
            logits = logits_at(self.output, positions, run, whole=whole, ends=True)
        else:
            last = self.of("block")[-1].name
            with capture(self.model, [last], what="residual", queries=place) as seen:
                logits = logits_at(self.output, positions, run, whole=whole, ends=False)
            self._check_logits(logits, seen.records[-1].values)
        return logits if logits.dim() == 2 else logits[:, 0]

    def _check_logits(self, logits: Tensor, stream: Tensor) -> None:
        """Refuse a model whose logits are not those of its last residual stream."""
        expected = self.logits(stream, None)
        tolerance = _LOGITS_TOLERANCE.get(logits.dtype, 0.02) * float(logits.abs().max())
        same_shape = logits.shape == expected.shape
        if not same_shape or not float((logits - expected).abs().max()) <= tolerance:
            raise InputError(
                got=f"{type(self.model).__name__}, whose logits are not output(norm(stream))",
                expected=_READ,
                fix="Use patch_sweep(), capture() and intervene(), which take this model.",
            )


def _check_tokens(tokens: Any) -> None:
    """Refuse tokens that are neither a batch nor the arguments of a model."""
    is_batch = isinstance(tokens, Tensor) and tokens.dim() > 1
    if not is_batch and not isinstance(tokens, Mapping):
        form = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError(
            got=f"tokens of {form}",
            expected="token ids [batch, position], or the model's arguments by name",
            fix="Add a batch axis with tokens[None], or pass lm.tokens(text).",
        )


def readout_of(model: nn.Module) -> Readout:
    """Return the readout of a model that :func:`logit_lens` can read."""
    points = find_hook_points(model)
    blocks = of_kind(points, BlockPoint)
    output = next((point.module for point in of_kind(points, LogitsPoint)), None)
    if isinstance(model, Decoder):
        output = model.output
    modules = dict(model.named_modules())
    norm = next((modules[name] for name in _NORMS if name in modules), None)
    if isinstance(model, EncoderDecoder):
        is_readable = True
    elif isinstance(model, Encoder):
        is_readable = model.config.pooling != "max"
    else:
        is_readable = norm is not None and not hasattr(model, "classifier")
    if output is None or not is_readable:
        missing = "readout that can be found, of its norm and projection"
        if output is None:
            missing = "projection to logits"
        raise InputError(
            got=f"{type(model).__name__}, which has no {missing}",
            expected=_READ,
            fix="Pass the language model or the classifier with its head.",
        )
    of_stack = tuple(
        point for point in points if not point.source and not isinstance(point, LogitsPoint)
    )
    known = hugging_face.unknown_block(model, blocks) is None
    return Readout(model, norm, output, of_stack, known)


_READ = (
    "a Decoder, an EncoderDecoder, an Encoder with a classifier and mean or CLS pooling, or a "
    "decoder of transformers with its language model head, whose logits are output(norm(stream))"
)


def _classes(name: str, classes: Tensor | int, count: int, num_classes: int) -> Tensor:
    """Return the class of each text; refuse classes that do not exist."""
    if not isinstance(classes, Tensor | int):
        raise InputError(
            got=f"{name} = {classes!r}",
            expected="token ids",
            fix="Pass a number, or a tensor with one for each text.",
        )
    indices = torch.as_tensor(classes)
    has_rows = indices.dim() == 0 or indices.shape == (count,)
    if not has_rows or not bool(((indices >= 0) & (indices < num_classes)).all()):
        raise InputError(
            got=f"{name} = {indices.tolist()}",
            expected=(
                f"one class for all texts or one for each of {count}, from 0 to {num_classes - 1}"
            ),
            fix="Pass token ids.",
        )
    return indices.expand(count).long()
