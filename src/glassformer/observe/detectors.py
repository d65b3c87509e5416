"""Score heads by what they attend to, and measure whether attention weights rank causes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.modes import evaluating
from glassformer.observe.capture import capture, find_hook_points, network_of
from glassformer.observe.captured import Record
from glassformer.observe.edits import Edit, MaskEdit, change, put
from glassformer.observe.hook_points import AttentionPoint, Selection, of_kind, select
from glassformer.observe.intervene import intervene, repeating
from glassformer.observe.module_hooks import ForwardEnded, Phase, scope
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
    """The mean attention of each head to some kinds of keys, in [0, 1].

    NaN if no query has such a key before it. A key outside the window counts as 0.

    Args:
        previous: Attention to the token before the query.
        duplicate: Attention to the earlier occurrence of the query's token.
        induction: Attention to the token after the earlier occurrence of the query's token, which
            is the one that comes next.
        sink: Attention to the sink and to the first token together.
    """

    previous: Float[Tensor, "layer head"]
    duplicate: Float[Tensor, "layer head"]
    induction: Float[Tensor, "layer head"]
    sink: Float[Tensor, "layer head"]

    def table(self) -> Table:
        """Return a column for each kind of key."""
        layers, heads = map(range, self.previous.shape)
        kinds = tuple(self.__dataclass_fields__)
        return Table(
            {"layer": layers, "head": heads}, {kind: getattr(self, kind) for kind in kinds}, kinds
        )

    def top(self, kind: str, count: int = 5) -> Places:  # type: ignore[override]  # a kind has to be named
        """Return the heads with the highest score: layer, head, value."""
        return super().top(count, kind)


def repeated_tokens(
    vocab_size: int, half: int, rows: int = 8, *, seed: int = 0, first: int | None = None
) -> Int[Tensor, "row position"]:
    """Return rows of random tokens, each of which is repeated once.

    The tokens of a half are different. With ``first``, each row begins with that token, which may
    also be one of the others.
    """
    require_positive(half=half, rows=rows, vocab_size=vocab_size)
    if first is not None:
        is_integer = isinstance(first, int) and not isinstance(first, bool)
        if not is_integer or not 0 <= first < vocab_size:
            raise InputError(
                got=f"first = {first!r}",
                expected=f"a whole number from 0 to {vocab_size - 1}",
                fix="Pass the token that texts of the model begin with.",
            )
    if half > vocab_size:
        raise InputError(
            got=f"half = {half} of {vocab_size} tokens",
            expected="at most as many",
            fix="Shorten the half.",
        )
    generator = torch.Generator().manual_seed(seed)
    halves = torch.stack(
        [torch.randperm(vocab_size, generator=generator)[:half] for _ in range(rows)]
    )
    tokens = torch.cat([halves, halves], 1)
    if first is None:
        return tokens
    return torch.cat([torch.full((rows, 1), first), tokens], 1)


Texts = Int[Tensor, "row position"] | Mapping[str, Tensor]


@torch.no_grad()
def head_scores(model: Any, texts: Texts | Iterable[Texts]) -> HeadScores:
    """Return the scores of every self-attention head of a model on texts in which tokens return.

    A query counts for ``duplicate`` and ``induction`` if its token occurs once before it. For
    ``induction`` the token after that occurrence must come before the query too. The weights of one
    attention are in memory at a time. The model runs in evaluation mode.

    Args:
        model: A decoder, of glassformer or of ``transformers``, or a ``LanguageModel``.
        texts: A batch of texts of equal length, as from :func:`repeated_tokens`; or the arguments
            of the model by name, whose mask tells which tokens are real; or many batches of these,
            of any lengths. On any device.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895,
    appendix.
    """
    model = network_of(model)
    points = [
        point for point in of_kind(find_hook_points(model), AttentionPoint) if not point.cross
    ]
    if any(point.source for point in points):
        raise InputError(
            got=f"{type(model).__name__}, which has two stacks",
            expected="a model with one stack of layers",
            fix="Use capture(), which takes any model.",
        )
    require_every_layer(model, [point.layer for point in points])
    require_one_place(model, points)
    sums = _AttentionSums(points)
    batches = [texts] if isinstance(texts, Tensor | Mapping) else texts
    for batch in batches:
        arguments = dict(batch) if isinstance(batch, Mapping) else {"": batch}
        tokens = _tokens_of(arguments, batch)
        require_positions(model, arguments)
        sums.add(model, arguments, tokens)
    return sums.scores()


def _tokens_of(arguments: Mapping[str, Any], batch: Any) -> Int[Tensor, "row position"]:
    """Return the tokens among the arguments of a model."""
    names = [name for name in ("", "input_ids", "tokens") if name in arguments]
    tokens = arguments[names[0]] if names else None
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        raise InputError(
            got=f"texts of type {type(batch).__name__}",
            expected="token ids [row, position], or the model's arguments",
            fix="Pass a batch of texts.",
        )
    return tokens


class _AttentionSums:
    """The sums of attention to each kind of key, over the batches so far."""

    def __init__(self, points: Sequence[AttentionPoint]) -> None:
        self._points = points
        self._sums: dict[str, dict[str, Tensor]] = {}
        """Sums of each head by kind of key, then by hook point."""
        self._counts: dict[str, int] = {}
        """Number of queries with a key of each kind."""

    def add(self, model: nn.Module, arguments: Mapping[str, Any], tokens: Tensor) -> None:
        """Run a batch up to its last attention, and add its weights."""
        real = torch.ones_like(tokens, dtype=torch.bool)
        for name in ("key_padding", "attention_mask"):
            if arguments.get(name) is not None:
                real = arguments[name].bool()
        masks = _kinds_of_keys(tokens, real)
        for kind, mask in masks.items():
            self._counts[kind] = self._counts.get(kind, 0) + int(mask.any(-1).sum())
        missing = set(self._points)

        def reduce(point: AttentionPoint, output: Tensor, _: Any) -> None:
            self._add_weights(point.name, seen.records.pop().values, masks)
            missing.discard(point)
            if not missing:  # the layers after the last attention are not needed
                raise ForwardEnded

        with evaluating(model), scope() as hooks, capture(model) as seen:
            for point in self._points:
                hooks.insert(point.module, "output", partial(reduce, point), Phase.READ)
            device = next(model.parameters(), tokens).device
            on_device = {
                name: value.to(device) if isinstance(value, Tensor) else value
                for name, value in arguments.items()
            }
            positional = [on_device.pop("")] if "" in on_device else []
            with suppress(ForwardEnded):
                model(*positional, **on_device)

    def _add_weights(self, name: str, weights: Tensor, masks: Mapping[str, Tensor]) -> None:
        """Add the weights of one attention."""
        for kind, mask in masks.items():
            mask = mask.to(weights.device)
            attention = (weights * mask[:, None]).sum(-1)
            if kind == "sink":
                attention = attention + (1 - weights.sum(-1)) * mask.any(-1)[:, None]
            sums = self._sums.setdefault(kind, {})
            sums[name] = sums.get(name, 0) + attention.sum((0, 2))

    def scores(self) -> HeadScores:
        """Return the means; refuse that there was no batch."""
        if not self._sums:
            raise InputError(
                got="no texts",
                expected="one batch or more",
                fix="Pass token ids.",
            )
        means: dict[str, Tensor] = {}
        for kind, by_point in self._sums.items():
            of_heads = torch.stack([by_point[point.name] for point in self._points])
            means[kind] = of_heads / (self._counts[kind] or math.nan)
        return HeadScores(**means)


def _kinds_of_keys(tokens: Tensor, real: Tensor) -> dict[str, Bool[Tensor, "row query key"]]:
    """Return the keys that each score counts for each query."""
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
    """Attention weights, and the effect of removing each key on a metric.

    Args:
        layers: The layers on the axis "layer" of ``weights``.
        keys: The positions on all axes called key.
        weights: The weights of the chosen query, or the mean over all queries.
        effects: The metric minus the metric with the key removed, in each head alone or in all
            heads at once. In the second case layer and head are axes of length 1.
        gradients: Gradient of the metric times input, for the embedding of each key.
    """

    layers: tuple[int, ...]
    keys: tuple[int, ...]
    weights: Float[Tensor, "text layer head key"]
    effects: Float[Tensor, "text layers heads key"]
    gradients: Float[Tensor, "text key"]

    def table(self) -> Table:
        """Return the mean effect of removing each key, in each head if heads were removed alone."""
        effects = self.effects.mean(0)
        if effects.shape[:2] == (1, 1):
            return Table({"key": self.keys}, {"effect": effects[0, 0]}, ("effect",))
        axes = {"layer": self.layers, "head": range(effects.shape[1]), "key": self.keys}
        return Table(axes, {"effect": effects, "weight": self.weights.mean(0)}, ("effect",))

    def about(self) -> str:
        """Return the numbers of texts and places."""
        texts = counted(len(self.weights), "text")
        return f"{super().about()}, mean of {texts}\neffect of removing a key:"

    @property
    def of_heads(self) -> Float[Tensor, "text layer head"]:
        """Rank correlation of each head's weights with the sizes of the effects, for each text."""
        return rank_correlation(self.weights, self.effects.abs().expand_as(self.weights))

    @property
    def of_mean(self) -> Float[Tensor, " text"]:
        """Rank correlation of all heads' mean weights with the mean effects, for each text."""
        return rank_correlation(self.weights.mean((1, 2)), self.effects.mean((1, 2)).abs())

    @property
    def of_gradients(self) -> Float[Tensor, " text"]:
        """Rank correlation of gradient times input with the mean effects, for each text."""
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
    """Compare attention weights with the effects of removing keys.

    Args:
        model: A decoder, or an encoder with a classifier, of glassformer or ``transformers``, or a
            ``LanguageModel``.
        texts: Token ids of equal length, without padding; or the arguments of the model by name,
            tensors with a row for each text.
        metric: From logits [text, position, class] to one number for each text; a classifier has
            one position.
        removal: "edges" forbids the query to attend to the key, and other keys get its weight;
            "values" sets the key's value to 0, and other keys keep their weights.
        query: The query whose attention is compared, and for which keys are removed. None: all
            queries, and the mean over them.
        keys: The positions that are ranked, such as those of words; all when None.
        layers: The layers whose attention is compared, and in which edges or values are removed;
            all when None.
        by_head: Remove keys in each head alone, with a forward pass for each key and head instead
            of one for each key.
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
    arguments = texts if isinstance(texts, Mapping) else {"": texts}
    _check_without_padding(arguments)
    runner = Runner(model, metric, logits)
    count, length = next(iter(arguments.values())).shape[:2]
    attentions = [point for point in of_kind(runner.points, AttentionPoint) if not point.cross]
    chosen = select("layers", layers, max(point.layer for point in attentions) + 1)
    points = [point for point in attentions if point.layer in chosen]
    ranked = select("keys", keys, length)
    if len(ranked) < 2:
        raise InputError(
            got=f"the keys {ranked}",
            expected="at least two",
            fix="A single key has no rank.",
        )
    queries = None if query is None else select("query", query, length)
    selections: list[dict[str, Any]] = [{"layers": chosen, "heads": None}]
    if by_head:
        selections = []
        for point in points:
            selections += [{"layers": point.layer, "heads": head} for head in range(point.heads)]
    with torch.no_grad():
        with capture(model, layers=chosen, queries=queries) as seen:
            clean = runner.run(arguments)
        if clean.shape != (1, count):
            raise InputError(
                got=f"a metric of shape {list(clean.shape[1:])}",
                expected=f"[{count}]",
                fix="Give one number for each text.",
            )
        most_copies = 1 if runner.alone else max(1, batch_size // count)
        changed: list[Tensor] = []
        for selection in selections:
            for batch in torch.tensor(ranked).split(most_copies):
                keys_of_rows = batch.repeat_interleave(count)
                edit = _without(keys_of_rows, removal, queries=queries, **selection)
                with repeating(len(batch)), intervene(model, edit):
                    changed.append(runner.run(arguments, len(batch)))
    shape = (len(points), -1) if by_head else (1, 1)
    effects = clean - torch.cat(changed).view(*shape, len(ranked), count)
    records = seen.of("weights")
    weights = torch.stack([_at_keys(records[point.name][-1], ranked) for point in points], 1)
    gradients = _gradient_times_input(model, runner, arguments)[:, list(ranked)]
    return Faithfulness(
        tuple(point.layer for point in points),
        ranked,
        weights,
        effects.permute(3, 0, 1, 2),
        gradients,
    )


def _check_without_padding(arguments: Mapping[str, Tensor]) -> None:
    """Refuse texts with padding."""
    for name in ("real", "key_padding", "attention_mask"):
        if name in arguments and not bool(arguments[name].all()):
            raise InputError(
                got=f"padding by {name}",
                expected="texts of equal length",
                fix="Call once for each length.",
            )


def _at_keys(record: Record, keys: Sequence[int]) -> Float[Tensor, "text head key"]:
    """Return the mean weight of each of these keys over the queries; 0 for keys that none sees."""
    mean = record.values.mean(2)
    index = {key: place for place, key in enumerate(record.keys or ())}
    zeros = torch.zeros_like(mean[..., 0])
    return torch.stack([mean[..., index[key]] if key in index else zeros for key in keys], -1)


def _without(keys: Tensor, removal: Removal, **where: Any) -> Edit:
    """Return the edit of a batch that removes ``keys[row]`` from each row."""

    def filled(values: Tensor, value: float) -> Tensor:
        mask = keys[:, None] == torch.arange(values.shape[-1])
        return values.masked_fill(mask[:, None, None].to(values.device), value)

    if removal == "values":  # a weight of 0, while other keys keep their weights
        return change("weights", lambda values: filled(values, 0.0), **where)
    return MaskEdit("scores", lambda values, point, labels: filled(values, -torch.inf), **where)


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
    """Return Spearman's rank correlation along the last axis, ties at their mean rank.

    NaN if all numbers are equal or one is NaN.
    """

    def ranks(values: Tensor) -> Tensor:
        left = values[..., :, None]
        right = values[..., None, :]
        rank = (left > right).double().sum(-1) - (left < right).double().sum(-1)
        norm = rank.square().sum(-1, keepdim=True).sqrt()
        return rank.masked_fill(values.isnan(), torch.nan) / norm

    return (ranks(first) * ranks(second)).sum(-1)
