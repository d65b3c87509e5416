"""Activation patching and ablation of all places of a kind, and their effects on a metric."""

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
from glassformer.observe.captured import AXES, Captured, Record
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
"""Most tokens for which layers are swept together; beyond, a pass's time grows with them."""


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
        corrupted: The metric of the corrupted run, in which places get their clean value; None for
            an ablation, in which places of the clean run are set to 0 or to a mean.
        by_text: The metric for each text, of which ``values`` are the means; one number if the
            metric is a mean.
        unchanged_by_text: The metric of the run without a change, for each text.
        site: The site that was changed.
        passes: Number of forward passes, many of them of some layers and positions alone; None if
            they were not counted.
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
        """Difference that the change of each place makes to the metric."""
        unchanged = self.clean if self.corrupted is None else self.corrupted
        return self.values - unchanged

    @property
    def effects_by_text(self) -> Float[Tensor, " layer *place text"]:
        """:attr:`effects` for each text; their spread shows how certain the mean is."""
        if self.by_text is None or self.unchanged_by_text is None:
            raise InputError(
                got="effects by text of an estimate",
                expected="an exact sweep",
                fix="Use patch_sweep or ablation_sweep.",
            )
        return self.by_text - self.unchanged_by_text

    @property
    def restored(self) -> Float[Tensor, " layer *place"]:
        """The share of the difference that each place restores: 0 as corrupted, 1 as clean."""
        if self.corrupted is None:
            raise InputError(
                got="restored of an ablation",
                expected="a sweep with a corrupted run",
                fix="Read effects instead.",
            )
        if self.clean == self.corrupted:
            raise InputError(
                got=f"restored of runs whose metric is {self.clean} in both",
                expected="runs that differ",
                fix="Read effects instead.",
            )
        return self.effects / (self.clean - self.corrupted)

    def table(self) -> Table:
        """Return columns ``effect``, ``value`` (metric) and, with a corrupted run, ``restored``."""
        axes: dict[str, Sequence[int]] = {"layer": self.layers}
        axes |= dict(zip(self.axes[1:], map(range, self.values.shape[1:]), strict=True))
        columns = {"effect": self.effects, "value": self.values}
        if self.corrupted is not None and self.corrupted != self.clean:
            columns["restored"] = self.restored
        return Table(axes, columns, ("effect",))

    def about(self) -> str:
        """Return site, number of places and passes, and the metric of clean and corrupted run."""
        title = type(self).__name__
        if self.site is not None:
            title += f" of {self.site}"
        title += f": {self.table().shape}"
        if self.passes is not None:
            title += f", {counted(self.passes, 'forward pass')}"
            if self.passes < self.values.numel():
                title += " of several places"
        num_missing = int(self.values.isnan().sum())
        if num_missing:
            title += f", {counted(num_missing, 'place')} without a value"
        metric = f"metric {self.clean:.4g} clean"
        if self.corrupted is not None:
            metric += f", {self.corrupted:.4g} corrupted"
        return f"{title}\n{metric}; effects on it:"

    def agreement(self, other: Sweep) -> float:
        """Return the correlation, in [-1, 1], of the effects with those of another sweep."""
        same_places = self.axes == other.axes and self.layers == other.layers
        if not same_places or self.values.shape != other.values.shape:
            raise InputError(
                got=f"sweeps over {self.axes} and {other.axes}",
                expected="the same places",
                fix="Sweep the same site and layers.",
            )
        both = torch.stack([self.values.flatten(), other.values.flatten()]).double()
        correlation = float(torch.corrcoef(both)[0, 1])
        if not math.isfinite(correlation):
            raise InputError(
                got="effects without a spread, or interrupted",
                expected="different effects",
                fix="Check the metric.",
            )
        return correlation


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

    Each value equals, but for rounding, that of a run within
    :func:`~glassformer.observe.intervene.intervene` with this one patch. This also holds within
    interventions, and for modules with adapters.

    Only values that a patch can change are computed: the layers from the patched one on, from the
    stored residual stream, for several places in one batch; and the logits of the positions that
    the metric reads. Places at which both runs agree are not run at all. If modules have other
    forward hooks, texts are run one by one and whole. Within interventions, and if blocks of
    ``transformers`` cannot be skipped, they are run whole. The model runs in evaluation mode.

    Args:
        model: A decoder, an encoder or an encoder-decoder of glassformer, or a decoder or an
            encoder of ``transformers``; or the ``LanguageModel`` that :func:`glassformer.load`
            returns.
        clean: Token ids [batch, position], or the arguments of the model by name, tensors with a
            row for each text.
        corrupted: The corrupted texts, in the same form and of the same shapes.
        metric: See :data:`~glassformer.observe.partial_runs.Metric`; reads the logits at the
            positions ``logits``.
        site: The site that is patched; see :func:`~glassformer.observe.capture.capture`. For
            ``experts`` it is the output of an expert times its routing weight, which is 0 for
            tokens that did not choose it.
        by: The axes of places. By default they are ("layer", "head") for ``heads``, ``q``, ``k``
            and ``v`` (key-value heads for the last two), ("layer", "expert") for ``experts``,
            ("layer", "neuron") for ``neurons`` and ("layer", "position") for other sites. Also
            ("layer",), or all three.
        layers: Layers to sweep; all that have the site when None.
        logits: Positions of the logits that the metric reads.
        batch_size: Most texts in one forward pass, which bounds the memory.
        progress: Whether to show a bar, once the sweep has taken a second. None: on a terminal and
            in a notebook. Ctrl-C ends the sweep; places that are not reached are NaN.
        part: Part of an encoder-decoder: "decoder" (when None), "encoder", or "cross", the
            decoder's cross-attention.

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
    """Run the texts once for each place, with the place set to 0 or to its mean.

    Only values that the change can reach are computed, as in :func:`patch_sweep`, which has the
    same arguments and errors. Removing an expert removes its weighted output; the routing weights
    of the others stay as they are.

    Args:
        model: As for :func:`patch_sweep`, like the other arguments.
        reference: Texts for the mean (mean ablation): a head that reads nothing in particular then
            keeps its usual output, which later layers expect. The texts must have no padding, which
            the mean would count.
        mean: ``"position"``: a mean for each position, over reference texts of the same length as
            ``texts``. ``"all"``: a mean over the texts and their positions; the first position may
            be much larger than the others.

    Returns:
        A sweep without a corrupted run; :attr:`Sweep.effects` is the change of the metric when each
        place is removed.

    Source: Michel et al. 2019, arXiv 1905.10650 (one head at a time).
    """
    model = network_of(model)
    runner = Runner(model, metric, logits, part)
    average: Average | None = None
    if reference is not None:
        reference_texts = prepared(reference)[0]
        _check_without_padding(reference_texts)
        average = (reference_texts, mean)
    if mean not in get_args(Over):
        raise InputError(
            got=f"mean = {mean!r}",
            expected="'position' or 'all'",
            fix="Choose one of these.",
        )
    steps = _steps(runner, prepared(texts), site, by, layers, batch_size, average=average)
    return _finished(runner, steps, site, progress)


