"""Find heads by what they attend to (previous token, same token, induction), and whether attention
ranks causes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.modes import evaluating
from glassformer.observe.capture import capture, find_hook_points, network_of
from glassformer.observe.captured import Record
from glassformer.observe.edits import Edit, MaskEdit, change, put
from glassformer.observe.hook_points import AttentionPoint, HookPoint, Selection, of_kind, select
from glassformer.observe.intervene import intervene, repeating
from glassformer.observe.module_hooks import Enough, Phase, scope
from glassformer.observe.partial_runs import (
    require_every_layer,
    require_gradients,
    require_one_place,
    require_positions,
)
from glassformer.observe.results import Places, Result, Table, counted
from glassformer.observe.sweep import Metric, Runner

Removal = Literal["edges", "values"]


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(Result):
    """The mean attention of each head to one kind of key, in [0, 1]; NaN where no query has such a
    key before it.

    A key that a window leaves out counts as 0.

    Args:
        previous: To the token before the query.
        duplicate: To the earlier occurrence of the query's token.
        induction: To the token after the earlier occurrence of the query's token, which is what
            comes next.
        sink: To the sink and to the first token together.
    """

    previous: Float[Tensor, "layer head"]
    duplicate: Float[Tensor, "layer head"]
    induction: Float[Tensor, "layer head"]
    sink: Float[Tensor, "layer head"]

    def table(self) -> Table:
        """A column for each kind of key."""
        layers, heads = map(range, self.previous.shape)
        kinds = tuple(self.__dataclass_fields__)
        return Table(
            {"layer": layers, "head": heads}, {kind: getattr(self, kind) for kind in kinds}, kinds
        )

    def top(self, kind: str, count: int = 5) -> Places:  # type: ignore[override]  # a kind has to be named
        """The heads with the highest score: layer, head, value."""
        return super().top(count, kind)


def repeated_tokens(
    vocab_size: int, half: int, rows: int = 8, *, seed: int = 0, first: int | None = None
) -> Int[Tensor, "row position"]:
    """Random tokens, different from one another in each half, and the same again, after a ``first``
    token if given, which may be among them.
    """
    require_positive(half=half, rows=rows, vocab_size=vocab_size)
    known = first is None or (
        isinstance(first, int) and not isinstance(first, bool) and 0 <= first < vocab_size
    )
    if not known:
        raise InputError(
            got=f"first = {first!r}",
            expected=f"a whole number from 0 to {vocab_size - 1}",
            fix="Pass the token that texts of the model begin with.",
        )
    if not half <= vocab_size:
        raise InputError(
            got=f"half = {half} of {vocab_size} tokens",
            expected="at most as many",
            fix="Shorten the half.",
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack(
        [torch.randperm(vocab_size, generator=generator)[:half] for _ in range(rows)]
    )
    both = torch.cat([drawn, drawn], 1)
    if first is None:
        return both
    return torch.cat([torch.full((rows, 1), first), both], 1)


Texts = Int[Tensor, "row position"] | Mapping[str, Tensor]


@torch.no_grad()
def head_scores(model: Any, texts: Texts | Iterable[Texts]) -> HeadScores:
    """The scores of every self-attention head of a model on texts in which tokens return.

    A query counts for ``duplicate`` and ``induction`` if its token stands once before it, and for
    ``induction`` if the token after that stands before it too. The weights of one attention are in
    memory at a time. The model runs in evaluation mode.

    Args:
        model: A decoder, of glassformer or of ``transformers``, or a ``LanguageModel``.
        texts: Such as :func:`repeated_tokens` gives, or any texts of equal length; or the arguments
            of the model by name, whose mask says which tokens are real; or many batches of these,
            of any lengths. On any device.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895,
    appendix.
    """
    model = network_of(model)
    points = [
        point for point in of_kind(find_hook_points(model), AttentionPoint) if not point.cross
    ]
    got = f"{type(model).__name__}, which has two stacks"
    if any(point.source for point in points):
        raise InputError(
            got=got,
            expected="a model with one stack of layers",
            fix="Use capture(), which takes any model.",
        )
    require_every_layer(model, [point.layer for point in points])
    require_one_place(model, points)
    sums: dict[str, dict[str, Tensor]] = {
        name: {} for name in ("previous", "duplicate", "induction", "sink")
    }
    counts = dict.fromkeys(sums, 0)
    batches = [texts] if isinstance(texts, Tensor | Mapping) else texts
    for batch in batches:
        if isinstance(batch, Mapping):
            named = dict(batch)
        else:
            named = {"": batch}
        tokens = next((named[name] for name in ("", "input_ids", "tokens") if name in named), None)
        known = isinstance(tokens, Tensor) and tokens.dim() == 2
        got = f"texts of type {type(batch).__name__}"
        if not known:
            raise InputError(
                got=got,
                expected="token ids [row, position], or the model's arguments",
                fix="Pass a batch of texts.",
            )
        assert tokens is not None
        require_positions(model, named)
        given = (named.get(name) for name in ("attention_mask", "key_padding"))
        real = next(
            (each.bool() for each in given if each is not None),
            torch.ones_like(tokens, dtype=torch.bool),
        )
        masks = _kinds_of_keys(tokens, real)
        for name, mask in masks.items():
            counts[name] += int(mask.any(-1).sum())
        missing = set(points)
        with evaluating(model), scope() as here, capture(model) as seen:
            for point in points:

                def reduce(
                    _: Tensor,
                    __: Any,
                    point: HookPoint = point,
                    masks: Any = masks,
                    missing: Any = missing,
                ) -> None:
                    weights = seen.records.pop().values
                    for name, mask in masks.items():
                        mask = mask.to(weights.device)
                        part = (weights * mask[:, None]).sum(-1)
                        if name == "sink":
                            part = part + (1 - weights.sum(-1)) * mask.any(-1)[:, None]
                        sums[name][point.name] = sums[name].get(point.name, 0) + part.sum((0, 2))
                    missing.discard(point)
                    if not missing:  # what follows the last attention is not needed
                        raise Enough

                here.insert(point.module, "output", reduce, Phase.READ)
            device = next(model.parameters(), tokens).device
            named = {
                name: each.to(device) if isinstance(each, Tensor) else each
                for name, each in named.items()
            }
            with suppress(Enough):
                model(*([named.pop("")] if "" in named else ()), **named)
    if not bool(sums["sink"]):
        raise InputError(
            got="no texts",
            expected="one batch or more",
            fix="Pass token ids.",
        )
    rows = {
        name: torch.stack([found[point.name] for point in points]) / (counts[name] or math.nan)
        for name, found in sums.items()
    }
    return HeadScores(**rows)


def _kinds_of_keys(tokens: Tensor, real: Tensor) -> dict[str, Bool[Tensor, "row query key"]]:
    """For each score, the keys that it counts for each query."""
    length = tokens.shape[1]
    seen = (real[:, :, None] & real[:, None, :]).tril(-1)
    same = (tokens[:, :, None] == tokens[:, None, :]) & seen
    once = same & (same.sum(-1, keepdim=True) == 1)
    after = once.roll(1, dims=2) & seen
    after[..., 0] = False
    before = (
        torch.eye(length, dtype=torch.bool, device=tokens.device).roll(-1, dims=1).tril(-1) & seen
    )
    first = torch.arange(length, device=tokens.device) == real.int().argmax(1, keepdim=True)
    return {
        "previous": before,
        "duplicate": once,
        "induction": after,
        "sink": first[:, None] & seen,
    }


@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness(Result):
    """Attention beside what removing each key does to a metric.

    Args:
        layers: The layers of the first axis of ``weights``.
        keys: The positions on all axes called key.
        effects: The metric less that with the key removed, in each head alone, or in all heads at
            once: then layer and head are axes of length 1.
        gradients: Gradient of the metric times input, of the embedding of each key.
    """

    layers: tuple[int, ...]
    keys: tuple[int, ...]
    weights: Float[Tensor, "text layer head key"]
    effects: Float[Tensor, "text layers heads key"]
    gradients: Float[Tensor, "text key"]

    def table(self) -> Table:
        """The effect of removing each key, the mean over texts; in each head alone, if it was
        removed so.
        """
        effects = self.effects.mean(0)
        if effects.shape[:2] == (1, 1):
            return Table({"key": self.keys}, {"effect": effects[0, 0]}, ("effect",))
        axes = {"layer": self.layers, "head": range(effects.shape[1]), "key": self.keys}
        return Table(axes, {"effect": effects, "weight": self.weights.mean(0)}, ("effect",))

    def about(self) -> str:
        """The numbers of texts and places."""
        return f"{super().about()}, mean of {counted(len(self.weights), 'text')}\neffect of removing a key:"

    @property
    def of_heads(self) -> Float[Tensor, "text layer head"]:
        """For each text and head, the rank correlation of its weights with the sizes of the
        effects.
        """
        return rank_correlation(self.weights, self.effects.abs().expand_as(self.weights))

    @property
    def of_mean(self) -> Float[Tensor, " text"]:
        """For each text, that of the mean weights of all heads with the sizes of the mean effects."""
        return rank_correlation(self.weights.mean((1, 2)), self.effects.mean((1, 2)).abs())

    @property
    def of_gradients(self) -> Float[Tensor, " text"]:
        """For each text, that of the sizes of gradient times input with those of the mean effects."""
        return rank_correlation(self.gradients.abs(), self.effects.mean((1, 2)).abs())


def attention_faithfulness(
    model: Any,
    texts: Int[Tensor, "text position"] | Mapping[str, Tensor],
    metric: Metric,
    *,
    removal: Removal = "edges",
    query: int | None = None,
    keys: Selection | None = None,
    layers: Selection | None = None,
    by_head: bool = False,
    logits: Selection = -1,
    batch_size: int = 128,
) -> Faithfulness:
    """Whether attention weights rank keys as their removal does.

    Args:
        model: A decoder, or an encoder with a classifier, of glassformer or ``transformers``, or a
            ``LanguageModel``.
        texts: Token ids of equal length, without padding; or the arguments of the model by name,
            tensors with a row for each text.
        metric: From logits [text, position, class] to one number for each text; a classifier has
            one position.
        removal: "edges" forbids that the query attends to the key, so that others get its weight;
            "values" gives it the value 0, and the others keep their weights.
        query: Whose attention is compared, and for which keys are removed; None: all queries, and
            the mean over them.
        keys: Which positions are ranked, such as those of words; all when None.
        layers: Whose attention is compared, and in which edges or values are removed; all when
            None.
        by_head: Remove in each head alone: a forward pass for each key and head, instead of one for
            each key.
        logits: Positions of the logits that ``metric`` reads.
        batch_size: Most texts in one forward pass.

    Source: Jain and Wallace 2019, "Attention is not Explanation", arXiv 1902.10186, section 4.1
    (rank correlation with leaving out, and with gradients); Kobayashi et al. 2020, arXiv 2004.10102
    (weights without values).
    """
    model = network_of(model)
    require_gradients()
    require_positive(batch_size=batch_size)
    if removal not in get_args(Removal):
        raise InputError(
            got=f"removal = {removal!r}",
            expected="'edges' or 'values'",
            fix="Choose one of these.",
        )
    given = texts if isinstance(texts, Mapping) else {"": texts}
    for name in ("real", "key_padding", "attention_mask"):
        whole = name not in given or bool(given[name].all())
        if not whole:
            raise InputError(
                got=f"padding by {name}",
                expected="texts of equal length",
                fix="Call once for each length.",
            )
    runner = Runner(model, metric, logits)
    count, length = next(iter(given.values())).shape[:2]
    attentions = [point for point in of_kind(runner.points, AttentionPoint) if not point.cross]
    chosen = select("layers", layers, max(point.layer for point in attentions) + 1)
    points = [point for point in attentions if point.layer in chosen]
    ranked = select("keys", keys, length)
    if len(ranked) <= 1:
        raise InputError(
            got=f"the keys {ranked}",
            expected="at least two",
            fix="A single key has no rank.",
        )
    queries = None if query is None else select("query", query, length)
    places: list[tuple[Any, int | None]]
    if by_head:
        places = [(point.layer, head) for point in points for head in range(point.heads)]
    else:
        places = [(chosen, None)]
    with torch.no_grad():
        with capture(model, layers=chosen, queries=queries) as seen:
            clean = runner.run(given)
        fits = clean.shape == (1, count)
        if not fits:
            raise InputError(
                got=f"a metric of shape {list(clean.shape[1:])}",
                expected=f"[{count}]",
                fix="Give one number for each text.",
            )
        parts = torch.tensor(ranked).split(1 if runner.alone else max(1, batch_size // count))
        removed = []
        for layer, head in places:
            for part in parts:
                edit = _without(
                    part.repeat_interleave(count),
                    removal,
                    layers=layer,
                    heads=head,
                    queries=queries,
                )
                with repeating(len(part)), intervene(model, edit):
                    removed.append(runner.run(given, len(part)))
    shape = (len(points), -1) if by_head else (1, 1)
    effects = clean - torch.cat(removed).view(*shape, len(ranked), count)
    weights = torch.stack(
        [_at_keys(seen.of("weights")[point.name][-1], ranked) for point in points], 1
    )
    gradients = _gradient_times_input(model, runner, given)[:, list(ranked)]
    return Faithfulness(
        tuple(point.layer for point in points),
        ranked,
        weights,
        effects.permute(3, 0, 1, 2),
        gradients,
    )


def _at_keys(record: Record, ranked: Sequence[int]) -> Float[Tensor, "text head key"]:
    """The weight of each of these keys, the mean over the queries of the record; 0 of those that
    none of them sees.
    """
    mean = record.values.mean(2)
    places = {key: place for place, key in enumerate(record.keys or ())}
    nothing = torch.zeros_like(mean[..., 0])
    return torch.stack([mean[..., places[key]] if key in places else nothing for key in ranked], -1)


def _without(keys: Tensor, removal: Removal, **where: Any) -> Edit:
    """The edit of a batch that removes ``keys[row]`` from each row."""

    def gone(values: Tensor, value: float) -> Tensor:
        mask = keys[:, None] == torch.arange(values.shape[-1])
        return values.masked_fill(mask[:, None, None].to(values.device), value)

    if removal == "values":  # a weight of 0, while the others stay as they are
        return change("weights", lambda values: gone(values, 0.0), **where)
    return MaskEdit("scores", lambda values, point, labels: gone(values, -torch.inf), **where)


def _gradient_times_input(
    model: nn.Module, runner: Runner, texts: Mapping[str, Tensor]
) -> Float[Tensor, "text position"]:
    with torch.no_grad(), capture(model, what="embedding") as seen:
        runner.run(texts)
    (leaf,) = seen.last("embedding").values()
    leaf = leaf.detach().clone().requires_grad_()
    with torch.enable_grad(), intervene(model, put("embedding", leaf)):
        (gradient,) = torch.autograd.grad(runner.run(texts).sum(), leaf)
    return (gradient * leaf.detach()).sum(-1)


def rank_correlation(
    first: Float[Tensor, "*rows n"], second: Float[Tensor, "*rows n"]
) -> Float[Tensor, "*rows"]:
    """Spearman's rank correlation along the last axis, ties at their mean rank; NaN if all are
    equal or one is NaN.
    """

    def ranks(values: Tensor) -> Tensor:
        ahead = values[..., :, None]
        behind = values[..., None, :]
        rank = (ahead > behind).double().sum(-1) - (ahead < behind).double().sum(-1)
        return (
            rank.masked_fill(values.isnan(), torch.nan) / rank.square().sum(-1, keepdim=True).sqrt()
        )

    return (ranks(first) * ranks(second)).sum(-1)
