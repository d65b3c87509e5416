"""Activation patching over all places of a kind: what each of them carries of the difference between two texts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from glassformer.errors import require, require_positive
from glassformer.observe.capture import capture, find_hook_points
from glassformer.observe.captured import AXES
from glassformer.observe.edits import Edit, change, put
from glassformer.observe.hook_points import ROLES, Selection, select
from glassformer.observe.intervene import intervene

Site = Literal["residual_before", "residual_between", "residual", "attention", "ffn", "heads", "q", "k", "v"]
SWEPT: tuple[Site, ...] = get_args(Site)

Metric = Callable[[Tensor], Tensor]
"""From logits [batch, position, class] to one number for each text [batch], or to their mean []."""

Axis = Literal["layer", "head", "position"]


@dataclass(frozen=True, eq=False)
class Sweep:
    """The metric with each place patched.

    Args:
        values: One number for each place, the mean over texts; NaN where the sweep was interrupted.
        axes: The names of the axes of ``values``, "layer" first.
        layers: The layers on the first axis.
        clean: The metric of the clean run.
        corrupted: That of the corrupted run, in which a place is given its clean value.
    """

    values: Float[Tensor, " layer *place"]
    axes: tuple[Axis, ...]
    layers: tuple[int, ...]
    clean: float
    corrupted: float

    @property
    def restored(self) -> Float[Tensor, " layer *place"]:
        """The share of the difference that each place restores: 0 as corrupted, 1 as clean."""
        return (self.values - self.corrupted) / (self.clean - self.corrupted)

    def agreement(self, other: Sweep) -> float:
        """The correlation of the effects of all places with those of another sweep over the same places, in [-1, 1].

        Raises:
            InputError: A sweep over other places, or effects that are all equal.
        """
        fits = self.axes == other.axes and self.layers == other.layers and self.values.shape == other.values.shape
        require(fits, f"sweeps over {self.axes} and {other.axes}", "the same places", "Sweep the same site and layers.")
        both = torch.stack([self.values.flatten(), other.values.flatten()]).double()
        found = float(torch.corrcoef(both)[0, 1])
        require(
            math.isfinite(found), "effects without a spread, or interrupted", "different effects", "Check the metric."
        )
        return found


def patch_sweep(
    model: nn.Module,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    site: Site = "heads",
    by: Sequence[Axis] | None = None,
    layers: Selection | None = None,
    logits: Selection = -1,
    batch_size: int = 128,
    progress: bool = False,
) -> Sweep:
    """Run the corrupted texts once for each place, with that place's value of the clean run.

    Only what a patch can change is computed: the layers from the patched one on, from the stored residual stream, for
    several places in one batch; and the logits of the positions that the metric reads.

    Args:
        model: A decoder or an encoder of glassformer, or of ``transformers``.
        clean: Token ids [batch, position], or the arguments of the model by name, tensors with a row for each text.
        corrupted: The same, of the same shapes.
        metric: See :data:`Metric`; of the logits at the positions ``logits``.
        site: What is patched; see :func:`~glassformer.observe.capture.capture`.
        by: The axes of places: ("layer", "head") for ``heads`` and ``q`` (of ``k`` and ``v``, key-value heads),
            ("layer", "position") for the others by default; ("layer",), or ("layer", "head", "position").
        layers: Which layers; all when None.
        logits: Positions of the logits that the metric reads.
        batch_size: Most texts in one forward pass, which bounds the memory.
        progress: Show a bar. Ctrl-C ends the sweep; places that are not reached are NaN.

    Raises:
        InputError: Texts of different shapes, an unknown site or axis, or a metric that gives NaN or another shape.

    Source: Vig et al. 2020, arXiv 2004.12265; Meng et al. 2022, arXiv 2202.05262 (activation patching).
    """
    require_positive(batch_size=batch_size)
    runner, given, axes = prepared(model, clean, corrupted, metric, site, by, logits)
    points = {point.layer: point for point in runner.points if ROLES[site] == point.role and not point.cross}
    chosen = select("layers", layers, max(points, default=-1) + 1)
    with torch.no_grad():
        with capture(model, what=site) as seen:
            best = runner.run(given[0])
        ours = seen.last(site)
        with capture(model, what=(site, "residual_before")) as seen:
            worst = runner.run(given[1])
        before = {record.layer: record.values for record in seen.records if record.what == "residual_before"}
        sizes = [ours[points[layer].name] for layer in chosen]
        places = [_places(axes, site, values) for values in sizes]
        found = torch.full((len(chosen), *(len(each) for each in places[0])), math.nan, dtype=torch.float64)
        cells = [list(product(*each)) for each in places]
        bar = tqdm(total=sum(map(len, cells)), disable=not progress, desc=f"patching {site}", unit="place")
        count = max(1, batch_size // len(next(iter(given[0].values()))))
        try:
            for row, layer in enumerate(chosen):
                for start in range(0, len(cells[row]), count):
                    part = cells[row][start : start + count]
                    edit = _patched(site, axes, part, layer, ours[points[layer].name])
                    values = runner.resumed(given[1], layer, before[layer], len(part), edit)
                    found[row].view(-1)[start : start + len(part)] = values.double().mean(1)
                    bar.update(len(part))
        except KeyboardInterrupt:
            pass
        finally:
            bar.close()
    return Sweep(found, axes, chosen, float(best.double().mean()), float(worst.double().mean()))


def attribution_sweep(
    model: nn.Module,
    clean: Tensor | Mapping[str, Any],
    corrupted: Tensor | Mapping[str, Any],
    metric: Metric,
    *,
    site: Site = "heads",
    by: Sequence[Axis] | None = None,
    logits: Selection = -1,
    steps: int = 1,
) -> Sweep:
    """An estimate of :func:`patch_sweep` from gradients, for all places at once: attribution patching::

        value = corrupted metric + sum over the place of  (clean - corrupted) * d metric / d corrupted

    It costs two forward passes and one backward pass. With ``steps`` above 1 the gradient is the mean over as many runs
    between the two texts, whose embeddings are interpolated (integrated gradients): better where the metric saturates.
    How good the estimate is depends on the model: :meth:`Sweep.agreement` compares it with an exact sweep.

    Args:
        model: As for :func:`patch_sweep`, and so are the others.
        steps: Runs with a backward pass.

    Raises:
        InputError: As there.

    Source: Nanda 2023, "Attribution Patching"; Syed et al. 2023, arXiv 2310.10348; Hanna et al. 2024, arXiv 2403.17806
    (integrated gradients over the embeddings).
    """
    require_positive(steps=steps)
    runner, given, axes = prepared(model, clean, corrupted, metric, site, by, logits)
    points = {point.layer: point for point in runner.points if ROLES[site] == point.role and not point.cross}
    with torch.no_grad():
        with capture(model, what=(site, "embedding")) as ours:
            best = runner.run(given[0])
        with capture(model, what=(site, "embedding")) as theirs:
            worst = runner.run(given[1])
    (start,), (stop,) = theirs.last("embedding").values(), ours.last("embedding").values()
    means: dict[str, Tensor] = {}
    for step in range(steps):
        along = (step + 0.5) / steps if steps > 1 else 0.0
        leaf = torch.lerp(start, stop, along).requires_grad_()
        with torch.enable_grad(), intervene(model, put("embedding", leaf)):
            with capture(model, what=site, retain_grad=True) as seen:
                total = runner.run(given[1]).sum() / worst.numel()
            torch.autograd.backward(total, inputs=[leaf])
        for record in seen.records:
            gradient = record.grad
            assert gradient is not None
            means[record.name] = means.get(record.name, 0) + gradient / steps
    rows = []
    for _, point in sorted(points.items()):
        flow = (ours.last(site)[point.name] - theirs.last(site)[point.name]) * means[point.name]
        names = ["batch", *("position" if name in ("query", "key") else name for name in AXES[site][1:])]
        rows.append(flow.sum([names.index(name) for name in names if name not in axes]))
    worst_mean = float(worst.double().mean())
    return Sweep(torch.stack(rows) + worst_mean, axes, tuple(sorted(points)), float(best.double().mean()), worst_mean)


def prepared(
    model: nn.Module,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    site: str,
    by: Sequence[Axis] | None,
    logits: Selection,
) -> tuple[Runner, list[Mapping[str, Tensor]], tuple[Axis, ...]]:
    """What runs the model, the clean and the corrupted texts as named tensors, and the axes of places; all checked."""
    require(site in SWEPT, f"site = {site!r}", f"one of {', '.join(SWEPT)}", "Choose one of these.")
    given = [texts if isinstance(texts, Mapping) else {"": texts} for texts in (clean, corrupted)]
    shapes = [{name: tuple(each.shape) for name, each in texts.items()} for texts in given]
    same = shapes[0] == shapes[1]
    require(same, f"texts of {shapes[0]} and {shapes[1]}", "equal shapes", "Use texts of equal length.")
    return Runner(model, metric, logits), given, _axes(site, by)


def _axes(site: str, by: Sequence[Axis] | None) -> tuple[Axis, ...]:
    by_head = "head" in AXES[site]
    axes = tuple(by) if by is not None else ("layer", "head") if by_head else ("layer", "position")
    known = ("layer", "head", "position") if by_head else ("layer", "position")
    fits = axes[:1] == ("layer",) and list(axes) == [axis for axis in known if axis in axes]
    require(fits, f"by = {axes} for {site}", f"layer first, then some of {known[1:]}", "Choose among these.")
    return axes


def _places(axes: Sequence[str], site: str, values: Tensor) -> list[range]:
    names = ("batch", *("position" if name in ("query", "key") else name for name in AXES[site][1:]))
    return [range(values.shape[names.index(axis)]) for axis in axes[1:]]


def _patched(site: str, axes: Sequence[str], cells: Sequence[tuple[int, ...]], layer: int, clean: Tensor) -> Edit:
    """The edit of ``len(cells)`` copies of the batch, each with its own cell."""
    names = ("batch", *("position" if name in ("query", "key") else name for name in AXES[site][1:]))
    order = [names.index(axis) for axis in axes[1:]]

    def patched(values: Tensor) -> Tensor:
        new = values.unflatten(0, (len(cells), -1)).clone()
        for copy, cell in zip(new, cells, strict=True):
            index: list[Any] = [slice(None)] * copy.dim()
            for axis, place in zip(order, cell, strict=True):
                index[axis] = place
            copy[tuple(index)] = clean[tuple(index)]
        return new.flatten(0, 1)

    return change(site, patched, layers=layer)


class _Done(Exception):
    """The logits are there."""


class Runner:
    """Runs a model from a layer on, for several copies of the texts, and takes the metric of each copy."""

    def __init__(self, model: nn.Module, metric: Metric, logits: Selection) -> None:
        self.points = find_hook_points(model)
        self._model, self._metric, self._logits = model, metric, logits
        self._blocks = [point for point in self.points if point.role == "block"]
        heads = [point for point in self.points if point.role == "logits"]
        require(
            len(heads) == 1 and not any(point.source for point in self.points),
            f"{type(model).__name__}, which has no logits, or two stacks",
            "a decoder, or an encoder with a classifier",
            "Load the model with its head.",
        )
        self._head = heads[0].module

    def run(self, texts: Mapping[str, Tensor], copies: int = 1) -> Float[Tensor, "copy text"]:
        """The metric of each text of each copy, or one number for each copy."""
        repeated = {name: each.repeat(copies, *[1] * (each.dim() - 1)) for name, each in texts.items()}
        found: list[Tensor] = []

        def shorten(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if args[0].dim() == 2:
                return None
            return (args[0][:, list(select("logits", self._logits, args[0].shape[1]))],)

        def note(_: nn.Module, __: Any, output: Tensor) -> None:
            found.append(output)
            raise _Done  # what the model does with so few logits is not needed

        hooks = self._head.register_forward_pre_hook(shorten), self._head.register_forward_hook(note)
        try:
            self._model(repeated[""]) if "" in repeated else self._model(**repeated)
        except _Done:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        logits = found[-1] if found[-1].dim() == 3 else found[-1][:, None]
        values = torch.stack([self._metric(copy).reshape(-1) for copy in logits.unflatten(0, (copies, -1))])
        require(
            bool(values.isfinite().all()), "a metric that is NaN or infinite", "finite numbers", "Check the metric."
        )
        return values

    def resumed(self, texts: Mapping[str, Tensor], layer: int, stored: Tensor, copies: int, edit: Edit) -> Tensor:
        """:meth:`run` with an edit, from ``layer`` on, whose input is ``stored``."""
        resume = change("residual_before", lambda _: stored.repeat(copies, 1, 1), layers=layer)
        with ExitStack() as attached:
            for point in self._blocks:
                if point.layer < layer:
                    attached.enter_context(_skipped(point.module))
            attached.enter_context(intervene(self._model, resume, edit))
            return self.run(texts, copies)


@contextmanager
def _skipped(block: nn.Module) -> Iterator[None]:
    """Let a block return its input, in this thread."""
    thread, forward = threading.get_ident(), block.forward

    def skip(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return forward(*args, **kwargs)
        return args[0] if args else kwargs["hidden_states"]

    own = vars(block).get("forward")
    block.forward = skip
    try:
        yield
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own