def _check_without_padding(reference: Mapping[str, Tensor]) -> None:
    """Refuse reference texts with padding."""
    for name in ("key_padding", "attention_mask", "real"):
        mask = reference.get(name)
        if mask is not None and mask.dim() == 2 and not bool(mask.all()):
            raise InputError(
                got=f"reference texts with padding, by their {name}",
                expected="no padding",
                fix="Sweep with reference texts of one length: a mean would count padding.",
            )


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
    """Yield an :func:`ablation_sweep` over the heads again after each forward pass.

    All yielded sweeps are one object; its ``values`` are NaN at places that are not done yet. The
    first has the clean metric alone. Between two steps no hooks are held: the model may be used
    otherwise, and the sweep may be abandoned.

    Args:
        model: As for :func:`ablation_sweep`, like the other arguments.
        order: All layers in the order in which they are swept, neighbours together; ascending when
            None.
    """
    runner = Runner(model, metric, logits, part)
    return _steps(runner, prepared(texts), "heads", None, None, batch_size, order)


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
    """Yield a :func:`patch_sweep` of the residual stream by layer and position in steps.

    The steps are like those of :func:`ablation_steps`.
    """
    texts = prepared(clean, corrupted)
    runner = Runner(model, metric, logits, None)
    return _steps(runner, texts, "residual", None, None, batch_size, order)


