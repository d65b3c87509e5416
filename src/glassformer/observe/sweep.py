"""Activation patching and ablation over all places of a kind: what each of them carries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, product
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.errors import InputError, require_positive
from glassformer.layers.attention import is_edited
from glassformer.modes import evaluating
from glassformer.observe.capture import capture, network_of
from glassformer.observe.captured import AXES, Captured
from glassformer.observe.edits import Over, change
from glassformer.observe.hook_points import (
    AttentionPoint,
    HookPoint,
    MixturePoint,
    Selection,
    of_kind,
    select,
)
from glassformer.observe.intervene import intervene
from glassformer.observe.module_hooks import is_changed, suspended
from glassformer.observe.partial_runs import (
    Metric,
    Part,
    Runner,
    Stage,
    require_gradients,
    require_one_call,
)
from glassformer.observe.results import Result, Table, counted
from glassformer.observe.site_names import meant_site
from glassformer.progress import progress_bar

Site = Literal[
    "residual_before",
    "residual_between",
    "residual",
    "attention",
    "ffn",
    "heads",
    "experts",
    "q",
    "k",
    "v",
]
Inner = Literal["attention_input", "ffn_input", "neurons"]
SWEPT: tuple[Site | Inner, ...] = (*get_args(Site), *get_args(Inner))

Axis = Literal["layer", "head", "expert", "neuron", "position"]

_TOKENS_TOGETHER = 512
"""Layers are swept together up to as many tokens, from which on a pass takes time in proportion to
its tokens.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """The metric with each place changed.

    It prints as the places with the largest effects, of which
    :meth:`~glassformer.observe.results.Result.top` gives more.

    Args:
        values: One number for each place, the mean over texts; NaN where the sweep was interrupted.
        axes: The names of the axes of ``values``, "layer" first.
        layers: The layers on the first axis.
        clean: The metric of the clean run.
        corrupted: That of the corrupted run, in which a place is given its clean value; None of an
            ablation, in which a place of the clean run is set to 0 or to a mean.
        by_text: The values of each text, of which ``values`` are the means; one, if the metric
            gives a mean.
        unchanged_by_text: Those of the run that is changed.
        site: What was changed.
        passes: Forward passes that the sweep took, many of them of some layers and positions alone;
            None if they were not counted.
    """

    values: Float[Tensor, " layer *place"]
    axes: tuple[Axis, ...]
    layers: tuple[int, ...]
    clean: float
    corrupted: float | None = None
    by_text: Float[Tensor, " layer *place text"] | None = field(default=None, repr=False)
    unchanged_by_text: Float[Tensor, " text"] | None = field(default=None, repr=False)
    site: str | None = None
    passes: int | None = None

    @property
    def effects(self) -> Float[Tensor, " layer *place"]:
        """What the change of each place adds to the metric of the run that is changed."""
        return self.values - (self.clean if self.corrupted is None else self.corrupted)

    @property
    def effects_by_text(self) -> Float[Tensor, " layer *place text"]:
        """:attr:`effects` for each text: their spread says how sure the mean is."""
        if self.by_text is None or self.unchanged_by_text is None:
            raise InputError(
                "effects by text of an estimate",
                "an exact sweep",
                "Use patch_sweep or ablation_sweep.",
            )
        return self.by_text - self.unchanged_by_text

    @property
    def restored(self) -> Float[Tensor, " layer *place"]:
        """The share of the difference that each place restores: 0 as corrupted, 1 as clean."""
        if self.corrupted is None:
            raise InputError(
                "restored of an ablation", "a sweep with a corrupted run", "Read effects instead."
            )
        if self.clean == self.corrupted:
            raise InputError(
                got=f"restored of runs whose metric is {self.clean} in both",
                expected="runs that differ",
                fix="Read effects instead.",
            )
        return self.effects / (self.clean - self.corrupted)

    def table(self) -> Table:
        """Columns ``effect``, ``value`` (of the metric) and, if there is a corrupted run,
        ``restored``.
        """
        axes: dict[str, Sequence[int]] = {"layer": self.layers}
        axes |= dict(zip(self.axes[1:], map(range, self.values.shape[1:]), strict=True))
        columns = {"effect": self.effects, "value": self.values}
        if self.corrupted is not None and self.corrupted != self.clean:
            columns["restored"] = self.restored
        return Table(axes, columns, ("effect",))

    def about(self) -> str:
        """Site, number of places and passes; the metric of the clean and the corrupted run."""
        of = "" if self.site is None else f" of {self.site}"
        cost = ""
        if self.passes is not None:
            if self.passes < self.values.numel():
                several = " of several places"
            else:
                several = ""
            cost = f", {counted(self.passes, 'forward pass')}{several}"
        missing = int(self.values.isnan().sum())
        if missing:
            gaps = f", {counted(missing, 'place')} without a value"
        else:
            gaps = ""
        metric = f"metric {self.clean:.4g} clean"
        metric += "" if self.corrupted is None else f", {self.corrupted:.4g} corrupted"
        return (
            f"{type(self).__name__}{of}: {self.table().shape}{cost}{gaps}\n{metric}; effects on it:"
        )

    def agreement(self, other: Sweep) -> float:
        """The correlation of the effects of all places with those of another sweep over the same
        places, in [-1, 1].
        """
        fits = (
            self.axes == other.axes
            and self.layers == other.layers
            and self.values.shape == other.values.shape
        )
        if not fits:
            raise InputError(
                got=f"sweeps over {self.axes} and {other.axes}",
                expected="the same places",
                fix="Sweep the same site and layers.",
            )
        both = torch.stack([self.values.flatten(), other.values.flatten()]).double()
        found = float(torch.corrcoef(both)[0, 1])
        if not math.isfinite(found):
            raise InputError(
                got="effects without a spread, or interrupted",
                expected="different effects",
                fix="Check the metric.",
            )
        return found


