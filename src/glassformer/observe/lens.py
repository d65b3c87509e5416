"""What the residual stream already says about the output, and what each part of a model adds to a logit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.layers.feedforward import NoFeedForward
from glassformer.layers.norms import RMSNorm
from glassformer.models.decoder import Decoder
from glassformer.models.encoder import Encoder
from glassformer.models.encoder_decoder import EncoderDecoder
from glassformer.observe import hugging_face
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.hook_points import HookPoint, Selection, select
from glassformer.observe.seams import standing_in

_NORMS = ("final_norm", "decoder_norm", "transformer.ln_f", "model.norm", "ln_f", "norm")


@torch.no_grad()
def logit_lens(
    model: nn.Module, tokens: Tensor | Mapping[str, Tensor], *, queries: Selection | None = None
) -> Float[Tensor, "stage batch query vocab"]:
    """The logits that the output projection would give after each layer::

        lens[l] = output(final_norm(residual stream after l layers)),   l = 0 ... num_layers

    The first stage is the embedding, the last one the model's logits. Those of a classifier are of the pooled text, at
    one position; those of an encoder-decoder of its decoder.

    Args:
        model: A decoder, an encoder-decoder, or an encoder with a classifier and mean or CLS pooling of glassformer; or
            a GPT-2, Llama, Mistral, Qwen2, Mixtral or GptOss of ``transformers``.
        tokens: Token ids, or the arguments of the model by name.
        queries: Positions; all when None.

    Raises:
        InputError: A model of another kind; ``queries`` of a classifier.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    readout = readout_of(model)
    shares = readout.shares(tokens)
    require(queries is None or shares is None, "queries of a classifier", "the whole text", "Omit queries.")
    with capture(model, readout.names("block"), what=("embedding", "residual"), queries=queries) as seen:
        readout.run(tokens, -1)
    return torch.stack([readout.logits(record.values, shares) for record in seen.records])


