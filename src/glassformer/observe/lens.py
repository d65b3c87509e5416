"""What the residual stream already says about the output, and what each part of a model adds to a logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require
from glassformer.layers.norms import RMSNorm
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.hook_points import Selection, select

_NORMS = ("final_norm", "transformer.ln_f", "model.norm", "ln_f", "norm")


@torch.no_grad()
def logit_lens(
    model: nn.Module, tokens: Int[Tensor, "batch position"], *, queries: Selection | None = None
) -> Float[Tensor, "stage batch query vocab"]:
    """The logits that the output projection would give after each layer::

        lens[l] = output(final_norm(residual stream after l layers)),   l = 0 ... num_layers

    The first stage is the embedding, the last one the model's logits.

    Args:
        model: A decoder of glassformer, or a GPT-2, Llama, Mistral, Qwen2, Mixtral or GptOss of ``transformers``.
        tokens: Token ids.
        queries: Positions; all when None.

    Raises:
        InputError: A model that is no pre-norm decoder with an output projection.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    norm, output = final_norm_and_output(model)
    with capture(model, what=("embedding", "residual"), queries=queries) as seen:
        model(tokens)
    stages = [record.values for record in seen.records]
    return torch.stack([output(norm(stage)) for stage in stages])


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
    tokens: Int[Tensor, "batch position"],
    targets: Int[Tensor, " batch"] | int,
    others: Int[Tensor, " batch"] | int | None = None,
    *,
    query: int = -1,
) -> DirectLogits:
    """Split the logit of ``targets`` at one position into what embedding, heads, and ffn or experts add to it::

        logit_t = sum over parts p of  scale * (centred(p) * norm_weight) . output_t   (+ biases of norm and output)

    where ``scale`` is the final norm's for the whole stream, and only a LayerNorm centres.

    Args:
        model: As for :func:`logit_lens`.
        tokens: Token ids.
        targets: The class of each text, or one for all.
        others: Split the difference from the logit of these instead.
        query: The position, of all texts.

    Raises:
        InputError: As for :func:`logit_lens`; a position or a class that does not exist.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Logit attribution".
    """
    norm, output = final_norm_and_output(model)
    points = find_hook_points(model)
    routed = {point.layer for point in points if point.role == "experts"}
    kinds = ("embedding", "heads", "attention", "ffn", "residual", "logits")
    more = ("choices", "shares", "experts") if routed else ()
    (place,) = select("query", query, tokens.shape[1])
    with capture(model, what=(*kinds, *more), queries=place) as seen:
        model(tokens)
    rows = torch.arange(len(tokens), device=tokens.device)
    first = _classes("targets", targets, len(tokens), output).to(tokens.device)
    direction = output.weight[first]
    total = next(iter(seen.last("logits").values()))[:, 0]
    expected = total[rows, first]
    bias = 0 * expected if output.bias is None else output.bias[first]
    if others is not None:
        second = _classes("others", others, len(tokens), output).to(tokens.device)
        direction = direction - output.weight[second]
        expected = expected - total[rows, second]
        bias = bias if output.bias is None else bias - output.bias[second]
    stream = [record.values[:, 0] for record in seen.records if record.what == "residual"][-1]
    parts: dict[str, Tensor] = {"embedding": next(iter(seen.last("embedding").values()))[:, 0]}
    for point in points:
        if point.role == "attention":
            assert point.merged is not None
            heads = seen.last("heads")[point.name][:, :, 0]
            added = added_by_heads(point.merged, heads)
            for head in range(point.heads):
                parts[f"layer {point.layer} head {head}"] = added[:, head]
            if point.merged.bias is not None:
                parts[f"layer {point.layer} attention bias"] = seen.last("attention")[point.name][:, 0] - added.sum(1)
        elif point.role == "experts":
            choices, shares, made = (seen.last(kind)[point.name][:, 0] for kind in more)
            for expert in range(point.experts):
                mixed = (shares * (choices == expert))[..., None] * made
                parts[f"layer {point.layer} expert {expert}"] = mixed.sum(1)
        elif point.role == "ffn" and point.layer not in routed:
            parts[f"layer {point.layer} ffn"] = seen.last("ffn")[point.name][:, 0]
    names, values = list(parts), torch.stack([part.to(stream.dtype) for part in parts.values()])
    scaled, norm_bias = _scaled(norm, values, stream)
    found = (scaled * direction).sum(-1)
    for name, extra in (
        ("norm bias", None if norm_bias is None else direction @ norm_bias),
        ("output bias", None if output.bias is None else bias),
    ):
        if extra is not None:
            names.append(name)
            found = torch.cat([found, extra[None]])
    return DirectLogits(tuple(names), found, expected)


def final_norm_and_output(model: nn.Module) -> tuple[nn.Module, Any]:
    """The final norm and the output projection of a pre-norm decoder."""
    points = find_hook_points(model)
    output = next((point.module for point in points if point.role == "logits"), None)
    modules = dict(model.named_modules())
    norm = next((modules[name] for name in _NORMS if name in modules), None)
    blocks = [point for point in points if point.role == "block"]
    if output is None or norm is None or not all(point.pre_norm and not point.source for point in blocks):
        raise InputError(
            f"{type(model).__name__}, which is no pre-norm decoder with an output projection",
            "a Decoder, or a GPT-2, Llama, Mistral, Qwen2, Mixtral or GptOss of transformers",
            "Pass the language model with its head.",
        )
    require(not hasattr(model, "classifier"), "a classifier", "a model that predicts tokens", "Pass a decoder.")
    return norm, output


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


def added_by_heads(projection: Any, heads: Float[Tensor, "batch head dim"]) -> Float[Tensor, "batch head hidden"]:
    """What each head adds to the residual stream, without the projection's bias."""
    weight = projection.weight if isinstance(projection, nn.Linear) else projection.weight.T  # GPT-2 keeps [in, out]
    split = weight.unflatten(1, heads.shape[1:])
    return torch.einsum("bhd,ohd->bho", heads.to(weight.dtype), split)


def _scaled(norm: Any, parts: Tensor, stream: Tensor) -> tuple[Tensor, Tensor | None]:
    """Each part times the norm's weight and its scale for the whole stream; and the norm's bias, if it has one."""
    if isinstance(norm, nn.LayerNorm):
        centred = parts - parts.mean(-1, keepdim=True)
        scale = (stream.var(-1, unbiased=False) + norm.eps).rsqrt()
        return centred * scale[:, None] * norm.weight, norm.bias
    eps = norm.eps if isinstance(norm, RMSNorm) else norm.variance_epsilon
    scale = (stream.square().mean(-1) + eps).rsqrt()
    return parts * scale[:, None] * norm.weight, None