def patch_sweep(
    model: Any,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    site: Site | Inner = "heads",
    by: Sequence[Axis] | None = None,
    layers: Selection | None = None,
    logits: Selection = -1,
    batch_size: int = 128,
    progress: bool | None = None,
    part: Part | None = None,
) -> Sweep:
    """Run the corrupted texts once for each place, with that place's value of the clean run.

    Each value is that of a run within :func:`~glassformer.observe.intervene.intervene` with this
    one patch, but for rounding, also where the sweep is within interventions or modules carry
    adapters. Only what a patch can change is
    computed: the layers from the patched one on, from the stored residual stream, for several
    places in one batch; and the logits of the positions that the metric reads. Places at which both
    runs agree are not run at all. Texts are run one by one and whole where modules have other
    forward hooks, and whole where interventions are in force or blocks of ``transformers`` cannot
    be skipped. The model runs in evaluation mode, whatever mode it is in.

    Args:
        model: A decoder, an encoder or an encoder-decoder of glassformer, or a decoder or an
            encoder of ``transformers``; or a ``LanguageModel``, as :func:`glassformer.load` gives
            it.
        clean: Token ids [batch, position], or the arguments of the model by name, tensors with a
            row for each text.
        corrupted: The same, of the same shapes.
        metric: See :data:`~glassformer.observe.partial_runs.Metric`; of the logits at the positions
            ``logits``.
        site: What is patched; see :func:`~glassformer.observe.capture.capture`. Of ``experts`` the
            output of an expert times its routing weight, which is 0 for tokens that did not choose
            it.
        by: The axes of places: ("layer", "head") for ``heads`` and ``q`` (of ``k`` and ``v``,
            key-value heads), ("layer", "expert") for ``experts``, ("layer", "neuron") for
            ``neurons``, ("layer", "position") for the others by default; ("layer",), or all three.
        layers: Which layers; all that have the site when None.
        logits: Positions of the logits that the metric reads.
        batch_size: Most texts in one forward pass, which bounds the memory.
        progress: Whether to show a bar, once the sweep has taken a second. None: on a terminal and
            in a notebook. Ctrl-C ends the sweep; places that are not reached are NaN.
        part: Of an encoder-decoder: "decoder" (when None), "encoder", or "cross", the decoder's
            cross-attention.

    Source: Vig et al. 2020, arXiv 2004.12265; Meng et al. 2022, arXiv 2202.05262 (activation
    patching).
    """
    model = network_of(model)
    runner = Runner(model, metric, logits, part)
    texts = prepared(clean, corrupted)
    return _finished(runner, _steps(runner, texts, site, by, layers, batch_size), site, progress)


def ablation_sweep(
    model: Any,
    texts: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    site: Site | Inner = "heads",
    by: Sequence[Axis] | None = None,
    layers: Selection | None = None,
    logits: Selection = -1,
    batch_size: int = 128,
    progress: bool | None = None,
    part: Part | None = None,
    reference: Tensor | Mapping[str, Any] | None = None,
    mean: Over = "position",
) -> Sweep:
    """Run the texts once for each place, with that place set to 0, or to its mean over reference
    texts.

    It computes as little as :func:`patch_sweep`, and its arguments and errors are the same.
    Removing an expert takes its weighted output away; the routing weights of the others stay as
    they are.

    Args:
        model: As for :func:`patch_sweep`, and so are the others.
        reference: Texts over which the mean is taken (mean ablation): a head that reads nothing in
            particular then keeps what later layers expect of it. Without padding, which the mean
            would count.
        mean: ``"position"``: for each position its own, over reference texts of the same length as
            ``texts``. ``"all"``: over the texts and their positions, of which the first may be much
            larger than the others.

    Returns:
        A sweep without a corrupted run; :attr:`Sweep.effects` is what removing each place adds to
        the metric.

    Source: Michel et al. 2019, arXiv 1905.10650 (one head at a time).
    """
    model = network_of(model)
    runner = Runner(model, metric, logits, part)
    if reference is None:
        average = None
    else:
        average = (prepared(reference)[0], mean)
    for name, mask in ({} if average is None else average[0]).items():
        whole = (
            name not in ("key_padding", "attention_mask", "real")
            or mask.dim() != 2
            or bool(mask.all())
        )
        if not whole:
            raise InputError(
                got=f"reference texts with padding, by their {name}",
                expected="no padding",
                fix="Sweep with reference texts of one length: a mean would count padding.",
            )
    if mean not in get_args(Over):
        raise InputError(
            got=f"mean = {mean!r}",
            expected="'position' or 'all'",
            fix="Choose one of these.",
        )
    steps = _steps(runner, prepared(texts), site, by, layers, batch_size, average=average)
    return _finished(runner, steps, site, progress)