@dataclass(frozen=True, eq=False)
class DirectLogits:
    """A logit, or a difference of two, as a sum over the parts of a model.

    Args:
        names: Of the parts: "embedding", "layer 2 head 5", "layer 2 attention bias", "layer 2 ffn", "layer 2 expert 7",
            "norm bias", "output bias".
        values: What each part adds, with the final norm's scale as it is; the sum over parts is ``total``.
        total: The logit, or the difference, as the model computes it.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "part batch"]
    total: Float[Tensor, " batch"]

    def top(self, count: int = 10, row: int = 0) -> list[tuple[str, float]]:
        """The parts that add or take away most in text ``row``."""
        order = self.values[:, row].abs().argsort(descending=True)[:count].tolist()
        return [(self.names[part], float(self.values[part, row])) for part in order]


@torch.no_grad()
def direct_logits(
    model: nn.Module,
    tokens: Tensor | Mapping[str, Tensor],
    targets: Int[Tensor, " batch"] | int,
    others: Int[Tensor, " batch"] | int | None = None,
    *,
    query: int = -1,
) -> DirectLogits:
    """Split the logit of ``targets`` at one position into what embedding, heads, and ffn or experts add to it::

        logit_t = sum over parts p of  scale * (centred(p) * norm_weight) . output_t   (+ biases of norm and output)

    where ``scale`` is the final norm's for the whole stream, and only a LayerNorm centres. A classifier's logit is the
    mean of this over the pooled positions.

    Args:
        model: As for :func:`logit_lens`, with blocks that normalise their input (pre-norm).
        tokens: As there.
        targets: The class of each text, or one for all.
        others: Split the difference from the logit of these instead.
        query: The position, of all texts; ignored for a classifier.

    Raises:
        InputError: As for :func:`logit_lens`; post-norm blocks; a position or a class that does not exist.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Logit attribution".
    """
    readout = readout_of(model)
    require(
        all(block.pre_norm for block in readout.of("block")),
        f"{type(model).__name__} with post-norm blocks",
        "blocks that normalise their input",
        "Use logit_lens().",
    )
    capped = getattr(model, "logit_cap", None) is not None
    require(
        not capped and not any(point.post_norm for point in readout.points),
        f"{type(model).__name__} with norms after its parts, or with capped logits",
        "logits that are a sum over the parts",
        "Use logit_lens().",
    )
    norm, output, shares = readout.norm, readout.output, readout.shares(tokens)
    decoded = tokens if isinstance(tokens, Tensor) else tokens.get("target", next(iter(tokens.values())))
    count, length = decoded.shape
    (place,) = select("query", query, length) if shares is None else (None,)
    routed = {point.layer for point in readout.of("experts")}
    kinds = ("embedding", "heads", "attention", "ffn", "residual")
    more = ("choices", "shares", "experts") if routed else ()
    with capture(model, readout.names(), what=(*kinds, *more), queries=place) as seen:
        total = readout.run(tokens, place)
    rows = torch.arange(count, device=total.device)
    first = _classes("targets", targets, count, output).to(total.device)
    direction, expected = output.weight[first], total[rows, first]
    bias = None if output.bias is None else output.bias[first]
    if others is not None:
        second = _classes("others", others, count, output).to(total.device)
        direction, expected = direction - output.weight[second], expected - total[rows, second]
        bias = None if bias is None else bias - output.bias[second]
    stream = [record.values for record in seen.records if record.what == "residual"][-1]
    parts: dict[str, Tensor] = {"embedding": next(iter(seen.last("embedding").values()))}
    for point in readout.points:
        if point.role == "attention":
            assert point.merged is not None
            added = added_by_heads(point.merged, seen.last("heads")[point.name])
            layer = f"layer {point.layer} cross-attention" if point.cross else f"layer {point.layer}"
            for head in range(point.heads):
                parts[f"{layer} head {head}"] = added[:, head]
            if point.merged.bias is not None:
                name = f"{layer} bias" if point.cross else f"{layer} attention bias"
                parts[name] = seen.last("attention")[point.name] - added.sum(1)
        elif point.role == "experts":
            choices, weights, made = (seen.last(kind)[point.name] for kind in more)
            for expert in range(point.experts):
                mixed = (weights * (choices == expert))[..., None] * made
                parts[f"layer {point.layer} expert {expert}"] = mixed.sum(2)
        elif point.role == "ffn" and point.layer not in routed and not isinstance(point.module, NoFeedForward):
            parts[f"layer {point.layer} ffn"] = seen.last("ffn")[point.name]
    names, values = list(parts), torch.stack([part.to(stream.dtype) for part in parts.values()])
    scaled, norm_bias = _scaled(norm, values, stream)
    pooled = scaled.sum(2) if shares is None else torch.einsum("nbqh,bq->nbh", scaled, shares)
    found = (pooled * direction).sum(-1)
    if norm_bias is not None and shares is not None:
        norm_bias = shares.sum(1, keepdim=True) * norm_bias
    for name, extra in (
        ("norm bias", None if norm_bias is None else (direction * norm_bias).sum(-1)),
        ("output bias", bias),
    ):
        if extra is not None:
            names.append(name)
            found = torch.cat([found, extra[None]])
    return DirectLogits(tuple(names), found, expected)


@dataclass(frozen=True, eq=False)
class Readout:
    """What turns the last residual stream into logits: ``output(pool(norm(stream)))``.

    Args:
        model: The model.
        norm: The final norm, if there is one.
        output: The projection.
        points: Those of the stack whose stream is read.
    """

    model: Any
    norm: nn.Module | None
    output: Any
    points: tuple[HookPoint, ...]

    def of(self, role: str) -> list[HookPoint]:
        """The hook points of a role."""
        return [point for point in self.points if point.role == role]

    def names(self, role: str | None = None) -> list[str]:
        """The names of the hook points, or of those of a role."""
        return list(dict.fromkeys(point.name for point in self.points if role in (None, point.role)))

    def shares(self, tokens: Tensor | Mapping[str, Tensor]) -> Float[Tensor, "batch position"] | None:
        """The weight of each position in the pooled text; None where each position has logits of its own."""
        if not isinstance(self.model, Encoder):
            return None
        given = {"tokens": tokens} if isinstance(tokens, Tensor) else tokens
        real = given.get("real", given["tokens"] != self.model.config.pad_id)
        if self.model.config.pooling == "cls":
            real = torch.zeros_like(real).index_fill(1, torch.tensor(0, device=real.device), True)
        return (real / real.sum(1, keepdim=True).clamp(min=1)).to(self.output.weight.dtype)

    def logits(self, stream: Tensor, shares: Tensor | None) -> Float[Tensor, "batch position vocab"]:
        """The logits that a residual stream would give."""
        normed = stream if self.norm is None else self.norm(stream)
        pooled = normed if shares is None else torch.einsum("bp,bph->bh", shares, normed)[:, None]
        logits: Tensor = self.output(pooled)
        return self.model.logit_cap(logits) if getattr(self.model, "logit_cap", None) is not None else logits

    def run(self, tokens: Tensor | Mapping[str, Tensor], place: int | None) -> Float[Tensor, "batch vocab"]:
        """Run the model. The logits at one position, which alone are computed, or of the classes."""
        found: list[Tensor] = []

        def shortened(own: Callable[..., Tensor], x: Tensor) -> Tensor:
            found.append(own(x if x.dim() == 2 or place is None else x[:, [place]]))
            raise _Read

        with suppress(_Read), standing_in(self.output, shortened):
            self.model(tokens) if isinstance(tokens, Tensor) else self.model(**tokens)
        return found[-1] if found[-1].dim() == 2 else found[-1][:, 0]


class _Read(Exception):
    """The logits have been read."""


def readout_of(model: nn.Module) -> Readout:
    """The readout of a model that :func:`logit_lens` can read.

    Raises:
        InputError: Another model.
    """
    model = getattr(model, "_orig_mod", model)
    points = find_hook_points(model)
    hugging_face.require_resumable(model, [point for point in points if point.role == "block"])
    output = next((point.module for point in points if point.role == "logits"), None)
    output = model.output if isinstance(model, Decoder) else output
    modules = dict(model.named_modules())
    norm = next((modules[name] for name in _NORMS if name in modules), None)
    own = isinstance(model, EncoderDecoder) or (isinstance(model, Encoder) and model.config.pooling != "max")
    if output is None or isinstance(model, Encoder) > own or not (own or (norm and not hasattr(model, "classifier"))):
        raise InputError(
            f"{type(model).__name__}, whose logits are no linear map of its normed residual stream",
            "a Decoder, an EncoderDecoder, an Encoder with a classifier and mean or CLS pooling, or a GPT-2, Llama, "
            "Mistral, Qwen2, Mixtral or GptOss of transformers",
            "Pass the language model or the classifier with its head.",
        )
    return Readout(model, norm, output, tuple(point for point in points if not point.source and point.role != "logits"))


def _classes(name: str, classes: Tensor | int, count: int, output: nn.Linear) -> Tensor:
    given = torch.as_tensor(classes)
    fits = given.dim() == 0 or given.shape == (count,)
    highest = output.weight.shape[0]
    require(
        fits and bool(((given >= 0) & (given < highest)).all()),
        f"{name} = {given.tolist()}",
        f"one class for all texts or one for each of {count}, from 0 to {highest - 1}",
        "Pass token ids.",
    )
    return given.expand(count).long()


def added_by_heads(
    projection: Any, heads: Float[Tensor, "batch head *query dim"]
) -> Float[Tensor, "batch head *query hidden"]:
    """What each head adds to the residual stream, without the projection's bias."""
    weight = projection.weight if isinstance(projection, nn.Linear) else projection.weight.T  # GPT-2 keeps [in, out]
    split = weight.unflatten(1, (heads.shape[1], heads.shape[-1]))
    return torch.einsum("bh...d,ohd->bh...o", heads.to(weight.dtype), split)


def _scaled(norm: Any, parts: Tensor, stream: Tensor) -> tuple[Tensor, Tensor | None]:
    """Each part times the norm's weight and its scale for the whole stream; and the norm's bias, if it has one."""
    if norm is None:
        return parts, None
    if isinstance(norm, nn.LayerNorm):
        centred = parts - parts.mean(-1, keepdim=True)
        scale = (stream.var(-1, keepdim=True, unbiased=False) + norm.eps).rsqrt()
        return centred * scale * norm.weight, norm.bias
    eps = norm.eps if isinstance(norm, RMSNorm) else norm.variance_epsilon
    scale = (stream.square().mean(-1, keepdim=True) + eps).rsqrt()
    return parts * scale * norm.weight, None