Average = tuple[Mapping[str, Tensor], Over]
"""Reference texts, and the axes of the mean over them."""


def _finished(runner: Runner, steps: Iterator[Sweep], site: str, progress: bool | None) -> Sweep:
    """Return the sweep after all steps, or after those before Ctrl-C, and show a progress bar."""
    sweep = next(steps)
    num_places = sweep.values.numel()
    num_done = 0
    with progress_bar(progress, total=num_places, desc=f"sweep over {site}", unit="place") as bar:
        try:
            for _ in steps:
                num_finite = int(sweep.values.isfinite().sum())
                bar.update(num_finite - num_done)
                num_done = num_finite
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

    The texts of the last run are changed. Their new values are those of the first run if there are
    two, otherwise 0 or a mean.
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
    """The places and texts of a sweep.

    Args:
        runner: The model and the metric.
        texts: The texts whose run is changed.
        site: The site that is changed.
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
        """Return the layers that are swept together, in order, if each has so many places."""
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
    """Check the arguments of a sweep, and return them as a plan."""
    require_positive(batch_size=batch_size)
    axes = _axes(site, by)
    points = runner.places(site)
    chosen = tuple(sorted(points))
    if layers is not None:
        chosen = select("layers", layers, max(points) + 1)
    missing = [layer for layer in chosen if layer not in points]
    if missing:
        raise InputError(
            got=f"{site} of layers {missing}",
            expected=f"among {sorted(points)}",
            fix="Choose among these.",
        )
    if order is None:
        order = chosen
    if sorted(order) != sorted(chosen):
        raise InputError(got=f"order = {order}", expected=f"all of {chosen}", fix="Name each once.")
    most_copies = 1
    if not runner.alone:
        num_texts = len(next(iter(texts.values())))
        most_copies = max(1, batch_size // num_texts)
    # Edits of keys, the sweep's or an outer block's, reach those of a cache.
    reads_cache = site in ("k", "v") or is_edited()
    return _Plan(
        runner=runner,
        texts=texts,
        site=site,
        axes=axes,
        points=points,
        layers=chosen,
        order=order,
        most_copies=most_copies,
        first_needed=0 if reads_cache else runner.first_needed(texts),
    )


@dataclass(frozen=True, eq=False)
class _UnchangedRun:
    """The run of the texts without a change.

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
    """The source of the new values of a site.

    Args:
        seen: A run of other texts; None if the new values are 0.
        over: The axes of a mean over that run; None to take its values as they are.
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
    """Return the logits, from position ``start`` on, of copies of the texts with new values.

    The values of each layer are written at a stage, or at the site of the only layer, whose block
    then runs whole.
    """
    runner = plan.runner
    texts = plan.texts
    site = plan.site
    first = min(written)
    block = runner.blocks[first]
    copies = len(written[first].mask)
    stream = base.last(stage or "residual_before")[block.name][:, start:].repeat(copies, 1, 1)
    options: dict[str, Any] = {"brief": plan.first_needed > 0}
    if runner.memory:
        options["memory"] = base.last("residual")[runner.memory[-1].name]
    options["skip"] = runner.skips(texts, first, stage, base)
    if site not in ("k", "v") and start:
        keys = base.last("k")
        values = base.last("v")
        options["before"] = {
            layer: (keys[attention.name], values[attention.name])
            for layer, attention in runner.places("k").items()
        }
    if stage is not None:
        options["edits"] = [
            change(stage, of_layer.into, modules=[runner.blocks[layer].name])
            for layer, of_layer in written.items()
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
    """The new values of a site at one layer.

    Values are written; a following norm would amplify the rounding of an added difference.

    Args:
        stage: The stage of the residual stream that includes the site's output; None if the site
            itself is replaced, in a run of the whole block.
        values: The new values, one alternative for each head or expert of a stage; otherwise one
            for all places. The axes of an alternative are ``names`` and, last, the numbers of a
            place.
        names: The names of these axes without the last one; "position" is the last.
        differs: True where the site differs, and so values are written.
    """

    stage: Stage | None
    values: Float[Tensor, "..."]
    names: tuple[str, ...]
    differs: Bool[Tensor, "..."]


class _Written(NamedTuple):
    """The new values of several copies of the texts."""

    values: Float[Tensor, "..."]
    """[copy or 1, text, ...]"""
    mask: Bool[Tensor, "..."]
    """True where they are written, [copy, text, ..., 1]."""
    neurons: bool

    def into(self, values: Tensor) -> Tensor:
        """Return ``values`` with the new values written."""
        copies = values.unflatten(0, self.mask.shape[:2])
        if self.neurons:
            copies = copies.transpose(2, 3)[..., None]
        new = torch.where(self.mask, self.values.to(values.dtype), copies)
        if self.neurons:
            new = new[..., 0].transpose(2, 3)
        return new.flatten(0, 1)


def _replacement(
    runner: Runner,
    point: HookPoint,
    site: Site | Inner,
    axes: Sequence[Axis],
    base: Captured,
    target: Tensor,
) -> _Replacement:
    """Return the replacement that gives a site new values, as from :func:`_target`."""
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
        alternatives = [list(range(heads.shape[1]))]
        if "head" in axes:
            alternatives = [[head] for head in range(heads.shape[1])]
        outputs = attention_outputs(runner, point, heads, target, alternatives)
        differs = torch.stack([differs[:, changed].any(1) for changed in alternatives])
        values = base.last("residual_before")[block] + outputs
        return _Replacement(stage, values, ("batch", "position"), differs)
    elif isinstance(point, MixturePoint):
        differs = differs.transpose(0, 1)
        if "expert" in axes:
            values = _mixtures(point, base, target)
        else:
            values = target.sum(1)[None]
            differs = differs.any(0, keepdim=True)
        if stage is not None:
            values = base.last("residual_between")[block] + values
        return _Replacement(stage, values, ("batch", "position"), differs)
    return _Replacement(stage, target[None], names, differs[None])


def attention_outputs(
    runner: Runner,
    point: AttentionPoint,
    heads: Tensor,
    target: Tensor,
    alternatives: Sequence[list[int]],
) -> Float[Tensor, "alternative batch position dim"]:
    """Return the output of an attention with some heads as in ``target``, for each alternative."""
    outputs = []
    assert point.out_proj is not None
    with evaluating(point.out_proj), suspended():
        for changed in alternatives:
            new_heads = heads.clone()
            new_heads[:, changed] = target[:, changed]
            outputs.append(point.out_proj(new_heads.transpose(1, 2).flatten(2)))
    return torch.stack(outputs)


def _mixtures(
    point: MixturePoint, base: Captured, target: Tensor
) -> Float[Tensor, "expert batch position dim"]:
    """Return the output of a mixture with the weighted output of each expert as in ``target``."""
    choices, shares, outputs = (base.last(kind)[point.name] for kind in _kinds("experts"))
    weighted = shares[..., None] * outputs
    others = [
        weighted.masked_fill((choices == expert)[..., None], 0).sum(2)
        for expert in range(point.experts)
    ]
    return torch.stack(others) + target.transpose(0, 1)


def _stage(runner: Runner, point: HookPoint, site: Site | Inner) -> Stage | None:
    """Return the stage of the residual stream that includes a site's output.

    None if the site itself must be edited: the block then runs with all that changes its output.
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
        is_separate = point.post_norm or is_changed(point.module, "output")
        return None if is_separate else "residual"
    if not isinstance(point, AttentionPoint):
        return "residual"
    attentions = of_kind(runner.points, AttentionPoint)
    num_attentions = sum(attention.block is block.module for attention in attentions)
    if num_attentions > 1 or is_changed(block.between, "first input"):
        return None
    if site == "attention":
        return "residual_between"
    if is_changed(point.out_proj, "output") or is_changed(point.residual_writer, "output"):
        return None
    return None if point.post_norm else "residual_between"