def ablation_steps(
    model: nn.Module,
    texts: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    logits: Selection = -1,
    batch_size: int = 128,
    part: Part | None = None,
    order: Sequence[int] | None = None,
) -> Iterator[Sweep]:
    """:func:`ablation_sweep` over the heads, one forward pass at a time: the sweep so far, again
    after each.

    All are one object, in whose ``values`` NaN stands where no pass has been; the first has the
    clean metric alone. The model may be used for other things between two steps, which hold no
    hooks, and the sweep may be left at any of them.

    Args:
        model: As for :func:`ablation_sweep`, and so are the others.
        order: All layers in the order in which they are swept, neighbours together; ascending when
            None.
    """
    return _steps(
        Runner(model, metric, logits, part), prepared(texts), "heads", None, None, batch_size, order
    )


def patch_steps(
    model: nn.Module,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    logits: Selection = -1,
    batch_size: int = 128,
    order: Sequence[int] | None = None,
) -> Iterator[Sweep]:
    """:func:`patch_sweep` over the residual stream by layer and position, in steps like
    :func:`ablation_steps`.
    """
    texts = prepared(clean, corrupted)
    return _steps(
        Runner(model, metric, logits, None), texts, "residual", None, None, batch_size, order
    )


Average = tuple[Mapping[str, Tensor], Over]
"""Reference texts, and what the mean is over."""


def _finished(runner: Runner, steps: Iterator[Sweep], site: str, progress: bool | None) -> Sweep:
    """The sweep after all steps, with a bar; what there is at Ctrl-C."""
    sweep = next(steps)
    done = 0
    with progress_bar(
        progress, total=sweep.values.numel(), desc=f"sweep over {site}", unit="place"
    ) as bar:
        try:
            for _ in steps:
                now = int(sweep.values.isfinite().sum())
                bar.update(now - done)
                done = now
        except KeyboardInterrupt:
            pass
    return replace(sweep, passes=runner.passes)


@torch.no_grad()
def _steps(
    runner: Runner,
    runs: Sequence[Mapping[str, Tensor]],
    site: Site | Inner,
    by: Sequence[Axis] | None,
    layers: Selection | None,
    batch_size: int,
    order: Sequence[int] | None = None,
    average: Average | None = None,
) -> Iterator[Sweep]:
    """Yield the sweep so far, again after each forward pass.

    The texts of the last run are changed: to the values of the first one if there are two, else to
    0 or to a mean.
    """
    plan = _planned(runner, runs[-1], site, by, layers, batch_size, order)
    unchanged = _unchanged_run(plan)
    source = _source_run(plan, runs, average, unchanged)
    unchanged_mean = unchanged.mean
    unchanged_by_text = unchanged.by_text
    places = _places(plan.axes, site, plan.points[plan.layers[0]], unchanged.seen)
    values = torch.full((len(plan.layers), *places), math.nan, dtype=torch.float64)
    by_text = torch.full((*values.shape, unchanged.metric.numel()), math.nan, dtype=torch.float64)
    sweep = Sweep(
        values,
        plan.axes,
        plan.layers,
        clean=source.mean,
        corrupted=unchanged_mean if len(runs) == 2 else None,
        by_text=by_text,
        unchanged_by_text=unchanged_by_text,
        site=site,
    )
    yield sweep
    for layer_group in plan.layer_groups(math.prod(places)):
        replacements = {layer: _replaced(plan, layer, unchanged, source) for layer in layer_group}
        starts: dict[Cell, int] = {}
        for layer, replacement in replacements.items():
            differing = _starts(replacement, plan.axes)
            for cell in set(product(*map(range, places))) - set(differing):
                index = (plan.layers.index(layer), *cell)
                values[index] = unchanged_mean
                by_text[index] = unchanged_by_text
            for cell, start in differing.items():
                starts[layer, *cell] = start
        for cells in _batches(starts, replacements, plan.most_copies):
            measured = _run_batch(plan, unchanged, replacements, cells, starts)
            for cell, metric in zip(cells, measured.double(), strict=True):
                index = (plan.layers.index(cell[0]), *cell[1:])
                values[index] = metric.mean()
                by_text[index] = metric
            yield sweep
    yield sweep