Cell = tuple[int, ...]
"""A place within a layer: an index on each further axis."""


def _starts(replacement: _Replacement, axes: Sequence[Axis]) -> dict[Cell, int]:
    """Return the first position that differs, for each place with a difference."""
    differs = replacement.differs.any(1)  # in some text
    names = [name for name in replacement.names if name != "batch"]
    starts: dict[Cell, int] = {}
    for alternative, *place in sorted(differs.nonzero().tolist(), key=lambda index: index[-1]):
        index = dict(zip(names, place, strict=True))
        starts.setdefault(tuple(index.get(axis, alternative) for axis in axes[1:]), place[-1])
    return starts


def _copies(
    replacement: _Replacement, axes: Sequence[Axis], layer: int, cells: Sequence[Cell], start: int
) -> _Written:
    """Return the new values of a layer in copies of the texts, one for each place.

    Copies for places of other layers have none.
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
    values = replacement.values
    if len(values) > 1:
        values = values[alternatives]
    return _Written(values[..., start:, :], torch.stack(masks), replacement.names[1] == "neuron")


def _batches(
    starts: Mapping[Cell, int], replacements: Mapping[int, _Replacement], most: int
) -> Iterator[list[Cell]]:
    """Yield groups of at most ``most`` places, each with its layer, that are run together.

    The first positions of a group lie in the same quarter of the text. Its places belong to one
    layer, unless their layers have the same stage.
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
    source: Captured | None,
    over: Over | None = None,
) -> Tensor:
    """Return the new values of a site with the axes of :func:`_names`.

    They are those of the run ``source``, their mean, or zeros. For experts, the values are what
    each of them adds to the residual stream.
    """
    values = _values(site, point, base)
    if source is None:
        return torch.zeros_like(values)
    source_values = _values(site, point, source)
    if over is None:
        return source_values
    position_dim = _names(site).index("position")
    length = values.shape[position_dim]
    source_length = source_values.shape[position_dim]
    if over != "all" and length != source_length:
        raise InputError(
            got=f"a mean for each of {length} positions, from reference texts of {source_length}",
            expected="texts of equal length",
            fix="Use such texts, or mean='all'.",
        )
    wide = torch.promote_types(values.dtype, torch.float32)
    dims = (0,) if over == "position" else (0, position_dim)
    mean = source_values.to(wide).mean(dims, keepdim=True)
    return mean.to(values.dtype).expand_as(values)


def _values(site: Site | Inner, point: HookPoint, seen: Captured) -> Tensor:
    """Return the captured values of a site with the axes of :func:`_names`."""
    if site == "neurons":
        return seen.last(site)[point.name].transpose(1, 2)[..., None]
    if not isinstance(point, MixturePoint):
        return seen.last(site)[point.name]
    choices, shares, outputs = (seen.last(kind)[point.name] for kind in _kinds(site))
    by_expert: list[Tensor] = []
    for expert in range(point.experts):
        weights = (choices == expert) * shares
        by_expert.append((weights[..., None] * outputs).sum(2))
    return torch.stack(by_expert, 1).to(outputs.dtype)


def _names(site: Site | Inner) -> tuple[str, ...]:
    """Return the names of the axes of :func:`_values`."""
    if site == "experts":
        return ("batch", "expert", "position", "dim")
    if site == "neurons":
        return ("batch", "neuron", "position", "dim")
    return tuple("position" if name in ("query", "key") else name for name in AXES[site])


def _places(
    axes: Sequence[Axis], site: Site | Inner, point: HookPoint, seen: Captured
) -> tuple[int, ...]:
    """Return the number of places on each axis after the layer."""
    shape = dict(zip(_names(site), _values(site, point, seen).shape, strict=True))
    return tuple(shape[axis] for axis in axes[1:])