@dataclass(frozen=True, eq=False)
class _Plan:
    """What a sweep changes.

    Args:
        runner: The model and the metric.
        texts: The texts whose run is changed.
        site: What is changed.
        axes: The axes of places.
        points: The hook points of the site, by layer.
        layers: The layers that are swept, as the result has them.
        order: The same layers in the order in which they are swept.
        most_copies: The most copies of the texts in one forward pass.
        first_needed: The first position that must be computed; 0 if earlier keys and values cannot
            be reused.
    """

    runner: Runner
    texts: Mapping[str, Tensor]
    site: Site | Inner
    axes: tuple[Axis, ...]
    points: Mapping[int, HookPoint]
    layers: tuple[int, ...]
    order: Sequence[int]
    most_copies: int
    first_needed: int

    def layer_groups(self, places: int) -> list[tuple[int, ...]]:
        """Return the layers that are swept together, in the order in which they are; each has so
        many places.
        """
        tokens = max(math.prod(tensor.shape[:2]) for tensor in self.texts.values())
        copies = min(self.most_copies, _TOKENS_TOGETHER // tokens)
        size = max(1, copies // max(1, places))
        groups = [self.layers[start : start + size] for start in range(0, len(self.layers), size)]
        rank = {layer: index for index, layer in enumerate(self.order)}
        return sorted(groups, key=lambda group: min(rank[layer] for layer in group))


def _planned(
    runner: Runner,
    texts: Mapping[str, Tensor],
    site: Site | Inner,
    by: Sequence[Axis] | None,
    layers: Selection | None,
    batch_size: int,
    order: Sequence[int] | None,
) -> _Plan:
    """Check what is asked of a sweep, and return it as a plan."""
    require_positive(batch_size=batch_size)
    axes = _axes(site, by)
    points = runner.places(site)
    if layers is None:
        chosen = tuple(sorted(points))
    else:
        chosen = select("layers", layers, max(points) + 1)
    missing = [layer for layer in chosen if layer not in points]
    if missing:
        raise InputError(
            got=f"{site} of layers {missing}",
            expected=f"among {sorted(points)}",
            fix="Choose among these.",
        )
    if order is not None and sorted(order) != sorted(chosen):
        raise InputError(got=f"order = {order}", expected=f"all of {chosen}", fix="Name each once.")
    rows = len(next(iter(texts.values())))
    # Edits of keys, the sweep's or an outer block's, reach those of a cache.
    reads_cache = site in ("k", "v") or is_edited()
    return _Plan(
        runner=runner,
        texts=texts,
        site=site,
        axes=axes,
        points=points,
        layers=chosen,
        order=chosen if order is None else order,
        most_copies=1 if runner.alone else max(1, batch_size // rows),
        first_needed=0 if reads_cache else runner.first_needed(texts),
    )


@dataclass(frozen=True, eq=False)
class _UnchangedRun:
    """The run that is changed, as it is without a change.

    Args:
        seen: Its values of the site, its residual stream, and its keys and values where they are
            reused.
        metric: Its metric, [1, text], or [1, 1] of a metric that is a mean.
    """

    seen: Captured
    metric: Float[Tensor, "copy text"]

    @property
    def mean(self) -> float:
        """The mean of the metric."""
        return float(self.metric.double().mean())

    @property
    def by_text(self) -> Float[Tensor, " text"]:
        """The metric of each text."""
        return self.metric[0].double()


def _unchanged_run(plan: _Plan) -> _UnchangedRun:
    runner = plan.runner
    stages = ["residual_before", "residual"]
    if plan.site == "residual_between" or runner.parted:
        stages.insert(1, "residual_between")
    if plan.first_needed:
        stages += ["k", "v"]
    with capture(runner.model, what=(*_kinds(plan.site), *stages)) as seen:
        metric = runner.run(plan.texts)
    require_one_call(runner.model, seen)
    return _UnchangedRun(seen, metric)


@dataclass(frozen=True, eq=False)
class _Source:
    """Where the new values of a site are from.

    Args:
        seen: A run of other texts; None: the new values are 0.
        over: What the mean of that run is over; None: its values are taken as they are.
        mean: The mean metric of the clean run.
    """

    seen: Captured | None
    over: Over | None
    mean: float


def _source_run(
    plan: _Plan,
    runs: Sequence[Mapping[str, Tensor]],
    average: Average | None,
    unchanged: _UnchangedRun,
) -> _Source:
    runner = plan.runner
    if len(runs) == 2:
        with capture(runner.model, what=_kinds(plan.site)) as clean:
            metric = runner.run(runs[0])
        return _Source(clean, None, float(metric.double().mean()))
    if average is not None:
        texts, over = average
        with capture(runner.model, what=_kinds(plan.site)) as reference:
            runner.logits(texts)
        return _Source(reference, over, unchanged.mean)
    return _Source(None, None, unchanged.mean)


def _replaced(plan: _Plan, layer: int, unchanged: _UnchangedRun, source: _Source) -> _Replacement:
    point = plan.points[layer]
    target = _target(plan.site, point, unchanged.seen, source.seen, source.over)
    return _replacement(plan.runner, point, plan.site, plan.axes, unchanged.seen, target)


def _run_batch(
    plan: _Plan,
    unchanged: _UnchangedRun,
    replacements: Mapping[int, _Replacement],
    cells: Sequence[Cell],
    starts: Mapping[Cell, int],
) -> Float[Tensor, "copy text"]:
    """Return the metric of copies of the texts, each changed at one place."""
    start = min(plan.first_needed, *(starts[cell] for cell in cells))
    layers = sorted({cell[0] for cell in cells})
    written = {
        layer: _copies(replacements[layer], plan.axes, layer, cells, start) for layer in layers
    }
    stage = replacements[cells[0][0]].stage
    logits = _resumed(plan, unchanged.seen, written, start, stage)
    return plan.runner.measured(logits, plan.texts)


def _resumed(
    plan: _Plan,
    base: Captured,
    written: Mapping[int, _Written],
    start: int,
    stage: Stage | None,
) -> Float[Tensor, "row position class"]:
    """Return the logits of copies of the texts, from position ``start`` on, with what is written at
    each layer.

    It is written at a stage, or at the site of the only layer, whose block then runs whole.
    """
    runner = plan.runner
    texts = plan.texts
    site = plan.site
    first = min(written)
    block = runner.blocks[first]
    copies = len(written[first].mask)
    stream = base.last(stage or "residual_before")[block.name][:, start:].repeat(copies, 1, 1)
    options: dict[str, Any] = {"brief": plan.first_needed > 0}
    options["memory"] = base.last("residual")[runner.memory[-1].name] if runner.memory else None
    options["skip"] = runner.skips(texts, first, stage, base)
    if site not in ("k", "v") and start:
        keys = base.last("k")
        values = base.last("v")
        options["before"] = {
            layer: (keys[at.name], values[at.name]) for layer, at in runner.places("k").items()
        }
    if stage is not None:
        options["edits"] = [
            change(stage, each.into, modules=[runner.blocks[layer].name])
            for layer, each in written.items()
            if layer != first
        ]
        return runner.resumed(texts, first, stage, written[first].into(stream), **options)
    point = plan.points[first]
    if site == "experts":
        options["mixture"] = point.module, written[first].into
    else:
        options["edits"] = [change(site, written[first].into, modules=[point.name])]
    if not options["skip"]:
        return runner.resumed(texts, point.layer, None, None, copies=copies, **options)
    return runner.resumed(texts, point.layer, "residual_before", stream, **options)


@dataclass(frozen=True, eq=False)
class _Replacement:
    """What a sweep writes at one layer. Values are written, not reached by adding a difference,
    whose rounding a following norm would amplify.

    Args:
        stage: Where the residual stream holds what the site adds to it; None: the site itself is
            replaced, in a run of the whole block.
        values: The new values, one alternative for each head or expert of a stage; one for all
            places otherwise. The axes of an alternative are ``names`` and, last, the numbers of a
            place.
        names: Without that last axis, "position" last.
        differs: Where the site differs, and so anything is written.
    """

    stage: Stage | None
    values: Float[Tensor, "..."]
    names: tuple[str, ...]
    differs: Bool[Tensor, "..."]


class _Written(NamedTuple):
    """What is written into several copies of the texts."""

    values: Float[Tensor, "..."]
    """[copy or 1, text, ...]"""
    mask: Bool[Tensor, "..."]
    """Where they are written, [copy, text, ..., 1]."""
    neurons: bool

    def into(self, values: Tensor) -> Tensor:
        """``values`` with what is written."""
        copies = values.unflatten(0, self.mask.shape[:2])
        if self.neurons:
            copies = copies.transpose(2, 3)[..., None]
        new = torch.where(self.mask, self.values.to(values.dtype), copies)
        return (new[..., 0].transpose(2, 3) if self.neurons else new).flatten(0, 1)


def _replacement(
    runner: Runner,
    point: HookPoint,
    site: Site | Inner,
    axes: Sequence[Axis],
    base: Captured,
    target: Tensor,
) -> _Replacement:
    """What is written where a site gets the values ``target``, which have the axes of
    :func:`_names`.
    """
    stage = _stage(runner, point, site)
    names = _names(site)[:-1]
    differs = (target != _values(site, point, base)).any(-1)
    block = runner.blocks[point.layer].name
    if site == "attention" and stage is not None:
        target = base.last("residual_before")[block] + target
    elif site == "ffn" and stage is not None:
        target = base.last("residual_between")[block] + target
    elif isinstance(point, AttentionPoint) and site == "heads" and stage is not None:
        heads = base.last(site)[point.name]
        if "head" in axes:
            alternatives = [[head] for head in range(heads.shape[1])]
        else:
            alternatives = [list(range(heads.shape[1]))]
        outputs = attention_outputs(runner, point, heads, target, alternatives)
        differs = torch.stack([differs[:, some].any(1) for some in alternatives])
        return _Replacement(
            stage, base.last("residual_before")[block] + outputs, ("batch", "position"), differs
        )
    elif isinstance(point, MixturePoint):
        mixtures = _mixtures(point, base, target)
        differs = differs.transpose(0, 1)
        if "expert" not in axes:
            mixtures = target.sum(1)[None]
            differs = differs.any(0, keepdim=True)
        if stage is None:
            values = mixtures
        else:
            values = base.last("residual_between")[block] + mixtures
        return _Replacement(stage, values, ("batch", "position"), differs)
    return _Replacement(stage, target[None], names, differs[None])


def attention_outputs(
    runner: Runner,
    point: AttentionPoint,
    heads: Tensor,
    target: Tensor,
    alternatives: Sequence[list[int]],
) -> Float[Tensor, "alternative batch position dim"]:
    """The output of an attention with some heads as in ``target``, for each alternative."""
    outputs = []
    assert point.out_proj is not None
    with evaluating(point.out_proj), suspended():
        for some in alternatives:
            changed = heads.clone()
            changed[:, some] = target[:, some]
            outputs.append(point.out_proj(changed.transpose(1, 2).flatten(2)))
    return torch.stack(outputs)


def _mixtures(
    point: MixturePoint, base: Captured, target: Tensor
) -> Float[Tensor, "expert batch position dim"]:
    """The output of a mixture with the weighted output of each expert as in ``target``."""
    choices, shares, outputs = (base.last(kind)[point.name] for kind in _kinds("experts"))
    weighted = shares[..., None] * outputs
    others = [
        weighted.masked_fill((choices == expert)[..., None], 0).sum(2)
        for expert in range(point.experts)
    ]
    return torch.stack(others) + target.transpose(0, 1)


def _stage(runner: Runner, point: HookPoint, site: Site | Inner) -> Stage | None:
    """Where the residual stream of a block holds what a site adds to it; None if the site itself
    must be edited: then the block runs with whatever changes what the site adds.
    """
    block = runner.blocks[point.layer]
    if site in ("residual_before", "residual"):
        return site
    inside = ("q", "k", "v", "attention_input", "ffn_input", "neurons")
    if not block.pre_norm or not runner.parted or site in inside:
        return None
    if site == "residual_between":
        return site
    if is_changed(block.module, "output"):
        return None
    if isinstance(point, MixturePoint):
        changed = point.post_norm or is_changed(point.module, "output")
        return None if changed else "residual"
    if not isinstance(point, AttentionPoint):
        return "residual"
    attentions = of_kind(runner.points, AttentionPoint)
    several = sum(attention.block is block.module for attention in attentions) > 1
    if several or is_changed(block.between, "first input"):
        return None
    if site == "attention":
        return "residual_between"
    changed = is_changed(point.out_proj, "output") or is_changed(point.residual_writer, "output")
    return None if point.post_norm or changed else "residual_between"


Cell = tuple[int, ...]
"""A place within a layer: an index on each further axis."""


def _starts(replacement: _Replacement, axes: Sequence[Axis]) -> dict[Cell, int]:
    """The first position that differs, for each place at which anything differs."""
    differs = replacement.differs.any(1)  # of some text
    names = [name for name in replacement.names if name != "batch"]
    found: dict[Cell, int] = {}
    for alternative, *place in sorted(differs.nonzero().tolist(), key=lambda each: each[-1]):
        index = dict(zip(names, place, strict=True))
        found.setdefault(tuple(index.get(axis, alternative) for axis in axes[1:]), place[-1])
    return found


def _copies(
    replacement: _Replacement, axes: Sequence[Axis], layer: int, cells: Sequence[Cell], start: int
) -> _Written:
    """What is written at a layer into copies of the texts, one for each place; nothing into those
    of other layers.
    """
    names = replacement.names
    masks: list[Tensor] = []
    alternatives: list[int] = []
    for cell in cells:
        place: dict[str, int] = dict(zip(axes[1:], cell[1:], strict=True))
        alternative = 0
        for axis in ("head", "expert"):
            if axis in place and axis not in names:
                alternative = place.pop(axis)
        index: list[Any] = [place[name] if name in place else slice(None) for name in names]
        mask = torch.zeros_like(replacement.differs[alternative])
        if cell[0] == layer:
            mask[tuple(index)] = replacement.differs[alternative][tuple(index)]
        masks.append(mask[..., start:, None])
        alternatives.append(alternative)
    if len(replacement.values) == 1:
        values = replacement.values
    else:
        values = replacement.values[alternatives]
    return _Written(values[..., start:, :], torch.stack(masks), replacement.names[1] == "neuron")


def _batches(
    starts: Mapping[Cell, int], replacements: Mapping[int, _Replacement], most: int
) -> Iterator[list[Cell]]:
    """Yield places that are run together, at most ``most``, each with its layer.

    Their first positions lie in the same quarter of the text. They are of one layer, unless their
    layers have the same stage.
    """

    def kind(cell: Cell) -> tuple[str, int]:
        replacement = replacements[cell[0]]
        length = replacement.differs.shape[-1]
        return replacement.stage or f"layer {cell[0]}", 4 * starts[cell] // length

    for _, group in groupby(sorted(starts, key=kind), key=kind):
        cells = list(group)
        for first in range(0, len(cells), most):
            yield cells[first : first + most]


def _kinds(site: Site | Inner) -> tuple[str, ...]:
    if site == "experts":
        return ("choices", "shares", "experts")
    return (site,)


def _target(
    site: Site | Inner,
    point: HookPoint,
    base: Captured,
    ours: Captured | None,
    over: Over | None = None,
) -> Tensor:
    """The clean values of a site, their mean, or zeros, with the axes of :func:`_names`.

    Of experts, what each of them adds to the residual stream.
    """
    values = _values(site, point, base)
    if ours is None:
        return torch.zeros_like(values)
    theirs = _values(site, point, ours)
    if over is None:
        return theirs
    across = _names(site).index("position")
    length = values.shape[across]
    was = theirs.shape[across]
    if over != "all" and length != was:
        raise InputError(
            got=f"a mean for each of {length} positions, from reference texts of {was}",
            expected="texts of equal length",
            fix="Use such texts, or mean='all'.",
        )
    wide = torch.promote_types(values.dtype, torch.float32)
    mean = theirs.to(wide).mean(0 if over == "position" else (0, across), keepdim=True)
    return mean.to(values.dtype).expand_as(values)


def _values(site: Site | Inner, point: HookPoint, seen: Captured) -> Tensor:
    if site == "neurons":
        return seen.last(site)[point.name].transpose(1, 2)[..., None]
    if not isinstance(point, MixturePoint):
        return seen.last(site)[point.name]
    choices, shares, made = (seen.last(kind)[point.name] for kind in _kinds(site))
    each = [((choices == expert) * shares)[..., None] * made for expert in range(point.experts)]
    return torch.stack([mixed.sum(2) for mixed in each], 1).to(made.dtype)


def _names(site: Site | Inner) -> tuple[str, ...]:
    """The names of the axes of :func:`_values`."""
    if site == "experts":
        return ("batch", "expert", "position", "dim")
    if site == "neurons":
        return ("batch", "neuron", "position", "dim")
    return tuple("position" if name in ("query", "key") else name for name in AXES[site])


def _places(
    axes: Sequence[Axis], site: Site | Inner, point: HookPoint, seen: Captured
) -> tuple[int, ...]:
    """The number of places on each axis after the layer."""
    shape = dict(zip(_names(site), _values(site, point, seen).shape, strict=True))
    return tuple(shape[axis] for axis in axes[1:])


def _axes(site: Site | Inner, by: Sequence[Axis] | None) -> tuple[Axis, ...]:
    if site not in SWEPT:
        raise InputError(f"site = {site!r}", f"one of {', '.join(SWEPT)}", meant_site(site, SWEPT))
    known = (
        "layer",
        *(name for name in _names(site) if name in ("head", "expert", "neuron", "position")),
    )
    axes = tuple(by) if by is not None else known[:2]
    fits = axes[:1] == ("layer",) and list(axes) == [axis for axis in known if axis in axes]
    if not fits:
        raise InputError(
            got=f"by = {axes} for {site}",
            expected=f"layer first, then some of {known[1:]}",
            fix="Choose among these.",
        )
    return axes  # type: ignore[return-value]


def attribution_sweep(
    model: Any,
    clean: Tensor | Mapping[str, Any] | None,
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    site: Site | Inner = "heads",
    by: Sequence[Axis] | None = None,
    logits: Selection = -1,
    steps: int = 1,
    part: Part | None = None,
) -> Sweep:
    """An estimate of :func:`patch_sweep` from gradients, for all places at once: attribution
    patching::

        value = corrupted metric + sum over the place of  (clean - corrupted) * d metric / d
        corrupted

    It costs two forward passes (one for an ablation) and a backward pass. With ``steps`` above 1
    the gradient is the mean over as many runs between the two texts, whose embeddings are
    interpolated (integrated gradients): better where the metric saturates.
    How good the estimate is depends on the model: :meth:`Sweep.agreement` compares it with an exact
    sweep.

    Args:
        model: As for :func:`patch_sweep`, and so are the others.
        clean: None: values of 0, an estimate of :func:`ablation_sweep` of ``corrupted``, from one
            run and its backward pass.
        steps: Runs with a backward pass; 1 without clean texts.

    Raises:
        InputError: As for :func:`patch_sweep`; and a metric without a gradient, such as the number
            of right answers.

    Source: Nanda 2023, "Attribution Patching"; Syed et al. 2023, arXiv 2310.10348; Hanna et al.
    2024, arXiv 2403.17806 (integrated gradients over the embeddings).
    """
    model = network_of(model)
    require_gradients()
    require_positive(steps=steps)
    if clean is None and steps != 1:
        raise InputError(
            got=f"steps = {steps} without clean texts",
            expected="1",
            fix="Pass clean texts.",
        )
    axes = _axes(site, by)
    given = prepared(*([] if clean is None else [clean]), corrupted)
    runner = Runner(model, metric, logits, part)
    points = runner.places(site)
    target = "ffn" if site == "experts" else site
    for mixture in of_kind(points.values(), MixturePoint):
        changed = mixture.post_norm or is_changed(mixture.module, "output")
        if changed:
            raise InputError(
                got=(
                    f"an estimate for the experts of {mixture.name}, whose sum is normalised or "
                    "changed before it is added"
                ),
                expected="experts that are added as they are",
                fix="Use patch_sweep(), or the site ffn.",
            )
    ours: Captured | None = None
    ends: dict[Any, Any] = {None: None}
    if clean is not None:
        with torch.no_grad(), capture(model, what=(*_kinds(site), "embedding")) as ours:
            best = runner.run(given[0])
        ends = ours.last("embedding")
    if steps > 1:
        with torch.no_grad(), capture(model, what=_kinds(site)) as theirs:
            worst = runner.run(given[1])
    means: dict[str, Tensor] = {}
    for step in range(steps):
        leaves: list[Tensor] = []
        along = (step + 0.5) / steps if steps > 1 else 0.0
        edits = [
            change(
                "embedding",
                partial(_interpolated, leaves, end, along),
                modules=None if name is None else [name],
            )
            for name, end in ends.items()
        ]
        if is_edited() or runner.alone:  # which may cut the stream off from the embeddings
            edits.append(
                change(
                    target,
                    partial(_started, leaves),
                    modules=[point.name for point in points.values()],
                )
            )
        with torch.enable_grad(), intervene(model, *edits):
            with capture(model, what=(*_kinds(site), target), retain_grad=True) as seen:
                values = runner.differentiated(given[-1], leaves)
            require_one_call(model, seen)
        for point in points.values():
            record = seen.of(target)[point.name][-1]
            if record.grad is None:
                gradient = torch.zeros_like(record.values)
            else:
                gradient = record.grad
            means[point.name] = means.get(point.name, 0) + gradient / steps
    if steps == 1:
        theirs = seen
        worst = values
    best = worst if clean is None else best
    rows = []
    for _, point in sorted(points.items()):
        if site == "experts":
            gradient = means[point.name][:, None]
        else:
            gradient = means[point.name]
        if site == "neurons":
            gradient = gradient.transpose(1, 2)[..., None]
        else:
            gradient = gradient
        difference = (
            _target(site, point, theirs, ours).double() - _values(site, point, theirs).double()
        )
        flow = difference * gradient.double()
        rows.append(flow.sum([at for at, name in enumerate(_names(site)) if name not in axes]))
    expected = float(worst.double().mean())
    found = torch.stack(rows).detach() + expected
    layers = tuple(sorted(points))
    before = None if clean is None else expected
    return Sweep(
        found, axes, layers, float(best.double().mean()), before, site=site, passes=runner.passes
    )


def _interpolated(leaves: list[Tensor], end: Tensor | None, along: float, start: Tensor) -> Tensor:
    start = start.detach()
    leaves.append((start if end is None else torch.lerp(start, end, along)).requires_grad_())
    return leaves[-1]


def _started(leaves: list[Tensor], values: Tensor) -> Tensor:
    """``values``, whose gradient is computed too, whether or not the embeddings reach them."""
    if values.requires_grad:
        values = values
    else:
        values = values.detach().requires_grad_()
    leaves.append(values)
    return values


def prepared(*runs: Tensor | Mapping[str, Any]) -> list[Mapping[str, Tensor]]:
    """The texts of each run as named tensors, of equal shapes."""
    given = [texts if isinstance(texts, Mapping) else {"": texts} for texts in runs]
    for name, each in (pair for texts in given for pair in texts.items()):
        fits = isinstance(each, Tensor) and each.dim() >= 2
        got = f"{name or 'texts'} of {list(each.shape) if isinstance(each, Tensor) else type(each).__name__}"
        if not fits:
            raise InputError(
                got=got,
                expected="a tensor with a row for each text",
                fix="Pass token ids [batch, position], and masks.",
            )
    shapes = [{name: tuple(each.shape) for name, each in texts.items()} for texts in given]
    same = all(shape == shapes[0] for shape in shapes)
    if not same:
        raise InputError(
            got=f"texts of {' and '.join(map(str, shapes))}",
            expected="equal shapes",
            fix="Use texts of equal length.",
        )
    for name in (
        ("key_padding", "attention_mask") if not any("decoder" in each for each in given[0]) else ()
    ):
        same = all(name not in texts or torch.equal(texts[name], given[0][name]) for texts in given)
        got = f"clean and corrupted texts with other padding, by their {name}"
        if not same:
            raise InputError(
                got=got,
                expected="the same padding in each pair",
                fix="Pair texts of equal length.",
            )
    return given