def _axes(site: Site | Inner, by: Sequence[Axis] | None) -> tuple[Axis, ...]:
    if site not in SWEPT:
        raise InputError(
            got=f"site = {site!r}",
            expected=f"one of {', '.join(SWEPT)}",
            fix=meant_site(site, SWEPT),
        )
    within_layer = [name for name in _names(site) if name in get_args(Axis)]
    known = ("layer", *within_layer)
    axes = known[:2] if by is None else tuple(by)
    in_order = [axis for axis in known if axis in axes]
    if axes[:1] != ("layer",) or list(axes) != in_order:
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
    """Estimate :func:`patch_sweep` from gradients, for all places at once: attribution patching::

        value = corrupted metric + sum over the place of  (clean - corrupted) * gradient
        gradient = d metric / d corrupted

    It costs two forward passes (one for an ablation) and a backward pass. With ``steps`` above 1
    the gradient is the mean over as many runs, whose embeddings are interpolated between the two
    texts (integrated gradients). This is better where the metric saturates. The quality of the
    estimate depends on the model: :meth:`Sweep.agreement` compares it with an exact sweep.

    Args:
        model: As for :func:`patch_sweep`, like the other arguments.
        clean: The clean texts. None: values of 0, an estimate of :func:`ablation_sweep` of
            ``corrupted``, from one run and its backward pass.
        steps: Number of runs with a backward pass; 1 without clean texts.

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
    runs = prepared(corrupted) if clean is None else prepared(clean, corrupted)
    runner = Runner(model, metric, logits, part)
    points = runner.places(site)
    _check_added_as_they_are(points)
    clean_run: Captured | None = None
    clean_embeddings: Mapping[str, Tensor] = {}
    if clean is not None:
        with torch.no_grad(), capture(model, what=(*_kinds(site), "embedding")) as clean_run:
            clean_metric = runner.run(runs[0])
        clean_embeddings = clean_run.last("embedding")
    if steps > 1:
        with torch.no_grad(), capture(model, what=_kinds(site)) as corrupted_run:
            corrupted_metric = runner.run(runs[1])
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        fraction = (step + 0.5) / steps if steps > 1 else 0.0
        seen, metric_values = _differentiated_run(
            runner, runs[-1], site, points, clean_embeddings, fraction
        )
        for name, record in _site_records(seen, site, points).items():
            gradient = record.grad
            if gradient is None:
                gradient = torch.zeros_like(record.values)
            gradients[name] = gradients.get(name, 0) + gradient / steps
    if steps == 1:
        corrupted_run = seen
        corrupted_metric = metric_values
    rows: list[Tensor] = []
    summed_dims = [dim for dim, name in enumerate(_names(site)) if name not in axes]
    for _, point in sorted(points.items()):
        gradient = gradients[point.name]
        if site == "experts":
            gradient = gradient[:, None]
        if site == "neurons":
            gradient = gradient.transpose(1, 2)[..., None]
        new_values = _target(site, point, corrupted_run, clean_run).double()
        difference = new_values - _values(site, point, corrupted_run).double()
        rows.append((difference * gradient.double()).sum(summed_dims))
    corrupted_mean = float(corrupted_metric.double().mean())
    values = torch.stack(rows).detach() + corrupted_mean
    layers = tuple(sorted(points))
    if clean is None:
        return Sweep(values, axes, layers, corrupted_mean, site=site, passes=runner.passes)
    clean_mean = float(clean_metric.double().mean())
    return Sweep(values, axes, layers, clean_mean, corrupted_mean, site=site, passes=runner.passes)


def _check_added_as_they_are(points: Mapping[int, HookPoint]) -> None:
    """Refuse experts whose sum is normalised or edited: its gradient is not that of their sum."""
    for mixture in of_kind(points.values(), MixturePoint):
        if mixture.post_norm or is_changed(mixture.module, "output"):
            raise InputError(
                got=(
                    f"an estimate for the experts of {mixture.name}, whose sum is normalised or "
                    "changed before it is added"
                ),
                expected="experts that are added as they are",
                fix="Use patch_sweep(), or the site ffn.",
            )


def _differentiated_site(site: Site | Inner) -> str:
    """Return the site whose gradient is taken; experts have that of their sum."""
    return "ffn" if site == "experts" else site


def _site_records(
    seen: Captured, site: Site | Inner, points: Mapping[int, HookPoint]
) -> dict[str, Record]:
    """Return the last record of each hook point, with its gradient."""
    by_module = seen.of(_differentiated_site(site))
    return {point.name: by_module[point.name][-1] for point in points.values()}


def _differentiated_run(
    runner: Runner,
    texts: Mapping[str, Tensor],
    site: Site | Inner,
    points: Mapping[int, HookPoint],
    ends: Mapping[str, Tensor],
    fraction: float,
) -> tuple[Captured, Tensor]:
    """Return a run with gradients of a site, and its metric.

    The embeddings lie at a ``fraction`` of the way to ``ends``, those of the clean texts by module;
    without any, they are those of the texts.
    """
    leaves: list[Tensor] = []
    if ends:
        edits = [
            change("embedding", partial(_interpolated, leaves, end, fraction), modules=[name])
            for name, end in ends.items()
        ]
    else:
        edits = [change("embedding", partial(_leaf, leaves))]
    target = _differentiated_site(site)
    if is_edited() or runner.alone:  # edits or hooks may cut the stream off from the embeddings
        modules = [point.name for point in points.values()]
        edits.append(change(target, partial(_started, leaves), modules=modules))
    model = runner.model
    with torch.enable_grad(), intervene(model, *edits):
        with capture(model, what=(*_kinds(site), target), retain_grad=True) as seen:
            metric_values = runner.differentiated(texts, leaves)
        require_one_call(model, seen)
    return seen, metric_values


def _interpolated(leaves: list[Tensor], end: Tensor, fraction: float, start: Tensor) -> Tensor:
    """Return a leaf at a ``fraction`` of the way from ``start`` to ``end``."""
    return _leaf(leaves, torch.lerp(start.detach(), end, fraction))


def _leaf(leaves: list[Tensor], values: Tensor) -> Tensor:
    """Return ``values`` as a leaf of the graph."""
    leaves.append(values.detach().requires_grad_())
    return leaves[-1]


def _started(leaves: list[Tensor], values: Tensor) -> Tensor:
    """Return ``values`` with a gradient, whether or not the embeddings reach them."""
    if not values.requires_grad:
        values = values.detach().requires_grad_()
    leaves.append(values)
    return values


def prepared(*runs: Tensor | Mapping[str, Any]) -> list[Mapping[str, Tensor]]:
    """Return the texts of each run as named tensors, of equal shapes."""
    named = [texts if isinstance(texts, Mapping) else {"": texts} for texts in runs]
    for texts in named:
        _check_tensors(texts)
    shapes = [{name: tuple(tensor.shape) for name, tensor in texts.items()} for texts in named]
    if any(shape != shapes[0] for shape in shapes):
        raise InputError(
            got=f"texts of {' and '.join(map(str, shapes))}",
            expected="equal shapes",
            fix="Use texts of equal length.",
        )
    first = named[0]
    if any("decoder" in name for name in first):
        return named
    for name in ("key_padding", "attention_mask"):
        if any(name in texts and not torch.equal(texts[name], first[name]) for texts in named):
            raise InputError(
                got=f"clean and corrupted texts with other padding, by their {name}",
                expected="the same padding in each pair",
                fix="Pair texts of equal length.",
            )
    return named


def _check_tensors(texts: Mapping[str, Any]) -> None:
    """Refuse arguments that are no tensors with a row for each text."""
    for name, tensor in texts.items():
        if isinstance(tensor, Tensor):
            form: object = list(tensor.shape)
        else:
            form = type(tensor).__name__
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InputError(
                got=f"{name or 'texts'} of {form}",
                expected="a tensor with a row for each text",
                fix="Pass token ids [batch, position], and masks.",
            )
